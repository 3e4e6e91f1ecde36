// SPDX-License-Identifier: Apache-2.0

#include <polystate/reference/multi_state.hpp>

#include <cstdio>

namespace ps = polystate;

int main() {
  // Four tokens write 10, 20, 30, 40 under four keys, two tokens a memory state. Each asks for one key's
  // value.
  const float k[4][4] = {{1, 0, 0, 0}, {0, 1, 0, 0}, {0, 0, 1, 0}, {0, 0, 0, 1}};
  const float q[4][4] = {{1, 0, 0, 0}, {1, 0, 0, 0}, {0, 1, 0, 0}, {0, 0, 1, 0}};
  const float v[4] = {10, 20, 30, 40}, beta[4] = {1, 1, 1, 1}, gamma[4] = {0.5, 0.5, 0.5, 0.5}, tau = 50;
  float o[4], lam[4][2];

  ps::multi_state(
      ps::on_reference{},
      ps::multi_state_args<float, ps::rule::delta, ps::separation::uniform, ps::router::merlin<float>>{
          .in = {.q = {*q, {1, 4, 1, 4}}, .k = {*k, {1, 4, 1, 4}}, .v = {v, {1, 4, 1, 1}}, .beta = {beta, {1, 4, 1}}},
          .separation = {.m = 2},
          .router = {.gamma = {gamma, {1, 4, 1}}, .tau_mu = {&tau, {1}}, .tau_sigma = {&tau, {1}}},
          .o = {o, {1, 4, 1, 1}},
          .lam = {*lam, {1, 4, 1, 2}},
          .shared_kq = true});  // the router scores with the same keys and queries

  for (int t = 0; t < 4; ++t) std::printf("token %d reads %.1f, weights %.3f %.3f\n", t, o[t], lam[t][0], lam[t][1]);
}
