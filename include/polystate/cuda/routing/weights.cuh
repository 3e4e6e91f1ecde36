// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Weights of the routers, and their derivatives: a warp has a token and a head, its lanes the segments that it sees.
/// Every router is a sum of softmaxes over logits that are made of scores, so one kernel serves all; docs/routing.md
/// has the formulas. For other operators: weights_params and weights_gradient_params say what is read and written.

#include <polystate/cuda/launch.cuh>
#include <polystate/cuda/recurrence/operands.cuh>
#include <polystate/cuda/routing/scores.cuh>
#include <polystate/cuda/tiling.hpp>
#include <polystate/routing.hpp>

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <limits>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::route {

enum class router_kind { uniform, position, meanpool, merlin, cumulant };

/// A router without its query.
struct router_params {
  router_kind kind = router_kind::uniform;
  tensor_view<const float, 4> weights{};    ///< position: (B, T, H, A)
  bool absolute = false;                    ///< position: by segment, else by age
  bool raw = false;                         ///< position: as given
  tensor_view<const float, 3> gamma{};      ///< merlin: (B, T, H)
  tensor_view<const float, 1> tau_mu{};     ///< merlin: (H); cumulant: delta
  tensor_view<const float, 1> tau_sigma{};  ///< merlin: (H)
  int k = 0;                                ///< of top_k; 0: all are kept
  bool keep_current = false;

  [[nodiscard]] POLYSTATE_HOST_DEVICE bool reads_mu() const {
    return kind != router_kind::uniform && kind != router_kind::position;
  }
  [[nodiscard]] POLYSTATE_HOST_DEVICE bool reads_Sigma() const {
    return kind == router_kind::merlin || kind == router_kind::cumulant;
  }
};

inline router_params make_router(const router::uniform&) { return {}; }
template <class Data>
router_params make_router(const router::position<Data>& r) {
  router_params p;
  p.kind = router_kind::position;
  p.weights = r.weights;
  p.absolute = r.position_index == position_index::absolute;
  p.raw = r.position_norm == position_norm::none;
  return p;
}
template <class Data>
router_params make_router(const router::meanpool<Data>&) {
  router_params p;
  p.kind = router_kind::meanpool;
  return p;
}
template <class Data>
router_params make_router(const router::merlin<Data>& r) {
  router_params p;
  p.kind = router_kind::merlin;
  p.gamma = r.gamma;
  p.tau_mu = r.tau_mu;
  p.tau_sigma = r.tau_sigma;
  return p;
}
template <class Data>
router_params make_router(const router::cumulant<Data>& r) {
  router_params p;
  p.kind = router_kind::cumulant;
  p.tau_mu = r.delta;
  return p;
}
template <class Router>
router_params make_router(const router::top_k<Router>& r) {
  router_params p = make_router(r.of);
  p.k = static_cast<int>(std::min<std::int64_t>(r.k, (std::numeric_limits<int>::max)()));
  p.keep_current = r.keep_current;
  return p;
}

/// Weights of tokens over segments: row (b, t, head) of a view (B, T, H, L). `relative`: element c is the segment
/// visible.first + c; else it is the sequence's segment c.
template <class Float>
struct weight_view {
  tensor_view<Float, 4> rows{};
  bool relative = false;

  /// Element of the first visible segment.
  [[nodiscard]] __device__ std::int64_t first(const visible_slots& v) const {
    return relative ? 0 : v.first - v.origin;
  }
};

/// What a warp knows of its token and head before it looks at segments. A weight is computed anew wherever it is asked
/// for, and top_k asks whether two are equal: every rounding is spelled out, none is left to contraction.
class weight_row {
 public:
  __device__ weight_row(const router_params& r, const score_rows& scores, std::int64_t scores_at,
                        const visible_slots& seen, std::int64_t b, std::int64_t t, std::int64_t head)
      : kind_(r.kind), raw_(r.raw), size_(seen.size()) {
    if (r.reads_mu()) r_mu_ = scores.r_mu + scores_at;
    if (r.reads_Sigma()) r_sigma_ = scores.r_sigma + scores_at;
    if (kind_ == router_kind::position) {
      step_ = r.absolute ? r.weights.stride(3) : -r.weights.stride(3);
      position_ = &r.weights(b, t, head, r.absolute ? std::int64_t{seen.first - seen.origin} : size_ - std::int64_t{1});
      // Weights may be too few where their number is known from contents alone: nothing behind them is read.
      first_position_ = r.absolute ? 0 : size_ - r.weights.extent(3);
      last_position_ = r.absolute ? r.weights.extent(3) - (seen.first - seen.origin) : size_;
    } else if (kind_ == router_kind::merlin) {
      gamma_ = r.gamma(b, t, head);
      tau_mu_ = r.tau_mu(head);
      tau_sigma_ = r.tau_sigma(head);
    } else if (kind_ == router_kind::cumulant) {
      tau_mu_ = r.tau_mu(head);
      tau_sigma_ = 0.5f * tau_mu_ * tau_mu_;
    }
    if (kind_ == router_kind::uniform || raw_) return;
    by_mean_ = normalization([&](int c) { return logit(c); });
    if (kind_ == router_kind::merlin) by_variance_ = normalization([&](int c) { return variance_logit(c); });
  }

  [[nodiscard]] __device__ int size() const { return size_; }
  [[nodiscard]] __device__ float gamma() const { return gamma_; }
  [[nodiscard]] __device__ float tau_mu() const { return tau_mu_; }
  [[nodiscard]] __device__ float tau_sigma() const { return tau_sigma_; }
  [[nodiscard]] __device__ float r_mu(int c) const { return r_mu_[c]; }
  [[nodiscard]] __device__ float r_sigma(int c) const { return r_sigma_[c]; }

  /// The softmax of the logits, and merlin's of the variances.
  [[nodiscard]] __device__ float by_mean(int c) const {
    return __fdiv_rn(expf(__fsub_rn(logit(c), by_mean_.largest)), by_mean_.sum);
  }
  [[nodiscard]] __device__ float by_variance(int c) const {
    return __fdiv_rn(expf(__fsub_rn(variance_logit(c), by_variance_.largest)), by_variance_.sum);
  }
  /// lam, before top_k.
  [[nodiscard]] __device__ float operator()(int c) const {
    if (kind_ == router_kind::uniform) return 1.0f / static_cast<float>(size_);
    if (raw_) return logit(c);
    if (kind_ == router_kind::merlin) return fmaf(gamma_, by_mean(c), __fmul_rn(1.0f - gamma_, by_variance(c)));
    return by_mean(c);
  }

 private:
  struct softmax_numbers {
    float largest = 0.0f;
    float sum = 1.0f;
  };

  [[nodiscard]] __device__ float logit(int c) const {
    switch (kind_) {
      case router_kind::position:
        return c >= first_position_ && c < last_position_ ? position_[c * step_] : 0.0f;
      case router_kind::meanpool:
        return r_mu_[c];
      case router_kind::merlin:
        return __fmul_rn(tau_mu_, r_mu_[c]);
      case router_kind::cumulant:
        return fmaf(tau_mu_, r_mu_[c], __fmul_rn(tau_sigma_, r_sigma_[c]));
      default:
        return 0.0f;
    }
  }
  [[nodiscard]] __device__ float variance_logit(int c) const { return __fmul_rn(tau_sigma_, r_sigma_[c]); }

  /// Where a logit is NaN the sum is, and with it every weight.
  template <class Logit>
  [[nodiscard]] __device__ softmax_numbers normalization(const Logit& of) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float largest = -INFINITY;
    for (int c = lane; c < size_; c += 32) largest = fmaxf(largest, of(c));
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, apart));
    float sum = 0.0f;
    for (int c = lane; c < size_; c += 32) sum += expf(__fsub_rn(of(c), largest));
    return {largest, recurrence::sum_in_group<32>(sum)};
  }

  router_kind kind_;
  bool raw_;
  int size_;
  const float* r_mu_ = nullptr;
  const float* r_sigma_ = nullptr;
  const float* position_ = nullptr;
  std::int64_t step_ = 0;
  std::int64_t first_position_ = 0;
  std::int64_t last_position_ = 0;
  float gamma_ = 0.0f;
  float tau_mu_ = 0.0f;
  float tau_sigma_ = 0.0f;
  softmax_numbers by_mean_, by_variance_;
};

/// Which weights top_k keeps: those above a threshold, and of those that equal it the ones from `cut` on.
class kept_columns {
 public:
  __device__ kept_columns(const router_params& r, const weight_row& weights) : size_(weights.size()) {
    if (r.k == 0 || size_ <= r.k) return;
    all_ = false;
    current_ = r.keep_current;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int candidates = size_ - (current_ ? 1 : 0);
    const int wanted = r.k - (current_ ? 1 : 0);
    const auto count = [&](const auto& counts) {
      int n = 0;
      for (int c = lane; c < candidates; c += 32) n += counts(order(weights(c))) ? 1 : 0;
      return __reduce_add_sync(0xffffffffu, n);
    };
    for (int bit = 31; bit >= 0; --bit) {
      const unsigned higher = threshold_ | (1u << bit);
      if (count([&](unsigned w) { return w >= higher; }) >= wanted) threshold_ = higher;
    }
    int ties = wanted - count([&](unsigned w) { return w > threshold_; });
    cut_ = candidates;
    for (int end = candidates; ties > 0 && end > 0; end -= 32) {
      const int c = end - 1 - lane;  // lane 0 has the latest
      const unsigned equal = __ballot_sync(0xffffffffu, c >= 0 && order(weights(c)) == threshold_);
      const int here = __popc(equal);
      if (here >= ties) {
        cut_ = end - 1 - static_cast<int>(__fns(equal, 0, ties));
      }
      ties -= here;
    }
  }

  [[nodiscard]] __device__ bool all() const { return all_; }
  [[nodiscard]] __device__ bool operator()(int c, float weight) const {
    if (all_) return true;
    if (current_ && c == size_ - 1) return true;
    const unsigned w = order(weight);
    return w > threshold_ || (w == threshold_ && c >= cut_);
  }

 private:
  /// Numbers that are ordered as weights are, NaN the largest; 0 and -0 tie.
  [[nodiscard]] __device__ static unsigned order(float weight) {
    if (weight != weight) return 0xffffffffu;
    const unsigned bits = __float_as_uint(weight + 0.0f);
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  }

  int size_;
  bool all_ = true;
  bool current_ = false;
  unsigned threshold_ = 0;
  int cut_ = 0;
};

struct weights_params {
  router_params router;
  const visible_slots* visible = nullptr;  ///< (tokens)
  score_rows scores;
  weight_view<float> lam;  ///< out; 0 for segments that are not visible
  std::int64_t tokens = 0;
  std::int64_t time = 0;
  std::int64_t heads = 0;         ///< H
  std::int64_t moment_heads = 1;  ///< HR
};

inline constexpr int weight_threads = 128;

/// Calls f with each element of a row over all segments and the visible one's column, -1 for the others; a lane always
/// gets the same columns.
template <class Float, class F>
__device__ void for_each_weight(const weight_view<Float>& view, const visible_slots& seen, std::int64_t b,
                                std::int64_t t, std::int64_t head, F&& f) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t first = view.first(seen);
  const std::int64_t length = view.rows.extent(3);
  Float* const row = &view.rows(b, t, head, 0);
  for (std::int64_t l = lane; l < length; l += 32) {
    const bool sees = l >= first && l < first + seen.size();
    f(row[l * view.rows.stride(3)], sees ? static_cast<int>(l - first) : -1);
  }
}

template <int Threads>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(Threads)
    routing_weights_kernel(const __grid_constant__ weights_params p) {
  const std::int64_t unit = (static_cast<std::int64_t>(blockIdx.x) * Threads + threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (unit >= p.tokens * p.heads) return;
  const std::int64_t token = unit / p.heads;
  const std::int64_t head = unit % p.heads;
  const std::int64_t b = token / p.time;
  const std::int64_t t = token % p.time;
  const visible_slots seen = p.visible[token];
  const std::int64_t moment_head = group_of_head(head, p.heads, p.moment_heads);
  const weight_row weights(p.router, p.scores, p.scores.at(token, p.moment_heads, moment_head), seen, b, t, head);
  const kept_columns kept(p.router, weights);
  float divisor = 1.0f;
  if (!kept.all()) {
    float sum = 0.0f;
    for (int c = lane; c < weights.size(); c += 32) {
      const float w = weights(c);
      if (kept(c, w)) sum += w;
    }
    divisor = recurrence::sum_in_group<32>(sum);
  }
  for_each_weight(p.lam, seen, b, t, head, [&](float& lam, int c) {
    const float w = c >= 0 ? weights(c) : 0.0f;
    lam = c >= 0 && kept(c, w) ? (kept.all() ? w : w / divisor) : 0.0f;
  });
}

inline POLYSTATE_HIDDEN status launch_weights(const char* name, const cuda_policy auto& exec, const weights_params& p) {
  const grid g{.blocks = tiles_of(p.tokens * p.heads, weight_threads / 32), .threads = weight_threads};
  return launch(name, exec, g, routing_weights_kernel<weight_threads>, p);
}

struct weights_gradient_params {
  router_params router;
  const visible_slots* visible = nullptr;  ///< (tokens)
  score_rows scores;
  score_rows d_scores;                ///< out, of the products (see score_rows), summed over a moment head's heads
  weight_view<const float> d_lam;     ///< upstream
  tensor_view<float, 4> d_weights{};  ///< position: (B, T, H, A), out, or absent
  tensor_view<float, 3> d_gamma{};    ///< merlin: (B, T, H), out, or absent
  float2* d_tau = nullptr;            ///< [token][head], of tau_mu (cumulant: delta) and tau_sigma; null: not wanted
  std::int64_t tokens = 0;
  std::int64_t time = 0;
  std::int64_t heads = 0;         ///< H
  std::int64_t moment_heads = 1;  ///< HR; where the router reads no moments, H
};

/// A warp has a token and all heads of a moment head, in their order.
template <int Threads>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(Threads)
    routing_weights_gradient_kernel(const __grid_constant__ weights_gradient_params p) {
  const std::int64_t unit = (static_cast<std::int64_t>(blockIdx.x) * Threads + threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (unit >= p.tokens * p.moment_heads) return;
  const std::int64_t token = unit / p.moment_heads;
  const std::int64_t moment_head = unit % p.moment_heads;
  const std::int64_t b = token / p.time;
  const std::int64_t t = token % p.time;
  const visible_slots seen = p.visible[token];
  const std::int64_t scores_at = p.scores.at(token, p.moment_heads, moment_head);
  float* const d_mean = p.router.reads_mu() ? p.d_scores.r_mu + scores_at : nullptr;
  float* const d_variance = p.router.reads_Sigma() ? p.d_scores.r_sigma + scores_at : nullptr;
  const router_kind kind = p.router.kind;
  const auto sum_over = [&](int size, const auto& term) {
    float sum = 0.0f;
    for (int c = lane; c < size; c += 32) sum += term(c);
    return recurrence::sum_in_group<32>(sum);
  };

  const std::int64_t group = p.heads / p.moment_heads;
  for (std::int64_t head = moment_head * group; head < (moment_head + 1) * group; ++head) {
    const bool is_first = head == moment_head * group;
    const weight_row weights(p.router, p.scores, scores_at, seen, b, t, head);
    const kept_columns kept(p.router, weights);
    const int size = weights.size();
    const float* const upstream = &p.d_lam.rows(b, t, head, p.d_lam.first(seen));
    const std::int64_t stride = p.d_lam.rows.stride(3);
    // y = lam / sum over the kept ones:  dlam = (dy - dy.y) / sum
    float kept_sum = 1.0f;
    float kept_mean = 0.0f;
    if (!kept.all()) {
      kept_sum = sum_over(size, [&](int c) {
        const float w = weights(c);
        return kept(c, w) ? w : 0.0f;
      });
      kept_mean = sum_over(size,
                           [&](int c) {
                             const float w = weights(c);
                             return kept(c, w) ? w * upstream[c * stride] : 0.0f;
                           }) /
                  kept_sum;
    }
    const auto d_lam = [&](int c) {
      const float dy = upstream[c * stride];
      if (kept.all()) return dy;
      return kept(c, weights(c)) ? (dy - kept_mean) / kept_sum : 0.0f;
    };

    if (kind == router_kind::position) {
      if (p.d_weights.data() == nullptr) continue;
      const bool raw = p.router.raw;
      const float mean = raw ? 0.0f : sum_over(size, [&](int c) { return weights(c) * d_lam(c); });
      const std::int64_t first = seen.first - seen.origin;
      for (std::int64_t a = lane; a < p.d_weights.extent(3); a += 32) {
        const std::int64_t c = p.router.absolute ? a - first : size - 1 - a;
        float d = 0.0f;
        if (c >= 0 && c < size) {
          const int column = static_cast<int>(c);
          d = raw ? d_lam(column) : weights(column) * (d_lam(column) - mean);
        }
        p.d_weights(b, t, head, a) = d;
      }
    } else if (kind == router_kind::merlin) {
      const float gamma = weights.gamma();
      const float mean = sum_over(size, [&](int c) { return weights.by_mean(c) * d_lam(c); });
      const float variance = sum_over(size, [&](int c) { return weights.by_variance(c) * d_lam(c); });
      const auto dx = [&](int c) { return weights.by_mean(c) * gamma * (d_lam(c) - mean); };
      const auto dy = [&](int c) { return weights.by_variance(c) * (1.0f - gamma) * (d_lam(c) - variance); };
      if (p.d_gamma.data() != nullptr) {
        const float d = sum_over(size, [&](int c) { return d_lam(c) * (weights.by_mean(c) - weights.by_variance(c)); });
        if (lane == 0) p.d_gamma(b, t, head) = d;
      }
      if (p.d_tau != nullptr) {
        const float of_mean = sum_over(size, [&](int c) { return dx(c) * weights.r_mu(c); });
        const float of_variance = sum_over(size, [&](int c) { return dy(c) * weights.r_sigma(c); });
        if (lane == 0) p.d_tau[token * p.heads + head] = make_float2(of_mean, of_variance);
      }
      for (int c = lane; c < size; c += 32) {
        d_mean[c] = fmaf(weights.tau_mu(), dx(c), is_first ? 0.0f : d_mean[c]);
        d_variance[c] = fmaf(weights.tau_sigma(), dy(c), is_first ? 0.0f : d_variance[c]);
      }
    } else if (kind == router_kind::meanpool || kind == router_kind::cumulant) {
      const float mean = sum_over(size, [&](int c) { return weights.by_mean(c) * d_lam(c); });
      const auto dx = [&](int c) { return weights.by_mean(c) * (d_lam(c) - mean); };
      if (kind == router_kind::cumulant && p.d_tau != nullptr) {
        const float of_delta =
            sum_over(size, [&](int c) { return dx(c) * fmaf(weights.tau_mu(), weights.r_sigma(c), weights.r_mu(c)); });
        if (lane == 0) p.d_tau[token * p.heads + head] = make_float2(of_delta, 0.0f);
      }
      const float by = kind == router_kind::cumulant ? weights.tau_mu() : 1.0f;
      for (int c = lane; c < size; c += 32) {
        d_mean[c] = fmaf(by, dx(c), is_first ? 0.0f : d_mean[c]);
        if (d_variance != nullptr) d_variance[c] = fmaf(weights.tau_sigma(), dx(c), is_first ? 0.0f : d_variance[c]);
      }
    }
  }
  // r_sigma = q'^T Sigma q' - r_mu^2
  if (d_variance == nullptr) return;
  for (int c = lane; c < seen.size(); c += 32) {
    d_mean[c] = fmaf(-2.0f * p.scores.r_mu[scores_at + c], d_variance[c], d_mean[c]);
  }
}

inline POLYSTATE_HIDDEN status launch_weights_gradient(const char* name, const cuda_policy auto& exec,
                                                       const weights_gradient_params& p) {
  const grid g{.blocks = tiles_of(p.tokens * p.moment_heads, weight_threads / 32), .threads = weight_threads};
  return launch(name, exec, g, routing_weights_gradient_kernel<weight_threads>, p);
}

struct tau_sum_params {
  const float2* d_tau = nullptr;  ///< [token][head]
  tensor_view<float, 1> to[2]{};  ///< (H), or absent
  std::int64_t tokens = 0;
  std::int64_t heads = 0;
};

/// The gradients that all tokens share. A block has a head.
template <int Threads>
__global__ POLYSTATE_HIDDEN void __launch_bounds__(Threads)
    routing_tau_sum_kernel(const __grid_constant__ tau_sum_params p) {
  __shared__ float2 sums[Threads / 32];
  const int tid = static_cast<int>(threadIdx.x);
  const std::int64_t head = blockIdx.x;
  float2 sum = make_float2(0.0f, 0.0f);
  for (std::int64_t token = tid; token < p.tokens; token += Threads) {
    const float2 d = p.d_tau[token * p.heads + head];
    sum.x += d.x;
    sum.y += d.y;
  }
  sum = make_float2(recurrence::sum_in_group<32>(sum.x), recurrence::sum_in_group<32>(sum.y));
  if (tid % 32 == 0) sums[tid / 32] = sum;
  __syncthreads();
  if (tid != 0) return;
  float2 total = make_float2(0.0f, 0.0f);
  for (const float2& s : sums) {
    total.x += s.x;
    total.y += s.y;
  }
  if (p.to[0].data() != nullptr) p.to[0](head) = total.x;
  if (p.to[1].data() != nullptr) p.to[1](head) = total.y;
}

inline constexpr int tau_threads = 256;

inline POLYSTATE_HIDDEN status launch_tau_sum(const char* name, const cuda_policy auto& exec, const tau_sum_params& p) {
  return launch(name, exec, grid{.blocks = p.heads, .threads = tau_threads}, routing_tau_sum_kernel<tau_threads>, p);
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda::route
