// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The layers whose cost is planned: sizes of a model's heads, and how many parameters its token mixer has without a
/// bank of states.

#include <polystate/state_bank.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace memory_cost {

struct model {
  std::string name;
  polystate::bank_shape heads;  ///< without the routing dim
  std::int64_t d_model = 0;
  std::int64_t mixer_parameters = 0;  ///< of one layer's token mixer; 0: not known

  [[nodiscard]] polystate::bank_shape with_routing_dim(std::int64_t dr) const {
    polystate::bank_shape shape = heads;
    shape.dr = dr;
    return shape;
  }
};

/// Projections of q, k, v, output gate and output, of the decay and of beta; convolutions of 4 taps over q, k and v;
/// A_log, dt_bias and the norm of a head's output.
inline std::int64_t gated_deltanet_mixer(std::int64_t d_model, const polystate::bank_shape& heads) {
  const std::int64_t key = heads.H * heads.dk, value = heads.H * heads.dv;
  return d_model * (2 * key + 3 * value + 2 * heads.H) + 4 * (2 * key + value) + 2 * heads.H + heads.dv;
}

/// Projection to z, x, B, C (one group) and dt, and back; a convolution of 4 taps with bias over x, B and C; A_log,
/// dt_bias, D and the norm.
inline std::int64_t mamba2_mixer(std::int64_t d_model, const polystate::bank_shape& heads) {
  const std::int64_t inner = heads.H * heads.dv, mixed = inner + 2 * heads.dk;
  return d_model * (2 * inner + 2 * heads.dk + heads.H) + inner * d_model + 5 * mixed + 3 * heads.H + inner;
}

/// Gated DeltaNet at 1.3B parameters, moments a head, and Mamba-2 at 780M, whose heads share B and C in one group, and
/// so the moments of their keys.
inline std::vector<model> published_models() {
  const polystate::bank_shape gdn{.H = 6, .dv = 512, .dk = 256, .HR = 6, .dr = 0};
  const polystate::bank_shape mamba2{.H = 48, .dv = 64, .dk = 128, .HR = 1, .dr = 0};
  return {{"GDN-1.3B", gdn, 2048, gated_deltanet_mixer(2048, gdn)},
          {"Mamba-2-780M", mamba2, 1536, mamba2_mixer(1536, mamba2)}};
}

}  // namespace memory_cost
