# SPDX-License-Identifier: Apache-2.0
# cmake -D SOURCE= -D BUILD= -D PREFIX= -D GENERATOR= -D CXX= -P install.cmake
# Installs as one would on a machine that has neither Eigen nor CUDA, then moves the result to PREFIX.

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

run(${CMAKE_COMMAND} -S ${SOURCE} -B ${BUILD} -G ${GENERATOR} -D CMAKE_CXX_COMPILER=${CXX} -D POLYSTATE_CUDA=OFF
    -D POLYSTATE_BUILD_TESTS=OFF -D POLYSTATE_BUILD_EXAMPLES=OFF -D CMAKE_DISABLE_FIND_PACKAGE_Eigen3=ON)
file(REMOVE_RECURSE ${BUILD}/prefix ${PREFIX})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${BUILD}/prefix)
file(RENAME ${BUILD}/prefix ${PREFIX})

file(GLOB_RECURSE installed RELATIVE ${PREFIX} ${PREFIX}/*)
list(FILTER installed EXCLUDE REGEX
     "^(include/polystate/.*\\.(hpp|cuh)|share/(cmake/polystate/.*\\.cmake|pkgconfig/.*\\.pc|doc/polystate/LICENSE))$")
if(installed)
  message(FATAL_ERROR "installed, and neither header nor package file: ${installed}")
endif()
