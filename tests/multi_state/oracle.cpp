// SPDX-License-Identifier: Apache-2.0

// Compiled once for each recurrence, ORACLE_RULE.

#include "multi_state/oracle.hpp"
#include "multi_state/cells.hpp"

#include <polystate/reference/multi_state.hpp>

#include <array>
#include <cstddef>

namespace polystate::testing {

template <class Cell>
void run_reference(
    const multi_state_args<double, typename Cell::Rule, typename Cell::Separation, typename Cell::Router>& args) {
  multi_state(on_reference{}, args);
}
template <class Cell>
void step_reference(
    const multi_state_step_args<double, typename Cell::Rule, typename Cell::Separation, typename Cell::Router>& args) {
  multi_state_step(on_reference{}, args);
}
template <class Cell>
void read_reference(const multi_state_read_args<double, typename Cell::Rule, typename Cell::Router>& args) {
  multi_state_read(on_reference{}, args);
}

// Who takes an address keeps the function: explicit instantiations do not go through type lists.
namespace {
template <class... Cells>
std::array<const void*, sizeof...(Cells)> runs(::testing::Types<Cells...>) {
  return {reinterpret_cast<const void*>(&run_reference<Cells>)...};
}
template <class... Cells>
std::array<const void*, sizeof...(Cells)> steps(::testing::Types<Cells...>) {
  return {reinterpret_cast<const void*>(&step_reference<Cells>)...};
}
template <class... Cells>
std::array<const void*, sizeof...(Cells)> reads(::testing::Types<Cells...>) {
  return {reinterpret_cast<const void*>(&read_reference<Cells>)...};
}
}  // namespace

using cells = cells_of<rule::ORACLE_RULE>;
const void* keeps_runs_of(rule::ORACLE_RULE, std::size_t i) { return runs(cells::all{})[i]; }
const void* keeps_steps_of(rule::ORACLE_RULE, std::size_t i) { return steps(cells::stepping{})[i]; }
const void* keeps_reads_of(rule::ORACLE_RULE, std::size_t i) { return reads(cells::readable{})[i]; }

}  // namespace polystate::testing
