#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# examples/run.sh [ARGUMENT...]: builds examples/text_memory and runs it with the arguments given; --help lists them.
# On Debian it installs the packages that are missing. Needs no GPU and no CUDA.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
build=$root/build/examples
# shellcheck source=../cmake/debian_packages.sh
source "$root/cmake/debian_packages.sh"

require_packages g++=g++ cmake=cmake ninja-build=ninja libeigen3-dev=/usr/include/eigen3/Eigen/Core \
  libcli11-dev=/usr/include/CLI/CLI.hpp nlohmann-json3-dev=/usr/include/nlohmann/json.hpp

drop_moved_build "$root" "$build"
if [[ ! -f $build/build.ninja ]]; then
  say "configuring $build"
  quietly "$build/configure.log" cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DPOLYSTATE_CUDA=OFF -DPOLYSTATE_BUILD_TESTS=OFF -DPOLYSTATE_BUILD_EXAMPLES=ON -DPOLYSTATE_INSTALL=OFF \
    -DCMAKE_RUNTIME_OUTPUT_DIRECTORY="$build/bin"
fi
say "building text_memory"
quietly "$build/build.log" cmake --build "$build" --target text_memory
exec "$build/bin/text_memory" "$@"
