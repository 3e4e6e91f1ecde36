# SPDX-License-Identifier: Apache-2.0
# cmake -D INCLUDE= -P macros.cmake: every macro that the headers define begins with POLYSTATE_.
file(GLOB_RECURSE headers ${INCLUDE}/polystate/*.hpp ${INCLUDE}/polystate/*.cuh)
foreach(header IN LISTS headers)
  file(STRINGS ${header} defines REGEX "^ *# *define ")
  list(FILTER defines EXCLUDE REGEX "^ *# *define +POLYSTATE_")
  if(defines)
    message(SEND_ERROR "${header}: ${defines}")
  endif()
endforeach()
