// SPDX-License-Identifier: Apache-2.0

// The formulas are those of examples/recall_gap.

#include "../../recall_gap/recall.hpp"
#include "../operands.hpp"
#include "../registry.hpp"

#include <Eigen/Core>

namespace replay::reference {

namespace {

/// A row-major (rows, entries) operand as a matrix with one column a row.
Eigen::Map<const Eigen::MatrixXd> columns_of(const polystate::tensor_view<const double, 2>& rows) {
  return {rows.data(), rows.extent(1), rows.extent(0)};
}
Eigen::Map<Eigen::MatrixXd> columns_of(const polystate::tensor_view<double, 2>& rows) {
  return {rows.data(), rows.extent(1), rows.extent(0)};
}

void run(operands<polystate::on_reference, double>& io) {
  const auto K = io.input<data, 2>("in.K");
  const auto V = io.input<data, 2>("in.V");
  if (K.extent(0) != V.extent(0)) throw io.file().fault("in.V", "its rows are not as many as those of in.K");
  const auto read_state = io.output<data, 2>("out.read_state");
  const auto read_attn = io.output<data, 2>("out.read_attn");
  if (columns_of(read_state).rows() != V.extent(1) || columns_of(read_state).cols() != K.extent(0) ||
      columns_of(read_attn).rows() != V.extent(1) || columns_of(read_attn).cols() != K.extent(0)) {
    throw io.file().fault("out.read_state", "its shape, or that of out.read_attn, is not that of in.V");
  }
  double& acc_state = io.scalar_output<data>("out.acc_state");
  double& acc_attn = io.scalar_output<data>("out.acc_attn");
  const double beta = io.file().number("beta");
  io.run([&] {
    const Eigen::MatrixXd keys = columns_of(K), values = columns_of(V);
    columns_of(read_state) = recall_gap::linear_state(keys, values) * keys;
    columns_of(read_attn) = recall_gap::read_attention(keys, values, keys, beta);
    acc_state = recall_gap::share_recalled(columns_of(read_state), values);
    acc_attn = recall_gap::share_recalled(columns_of(read_attn), values);
  });
}

}  // namespace

computed recall_gap(const request& r) { return run_on_reference_in_double(r, run); }

}  // namespace replay::reference
