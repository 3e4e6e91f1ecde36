// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The readers that are compared: the same queries, answered from one state, from the bank by one router
/// each, and by softmax attention over all pairs.

#include "memory.hpp"
#include "vectors.hpp"

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

struct reader {
  std::string name;
  std::size_t bytes;                     ///< kept to answer from
  std::vector<std::string> scale_names;  ///< one for each entry of a `scales`
  std::vector<scales> grid;              ///< to choose from
  std::function<recalled(const queries&, const scales&)> read;
};

/// Bytes of what a router reads of a bank: the states, and the moments that it scores with.
template <class Router>
std::size_t bytes_read(const bank& from) {
  const auto& [B, H, dv, dk, HR, dr] = from.shape();
  std::int64_t floats = H * dv * dk;
  if (Router::reads_moments) floats += HR * dr;
  if (Router::reads_Sigma) floats += HR * dr * dr;
  return static_cast<std::size_t>(from.counters().segments * floats) * sizeof(float);
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

/// Weights by the mean and the variance of a segment's keys along the query.
inline recalled read_by_merlin(const bank& from, const queries& asked, float gamma, float tau_mu, float tau_sigma) {
  return read_bank(from, asked,
                   merlin{.q = as_operand(asked.routing_keys),
                          .gamma = {&gamma, {1, asked.keys.cols(), 1}, {0, 0, 0}},
                          .tau_mu = {&tau_mu, {1}},
                          .tau_sigma = {&tau_sigma, {1}}});
}

/// Softmax attention: every pair is kept, and sum_i softmax_i(scale k_i . q) v_i.
inline recalled read_by_softmax(const text_vectors& kept, const queries& asked, float scale) {
  MatrixXf weights = scale * (kept.keys.transpose() * asked.keys);
  weights.rowwise() -= weights.colwise().maxCoeff().eval();
  weights = weights.array().exp();
  const Eigen::RowVectorXf sums = weights.colwise().sum();
  return {(kept.values * weights) * sums.cwiseInverse().asDiagonal(), {}};
}

/// The readers of a text, in the order of the table. They refer to both arguments.
inline std::vector<reader> make_readers(const text_vectors& kept, const memory& written) {
  const bank& whole = written.whole();
  const bank& segments = written.segments();
  std::vector<scales> merlin_grid;
  for (const float gamma : {0.0F, 0.1F, 0.25F, 0.5F}) {
    for (const float tau_mu : {30.0F, 100.0F, 300.0F}) {
      for (const float tau_sigma : {300.0F, 1000.0F, 3000.0F}) merlin_grid.push_back({gamma, tau_mu, tau_sigma});
    }
  }
  return {
      {.name = "single",
       .bytes = bytes_read<ps::router::uniform>(whole),
       .scale_names = {},
       .grid = {{}},
       .read = [&](const queries& asked, const scales&) { return read_bank(whole, asked, ps::router::uniform{}); }},
      {.name = "uniform",
       .bytes = bytes_read<ps::router::uniform>(segments),
       .scale_names = {},
       .grid = {{}},
       .read = [&](const queries& asked, const scales&) { return read_bank(segments, asked, ps::router::uniform{}); }},
      {.name = "position",
       .bytes = bytes_read<position>(segments),
       .scale_names = {"s"},
       .grid = {{0}, {0.01F}, {-0.01F}, {0.03F}, {-0.03F}, {0.1F}, {-0.1F}, {0.3F}, {-0.3F}},
       .read = [&](const queries& asked, const scales& s) { return read_by_position(segments, asked, s[0]); }},
      {.name = "meanpool",
       .bytes = bytes_read<meanpool>(segments),
       .scale_names = {"s"},
       .grid = {{10}, {30}, {100}, {300}, {1000}},
       .read = [&](const queries& asked, const scales& s) { return read_by_meanpool(segments, asked, s[0]); }},
      {.name = "merlin",
       .bytes = bytes_read<merlin>(segments),
       .scale_names = {"gamma", "tau_mu", "tau_sigma"},
       .grid = std::move(merlin_grid),
       .read = [&](const queries& asked,
                   const scales& s) { return read_by_merlin(segments, asked, s[0], s[1], s[2]); }},
      {.name = "softmax",
       .bytes = static_cast<std::size_t>(kept.keys.size() + kept.values.size()) * sizeof(float),
       .scale_names = {"s"},
       .grid = {{10}, {30}, {100}},
       .read = [&](const queries& asked, const scales& s) { return read_by_softmax(kept, asked, s[0]); }},
  };
}

}  // namespace text_memory
