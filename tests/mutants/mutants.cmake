# SPDX-License-Identifier: Apache-2.0
# What the mutants here become; their format stands in CMakeLists.txt.

find_package(Python3 COMPONENTS Interpreter)
if(NOT Python3_FOUND)
  message(STATUS "polystate: no mutants (they need Debian's python3)")
  return()
endif()
set(mutant_py ${CMAKE_CURRENT_LIST_DIR}/mutant.py)
set(mutants_dir ${PROJECT_BINARY_DIR}/mutants)
file(GLOB_RECURSE headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/*.hpp ${PROJECT_SOURCE_DIR}/include/*.cuh)
file(GLOB mutants CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.mutant)

# In the default suite, since they compile nothing.
add_test(NAME mutant_files.apply COMMAND Python3::Interpreter -B ${mutant_py} check ${mutants})
add_test(NAME mutant_files.format COMMAND Python3::Interpreter -B ${CMAKE_CURRENT_LIST_DIR}/mutant_test.py)

add_custom_target(mutants)
add_custom_target(gpu_mutants)

# A copy of a test program, built in the way that mutants are: not optimised on the host, and a mutant may leave a
# variable unused.
function(mutant_program name original group)
  get_target_property(sources ${original} SOURCES)
  get_target_property(folder ${original} SOURCE_DIR)
  foreach(source IN LISTS sources)
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${folder})
    list(APPEND absolute ${source})
  endforeach()
  add_executable(${name} EXCLUDE_FROM_ALL ${absolute})
  foreach(property IN ITEMS INCLUDE_DIRECTORIES COMPILE_DEFINITIONS COMPILE_OPTIONS LINK_OPTIONS LINK_LIBRARIES
                            CUDA_ARCHITECTURES)
    get_target_property(value ${original} ${property})
    if(value)
      set_target_properties(${name} PROPERTIES ${property} "${value}")
    endif()
  endforeach()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${mutants_dir})
  target_compile_options(${name} PRIVATE -w $<$<COMPILE_LANGUAGE:CXX>:-O0>)
  add_dependencies(${group} ${name})
endfunction()

function(mutant_test name wanted program)
  add_test(NAME mutants.${name} COMMAND Python3::Interpreter ${mutant_py} ${wanted} $<TARGET_FILE:${program}>)
  set_tests_properties(mutants.${name} PROPERTIES LABELS mutants FIXTURES_REQUIRED mutants_built)
endfunction()

set(gpu_listing "{}")
set(unmutated "")
foreach(mutant IN LISTS mutants)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${mutant})
  get_filename_component(name ${mutant} NAME_WE)
  file(STRINGS ${mutant} test REGEX "^(CUDA test|Test): ")
  if(NOT test MATCHES "^(CUDA test|Test): *([A-Za-z0-9_]+)$")
    message(FATAL_ERROR "${mutant} names no test program: it needs one line \"Test:\" or \"CUDA test:\"")
  endif()
  set(kind ${CMAKE_MATCH_1})
  set(original ${CMAKE_MATCH_2})
  if(kind STREQUAL "CUDA test")
    if(NOT POLYSTATE_CUDA)
      continue()
    endif()
    set(group gpu_mutants)
  else()
    set(group mutants)
  endif()
  if(NOT TARGET ${original})
    message(FATAL_ERROR "${mutant}: there is no test program ${original}")
  endif()

  mutant_program(mutant_${name} ${original} ${group})
  set(copy ${mutants_dir}/include/${name})
  add_custom_command(OUTPUT ${copy}.stamp
                     COMMAND Python3::Interpreter ${mutant_py} prepare ${mutant} ${PROJECT_SOURCE_DIR}/include ${copy}
                     COMMAND ${CMAKE_COMMAND} -E touch ${copy}.stamp
                     DEPENDS ${mutant} ${mutant_py} ${headers} VERBATIM)
  add_custom_target(mutant_${name}_headers DEPENDS ${copy}.stamp)
  add_dependencies(mutant_${name} mutant_${name}_headers)
  target_include_directories(mutant_${name} BEFORE PRIVATE ${copy})

  if(kind STREQUAL "CUDA test")
    string(JSON gpu_listing SET ${gpu_listing} ${name} "\"mutants/mutant_${name}\"")
  else()
    mutant_test(${name} red mutant_${name})
    # Red means something only where the same program is green without the mutant: once a program.
    if(NOT original IN_LIST unmutated)
      list(APPEND unmutated ${original})
      mutant_program(unmutated_${original} ${original} mutants)
      mutant_test(unmutated.${original} green unmutated_${original})
    endif()
  endif()
endforeach()
file(WRITE ${PROJECT_BINARY_DIR}/gpu_mutants.json "${gpu_listing}\n")

if(unmutated)
  add_test(NAME mutants.build COMMAND ${CMAKE_COMMAND} --build ${PROJECT_BINARY_DIR} --target mutants)
  set_tests_properties(mutants.build PROPERTIES LABELS mutants FIXTURES_SETUP mutants_built RUN_SERIAL ON TIMEOUT 3600)
endif()
