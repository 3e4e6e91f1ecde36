// SPDX-License-Identifier: Apache-2.0

// Reads of a bank on CUDA: every readable cell against the definition, few queries and many.

#include "multi_state/cuda_problem.cuh"
#include "support/random.hpp"
#include "support/refusal.hpp"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace polystate::testing {
namespace {

/// A bank whose rows have these numbers of entries, of random contents, the same in T and State exactly.
template <class Data, class State>
test_bank<Data, State> random_bank(const polystate::bank_shape& shape, std::int64_t capacity,
                                   const std::vector<std::int64_t>& entries, std::mt19937& rng,
                                   const layout<5>& memory = row_major<5>()) {
  test_bank<Data, State> bank(shape, capacity, memory);
  std::uniform_real_distribution<float> some(-1, 1);
  const auto fill = [&](const auto& v) {
    for (std::int64_t b = 0; b < shape.B; ++b) {
      for_each(v.slice(0, b, b + 1).slice(1, 0, entries[static_cast<std::size_t>(b)]),
               [&](auto& x) { x = static_cast<std::remove_cvref_t<decltype(x)>>(some(rng)); });
    }
  };
  const auto v = bank.view();
  fill(v.S);
  if (v.mu) fill(v.mu);
  if (v.Sigma) fill(v.Sigma);
  for (std::int64_t b = 0; b < shape.B; ++b) {
    const std::int64_t n = entries[static_cast<std::size_t>(b)];
    v.counters(b) = {.tokens = n, .segments = n, .open_tokens = 0};
  }
  return bank;
}

template <class Data, class State>
test_bank<double> in_double(const test_bank<Data, State>& bank, const polystate::bank_shape& shape) {
  test_bank<double> d(shape, bank.S.extents()[1]);
  d.S = convert<double>(bank.S);
  if (bank.mu) d.mu = convert<double>(bank.mu);
  if (bank.Sigma) d.Sigma = convert<double>(bank.Sigma);
  d.counters = bank.counters;
  return d;
}

/// Reads a random bank with all tokens of the problem as queries. The bank's rows have `entries` entries.
template <class State, class Data, class Cell>
void expect_read(const layer_problem<Data, Cell>& p, const std::vector<std::int64_t>& entries, std::int64_t capacity,
                 std::mt19937& rng, const layout<5>& memory = row_major<5>()) {
  const auto& s = p.shape;
  auto bank = random_bank<Data, State>(p.bank_shape(s.B), capacity, entries, rng, memory);
  const auto bank_double = in_double(bank, p.bank_shape(s.B));
  const auto d = in_double(p);
  tensor<Data, 4> o({s.B, s.T, s.H, s.dv});
  tensor<float, 4> lam({s.B, s.T, s.H, capacity});
  tensor<double, 4> want({s.B, s.T, s.H, s.dv}), want_lam({s.B, s.T, s.H, capacity});

  auto in_host = d.read(bank_double.view(), {every_entry, 0, s.T});
  in_host.o = want.view();
  in_host.lam = want_lam.view();
  read_reference<cell_in<Cell, double>>(in_host);

  device_mirror mirror;
  add_to(mirror, p);
  bank.add_to(mirror);
  mirror.add(o);
  mirror.add(lam);
  const auto plain = p.part({every_entry, 0, s.T});
  multi_state_read_args<Data, typename Cell::Rule, typename Cell::Router, State> args{
      .in = tokens_of(p.in.queries(), {every_entry, 0, s.T}),
      .bank = bank.view(),
      .router = plain.router,
      .o = o.view(),
      .lam = lam.view(),
      .shared_kq = s.shared_kq,
      .qkp_l2norm = s.qkp_l2norm,
      .max_visible = plain.max_visible};
  args = mirrored(mirror, args);
  EXPECT_TRUE(validate(on_cuda{}, args).ok());
  multi_state_read(on_cuda{}, args);
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  mirror.download(o);
  mirror.download(lam);
  EXPECT_TRUE(within_relative_blocks(o, want, layer_bound<Data>, 2));
  EXPECT_TRUE(within_relative_blocks(lam, want_lam, layer_bound<float>, 2));
  EXPECT_TRUE(o.untouched_outside() && lam.untouched_outside());
  EXPECT_TRUE(mirror.unchanged(bank.S) && mirror.unchanged(bank.mu) && mirror.unchanged(bank.Sigma) &&
              mirror.unchanged(bank.counters));
}

template <class Cell>
class CudaReadableCell : public ::testing::Test {};
TYPED_TEST_SUITE_P(CudaReadableCell);

TYPED_TEST_P(CudaReadableCell, FewQueriesAndMany) {
  std::mt19937 rng(51);
  using Data = float;
  using problem = layer_problem<Data, cell_in<TypeParam, Data>>;
  for (const std::int64_t queries : {1, 4, 5, 40, 70}) {
    SCOPED_TRACE(std::to_string(queries) + " queries");
    // position weights cover as many segments as there are tokens, and one
    const std::int64_t most = problem::is_fenwick ? separation::fenwick{}.count(queries) + 1 : queries + 1;
    for (const auto& shape :
         {layer_shape{.T = queries},
          layer_shape{.T = queries, .HR = 4, .dk = 40, .dv = 70, .dr = 9, .max_visible = 3, .keep_current = true},
          layer_shape{.T = queries, .qk_l2norm = true, .qkp_l2norm = true, .shared_kq = true}}) {
      const problem p(shape, rng);
      expect_read<float>(p, {std::min<std::int64_t>(most, 9), 1}, 11, rng);
      if (this->HasFailure()) return;
    }
  }
}

TYPED_TEST_P(CudaReadableCell, StatesInEveryType) {
  std::mt19937 rng(52);
  using Data = bfloat16;
  for (const std::int64_t queries : {1, 40}) {
    const layer_problem<Data, cell_in<TypeParam, Data>> p({.T = queries, .dk = 24, .dv = 16}, rng);
    expect_read<bfloat16>(p, {2, 1}, 3, rng);
    expect_read<half>(p, {1, 2}, 2, rng);
  }
}

REGISTER_TYPED_TEST_SUITE_P(CudaReadableCell, FewQueriesAndMany, StatesInEveryType);
INSTANTIATE_TYPED_TEST_SUITE_P(gated_delta, CudaReadableCell, cells_of<rule::gated_delta>::readable, cell_names);
using some_of_ssd = ::testing::Types<cell<rule::ssd, separation::uniform, router::merlin<float>>,
                                     cell<rule::ssd, separation::uniform, router::top_k<router::cumulant<float>>>>;
INSTANTIATE_TYPED_TEST_SUITE_P(ssd, CudaReadableCell, some_of_ssd, cell_names);

template <class Data>
using merlin = cell<rule::gated_delta, separation::uniform, router::merlin<Data>>;
template <class Data>
using sparse = cell<rule::gated_delta, separation::uniform, router::top_k<router::meanpool<Data>>>;

// Every padded key dim, memory orders, more entries than are staged together.
TEST(MultiStateCudaRead, LargeDimsAndBanks) {
  std::mt19937 rng(53);
  const std::vector<layout<5>> orders = {
      row_major<5>(), {{1, 0, 2, 3, 4}, 0}, {{0, 1, 2, 4, 3}, 0}, {{0, 1, 2, 3, 4}, 3}};
  for (const auto& [dk, dv, dr] : std::vector<std::array<std::int64_t, 3>>{
           {32, 200, 64}, {64, 64, 65}, {128, 128, 128}, {256, 512, 128}, {512, 40, 512}, {300, 7, 4}}) {
    for (const std::int64_t queries : {1, 6}) {
      SCOPED_TRACE(::testing::Message() << dk << ' ' << dv << ' ' << dr << ", queries " << queries);
      const layer_shape s{.T = queries, .H = 2, .HK = 1, .HR = 1, .dk = dk, .dv = dv, .dr = dr, .qkp_l2norm = true};
      expect_read<float>(layer_problem<half, merlin<half>>(s, rng), {130, 3}, 131, rng, pick(orders, rng));
      expect_read<bfloat16>(layer_problem<float, merlin<float>>(s, rng), {7, 70}, 70, rng, pick(orders, rng));
    }
  }
}

// top_k: what is not chosen is not read, so its NaN does not show.
TEST(MultiStateCudaRead, SkippedStatesAreNotRead) {
  std::mt19937 rng(54);
  const layer_problem<float, sparse<float>> p({.B = 1, .T = 1}, rng);
  auto bank = random_bank<float, float>(p.bank_shape(1), 20, {20}, rng);
  tensor<float, 4> o({1, 1, 4, 3}), lam({1, 1, 4, 20});
  device_mirror mirror;
  add_to(mirror, p);
  bank.add_to(mirror);
  mirror.add(o);
  mirror.add(lam);
  auto args = p.read(static_cast<const test_bank<float>&>(bank).view(), {every_entry, 0, 1});
  args.o = o.view();
  args.lam = lam.view();
  args = mirrored(mirror, args);
  multi_state_read(on_cuda{}, args);
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  mirror.download(o);
  mirror.download(lam);
  const auto clean = o;
  for (std::int64_t h = 0; h < 4; ++h) {
    std::int64_t kept = 0;
    for (std::int64_t l = 0; l < 20; ++l) {
      if (lam.view()(0, 0, h, l) != 0) {
        ++kept;
      } else {
        bank.S.view()(0, l, h, 1, 2) = std::numeric_limits<float>::quiet_NaN();
      }
    }
    EXPECT_EQ(kept, 2);
  }
  mirror.upload();
  multi_state_read(on_cuda{}, args);
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  mirror.download(o);
  EXPECT_TRUE(bitwise_equal(o, clean));
}

TEST(MultiStateCudaRead, Refusals) {
  std::mt19937 rng(55);
  const layer_problem<float, merlin<float>> p({.T = 1}, rng);
  auto bank = random_bank<float, float>(p.bank_shape(2), 4, {4, 0}, rng);
  tensor<float, 4> o({2, 1, 4, 3});
  device_mirror mirror;
  add_to(mirror, p);
  bank.add_to(mirror);
  mirror.add(o);
  auto args = p.read(static_cast<const test_bank<float>&>(bank).view(), {every_entry, 0, 1});
  args.o = o.view();
  args = mirrored(mirror, args);
  EXPECT_TRUE(check(on_cuda{}, args).ok());
  EXPECT_TRUE(refuses(validate(on_cuda{}, args), error_code::value, "bank.counters", "has no segment"));
  multi_state_read(on_cuda{}, args);  // clamped: no access leaves the bank
  POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());
  auto nothing = args;
  nothing.in.q = {args.in.q.data(), {2, 0, 2, 5}};
  nothing.router.q = {args.router.q.data(), {2, 0, 2, 4}};
  nothing.router.gamma = {args.router.gamma.data(), {2, 0, 4}};
  nothing.o = {args.o.data(), {2, 0, 4, 3}};
  multi_state_read(on_cuda{}, nothing);  // no query
}

TEST(MultiStateCudaRead, SanitizerRead) {
  std::mt19937 rng(56);
  for (const std::int64_t queries : {1, 6, 33}) {
    expect_read<bfloat16>(layer_problem<float, merlin<float>>({.T = queries, .dk = 18, .dv = 5, .dr = 6}, rng), {3, 1},
                          4, rng);
    expect_read<float>(layer_problem<float, sparse<float>>({.T = queries, .dk = 16, .dv = 8, .dr = 8}, rng), {9, 2}, 9,
                       rng);
  }
}

}  // namespace
}  // namespace polystate::testing
