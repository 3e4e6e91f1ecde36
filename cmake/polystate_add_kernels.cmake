# SPDX-License-Identifier: Apache-2.0
# polystate_add_kernels(<target> OPERATOR <operator> DATA <type>... PASSES <pass>...
#                       [RULE <rule>] [SEPARATION <separation>] [ROUTER <router>] [STATE <type>]
#                       [DIMS <size>[,<size>...]...] [NAMESPACE <name>])
#
# Compiles kernels of one operator into a target that exists, one unit for each pass, type and DIMS, and writes a header
# of plain functions that any unit can call, those of g++ too (the policy on_cuda cannot cross to one):
#
#   add_library(layers layers.cpp)
#   polystate_add_kernels(layers OPERATOR gated_delta_rule DATA bfloat16 DIMS 128,128 PASSES forward step)
#
#   #include <layers/gated_delta_rule.hpp>
#   layers::gated_delta_rule(stream, args);   // also try_gated_delta_rule, gated_delta_rule_step, workspace_bytes
#
# The header is <namespace>/<operator>.hpp; NAMESPACE is the target's name unless given. Without DIMS a unit compiles
# the kernels of all sizes: minutes for a recurrence. With several DIMS a call takes the first that fits its operands.
# The units take the target's properties (architectures, position independent code). Their functions are hidden from
# users of a shared library. Needs polystate::cuda and the language CUDA.

# What each operator has: its passes, how many sizes DIMS may fix, and the template arguments of its args and its
# grads. A macro, since the function runs in folders that do not see this one's variables.
macro(polystate_describe_kernels)
  set(operators causal_conv1d selective_scan ssd gated_delta_rule segment_moments routing multi_state)
  set(types float half bfloat16)
  set(rules linear gated delta gated_delta)
  set(separations single uniform boundaries fenwick)
  set(routers none uniform position meanpool merlin cumulant)
  set(passes forward backward step)
  if(arg_OPERATOR STREQUAL "causal_conv1d")
    set(dims_sizes 1)
    set(args DATA)
  elseif(arg_OPERATOR STREQUAL "selective_scan")
    set(dims_sizes 1)
    set(args DATA STATE)
  elseif(arg_OPERATOR STREQUAL "ssd")
    set(dims_sizes 2)
    set(args DATA STATE)
  elseif(arg_OPERATOR STREQUAL "gated_delta_rule")
    set(dims_sizes 2)
    set(args DATA RULE STATE)
  elseif(arg_OPERATOR STREQUAL "segment_moments")
    set(passes forward backward)
    set(dims_sizes 1)
    set(args DATA SEPARATION)
    set(grads DATA)
  elseif(arg_OPERATOR STREQUAL "routing")
    set(passes forward backward)
    set(dims_sizes 1)
    set(args DATA SEPARATION ROUTER)
    set(grads DATA ROUTER)
  elseif(arg_OPERATOR STREQUAL "multi_state")
    set(passes forward step read)
    set(dims_sizes 2 3)
    set(args DATA RULE SEPARATION ROUTER STATE)
    set(read_args DATA RULE ROUTER STATE)
    list(APPEND rules ssd)
  endif()
  if(NOT DEFINED grads)
    set(grads ${args})
  endif()
endmacro()

# Fails where a value is none of those supported.
function(polystate_expect_one_of keyword values)
  foreach(value IN LISTS ARGN)
    if(NOT value IN_LIST values)
      list(JOIN values ", " supported)
      message(FATAL_ERROR "polystate_add_kernels: ${keyword} ${value}, supported: ${supported}")
    endif()
  endforeach()
endfunction()

# The axes in C++, as axis_DATA ... axis_STATE of the caller, for one type of data.
macro(polystate_spell_axes data)
  set(axis_DATA polystate::${data})
  if("${data}" STREQUAL "float")
    set(axis_DATA float)
  endif()
  set(axis_STATE polystate::${arg_STATE})
  if(arg_STATE STREQUAL "float")
    set(axis_STATE float)
  endif()
  set(axis_RULE polystate::rule::${arg_RULE})
  set(axis_SEPARATION polystate::separation::${arg_SEPARATION})
  set(axis_ROUTER polystate::router::${router})
  if(NOT router MATCHES "^(none|uniform)$")
    string(APPEND axis_ROUTER "<${axis_DATA}>")
  endif()
  if(arg_ROUTER MATCHES "^top_k<")
    set(axis_ROUTER "polystate::router::top_k<${axis_ROUTER}>")
  endif()
endmacro()

# The template arguments that axes make, "polystate::bfloat16, polystate::rule::delta, float".
function(polystate_join_axes result)
  set(spelled "")
  foreach(axis IN LISTS ARGN)
    list(APPEND spelled "${axis_${axis}}")
  endforeach()
  list(JOIN spelled ", " spelled)
  set(${result} "${spelled}" PARENT_SCOPE)
endfunction()

# C++ of one pass with one type of data: `call`, `operands` and `parameters` of the caller.
macro(polystate_spell_pass pass)
  set(call ${arg_OPERATOR})
  set(kind args)
  set(operands "args")
  set(axes ${args})
  if("${pass}" STREQUAL "backward")
    string(APPEND call _backward)
  elseif(NOT "${pass}" STREQUAL "forward")
    string(APPEND call _${pass})
    set(kind ${pass}_args)
  endif()
  if("${pass}" STREQUAL "read")
    set(axes ${read_args})
  endif()
  polystate_join_axes(template_arguments ${axes})
  set(parameters "const polystate::${arg_OPERATOR}_${kind}<${template_arguments}>& args")
  if("${pass}" STREQUAL "backward")
    polystate_join_axes(template_arguments ${grads})
    string(APPEND parameters ",\n    const polystate::${arg_OPERATOR}_grads<${template_arguments}>& grads")
    string(APPEND operands ", grads")
  endif()
endmacro()

function(polystate_add_kernels target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "OPERATOR;RULE;SEPARATION;ROUTER;STATE;NAMESPACE" "DATA;DIMS;PASSES")
  polystate_describe_kernels()

  get_property(languages GLOBAL PROPERTY ENABLED_LANGUAGES)
  if(NOT TARGET ${target})
    message(FATAL_ERROR "polystate_add_kernels: there is no target ${target}; add_library() or add_executable() it first")
  elseif(NOT TARGET polystate::cuda)
    message(FATAL_ERROR "polystate_add_kernels: there is no polystate::cuda; ask find_package for the component cuda, or "
                        "set POLYSTATE_CUDA before add_subdirectory or FetchContent")
  elseif(NOT "CUDA" IN_LIST languages)
    message(FATAL_ERROR "polystate_add_kernels: the language CUDA is not enabled; project(... LANGUAGES CXX CUDA)")
  elseif(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "polystate_add_kernels: unknown argument ${arg_UNPARSED_ARGUMENTS}")
  endif()
  foreach(keyword IN ITEMS OPERATOR DATA PASSES)
    if(NOT arg_${keyword})
      message(FATAL_ERROR "polystate_add_kernels: ${keyword} is missing")
    endif()
  endforeach()

  polystate_expect_one_of(OPERATOR "${operators}" ${arg_OPERATOR})
  foreach(keyword IN ITEMS RULE SEPARATION ROUTER STATE)
    if(DEFINED arg_${keyword} AND NOT keyword IN_LIST args)
      message(FATAL_ERROR "polystate_add_kernels: ${keyword} ${arg_${keyword}}, but ${arg_OPERATOR} has none")
    endif()
  endforeach()
  if(NOT DEFINED arg_STATE)
    set(arg_STATE float)
  endif()
  if(NOT DEFINED arg_RULE AND arg_OPERATOR STREQUAL "gated_delta_rule")
    set(arg_RULE gated_delta)
  endif()
  foreach(keyword IN LISTS args)
    if(NOT DEFINED arg_${keyword})
      message(FATAL_ERROR "polystate_add_kernels: ${arg_OPERATOR} needs ${keyword}")
    endif()
  endforeach()
  string(REGEX REPLACE "^top_k<(.*)>$" "\\1" router "${arg_ROUTER}")
  polystate_expect_one_of(DATA "${types}" ${arg_DATA})
  polystate_expect_one_of(STATE "${types}" ${arg_STATE})
  polystate_expect_one_of(RULE "${rules}" ${arg_RULE})
  polystate_expect_one_of(SEPARATION "${separations}" ${arg_SEPARATION})
  polystate_expect_one_of(ROUTER "${routers}" ${router})
  polystate_expect_one_of("the CUDA backend of ${arg_OPERATOR}: PASSES" "${passes}" ${arg_PASSES})

  # "64,128" as a C++ list and as a part of a name.
  if(NOT arg_DIMS)
    set(arg_DIMS "any")
  endif()
  foreach(dims IN LISTS arg_DIMS)
    string(REPLACE "," ";" sizes "${dims}")
    list(LENGTH sizes count)
    if(NOT dims STREQUAL "any" AND NOT dims MATCHES "^[1-9][0-9]*(,[1-9][0-9]*)*$")
      message(FATAL_ERROR "polystate_add_kernels: DIMS ${dims}, supported: numbers with commas between them, as 64,128")
    elseif(NOT dims STREQUAL "any" AND NOT count IN_LIST dims_sizes)
      list(JOIN dims_sizes " or " wanted)
      message(FATAL_ERROR "polystate_add_kernels: DIMS ${dims}, supported for ${arg_OPERATOR}: ${wanted} sizes")
    endif()
  endforeach()

  if(NOT DEFINED arg_NAMESPACE)
    string(MAKE_C_IDENTIFIER ${target} arg_NAMESPACE)
  endif()
  get_property(headers TARGET ${target} PROPERTY polystate_kernel_headers)
  set(header ${arg_NAMESPACE}/${arg_OPERATOR}.hpp)
  if(header IN_LIST headers)
    message(FATAL_ERROR "polystate_add_kernels: ${target} has <${header}> already; put all DATA, DIMS and PASSES into one "
                        "call, or give this one a NAMESPACE")
  endif()
  set_property(TARGET ${target} APPEND PROPERTY polystate_kernel_headers ${header})

  set(folder ${CMAKE_CURRENT_BINARY_DIR}/polystate_kernels/${target})
  set(written "// Written by polystate_add_kernels: what is changed here is lost.")
  set(stream "CUstream_st* stream")
  set(options "polystate::workspace scratch, bool batch_invariant")
  set(options_with_defaults "polystate::workspace scratch = {}, bool batch_invariant = false")
  set(declared "")
  set(public "")
  set(units "")
  list(LENGTH arg_DIMS shapes)
  list(JOIN arg_DIMS ">, dims<" compiled)
  foreach(data IN LISTS arg_DATA)
    polystate_spell_axes(${data})
    foreach(pass IN LISTS arg_PASSES)
      polystate_spell_pass(${pass})
      string(REGEX REPLACE "(args|grads)" "const auto& \\1" any_operands "${operands}")
      set(try_here "")
      set(bytes_here "")
      foreach(dims IN LISTS arg_DIMS)
        string(MAKE_C_IDENTIFIER "dims_${dims}" shape)
        string(REGEX REPLACE "^any$" "" sizes "${dims}")
        set(dims_type "polystate::dims<${sizes}>")
        string(APPEND declared "namespace ${shape} {
polystate::status try_${call}(
    ${stream}, ${parameters},
    ${options});
std::size_t workspace_bytes(
    ${parameters}, bool batch_invariant);
}  // namespace ${shape}

")
        set(if_it_fits "")
        if(shapes GREATER 1)
          set(if_it_fits "if (polystate::check<${dims_type}>(${operands}).ok()) ")
        endif()
        string(APPEND try_here "  ${if_it_fits}return ${shape}::try_${call}(stream, ${operands}, scratch, batch_invariant);\n")
        string(APPEND bytes_here "  ${if_it_fits}return ${shape}::workspace_bytes(${operands}, batch_invariant);\n")

        set(unit ${folder}/${arg_NAMESPACE}/${call}_${data}_${shape}.cu)
        file(CONFIGURE OUTPUT ${unit} @ONLY CONTENT "${written}
#include <${header}>
#include <polystate/cuda/${arg_OPERATOR}.cuh>

namespace ${arg_NAMESPACE}::${shape} {

polystate::status try_${call}(
    ${stream}, ${parameters},
    ${options}) {
  const polystate::on_cuda exec{.stream = stream, .workspace = scratch, .batch_invariant = batch_invariant};
  return polystate::try_${call}<${dims_type}>(exec, ${operands});
}

std::size_t workspace_bytes(
    ${parameters}, bool batch_invariant) {
  const auto bytes = [](const auto& exec, ${any_operands}) -> std::size_t {
    if constexpr (requires { polystate::workspace_bytes<${dims_type}>(exec, ${operands}); }) {
      return polystate::workspace_bytes<${dims_type}>(exec, ${operands});
    } else if constexpr (requires { polystate::workspace_bytes(exec, ${operands}); }) {
      return polystate::workspace_bytes(exec, ${operands});
    } else {
      return 0;  // this pass needs none
    }
  };
  return bytes(polystate::on_cuda{.batch_invariant = batch_invariant}, ${operands});
}

}  // namespace ${arg_NAMESPACE}::${shape}
")
        list(APPEND units ${unit})
      endforeach()

      if(shapes GREATER 1)
        string(PREPEND try_here "  if (polystate::status s = polystate::check(${operands}); !s.ok()) return s;\n")
        string(APPEND try_here "  return {polystate::error_code::unsupported, \"${call}\", \"sizes\",
          \"no kernel of these was compiled, supported: dims<${compiled}>\"};\n")
        string(APPEND bytes_here "  return 0;\n")
      endif()
      string(APPEND public "[[nodiscard]] inline polystate::status try_${call}(
    ${stream}, ${parameters},
    ${options_with_defaults}) {
${try_here}}
inline void ${call}(
    ${stream}, ${parameters},
    ${options_with_defaults}) {
  polystate::raise_on_error(try_${call}(stream, ${operands}, scratch, batch_invariant));
}
[[nodiscard]] inline std::size_t workspace_bytes(
    ${parameters}, bool batch_invariant = false) {
${bytes_here}}

")
    endforeach()
  endforeach()

  file(CONFIGURE OUTPUT ${folder}/${header} @ONLY CONTENT "${written}
#pragma once

/// @file
/// ${arg_OPERATOR} on CUDA, compiled by nvcc once, for units of any compiler. Its operands, and what it computes:
/// polystate/${arg_OPERATOR}.hpp. Calls are those of on_cuda: asynchronous on `stream` (null: the default one), scratch
/// memory from `scratch`, whose size workspace_bytes() gives, or else allocated in the stream's order.
/// try_ forms return a status, the others throw it.

#include <polystate/${arg_OPERATOR}.hpp>

#include <cstddef>

namespace ${arg_NAMESPACE} {

${declared}${public}}  // namespace ${arg_NAMESPACE}
")

  set_source_files_properties(
    ${units} TARGET_DIRECTORY ${target}
    PROPERTIES COMPILE_OPTIONS "$<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:-Xcompiler=-fvisibility=hidden>")
  target_sources(${target} PRIVATE ${units})
  # Its users may include the header: they need the contracts, and no CUDA.
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${folder}>)
  target_link_libraries(${target} PUBLIC polystate::headers PRIVATE polystate::cuda)
endfunction()
