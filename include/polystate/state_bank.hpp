// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The memory of a multi-state layer while it decodes: one entry a segment, each with its state and the
/// moments of its keys. bank_view is what operators take; state_bank owns one in host memory.

#include <polystate/core/element.hpp>
#include <polystate/core/error.hpp>
#include <polystate/core/tensor_view.hpp>
#include <polystate/separation.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace polystate::inline POLYSTATE_ABI {

/// A bank of B sequences with room for `capacity` entries each; entries past a sequence's counters hold
/// anything. State may be const: a bank that is only read.
template <class Data, class State = acc_t<Data>>
struct bank_view {
  using moment = std::conditional_t<std::is_const_v<State>, const acc_t<Data>, acc_t<Data>>;
  using counter = std::conditional_t<std::is_const_v<State>, const bank_counters, bank_counters>;

  tensor_view<State, 5> S;           ///< (B, capacity, H, dv, dk)
  tensor_view<moment, 4> mu{};       ///< (B, capacity, HR, dr), where the routing reads them
  tensor_view<moment, 5> Sigma{};    ///< (B, capacity, HR, dr, dr), where the routing reads them
  tensor_view<counter, 1> counters;  ///< (B)

  // A template, so that no view converts to itself.
  template <class To = State>
  requires(!std::is_const_v<To>) operator bank_view<Data, const To>() const {
    return {.S = S, .mu = mu, .Sigma = Sigma, .counters = counters};
  }
};

/// Sizes of a bank.
struct bank_shape {
  std::int64_t B = 1;   ///< sequences
  std::int64_t H = 1;   ///< heads
  std::int64_t dv = 1;  ///< rows of a state
  std::int64_t dk = 1;  ///< columns of a state
  std::int64_t HR = 0;  ///< moment heads; 0: no moments are kept
  std::int64_t dr = 0;  ///< routing dim
};

/// A bank in host memory. A value: copying it is a snapshot and a fork, assigning it back restores. Grow it
/// before a step with reserve(); write tokens with multi_state_step() and ask with multi_state_read(), both
/// on view().
template <class Data, class State = acc_t<Data>>
class state_bank {
 public:
  explicit state_bank(const bank_shape& shape, std::int64_t capacity = 0)
      : shape_(shape), counters_(static_cast<std::size_t>(shape.B)) {
    reserve(capacity);
  }

  [[nodiscard]] const bank_shape& shape() const { return shape_; }
  [[nodiscard]] std::int64_t capacity() const { return capacity_; }
  [[nodiscard]] const bank_counters& counters(std::int64_t b = 0) const {
    return counters_.at(static_cast<std::size_t>(b));
  }

  /// Makes room for that many entries a sequence; keeps what is there. Never shrinks.
  void reserve(std::int64_t capacity) {
    if (capacity <= capacity_) return;
    S_ = grown(S_, state_size(), capacity);
    mu_ = grown(mu_, mu_size(), capacity);
    Sigma_ = grown(Sigma_, Sigma_size(), capacity);
    capacity_ = capacity;
  }

  /// Ends sequence b's open segment by hand: its next token opens another. Without an open segment nothing
  /// changes.
  void close(std::int64_t b = 0) { counters_.at(static_cast<std::size_t>(b)).open_tokens = 0; }

  /// Continues after a prefill whose S, mu, Sigma were written into view(): sequence b has seen these tokens.
  template <class Separation>
  void resume(std::int64_t b, const Separation& separation, std::int64_t tokens) {
    bank_counters c;
    while (c.tokens < tokens) c = count_token(separation, c);
    counters_.at(static_cast<std::size_t>(b)) = c;
  }

  /// Forgets every token.
  void clear() { std::fill(counters_.begin(), counters_.end(), bank_counters{}); }

  /// Bytes that the entries in use hold: states, and moments if kept.
  [[nodiscard]] std::size_t bytes() const {
    std::int64_t entries = 0;
    for (const auto& c : counters_) entries += c.segments;
    const auto per_entry = static_cast<std::size_t>(state_size()) * sizeof(State) +
                           static_cast<std::size_t>(mu_size() + Sigma_size()) * sizeof(acc_t<Data>);
    return static_cast<std::size_t>(entries) * per_entry;
  }

  [[nodiscard]] bank_view<Data, State> view() { return view_of<State>(*this); }
  [[nodiscard]] bank_view<Data, const State> view() const { return view_of<const State>(*this); }

 private:
  template <class ViewState, class Self>
  static bank_view<Data, ViewState> view_of(Self& self) {
    const auto& n = self.shape_;
    bank_view<Data, ViewState> v{.S = {self.S_.data(), {n.B, self.capacity_, n.H, n.dv, n.dk}},
                                 .counters = {self.counters_.data(), {n.B}}};
    if (n.HR > 0) {
      v.mu = {self.mu_.data(), {n.B, self.capacity_, n.HR, n.dr}};
      v.Sigma = {self.Sigma_.data(), {n.B, self.capacity_, n.HR, n.dr, n.dr}};
    }
    return v;
  }

  [[nodiscard]] std::int64_t state_size() const { return shape_.H * shape_.dv * shape_.dk; }
  [[nodiscard]] std::int64_t mu_size() const { return shape_.HR * shape_.dr; }
  [[nodiscard]] std::int64_t Sigma_size() const { return shape_.HR * shape_.dr * shape_.dr; }

  template <class T>
  [[nodiscard]] std::vector<T> grown(const std::vector<T>& old, std::int64_t entry, std::int64_t capacity) const {
    std::vector<T> larger(static_cast<std::size_t>(shape_.B * capacity * entry));
    for (std::int64_t b = 0; b < shape_.B; ++b) {
      std::copy_n(old.begin() + b * capacity_ * entry, capacity_ * entry, larger.begin() + b * capacity * entry);
    }
    return larger;
  }

  bank_shape shape_;
  std::int64_t capacity_ = 0;
  std::vector<State> S_;
  std::vector<acc_t<Data>> mu_;
  std::vector<acc_t<Data>> Sigma_;
  std::vector<bank_counters> counters_;
};

}  // namespace polystate::inline POLYSTATE_ABI
