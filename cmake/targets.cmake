# SPDX-License-Identifier: Apache-2.0
# The targets that people link. They carry what a user's code needs and nothing else: warnings, sanitizers and
# architectures belong to cmake/development.cmake.
#
# Dependencies are found GLOBAL: a project that adds this one with add_subdirectory() links our targets from its own
# directory, where targets imported here would otherwise be unknown.

# polystate::headers: the contracts; no dependency.
add_library(polystate_headers INTERFACE)
add_library(polystate::headers ALIAS polystate_headers)
set_target_properties(polystate_headers PROPERTIES EXPORT_NAME headers)
target_compile_features(polystate_headers INTERFACE cxx_std_20)
target_include_directories(polystate_headers INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>)

# polystate::polystate: contracts and the reference, over Eigen. Defined without Eigen too, so that it can be installed;
# linking it then says that Eigen3::Eigen is missing.
add_library(polystate INTERFACE)
add_library(polystate::polystate ALIAS polystate)
find_package(Eigen3 3.4 QUIET GLOBAL)
if(NOT TARGET Eigen3::Eigen)
  message(STATUS "polystate: no Eigen 3.4 (Debian: libeigen3-dev), so polystate::polystate cannot be linked")
endif()
target_link_libraries(polystate INTERFACE polystate::headers Eigen3::Eigen)

# polystate::cuda: contracts and the CUDA backend.
if(POLYSTATE_CUDA)
  find_package(CUDAToolkit 13.0 REQUIRED GLOBAL)
  set(polystate_import_scope GLOBAL)
  include(${CMAKE_CURRENT_LIST_DIR}/polystate_cuda.cmake)
endif()
include(${CMAKE_CURRENT_LIST_DIR}/polystate_add_kernels.cmake)
