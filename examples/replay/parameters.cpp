// SPDX-License-Identifier: Apache-2.0

#include "parameters.hpp"

#include <polystate/interop/safetensors.hpp>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace replay {

namespace {

using names = std::vector<std::string_view>;

names operator+(names a, const names& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// Of an operator's files; none for one that has no parameters.
names parameters_of(std::string_view op) {
  const names delta_family = {"rule", "scale", "qk_l2norm", "l2norm_eps"};
  const names ssd = {"dt_softplus", "dt_min", "dt_max"};
  const names segments = {"separation", "m"};
  const names moments = {"moment_rule", "divide_by", "qkp_l2norm", "l2norm_eps"};
  const names router = {"routing", "position_index", "position_norm", "topk", "topk_keep_current", "max_visible"};
  const names layer = delta_family + ssd + router + names{"qkp_l2norm", "shared_kq"};

  if (op == "causal_conv1d") return {"activation"};
  if (op == "selective_scan") return {"delta_softplus"};
  if (op == "ssd") return ssd;
  if (op == "gated_delta_rule" || op == "log_linear") return delta_family;
  if (op == "segment_moments") return segments + moments;
  // H says what the shapes do.
  if (op == "routing") return segments + moments + router + names{"H"};
  // Which outputs there are is seen from the tensors.
  if (op == "multi_state") return layer + segments + moments + names{"return_lam", "return_bank"};
  if (op == "multi_state_step") return layer + segments + moments + names{"t0"};
  if (op == "multi_state_read") return layer;
  if (op == "mara") return {"layers", "residual"};
  if (op == "mara_chain") return {"k"};
  if (op == "toplora") return {"rms_eps"};
  if (op == "recall_gap") return {"beta"};
  return {};
}

std::string text_of(names known) {
  std::sort(known.begin(), known.end());
  known.erase(std::unique(known.begin(), known.end()), known.end());
  std::string text;
  for (const std::string_view name : known) text += (text.empty() ? "" : ", ") + std::string(name);
  return text.empty() ? "none" : text;
}

}  // namespace

void refuse_unknown_parameters(const case_file& file) {
  const names known = parameters_of(file.op());
  for (const std::string& parameter : file.parameters()) {
    if (std::find(known.begin(), known.end(), parameter) != known.end()) continue;
    throw malformed(file.path(), "param." + polystate::safetensors::error::printable(parameter),
                    "unknown to " + file.op() + ", supported: " + text_of(known));
  }
}

}  // namespace replay
