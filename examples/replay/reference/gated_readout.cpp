// SPDX-License-Identifier: Apache-2.0

// The formula is that of examples/gating_theory.

#include "../../gating_theory/theory.hpp"
#include "../operands.hpp"
#include "../registry.hpp"

#include <Eigen/Core>

#include <cstdint>

namespace replay::reference {

namespace {

void run(operands<polystate::on_reference, double>& io) {
  const auto X = io.input<data, 3>("in.X");
  const auto xq = io.input<data, 2>("in.xq");
  const auto w = io.input<data, 1>("in.w");
  const auto lambda = io.input<data, 1>("in.lambda");
  const auto h = io.output<data, 2>("out.h");
  const auto f = io.output<data, 1>("out.f");
  const std::int64_t B = X.extent(0), l = X.extent(1), entries = X.extent(2);
  if (xq.extent(0) != B || xq.extent(1) != entries || w.extent(0) != entries || lambda.extent(0) != B ||
      h.extent(0) != B || h.extent(1) != entries || f.extent(0) != B) {
    throw io.file().fault("in.X", "its shape does not fit those of the others");
  }
  io.run([&] {
    for (std::int64_t b = 0; b < B; ++b) {
      const Eigen::MatrixXd context = Eigen::Map<const Eigen::MatrixXd>(X.select(0, b).data(), entries, l);
      const Eigen::VectorXd query = Eigen::Map<const Eigen::VectorXd>(xq.select(0, b).data(), entries);
      const Eigen::VectorXd weights = Eigen::Map<const Eigen::VectorXd>(w.data(), entries);
      const auto read = gating::gated_readout<double>(context, query, weights, lambda(b));
      Eigen::Map<Eigen::VectorXd>(h.select(0, b).data(), entries) = read.h;
      f(b) = read.f;
    }
  });
}

}  // namespace

computed gated_readout(const request& r) { return run_on_reference_in_double(r, run); }

}  // namespace replay::reference
