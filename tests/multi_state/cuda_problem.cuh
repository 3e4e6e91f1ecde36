// SPDX-License-Identifier: Apache-2.0
#pragma once

// A layer's problem on the device, and how the CUDA tests judge it.

#include "multi_state/cells.hpp"
#include "multi_state/oracle.hpp"
#include "support/compare.hpp"
#include "support/device.cuh"
#include "support/relative_blocks.hpp"

#include <polystate/cuda/multi_state.cuh>

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <stdexcept>
#include <type_traits>
#include <vector>

namespace polystate::testing {

/// Copies of a problem's memory on the device: a view of host memory that was added becomes one of its copy.
class device_mirror {
 public:
  template <class T, int Rank>
  void add(const tensor<T, Rank>& t) {
    if (t) add(t.storage().data(), t.storage().size() * sizeof(T));
  }
  void add(const void* from, std::size_t bytes) {
    copies_.push_back({static_cast<const char*>(from), device_memory(bytes)});
    upload(copies_.back());
  }

  template <class T, int Rank>
  [[nodiscard]] tensor_view<T, Rank> operator()(const tensor_view<T, Rank>& v) const {
    if (v.data() == nullptr) return v;
    std::int64_t extents[Rank];
    std::int64_t strides[Rank];
    for (int i = 0; i < Rank; ++i) {
      extents[i] = v.extent(i);
      strides[i] = v.stride(i);
    }
    return {static_cast<T*>(address_of(v.data())), extents, strides};
  }

  /// Host memory to its copy, and back.
  void upload() {
    for (auto& c : copies_) upload(c);
  }
  template <class T, int Rank>
  void download(tensor<T, Rank>& t) const {
    if (!t) return;
    POLYSTATE_CUDA_REQUIRE(cudaMemcpy(t.storage().data(), address_of(t.storage().data()),
                                      t.storage().size() * sizeof(T), cudaMemcpyDeviceToHost));
  }
  /// Whether the copy is what was added.
  template <class T, int Rank>
  [[nodiscard]] bool unchanged(const tensor<T, Rank>& t) const {
    if (!t) return true;
    auto now = t;
    POLYSTATE_CUDA_REQUIRE(cudaMemcpy(now.storage().data(), address_of(t.storage().data()),
                                      t.storage().size() * sizeof(T), cudaMemcpyDeviceToHost));
    return std::memcmp(now.storage().data(), t.storage().data(), now.storage().size() * sizeof(T)) == 0;
  }

 private:
  struct copy {
    const char* host;
    device_memory memory;
  };
  static void upload(const copy& c) {
    if (c.memory.bytes() == 0) return;
    POLYSTATE_CUDA_REQUIRE(cudaMemcpy(c.memory.data(), c.host, c.memory.bytes(), cudaMemcpyHostToDevice));
    POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());  // streams of tests do not wait for the default one
  }
  [[nodiscard]] void* address_of(const void* host) const {
    const auto* const at = static_cast<const char*>(host);
    for (const auto& c : copies_) {
      if (at >= c.host && at < c.host + c.memory.bytes()) return static_cast<char*>(c.memory.data()) + (at - c.host);
    }
    throw std::logic_error("no copy of this host memory");
  }

  std::vector<copy> copies_;
};

template <class Data, class Rule>
operands<Data, Rule> mirrored(const device_mirror& to, operands<Data, Rule> in) {
  in.q = to(in.q), in.k = to(in.k), in.v = to(in.v), in.g = to(in.g), in.beta = to(in.beta);
  return in;
}
template <class Data>
operands<Data, rule::ssd> mirrored(const device_mirror& to, operands<Data, rule::ssd> in) {
  in.x = to(in.x), in.dt = to(in.dt), in.A = to(in.A), in.B = to(in.B), in.C = to(in.C), in.D = to(in.D);
  in.z = to(in.z), in.dt_bias = to(in.dt_bias);
  return in;
}
template <class Data, class Rule>
query_operands<Data, Rule> mirrored(const device_mirror& to, query_operands<Data, Rule> in) {
  in.q = to(in.q);
  return in;
}
template <class Data>
query_operands<Data, rule::ssd> mirrored(const device_mirror& to, query_operands<Data, rule::ssd> in) {
  in.C = to(in.C);
  return in;
}
template <class Data>
key_moments<Data> mirrored(const device_mirror& to, key_moments<Data> in) {
  in.k = to(in.k), in.g = to(in.g), in.beta = to(in.beta);
  return in;
}
inline separation::single mirrored(const device_mirror&, const separation::single& s) { return s; }
inline separation::uniform mirrored(const device_mirror&, const separation::uniform& s) { return s; }
inline separation::fenwick mirrored(const device_mirror&, const separation::fenwick& s) { return s; }
inline separation::boundaries mirrored(const device_mirror& to, const separation::boundaries& s) {
  return {to(s.boundaries)};
}
inline router::none mirrored(const device_mirror&, const router::none& r) { return r; }
inline router::uniform mirrored(const device_mirror&, const router::uniform& r) { return r; }
template <class Data>
router::position<Data> mirrored(const device_mirror& to, router::position<Data> r) {
  r.weights = to(r.weights);
  return r;
}
template <class Data>
router::meanpool<Data> mirrored(const device_mirror& to, router::meanpool<Data> r) {
  r.u = to(r.u);
  return r;
}
template <class Data>
router::merlin<Data> mirrored(const device_mirror& to, router::merlin<Data> r) {
  r.q = to(r.q), r.gamma = to(r.gamma), r.tau_mu = to(r.tau_mu), r.tau_sigma = to(r.tau_sigma);
  return r;
}
template <class Data>
router::cumulant<Data> mirrored(const device_mirror& to, router::cumulant<Data> r) {
  r.q = to(r.q), r.delta = to(r.delta);
  return r;
}
template <class Router>
router::top_k<Router> mirrored(const device_mirror& to, router::top_k<Router> r) {
  r.of = mirrored(to, r.of);
  return r;
}
template <class Data, class State>
bank_view<Data, State> mirrored(const device_mirror& to, bank_view<Data, State> bank) {
  bank.S = to(bank.S), bank.mu = to(bank.mu), bank.Sigma = to(bank.Sigma), bank.counters = to(bank.counters);
  return bank;
}
template <class Data, class Rule, class Separation, class Router, class State>
multi_state_args<Data, Rule, Separation, Router, State> mirrored(
    const device_mirror& to, multi_state_args<Data, Rule, Separation, Router, State> args) {
  args.in = mirrored(to, args.in);
  args.separation = mirrored(to, args.separation);
  args.moments = mirrored(to, args.moments);
  args.router = mirrored(to, args.router);
  args.cu_seqlens = to(args.cu_seqlens);
  args.o = to(args.o), args.lam = to(args.lam), args.S = to(args.S), args.mu = to(args.mu), args.Sigma = to(args.Sigma);
  return args;
}
template <class Data, class Rule, class Separation, class Router, class State>
multi_state_step_args<Data, Rule, Separation, Router, State> mirrored(
    const device_mirror& to, multi_state_step_args<Data, Rule, Separation, Router, State> args) {
  args.in = mirrored(to, args.in);
  args.moments = mirrored(to, args.moments);
  args.router = mirrored(to, args.router);
  args.bank = mirrored(to, args.bank);
  args.o = to(args.o);
  return args;
}
template <class Data, class Rule, class Router, class State>
multi_state_read_args<Data, Rule, Router, State> mirrored(const device_mirror& to,
                                                          multi_state_read_args<Data, Rule, Router, State> args) {
  args.in = mirrored(to, args.in);
  args.bank = mirrored(to, args.bank);
  args.router = mirrored(to, args.router);
  args.o = to(args.o), args.lam = to(args.lam);
  return args;
}

template <class Data, class Rule>
void add_to(device_mirror& to, const recurrence_operands<Data, Rule>& in) {
  to.add(in.q), to.add(in.k), to.add(in.v), to.add(in.g), to.add(in.beta);
}
template <class Data>
void add_to(device_mirror& to, const recurrence_operands<Data, rule::ssd>& in) {
  to.add(in.x), to.add(in.B), to.add(in.C), to.add(in.z), to.add(in.dt);
  to.add(in.A), to.add(in.dt_bias), to.add(in.D);
}
template <class Data, class Cell>
void add_to(device_mirror& to, const layer_problem<Data, Cell>& p) {
  add_to(to, p.in);
  to.add(p.keys.k), to.add(p.keys.g), to.add(p.keys.beta);
  to.add(p.router.q), to.add(p.router.weights), to.add(p.router.gamma);
  to.add(p.router.tau_mu), to.add(p.router.tau_sigma), to.add(p.router.delta);
  to.add(p.cu_seqlens);
  to.add(p.shape.cuts.data(), p.shape.cuts.size() * sizeof(std::int32_t));
}
template <class Data>
void add_to(device_mirror& to, const layer_results<Data>& r) {
  to.add(r.o), to.add(r.lam), to.add(r.mu), to.add(r.S), to.add(r.Sigma);
}
template <class Data>
void download(const device_mirror& from, layer_results<Data>& r) {
  from.download(r.o), from.download(r.lam), from.download(r.mu), from.download(r.S), from.download(r.Sigma);
}

/// The cell with a router of another data type.
template <class Router, class Data>
struct router_in {
  using type = Router;
};
template <class From, class Data>
struct router_in<router::position<From>, Data> {
  using type = router::position<Data>;
};
template <class From, class Data>
struct router_in<router::meanpool<From>, Data> {
  using type = router::meanpool<Data>;
};
template <class From, class Data>
struct router_in<router::merlin<From>, Data> {
  using type = router::merlin<Data>;
};
template <class From, class Data>
struct router_in<router::cumulant<From>, Data> {
  using type = router::cumulant<Data>;
};
template <class Router, class Data>
struct router_in<router::top_k<Router>, Data> {
  using type = router::top_k<typename router_in<Router, Data>::type>;
};
template <class Cell, class Data>
using cell_in =
    cell<typename Cell::Rule, typename Cell::Separation, typename router_in<typename Cell::Router, Data>::type>;

/// The same numbers in double.
template <class Data, class Cell>
layer_problem<double, cell_in<Cell, double>> in_double(const layer_problem<Data, Cell>& p) {
  layer_problem<double, cell_in<Cell, double>> d;
  d.shape = p.shape;
  d.in = p.in.in_double();
  d.keys = p.keys.in_double();
  d.router = p.router.in_double();
  d.cu_seqlens = p.cu_seqlens;
  return d;
}

/// What it must give. `L`: entries of the outputs.
template <class Data, class Cell>
layer_results<double> wanted(const layer_problem<Data, Cell>& p, std::int64_t L) {
  const auto d = in_double(p);
  auto want = d.results(L);
  run_reference<cell_in<Cell, double>>(d.args(want));
  return want;
}

/// Relative error of what is summed in float and rounded to T once. Softmaxes of scores multiply the scores' error.
template <class T>
inline constexpr double layer_bound = std::is_same_v<T, float> ? 2e-5 : 1.1 * roundoff<T>::unit;

template <class Data>
void judge(const layer_results<Data>& got, const layer_results<double>& want) {
  EXPECT_TRUE(within_relative_blocks(got.o, want.o, layer_bound<Data>, 2));
  if (want.lam) EXPECT_TRUE(within_relative_blocks(got.lam, want.lam, layer_bound<float>, 2));
  EXPECT_LE(relative_l2(got.S, want.S), layer_bound<float>);
  EXPECT_LE(relative_l2(got.mu, want.mu), layer_bound<float>);
  EXPECT_LE(relative_l2(got.Sigma, want.Sigma), layer_bound<float>);
  EXPECT_TRUE(got.untouched_outside());
}

/// Runs the problem on the device into outputs with L entries.
template <class Data, class Cell>
layer_results<Data> on_device(const layer_problem<Data, Cell>& p, std::int64_t L, const on_cuda& exec = {}) {
  auto out = p.results(L);
  device_mirror mirror;
  add_to(mirror, p);
  add_to(mirror, out);
  multi_state(exec, mirrored(mirror, p.args(out)));
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  download(mirror, out);
  return out;
}

/// Entries of all sequences' outputs.
template <class Data, class Cell>
std::int64_t entries_of(const layer_problem<Data, Cell>& p) {
  if (p.shape.lengths.empty()) return p.entries(p.shape.T);
  std::int64_t L = 0;
  for (const auto n : p.shape.lengths) L += p.entries(n);
  return L;
}

template <class Data, class Cell>
void expect_reference(const layer_problem<Data, Cell>& p) {
  const std::int64_t L = entries_of(p);
  judge(on_device(p, L), wanted(p, L));
}

/// A bank of the test's: what a step or read takes, in memory that can be mirrored.
template <class Data, class State = acc_t<Data>>
struct test_bank {
  tensor<State, 5> S;
  tensor<acc_t<Data>, 4> mu;
  tensor<acc_t<Data>, 5> Sigma;
  tensor<bank_counters, 1> counters;

  test_bank(const polystate::bank_shape& s, std::int64_t capacity, const layout<5>& memory = row_major<5>())
      : S({s.B, capacity, s.H, s.dv, s.dk}, memory), counters({s.B}) {
    if (s.HR > 0) mu = tensor<acc_t<Data>, 4>({s.B, capacity, s.HR, s.dr});
    if (s.HR > 0) Sigma = tensor<acc_t<Data>, 5>({s.B, capacity, s.HR, s.dr, s.dr});
    counters.for_each([](bank_counters& c) { c = {}; });
  }

  [[nodiscard]] bank_view<Data, State> view() {
    return {.S = S.view(), .mu = mu.view(), .Sigma = Sigma.view(), .counters = counters.view()};
  }
  [[nodiscard]] bank_view<Data, const State> view() const {
    return {.S = S.view(), .mu = mu.view(), .Sigma = Sigma.view(), .counters = counters.view()};
  }
  void add_to(device_mirror& to) const { to.add(S), to.add(mu), to.add(Sigma), to.add(counters); }
  void download(const device_mirror& from) {
    from.download(S), from.download(mu), from.download(Sigma), from.download(counters);
  }
  [[nodiscard]] bool untouched_outside() const {
    return S.untouched_outside() && mu.untouched_outside() && Sigma.untouched_outside();
  }
};

/// Rows first .. last-1 of a bank.
template <class Data, class State>
bank_view<Data, State> rows_of(bank_view<Data, State> bank, std::int64_t first, std::int64_t last) {
  bank.S = bank.S.slice(0, first, last);
  if (bank.mu) bank.mu = bank.mu.slice(0, first, last);
  if (bank.Sigma) bank.Sigma = bank.Sigma.slice(0, first, last);
  bank.counters = bank.counters.slice(0, first, last);
  return bank;
}

/// The entries in use are those of the bank in double; the others are as they were, NaN.
template <class Data, class State>
void judge_bank(const test_bank<Data, State>& got, const test_bank<double>& want) {
  const auto g = got.view();
  const auto w = want.view();
  for (std::int64_t b = 0; b < w.counters.extent(0); ++b) {
    EXPECT_EQ(g.counters(b).tokens, w.counters(b).tokens);
    EXPECT_EQ(g.counters(b).segments, w.counters(b).segments);
    EXPECT_EQ(g.counters(b).open_tokens, w.counters(b).open_tokens);
    const std::int64_t L = w.counters(b).segments;
    const auto used = [&](const auto& v) { return copy_of(v.slice(0, b, b + 1).slice(1, 0, L)); };
    EXPECT_LE(relative_l2(used(g.S), used(w.S)), 2 * layer_bound<State>) << "states of row " << b;
    if (w.mu) EXPECT_LE(relative_l2(used(g.mu), used(w.mu)), layer_bound<float>) << "means of row " << b;
    if (w.Sigma) EXPECT_LE(relative_l2(used(g.Sigma), used(w.Sigma)), layer_bound<float>) << "row " << b;
    for (std::int64_t l = L; l < g.S.extent(1); ++l) {
      EXPECT_TRUE(g.S.size() == 0 || std::isnan(static_cast<float>(g.S(b, l, 0, 0, 0)))) << "entry " << l;
    }
  }
  EXPECT_TRUE(got.untouched_outside());
}

}  // namespace polystate::testing
