// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// How much memory a layer keeps of a context, before any of it exists: what a bank of states takes and what a token
/// reads of it, beside a single state and beside the keys and values of softmax attention.

#include <polystate/core/argument_checks.hpp>
#include <polystate/core/element.hpp>
#include <polystate/core/error.hpp>
#include <polystate/routing.hpp>
#include <polystate/separation.hpp>
#include <polystate/state_bank.hpp>

#include <algorithm>
#include <cstdint>
#include <string>

namespace polystate::inline POLYSTATE_ABI {

/// Bytes of all B sequences together.
struct memory_plan {
  std::int64_t entries = 0;       ///< states a sequence; no bytes
  std::int64_t states = 0;        ///< the bank's states
  std::int64_t moments = 0;       ///< the bank's moments, those that the router reads
  std::int64_t read = 0;          ///< what the last token reads of the bank: moments, and states that have a weight
  std::int64_t single_state = 0;  ///< one state a sequence, what separation::single keeps
  std::int64_t kv_cache = 0;      ///< one key and one value of Data a token and head, what softmax attention keeps

  [[nodiscard]] std::int64_t bytes() const { return states + moments; }
  /// Of all that the bank holds; NaN where a state has no element.
  [[nodiscard]] double ratio_to_single_state() const { return ratio(single_state); }
  /// Below 1 where the bank is the smaller one; infinite or NaN without tokens.
  [[nodiscard]] double ratio_to_kv_cache() const { return ratio(kv_cache); }

 private:
  [[nodiscard]] double ratio(std::int64_t to) const { return static_cast<double>(bytes()) / static_cast<double>(to); }
};

inline namespace POLYSTATE_BUILD {

/// Plans the memory of a layer after T tokens a sequence. Shape, separation and router (with top_k its k) are those of
/// the layer, operands may be absent; shape.HR and dr count only as far as the router reads moments.
///
///     entries      = separation.count(T)           ceil(T/m) for uniform; the open entry counts as the closed do
///     states       = B entries H dv dk sizeof(State)
///     moments      = B entries HR (dr + dr^2) sizeof(acc_t<Data>)      dr: mu, every router that reads moments;
///                                                                      dr^2: Sigma, stored whole, where it is read
///     single_state = B H dv dk sizeof(State)
///     kv_cache     = B T H (dk + dv) sizeof(Data)
///
/// bytes() is state_bank<Data, State>::bytes() where the router reads both moments, or HR is 0. With State and
/// acc_t<Data> of one size, as by default, the ratio to a single state is entries (1 + HR (dr + dr^2) / (H dv dk)).
///
/// Throws argument_error for a negative size, or an m or k below 1.
template <class Data, class State = acc_t<Data>, class Separation, class Router>
[[nodiscard]] memory_plan plan_memory(const bank_shape& shape, const Separation& separation, const Router& router,
                                      std::int64_t T) {
  argument_checks c("plan_memory");
  const auto at_least_0 = [&](const char* name, std::int64_t n) {
    c.expect(n >= 0, error_code::value, name, std::to_string(n) + ", supported: at least 0");
  };
  const auto& [B, H, dv, dk, HR, dr] = shape;
  at_least_0("B", B);
  at_least_0("H", H);
  at_least_0("dv", dv);
  at_least_0("dk", dk);
  at_least_0("HR", HR);
  at_least_0("dr", dr);
  at_least_0("T", T);
  check_separation(c, separation, {});
  if constexpr (is_top_k<Router>) {
    c.expect(router.k >= 1, error_code::value, "router.k", std::to_string(router.k) + ", supported: at least 1");
  }
  raise_on_error(c.result());

  constexpr std::int64_t state_size = sizeof(State);
  constexpr std::int64_t moment_size = sizeof(acc_t<Data>);
  constexpr std::int64_t data_size = sizeof(Data);
  const std::int64_t state = H * dv * dk * state_size;
  std::int64_t moments = 0;
  if (Router::reads_moments) moments += HR * dr * moment_size;
  if (Router::reads_Sigma) moments += HR * dr * dr * moment_size;
  memory_plan plan;
  plan.entries = separation.count(T);
  std::int64_t weighed = plan.entries;
  if constexpr (is_top_k<Router>) weighed = (std::min)(weighed, router.k);
  plan.states = B * plan.entries * state;
  plan.moments = B * plan.entries * moments;
  plan.read = B * weighed * state + plan.moments;
  plan.single_state = B * state;
  plan.kv_cache = B * T * H * (dk + dv) * data_size;
  return plan;
}

}  // namespace POLYSTATE_BUILD
}  // namespace polystate::inline POLYSTATE_ABI
