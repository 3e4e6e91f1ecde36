// SPDX-License-Identifier: Apache-2.0
#pragma once

// Rows of Google Benchmark for an operator on a backend in host memory: one for each pass and shape.

#include "support/tensor.hpp"

#include <benchmark/benchmark.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace polystate::bench {

using testing::tensor;

/// What one call has to move and to compute, whatever the backend does beyond that. A multiplication with an addition
/// is two operations, an exponential one.
struct work {
  double bytes;  ///< every operand read once, every result written once
  double flops;
};

struct pass {
  std::string name;
  work one_call;
  std::function<void()> call;
};

/// Bytes of the elements of tensors.
template <class... Tensors>
double bytes_of(const Tensors&... tensors) {
  return (0.0 + ... + (static_cast<double>(tensors.view().size()) * sizeof(*tensors.view().data())));
}

/// A backward computes the forward again and, for each of its products, one toward either factor.
constexpr double backward_flops(double forward) { return 3 * forward; }

/// Segments of m tokens that T tokens see, one after the other and each its own among them.
constexpr std::int64_t visible_segments(std::int64_t T, std::int64_t m) {
  std::int64_t sum = 0;
  for (std::int64_t t = 0; t < T; ++t) sum += t / m + 1;
  return sum;
}

template <class T = float, int Rank>
[[nodiscard]] tensor<T, Rank> result(const std::int64_t (&extents)[Rank]) {
  return tensor<T, Rank>(std::to_array(extents));
}

/// Operands, the same at each run.
class operand_maker {
 public:
  template <class T = float, int Rank>
  [[nodiscard]] tensor<T, Rank> uniform(const std::int64_t (&extents)[Rank], double low, double high) {
    return result<T>(extents).uniform(random_, low, high);
  }

 private:
  std::mt19937 random_{1};
};

/// Registers <operator>/<pass>/<backend>/<shape>. An Operator has a `name`, its `shapes`, each with text(), a
/// constructor that makes the operands of a shape, and passes(exec).
template <class Operator, class Exec>
void add_rows(const std::string& backend, const Exec& exec) {
  for (const auto& shape : Operator::shapes) {
    const auto problem = std::make_shared<Operator>(shape);
    for (const pass& p : problem->passes(exec)) {
      const std::string name = std::string(Operator::name) + "/" + p.name + "/" + backend + "/" + shape.text();
      benchmark::RegisterBenchmark(name.c_str(),
                                   [problem, p](benchmark::State& state) {
                                     for (auto _ : state) p.call();
                                     using benchmark::Counter;
                                     const auto rate = [](double n) {
                                       return Counter(n, Counter::kIsIterationInvariantRate, Counter::kIs1000);
                                     };
                                     state.counters["bytes"] = p.one_call.bytes;
                                     state.counters["bytes/s"] = rate(p.one_call.bytes);
                                     state.counters["flop/s"] = rate(p.one_call.flops);
                                   })
          ->Unit(benchmark::kMillisecond)
          ->UseRealTime();
    }
  }
}

/// main() of a benchmark program: add_all() registers its rows.
template <class AddAll>
int run_rows(int argc, char** argv, AddAll&& add_all) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  add_all();
  const bool any = benchmark::RunSpecifiedBenchmarks() > 0;
  benchmark::Shutdown();
  return any ? 0 : 1;
}

}  // namespace polystate::bench
