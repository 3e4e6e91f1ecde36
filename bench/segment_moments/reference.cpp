// SPDX-License-Identifier: Apache-2.0

// segment_moments: the reference.

#include "support/rows.hpp"

#include <polystate/reference/segment_moments.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace polystate::bench {
namespace {

struct shape {
  std::int64_t B, T, m, HR, dr;
  [[nodiscard]] std::string text() const {
    return "B" + std::to_string(B) + "/T" + std::to_string(T) + "/m" + std::to_string(m) + "/H" + std::to_string(HR) +
           "/dr" + std::to_string(dr);
  }
};

class moments {
 public:
  static constexpr const char* name = "segment_moments";
  static constexpr shape shapes[] = {{1, 64, 16, 1, 8}, {1, 512, 128, 6, 64}};

  explicit moments(const shape& n) : n_(n) {}

  template <class Exec>
  [[nodiscard]] std::vector<pass> passes(const Exec& exec) {
    // k' and k' k'^T with their additions
    const double flops = 2.0 * static_cast<double>(n_.B * n_.T * n_.HR * n_.dr * (n_.dr + 1));
    const auto args = [this] {
      return segment_moments_args<float>{
          .moments = {.k = k_.view()}, .separation = {.m = n_.m}, .mu = mu_.view(), .Sigma = Sigma_.view()};
    };
    return {
        {"forward", {bytes_of(k_, mu_, Sigma_), flops}, [=] { segment_moments(exec, args()); }},
        {"backward",
         {bytes_of(k_, d_mu_, d_Sigma_, d_k_), backward_flops(flops)},
         [=, this] {
           segment_moments_backward(
               exec, args(),
               segment_moments_grads<float>{
                   .d_mu = d_mu_.view(), .d_Sigma = d_Sigma_.view(), .moments = {.d_k = d_k_.view()}});
         }},
    };
  }

 private:
  shape n_;
  std::int64_t L_ = separation::uniform{.m = n_.m}.count(n_.T);
  operand_maker make_;
  const tensor<float, 4> k_ = make_.uniform({n_.B, n_.T, n_.HR, n_.dr}, -1, 1);
  const tensor<float, 4> d_mu_ = make_.uniform({n_.B, L_, n_.HR, n_.dr}, -1, 1);
  const tensor<float, 5> d_Sigma_ = make_.uniform({n_.B, L_, n_.HR, n_.dr, n_.dr}, -1, 1);
  tensor<float, 4> mu_ = result({n_.B, L_, n_.HR, n_.dr});
  tensor<float, 5> Sigma_ = result({n_.B, L_, n_.HR, n_.dr, n_.dr});
  tensor<float, 4> d_k_ = result({n_.B, n_.T, n_.HR, n_.dr});
};

}  // namespace
}  // namespace polystate::bench

int main(int argc, char** argv) {
  using namespace polystate;
  return bench::run_rows(argc, argv, [] { bench::add_rows<bench::moments>("reference", on_reference{}); });
}
