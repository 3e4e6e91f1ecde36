#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tests/gpu/run.sh [OPTION...]: runs the CUDA tests on this machine's GPU and writes the record of it.
#
#   --prebuilt BUNDLE     programs built elsewhere (below) instead of building here: a folder, or a .tar.xz file
#   --record FILE         where the record goes; default tests/gpu_verified.json. Programs not run now keep their
#                         entries
#   --only REGEX          of the programs, those whose name it finds
#   --mutants             also the CUDA mutants of tests/mutants, which must be red
#   --only-mutants REGEX  of the mutants, those whose name it finds
#   --no-sanitizer        without compute-sanitizer
#   --jobs N              programs at once, default 1; tests that need much memory are skipped where it is taken
#
# Each CTest entry with the label cuda (polystate_add_cuda_test) runs once as it is; of a GoogleTest program, the tests
# whose name contains "sanitizer", in either case, run again under compute-sanitizer's memcheck, racecheck and initcheck:
# name the small cases so (TEST(causal_conv1d_cuda, sanitizer_packed)), since a sanitizer makes a test 10 to 100
# times slower. A program without such a test is not sanitized. Exit status 0: everything passed, was clean, was red.
#
# To build on a machine without a GPU, then carry the bundle over (it needs bash, python3, nvidia-smi and
# compute-sanitizer there; the sources must be the same):
#   cmake -S . -B build/gpu -G Ninja -DPOLYSTATE_CUDA=ON
#   cmake --build build/gpu --target gpu_mutants       # for --mutants
#   tests/gpu/record.py hashes build/gpu --bundle build/gpu.tar.xz   # builds the programs
#   tests/gpu/run.sh --prebuilt build/gpu.tar.xz       # there
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
# shellcheck source=../../cmake/debian_packages.sh
source "$root/cmake/debian_packages.sh"

prebuilt='' mutants=0 arguments=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --prebuilt) prebuilt=${2:?--prebuilt needs a bundle}; shift ;;
    --mutants) mutants=1; arguments+=("$1") ;;
    --no-sanitizer) arguments+=("$1") ;;
    --record | --only | --only-mutants | --jobs) arguments+=("$1" "${2:?$1 needs a value}"); shift ;;
    *) sed -n '/^# tests\/gpu\/run.sh/,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
  esac
  shift
done

if ! nvidia-smi -L >/dev/null 2>&1; then
  say "no GPU here: nvidia-smi -L fails" >&2
  exit 1
fi

build=$prebuilt
if [[ -z $build ]]; then
  build=$root/build/gpu
  PATH=$PATH:/usr/local/cuda/bin
  drop_moved_build "$root" "$build"
  say "building the CUDA tests in $build"
  quietly "$build/configure.log" cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DPOLYSTATE_CUDA=ON \
    -DPOLYSTATE_BUILD_TESTS=ON
  if [[ $mutants -eq 1 ]]; then quietly "$build/mutants.log" cmake --build "$build" --target gpu_mutants; fi
  "$root/tests/gpu/record.py" hashes "$build"  # builds the programs
fi
exec "$root/tests/gpu/record.py" write "$build" "${arguments[@]}"
