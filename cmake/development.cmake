# SPDX-License-Identifier: Apache-2.0
# What our own tests, examples and benchmarks are built with.

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_CXX_EXTENSIONS OFF)

find_program(POLYSTATE_CCACHE ccache)
if(POLYSTATE_CCACHE AND PROJECT_IS_TOP_LEVEL)
  # Paths below this folder are hashed relative to it: a clone elsewhere finds what was compiled here.
  set(launcher ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=true ${POLYSTATE_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${launcher})
endif()

if(NOT TARGET Eigen3::Eigen)
  message(FATAL_ERROR "polystate: tests and examples need Eigen 3.4 (Debian: libeigen3-dev)")
endif()
find_package(Threads REQUIRED)

# polystate_development: linked by everything that is ours. Warnings are errors.
add_library(polystate_development INTERFACE)
target_compile_options(
  polystate_development
  INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wconversion;-Werror>
            # Less garbage collection: about 6 % of the time, for 150 MB.
            $<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=600000>
            $<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:-Xcompiler=-Wall,-Wextra,-Wconversion,-Werror;--Werror=all-warnings>)

set(POLYSTATE_SANITIZE "" CACHE STRING "Sanitizers of our own programs, as in -fsanitize=: address,undefined")
if(POLYSTATE_SANITIZE)
  target_compile_options(
    polystate_development
    INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${POLYSTATE_SANITIZE};-fno-sanitize-recover=all;-fno-omit-frame-pointer>
  )
  target_link_options(polystate_development INTERFACE -fsanitize=${POLYSTATE_SANITIZE})
endif()

# For host code that runs briefly. Over Eigen, -Og takes half the compiler's time of -O1; programs built with -O0 compile
# no faster and run nine times as long.
function(polystate_compile_quickly target)
  target_compile_options(${target} PRIVATE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-Og>)
endfunction()

# A .cpp program on the host backends.
function(polystate_add_program name)
  cmake_parse_arguments(arg "" "" "SOURCES;LIBRARIES" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE polystate::polystate polystate_development Threads::Threads ${arg_LIBRARIES})
endfunction()

if(POLYSTATE_CUDA)
  # Each architecture costs the suite a quarter more time: some programs add 80-real, the floor.
  set(POLYSTATE_CUDA_ARCHITECTURES "90a-real" CACHE STRING "Architectures of our own CUDA programs")
  # tests/gpu/device_code.py reads the code in our programs.
  target_compile_options(polystate_development INTERFACE $<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:--no-compress>)
  set(polystate_exclude_cuda "")
  if(NOT POLYSTATE_CUDA_PROGRAMS)
    set(polystate_exclude_cuda EXCLUDE_FROM_ALL)
  endif()
endif()

# For a folder whose .cu units have host code that runs once: nvcc's -O is the host compiler's, and comes behind any other
# option. What the GPU runs stays as it is.
macro(polystate_compile_cuda_host_code_quickly)
  string(REPLACE "-O3" "-O1" CMAKE_CUDA_FLAGS_RELEASE "${CMAKE_CUDA_FLAGS_RELEASE}")
endmacro()

# A .cu program, in the target all with POLYSTATE_CUDA_PROGRAMS. Host helpers that need Eigen (the reference) go into .cpp files of HOST_SOURCES: a .cu never sees Eigen.
function(polystate_add_cuda_program name)
  cmake_parse_arguments(arg "" "" "SOURCES;HOST_SOURCES;LIBRARIES" ${ARGN})
  add_executable(${name} ${polystate_exclude_cuda} ${arg_SOURCES} ${arg_HOST_SOURCES})
  set_target_properties(${name} PROPERTIES CUDA_ARCHITECTURES "${POLYSTATE_CUDA_ARCHITECTURES}")
  target_link_libraries(${name} PRIVATE polystate::polystate polystate::cuda polystate_development Threads::Threads
                                        ${arg_LIBRARIES})
endfunction()
