#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tests/run.sh [--all]: builds tests, examples and benchmarks and runs them, the benchmarks for a moment each. On Debian
# it installs the packages that are missing. Where there is a GPU, CUDA programs are built and run. Elsewhere they count as
# skipped, with what tests/gpu_verified.json knows of them, and where there is nvcc those are built whose text is not that
# of their recorded run. It always says how far it is.
#
#   --all  also the labels mutants, nightly and long, every CUDA program where there is nvcc, and the presets cpu-asan and
#          tidy (which is the build with clang)
#
# The last line is "N passed, M failed, K skipped"; a build that fails counts as one failure. Exit status 0: none failed.
set -uo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
build=$root/build/tests
# shellcheck source=../cmake/debian_packages.sh
source "$root/cmake/debian_packages.sh"

passed=0 failed=0 skipped=0

finish() {
  printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
  [[ $failed -eq 0 ]]
  exit
}

# step COMMAND...: a command that is no test: one failure where it does not work.
step() {
  "$@" && return 0
  failed=$((failed + 1))
  return 1
}

# watched NAME COMMAND...: shows how far the command is; its output goes to a log of that name.
watched() {
  python3 -B "$root/tests/support/progress.py" "$root/build/results/$1.log" "${@:2}"
}

# run_tests NAME CTEST_ARGUMENT...: adds CTest's results to the counts.
run_tests() {
  local name=$1 results=$root/build/results/$1.xml counts status
  say "testing ($name)"
  shift
  rm -f "$results"
  watched "$name" ctest "$@" --no-tests=error --output-on-failure -j "$(nproc)" --output-junit "$results" 2>/dev/null
  status=$?
  if counts=$(python3 "$root/tests/support/junit_counts.py" "$results"); then
    read -r -a counts <<<"$counts"
    passed=$((passed + counts[0])) failed=$((failed + counts[1])) skipped=$((skipped + counts[2]))
    # CTest knows failures that are none of a test's, a timeout of its own among them.
    [[ $status -eq 0 || ${counts[1]} -gt 0 ]] && return
  fi
  tail -n 20 "${results%.xml}.log" >&2
  failed=$((failed + 1))
}

# preset NAME: configures, builds and tests one of CMakePresets.json.
preset() {
  say "building preset $1"
  step watched "$1-configure" cmake --preset "$1" || return
  step watched "$1-build" cmake --build --preset "$1" || return
  run_tests "$1" --preset "$1"
}

all=0
case ${1-} in
  --all) all=1 ;;
  '') ;;
  *) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
esac
cd "$root" || exit 2

packages=("g++=g++" cmake=cmake ninja-build=ninja python3=python3 pkg-config=pkg-config
  libeigen3-dev=/usr/include/eigen3/Eigen/Core libcli11-dev=/usr/include/CLI/CLI.hpp
  nlohmann-json3-dev=/usr/include/nlohmann/json.hpp libgtest-dev=/usr/include/gtest/gtest.h
  libbenchmark-dev=/usr/include/benchmark/benchmark.h)
if [[ $all -eq 1 ]]; then
  packages+=(clang=clang++ clang-tidy=clang-tidy python3-numpy=/usr/lib/python3/dist-packages/numpy)
fi
step require_packages "${packages[@]}" || finish

PATH=$PATH:/usr/local/cuda/bin
cuda=OFF gpu=0 programs=OFF
nvcc --version >/dev/null 2>&1 && cuda=ON
{ nvidia-smi -L || [[ -e /dev/nvidia0 ]]; } >/dev/null 2>&1 && gpu=1

[[ $all -eq 1 || $gpu -eq 1 ]] && programs=$cuda

drop_moved_build "$root" "$build"
say "building in $build (CUDA $cuda)"
step watched configure cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DPOLYSTATE_CUDA=$cuda \
  -DPOLYSTATE_CUDA_PROGRAMS=$programs -DPOLYSTATE_BUILD_TESTS=ON -DPOLYSTATE_BUILD_EXAMPLES=ON \
  -DPOLYSTATE_BUILD_BENCHMARKS=ON || finish
targets=(all)
if [[ $cuda == ON && $gpu -eq 0 ]]; then
  step tests/gpu/record.py stale "$build" >"$root/build/results/stale.txt" || finish
  mapfile -t -O 1 targets <"$root/build/results/stale.txt"
  say "CUDA programs whose text is not that of their recorded run: $((${#targets[@]} - 1))"
fi
step watched build cmake --build "$build" --target "${targets[@]}" || finish

excluded=()
[[ $all -eq 0 ]] && excluded+=(mutants nightly long)
if [[ $gpu -eq 0 ]]; then excluded+=(cuda); fi
arguments=(--test-dir "$build")
[[ ${#excluded[@]} -gt 0 ]] && arguments+=(-LE "^($(IFS='|' && echo "${excluded[*]}"))\$")
run_tests default "${arguments[@]}"

if [[ $cuda == OFF || $gpu -eq 0 ]]; then
  knowledge=(tests/gpu/record.py verify)
  where="no GPU to run them"
  [[ $cuda == OFF ]] && where="no nvcc and no GPU to run them"
  [[ $cuda == ON ]] && knowledge+=(--build "$build")
  if verified=$("${knowledge[@]}"); then
    count=${verified##*: }
    say "$count CUDA programs known ($where)"
    printf '%s\n' "$verified" | head -n -1
    skipped=$((skipped + count))
  else
    failed=$((failed + 1))
  fi
fi

if [[ $all -eq 1 ]]; then
  preset cpu-asan
  preset tidy
fi
finish
