# SPDX-License-Identifier: Apache-2.0
# polystate::cuda, the one definition for this build and for the installed package: an installation made where there
# is no CUDA serves a machine that has it. Needs polystate::headers and a found CUDAToolkit.
if(NOT TARGET polystate::cuda)
  add_library(polystate::cuda INTERFACE IMPORTED ${polystate_import_scope})
  # cxx_std_20 leaves nvcc at C++17, and CMake 3.25 knows no cuda_std_20 for nvcc 13: the flag is passed by hand.
  target_compile_options(polystate::cuda INTERFACE $<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:-std=c++20>)
  # The runtime that CMake links for the target's CUDA sources, so that a program never holds two.
  target_link_libraries(
    polystate::cuda
    INTERFACE polystate::headers
              $<IF:$<STREQUAL:$<TARGET_PROPERTY:CUDA_RUNTIME_LIBRARY>,Shared>,CUDA::cudart,CUDA::cudart_static>)
endif()
