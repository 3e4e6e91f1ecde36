// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The hybrid question: how much recall does one softmax or sliding-window read in r buy, and for how many bytes. A
/// stack is r reads of the same pairs, each under keys of its own, and recalls from their sum, as a residual stream
/// adds up what its layers read. Nothing is trained.

#include "experiment.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace recall_gap {

/// Which read, of r, is not that of a fixed state.
enum class exception { none, softmax, window };

struct stack_cell {
  average recall;
  std::int64_t bytes = 0;
};

struct stack_row {
  std::int64_t reads;
  stack_cell states, with_softmax, with_window;
};

/// Sums of the normalised reads for every pair: the first is the exceptional one, the others are states by the rule.
template <class Rule>
MatrixXd read_stack(std::mt19937_64& random, const options& chosen, std::int64_t reads, exception kind,
                    const MatrixXd& values) {
  MatrixXd sum = MatrixXd::Zero(values.rows(), values.cols());
  for (std::int64_t read = 0; read < reads; ++read) {
    const MatrixXd keys = examples::random_directions<double>(random, chosen.dim, values.cols());
    if (read > 0 || kind == exception::none) {
      sum += (written_state<Rule>(keys, values) * keys).colwise().normalized();
    } else {
      const std::int64_t kept = kind == exception::softmax ? values.cols() : std::min(chosen.window, values.cols());
      sum += read_attention(keys.rightCols(kept), values.rightCols(kept), keys, chosen.beta).colwise().normalized();
    }
  }
  return sum;
}

template <class Rule>
stack_row measure_stack(const options& chosen, std::int64_t reads) {
  const std::int64_t N = chosen.dim, m = chosen.stack_pairs;
  const auto cell = [&](exception kind) {
    stack_cell c;
    c.recall = average_of(chosen.seeds, [&](std::int64_t draw) {
      auto random = generator(chosen, purpose::stack, draw, m);  // the same draws for every kind
      const MatrixXd values = examples::random_directions<double>(random, N, m);
      return share_recalled(read_stack<Rule>(random, chosen, reads, kind, values), values);
    });
    c.bytes = (kind == exception::none ? reads : reads - 1) * bytes_of_state(N, N);
    if (kind == exception::softmax) c.bytes += bytes_of_pairs(N, N, m);
    if (kind == exception::window) c.bytes += bytes_of_pairs(N, N, std::min(chosen.window, m));
    return c;
  };
  return {reads, cell(exception::none), cell(exception::softmax), cell(exception::window)};
}

}  // namespace recall_gap
