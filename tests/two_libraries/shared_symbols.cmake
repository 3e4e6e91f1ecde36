# SPDX-License-Identifier: Apache-2.0
# cmake -D NM= -D FIRST= -D SECOND= -P shared_symbols.cmake
# Of the code that depends on the build, each of two libraries exports something (or this test would see nothing), no
# name is in both, and no kernel is exported at all. Names are taken mangled: CMake's lists and brackets do not mix.
cmake_minimum_required(VERSION 3.25)

function(exported_symbols library result)
  execute_process(COMMAND ${NM} --dynamic --defined-only --format=posix ${library} OUTPUT_VARIABLE text
                  COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^\n]+" lines "${text}")
  list(TRANSFORM lines REPLACE " .*" "")
  list(FILTER lines INCLUDE REGEX "polystate")
  set(${result} ${lines} PARENT_SCOPE)
endfunction()

foreach(library IN ITEMS FIRST SECOND)
  exported_symbols(${${library}} all)

  set(kernels ${all})
  list(FILTER kernels INCLUDE REGEX "_kernel")
  if(kernels)
    message(SEND_ERROR "${${library}} exports kernels: ${kernels}")
  endif()

  set(${library}_code ${all})
  list(FILTER ${library}_code INCLUDE REGEX "16polystate_detail|12on_reference|7on_cuda|10visit_exec")
  list(LENGTH ${library}_code count)
  if(count EQUAL 0)
    message(SEND_ERROR "${${library}} exports nothing of ours that depends on the build")
  endif()
  message(STATUS "${${library}}: ${count} symbols of code that depends on the build")
endforeach()

foreach(symbol IN LISTS FIRST_code)
  if(symbol IN_LIST SECOND_code)
    message(SEND_ERROR "in both libraries: ${symbol}")
  endif()
endforeach()
