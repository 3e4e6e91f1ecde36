// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The pairs written by the library's operators, and read back: one state by any rule of the delta family, and a bank
/// of states with merlin's router.

#include "recall.hpp"

#include <polystate/memory_plan.hpp>
#include <polystate/reference/gated_delta_rule.hpp>
#include <polystate/reference/multi_state.hpp>
#include <polystate/state_bank.hpp>

#include <Eigen/Core>

#include <cstdint>
#include <vector>

namespace recall_gap {

namespace ps = polystate;

/// Columns as an operand of shape (batch 1, time, heads 1, dim).
inline ps::tensor_view<const double, 4> as_operand(const MatrixXd& m) { return {m.data(), {1, m.cols(), 1, m.rows()}}; }
inline ps::tensor_view<double, 4> as_operand(MatrixXd& m) { return {m.data(), {1, m.cols(), 1, m.rows()}}; }

/// One number for all tokens.
inline ps::tensor_view<const double, 3> for_all(const double& x, Eigen::Index tokens) {
  return {&x, {1, tokens, 1}, {0, 0, 0}};
}

/// What the state holds after all pairs, beta 1 and log_decay where the rule has them: (P, N).
template <class Rule>
MatrixXd written_state(const MatrixXd& keys, const MatrixXd& values, double log_decay = 0) {
  const double beta = 1;
  MatrixXd along_the_way(values.rows(), values.cols());
  MatrixXd state(values.rows(), keys.rows());
  ps::gated_delta_rule_args<double, Rule> args{
      .q = as_operand(keys),
      .k = as_operand(keys),
      .v = as_operand(values),
      .o = as_operand(along_the_way),
      // column-major: a state's rows are its fast index
      .final_state = {state.data(), {1, 1, state.rows(), state.cols()}, {0, 0, 1, state.rows()}}};
  if constexpr (Rule::has_decay) args.g = for_all(log_decay, keys.cols());
  if constexpr (Rule::has_beta) args.beta = for_all(beta, keys.cols());
  ps::gated_delta_rule(ps::on_reference{}, args);
  return state;
}

using merlin = ps::router::merlin<double>;

struct merlin_scales {
  double gamma, tau_mu, tau_sigma;
};

inline std::vector<merlin_scales> merlin_grid() {
  std::vector<merlin_scales> grid;
  for (const double gamma : {0.0, 0.25}) {
    for (const double tau_mu : {10.0, 100.0}) {
      for (const double tau_sigma : {30.0, 100.0, 300.0, 1000.0}) grid.push_back({gamma, tau_mu, tau_sigma});
    }
  }
  return grid;
}

inline ps::bank_shape bank_of(Eigen::Index N, Eigen::Index P) { return {.dv = P, .dk = N, .HR = 1, .dr = N}; }

/// The pairs written by the delta rule into one state a segment, with the moments of the segment's keys.
class written_bank {
 public:
  written_bank(const MatrixXd& keys, const MatrixXd& values, std::int64_t segment)
      : bank_(bank_of(keys.rows(), values.rows()), ps::separation::uniform{segment}.count(keys.cols())) {
    const double beta = 1;
    // what is written does not depend on the router: without an output a step reads nothing
    ps::multi_state_step(
        ps::on_reference{},
        ps::multi_state_step_args<double, ps::rule::delta, ps::separation::uniform, ps::router::uniform>{
            .in = {.q = as_operand(keys),
                   .k = as_operand(keys),
                   .v = as_operand(values),
                   .beta = for_all(beta, keys.cols())},
            .separation = {segment},
            .moments = {.k = as_operand(keys)},
            .bank = bank_.view()});
  }

  [[nodiscard]] MatrixXd read(const MatrixXd& queries, const merlin_scales& s) const {
    MatrixXd reads(bank_.shape().dv, queries.cols());
    ps::multi_state_read(ps::on_reference{}, ps::multi_state_read_args<double, ps::rule::delta, merlin>{
                                                 .in = {.q = as_operand(queries)},
                                                 .bank = bank_.view(),
                                                 .router = {.gamma = for_all(s.gamma, queries.cols()),
                                                            .tau_mu = {&s.tau_mu, {1}},
                                                            .tau_sigma = {&s.tau_sigma, {1}}},
                                                 .o = as_operand(reads),
                                                 .shared_kq = true});
    return reads;
  }

 private:
  ps::state_bank<double> bank_;
};

/// Bytes in float, as a model would keep them.
inline std::int64_t bytes_of_state(Eigen::Index N, Eigen::Index P) { return N * P * std::int64_t{sizeof(float)}; }
inline std::int64_t bytes_of_pairs(Eigen::Index N, Eigen::Index P, std::int64_t pairs) {
  return pairs * (N + P) * std::int64_t{sizeof(float)};
}
inline std::int64_t bytes_of_bank(Eigen::Index N, Eigen::Index P, std::int64_t segment, std::int64_t pairs) {
  return ps::plan_memory<float>(bank_of(N, P), ps::separation::uniform{segment}, ps::router::merlin<float>{}, pairs)
      .bytes();
}

}  // namespace recall_gap
