# SPDX-License-Identifier: Apache-2.0
# find_package(polystate [COMPONENTS ...]): a component is a target, and only its own dependencies are looked for.
#
#   headers    polystate::headers, the contracts: no dependency
#   polystate  polystate::polystate, contracts and reference: Eigen 3.4
#   cuda       polystate::cuda, contracts and CUDA backend, and polystate_add_kernels(): CUDA toolkit 13.0
#
# Without COMPONENTS: headers, and polystate where Eigen is installed. cuda is never implied: looking for the toolkit
# is slow, and who wants it enables CUDA too. Sets polystate_<component>_FOUND.

set(polystate_asked ${polystate_FIND_COMPONENTS})
if(NOT polystate_asked)
  set(polystate_asked headers polystate)
endif()

include(${CMAKE_CURRENT_LIST_DIR}/polystate_headers.cmake)
foreach(polystate_component IN LISTS polystate_asked)
  if(polystate_component STREQUAL "headers")
    set(polystate_headers_FOUND TRUE)
  elseif(polystate_component STREQUAL "polystate")
    find_package(Eigen3 3.4 QUIET)
    if(TARGET Eigen3::Eigen)
      include(${CMAKE_CURRENT_LIST_DIR}/polystate_polystate.cmake)
      set(polystate_polystate_FOUND TRUE)
    else()
      set(polystate_reason "component polystate needs Eigen 3.4 (Debian: libeigen3-dev)")
    endif()
  elseif(polystate_component STREQUAL "cuda")
    find_package(CUDAToolkit 13.0 QUIET)
    if(CUDAToolkit_FOUND)
      include(${CMAKE_CURRENT_LIST_DIR}/polystate_cuda.cmake)
      include(${CMAKE_CURRENT_LIST_DIR}/polystate_add_kernels.cmake)
      set(polystate_cuda_FOUND TRUE)
    else()
      set(polystate_reason "component cuda needs the CUDA toolkit 13.0 or newer")
    endif()
  else()
    set(polystate_reason "no component ${polystate_component}: there are headers, polystate, cuda")
  endif()

  if(NOT polystate_${polystate_component}_FOUND AND polystate_FIND_REQUIRED_${polystate_component})
    set(polystate_FOUND FALSE)
    set(polystate_NOT_FOUND_MESSAGE "${polystate_reason}")
  endif()
endforeach()
unset(polystate_asked)
unset(polystate_component)
unset(polystate_reason)
