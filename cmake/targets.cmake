# The targets that people link. They carry what a user's code needs and nothing else: warnings, sanitizers and
# architectures belong to cmake/development.cmake.

# polystate::headers: the contracts; no dependency.
add_library(polystate_headers INTERFACE)
add_library(polystate::headers ALIAS polystate_headers)
set_target_properties(polystate_headers PROPERTIES EXPORT_NAME headers)
target_compile_features(polystate_headers INTERFACE cxx_std_20)
target_include_directories(polystate_headers INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                                       $<INSTALL_INTERFACE:include>)

# polystate::polystate: contracts and the host backends, over Eigen.
add_library(polystate INTERFACE)
add_library(polystate::polystate ALIAS polystate)
find_package(Eigen3 3.4 QUIET)
target_link_libraries(polystate INTERFACE polystate::headers Eigen3::Eigen)

# polystate::cuda: contracts and the CUDA backend. cxx_std_20 leaves nvcc at C++17, and CMake 3.25 knows no
# cuda_std_20 for nvcc 13, so the flag is passed by hand.
if(POLYSTATE_CUDA)
  enable_language(CUDA)
  find_package(CUDAToolkit 13.0 REQUIRED)
  add_library(polystate_cuda INTERFACE)
  add_library(polystate::cuda ALIAS polystate_cuda)
  set_target_properties(polystate_cuda PROPERTIES EXPORT_NAME cuda)
  target_compile_options(polystate_cuda INTERFACE $<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:-std=c++20>)
  target_link_libraries(polystate_cuda INTERFACE polystate::headers CUDA::cudart_static)
endif()
