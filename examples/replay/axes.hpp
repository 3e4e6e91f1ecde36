// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// From a case's parameters to the structs of the three axes: the one place where names in a file become
/// types.

#include "case_file.hpp"

#include <polystate/recurrence.hpp>

#include <string>
#include <type_traits>

namespace replay {

/// A set of types to choose from.
template <class... Types>
struct type_list {};

/// Calls f(std::type_identity<T>{}) for the T whose T::name is the parameter's text; throws skipped if none
/// is.
template <class... Types, class F>
void visit_named(const case_file& file, const std::string& parameter, type_list<Types...>, F&& f) {
  const std::string& name = file.text(parameter);
  const bool found = ((name == Types::name && (f(std::type_identity<Types>{}), true)) || ...);
  if (!found) throw file.no_such_choice(parameter);
}

using delta_family = type_list<polystate::rule::linear, polystate::rule::gated, polystate::rule::delta,
                               polystate::rule::gated_delta>;

/// The rules of gated_delta_rule().
template <class F>
void visit_delta_family(const case_file& file, F&& f) {
  visit_named(file, "rule", delta_family{}, f);
}

}  // namespace replay
