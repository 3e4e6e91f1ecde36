// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The readers that are compared: the same queries, answered from one state, from the bank by one router
/// each, and by softmax attention over all pairs.

#include "memory.hpp"
#include "vectors.hpp"

#include <polystate/memory_plan.hpp>
#include <polystate/reference/multi_state.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace text_memory {

/// What came back for each query.
struct recalled {
  MatrixXf values;   ///< (dim, queries)
  MatrixXf weights;  ///< (segments, queries); empty where there are no segments
};

using scales = std::vector<float>;

/// What the bytes of a reader, and with them the time of a read, grow with.
enum class growth { none, segments, tokens };

struct reader {
  std::string name;
  growth grows_with;
  std::size_t bytes;                     ///< kept to answer from
  std::vector<std::string> scale_names;  ///< one for each entry of a `scales`
  std::vector<scales> grid;              ///< to choose from
  std::function<recalled(const queries&, const scales&)> read;
};

/// Bytes that have to be kept for a reader with this router.
template <class Separation, class Router>
std::size_t bytes_kept(const bank& from, const Separation& separation, const Router& router) {
  const auto plan = ps::plan_memory<float>(from.shape(), separation, router, from.counters().tokens);
  return static_cast<std::size_t>(plan.bytes());
}

template <class Router>
recalled read_bank(const bank& from, const queries& asked, const Router& router) {
  recalled r{MatrixXf(from.shape().dv, asked.keys.cols()), MatrixXf(from.capacity(), asked.keys.cols())};
  ps::multi_state_read(ps::on_reference{},
                       ps::multi_state_read_args<float, ps::rule::delta, Router>{.in = {.q = as_operand(asked.keys)},
                                                                                 .bank = from.view(),
                                                                                 .router = router,
                                                                                 .o = as_operand(r.values),
                                                                                 .lam = as_operand(r.weights)});
  return r;
}

using position = ps::router::position<float>;
using meanpool = ps::router::meanpool<float>;
using merlin = ps::router::merlin<float>;

/// Weights by age alone: softmax of -slope * age.
inline recalled read_by_position(const bank& from, const queries& asked, float slope) {
  const Eigen::VectorXf by_age =
      -slope * Eigen::VectorXf::LinSpaced(from.capacity(), 0.0F, static_cast<float>(from.capacity() - 1));
  // every query shares the one row: stride 0 along time
  return read_bank(from, asked,
                   position{.weights = {by_age.data(), {1, asked.keys.cols(), 1, by_age.size()}, {0, 0, 0, 1}}});
}

/// Weights by the mean key of a segment.
inline recalled read_by_meanpool(const bank& from, const queries& asked, float scale) {
  const MatrixXf u = scale * asked.routing_keys;
  return read_bank(from, asked, meanpool{.u = as_operand(u)});
}

/// Weights by the mean and the variance of a segment's keys along the query; scales are gamma, tau_mu, tau_sigma.
/// k > 0: of the k segments with the highest ones.
inline recalled read_by_merlin(const bank& from, const queries& asked, const scales& s, std::int64_t k = 0) {
  const merlin weights{.q = as_operand(asked.routing_keys),
                       .gamma = {s.data(), {1, asked.keys.cols(), 1}, {0, 0, 0}},
                       .tau_mu = {&s[1], {1}},
                       .tau_sigma = {&s[2], {1}}};
  if (k > 0) return read_bank(from, asked, ps::router::top_k<merlin>{.of = weights, .k = k});
  return read_bank(from, asked, weights);
}

/// Softmax attention: every pair is kept, and sum_i softmax_i(scale k_i . q) v_i.
inline recalled read_by_softmax(const text_vectors& kept, const queries& asked, float scale) {
  MatrixXf weights = scale * (kept.keys.transpose() * asked.keys);
  weights.rowwise() -= weights.colwise().maxCoeff().eval();
  weights = weights.array().exp();
  const Eigen::RowVectorXf sums = weights.colwise().sum();
  return {(kept.values * weights) * sums.cwiseInverse().asDiagonal(), {}};
}

/// Bytes of every key and value.
inline std::size_t bytes_of_pairs(const text_vectors& kept) {
  return static_cast<std::size_t>(kept.keys.size() + kept.values.size()) * sizeof(float);
}

/// gamma, tau_mu, tau_sigma.
inline std::vector<scales> merlin_grid() {
  std::vector<scales> grid;
  for (const float gamma : {0.0F, 0.1F, 0.25F, 0.5F}) {
    for (const float tau_mu : {30.0F, 100.0F, 300.0F}) {
      for (const float tau_sigma : {300.0F, 1000.0F, 3000.0F}) grid.push_back({gamma, tau_mu, tau_sigma});
    }
  }
  return grid;
}

/// merlin on the bank. It refers to its argument, as all readers do.
inline reader merlin_reader(const memory& written) {
  const bank& segments = written.segments();
  return {.name = "merlin",
          .grows_with = growth::segments,
          .bytes = bytes_kept(segments, written.separation(), merlin{}),
          .scale_names = {"gamma", "tau_mu", "tau_sigma"},
          .grid = merlin_grid(),
          .read = [&](const queries& asked, const scales& s) { return read_by_merlin(segments, asked, s); }};
}

/// The readers of a text, in the order of the table.
inline std::vector<reader> make_readers(const text_vectors& kept, const memory& written) {
  const bank& whole = written.whole();
  const bank& segments = written.segments();
  return {
      {.name = "single",
       .grows_with = growth::none,
       .bytes = bytes_kept(whole, ps::separation::single{}, ps::router::none{}),
       .scale_names = {},
       .grid = {{}},
       .read = [&](const queries& asked, const scales&) { return read_bank(whole, asked, ps::router::uniform{}); }},
      {.name = "uniform",
       .grows_with = growth::segments,
       .bytes = bytes_kept(segments, written.separation(), ps::router::uniform{}),
       .scale_names = {},
       .grid = {{}},
       .read = [&](const queries& asked, const scales&) { return read_bank(segments, asked, ps::router::uniform{}); }},
      {.name = "position",
       .grows_with = growth::segments,
       .bytes = bytes_kept(segments, written.separation(), position{}),
       .scale_names = {"s"},
       .grid = {{0}, {0.01F}, {-0.01F}, {0.03F}, {-0.03F}, {0.1F}, {-0.1F}, {0.3F}, {-0.3F}},
       .read = [&](const queries& asked, const scales& s) { return read_by_position(segments, asked, s[0]); }},
      {.name = "meanpool",
       .grows_with = growth::segments,
       .bytes = bytes_kept(segments, written.separation(), meanpool{}),
       .scale_names = {"s"},
       .grid = {{10}, {30}, {100}, {300}, {1000}},
       .read = [&](const queries& asked, const scales& s) { return read_by_meanpool(segments, asked, s[0]); }},
      merlin_reader(written),
      {.name = "softmax",
       .grows_with = growth::tokens,
       .bytes = bytes_of_pairs(kept),
       .scale_names = {"s"},
       .grid = {{10}, {30}, {100}},
       .read = [&](const queries& asked, const scales& s) { return read_by_softmax(kept, asked, s[0]); }},
  };
}

}  // namespace text_memory
