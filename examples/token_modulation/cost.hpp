// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What an adapter costs beside the frozen layer: parameters, arithmetic and state a token.

#include "adapter.hpp"

#include <polystate/adapters/mamba_block.hpp>
#include <polystate/core/element.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace token_modulation {

struct cost {
  std::string name;
  std::int64_t parameters;       ///< trained
  std::int64_t multiplications;  ///< a token: products, convolution and scan; no exponentials, no divisions
  std::int64_t state_bytes;      ///< kept a sequence while decoding
};

/// Numbers that an adapter owns, counted from the operands that it gives.
template <class Data>
std::int64_t parameters_of(const ps::malora_args<Data>& a) {
  const auto& m = a.mamba;
  return a.A.size() + a.B.size() + a.P.size() + m.in_proj.size() + m.conv_w.size() + m.conv_b.size() + m.x_proj.size() +
         m.dt_proj_w.size() + m.dt_proj_b.size() + m.A_log.size() + m.D.size() + m.out_proj.size() + a.phi_w.size() +
         a.phi_b.size();
}

/// Multiplications of a block for one token. A state of the scan takes four: dt A, decay times state, (dt u) B, and C
/// times state; a channel three more: dt u, the skip, the gate.
inline std::int64_t multiplications_of_block(const sizes& n) {
  return 3 * n.di * n.dp + n.di * n.taps + (n.dt_rank + 2 * n.states) * n.di + n.di * n.dt_rank + 4 * n.di * n.states +
         3 * n.di;
}

/// LoRA, TopLoRA and both forms of MaLoRA; the states in the library's types for bfloat16 data.
inline std::vector<cost> costs_of(const sizes& given) {
  const sizes n = given.resolved();
  const std::int64_t lora = n.rank * (n.din + n.dout);
  std::vector<cost> all = {
      {"LoRA", lora, lora, 0},
      {"TopLoRA", lora + n.rank * n.din + n.rank, lora + n.rank * n.din + 4 * n.rank, 0},  // squares, 1/n, w, lam
  };
  const auto conv_bytes = static_cast<std::int64_t>(sizeof(ps::bfloat16)) * (n.taps - 1) * n.di;
  const auto scan_bytes = static_cast<std::int64_t>(sizeof(ps::acc_t<ps::bfloat16>)) * n.di * n.states;
  for (const bool diagonal : {false, true}) {
    sizes form = n;
    form.diagonal = diagonal;
    const std::int64_t multiplications =
        lora + n.dp * n.din + multiplications_of_block(n) + form.factors() * n.dp + n.rank;
    all.push_back({diagonal ? "MaLoRA diagonal" : "MaLoRA scalar", parameters_of(adapter(form, 0).args()),
                   multiplications, conv_bytes + scan_bytes});
  }
  return all;
}

}  // namespace token_modulation
