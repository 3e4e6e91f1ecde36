// SPDX-License-Identifier: Apache-2.0
// UNIT is first or second.

#include "unit.hpp"

#include <polystate/adapters/mara_chain.hpp>
#include <polystate/gate.hpp>
#include <polystate/memory_plan.hpp>
#include <polystate/routing.hpp>
#include <polystate/separation.hpp>
#include <polystate/state_bank.hpp>

#include <cstdint>
#include <cstring>
#include <limits>

namespace ps = polystate;

/// A hook of both units: a function template that it instantiates has one name, but for the build's.
struct same_scores {
  const double* scores;
  ps::tensor_view<const double, 1> operator()(std::int64_t, const ps::tensor_view<const std::int64_t, 1>&) const {
    return {scores, {2}};
  }
};

namespace UNIT {

bool throws_when_refused() {
  const auto plan = [](std::int64_t B) {
    return ps::plan_memory<float>({.B = B}, ps::separation::single{}, ps::router::none{}, 1);
  };
  if (plan(1).entries != 1) return false;
#if defined(__cpp_exceptions)
  try {
    (void)plan(-1);
  } catch (const ps::argument_error& error) {
    return error.status().argument == "B";
  }
#endif
  return false;
}

bool throws_when_a_chain_is_refused() {
  constexpr double scores[2] = {1, 2};
  std::int64_t best = -1;
  const auto select = [&](std::int64_t candidates) {
    ps::mara_chain(same_scores{scores}, {.candidates = candidates, .passes = 1, .topk = {&best, {1}}});
  };
  select(2);
  if (best != 1) return false;
#if defined(__cpp_exceptions)
  try {
    select(0);
  } catch (const ps::argument_error& error) {
    return error.status().argument == "candidates";
  }
#endif
  return false;
}

bool copies_a_bank() {
  ps::state_bank<float> bank({.B = 1, .H = 1, .dv = 2, .dk = 2}, 2);
  bank.view().S(0, 1, 0, 1, 1) = 3;
  ps::state_bank<float> fork = bank;
  fork.reserve(5);
  fork.view().S(0, 1, 0, 1, 1) = 4;
  return bank.view().S(0, 1, 0, 1, 1) == 3 && fork.capacity() == 5 && bank.capacity() == 2;
}

bool keeps_nan() {
  const double g = ps::adjusted_g({.g_scale = 0}, std::numeric_limits<double>::quiet_NaN());
  std::uint64_t bits = 0;
  std::memcpy(&bits, &g, sizeof bits);  // std::isnan may be always false here
  return (bits << 1) > (std::uint64_t{0x7ff} << 53);
}

bool refuses_infinity() { return !ps::check({.A_log_offset = std::numeric_limits<double>::infinity()}).ok(); }

}  // namespace UNIT
