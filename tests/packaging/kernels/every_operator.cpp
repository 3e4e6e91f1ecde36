// SPDX-License-Identifier: Apache-2.0
// The headers written for every operator take the contracts' own args.

#include <every/causal_conv1d.hpp>
#include <every/gated_delta_rule.hpp>
#include <every/multi_state.hpp>
#include <every/routing.hpp>
#include <every/segment_moments.hpp>
#include <every/selective_scan.hpp>
#include <every/ssd.hpp>
#include <every_uniform/multi_state.hpp>

namespace ps = polystate;

namespace {

using h = ps::half;
using segments = ps::separation::uniform;
using rule = ps::rule::gated_delta;
using merlin = ps::router::merlin<h>;
using top_k = ps::router::top_k<merlin>;

static_assert(requires(const ps::causal_conv1d_args<float>& args) {
  every::try_causal_conv1d(nullptr, args);
  every::workspace_bytes(args);
});
static_assert(requires(const ps::causal_conv1d_args<ps::bfloat16>& args,
                       const ps::causal_conv1d_grads<ps::bfloat16>& grads) {
  every::try_causal_conv1d_backward(nullptr, args, grads);
  every::workspace_bytes(args, grads);
});
static_assert(requires(const ps::causal_conv1d_step_args<h>& args) {
  every::try_causal_conv1d_step(nullptr, args);
  every::workspace_bytes(args);
});
static_assert(requires(const ps::selective_scan_args<float, h>& args) {
  every::try_selective_scan(nullptr, args);
  every::workspace_bytes(args);
});
static_assert(requires(const ps::selective_scan_args<h, h>& args, const ps::selective_scan_grads<h, h>& grads) {
  every::try_selective_scan_backward(nullptr, args, grads);
  every::workspace_bytes(args, grads);
});
static_assert(requires(const ps::selective_scan_step_args<h, h>& args) {
  every::try_selective_scan_step(nullptr, args);
  every::workspace_bytes(args);
});
static_assert(requires(const ps::ssd_args<h>& args) {
  every::try_ssd(nullptr, args);
  every::workspace_bytes(args);
});
static_assert(requires(const ps::ssd_args<h>& args, const ps::ssd_grads<h>& grads) {
  every::try_ssd_backward(nullptr, args, grads);
  every::workspace_bytes(args, grads);
});
static_assert(requires(const ps::ssd_step_args<h>& args) {
  every::try_ssd_step(nullptr, args);
  every::workspace_bytes(args);
});
static_assert(requires(const ps::gated_delta_rule_args<h, ps::rule::delta>& args) {
  every::try_gated_delta_rule(nullptr, args);
  every::workspace_bytes(args);
});
static_assert(requires(const ps::gated_delta_rule_args<h, ps::rule::delta>& args,
                       const ps::gated_delta_rule_grads<h, ps::rule::delta>& grads) {
  every::try_gated_delta_rule_backward(nullptr, args, grads);
  every::workspace_bytes(args, grads);
});
static_assert(requires(const ps::gated_delta_rule_step_args<h, ps::rule::delta>& args) {
  every::try_gated_delta_rule_step(nullptr, args);
  every::workspace_bytes(args);
});
static_assert(requires(const ps::segment_moments_args<h, segments>& args) {
  every::try_segment_moments(nullptr, args);
  every::workspace_bytes(args);
});
static_assert(requires(const ps::segment_moments_args<h, segments>& args, const ps::segment_moments_grads<h>& grads) {
  every::try_segment_moments_backward(nullptr, args, grads);
  every::workspace_bytes(args, grads);
});
static_assert(requires(const ps::routing_args<h, segments, top_k>& args) {
  every::try_routing(nullptr, args);
  every::workspace_bytes(args);
});
static_assert(requires(const ps::routing_args<h, segments, top_k>& args, const ps::routing_grads<h, top_k>& grads) {
  every::try_routing_backward(nullptr, args, grads);
  every::workspace_bytes(args, grads);
});
static_assert(requires(const ps::multi_state_args<h, rule, segments, merlin>& args) {
  every::try_multi_state(nullptr, args);
  every::workspace_bytes(args);
});
static_assert(requires(const ps::multi_state_step_args<h, rule, segments, merlin>& args) {
  every::try_multi_state_step(nullptr, args);
  every::workspace_bytes(args);
});
static_assert(requires(const ps::multi_state_read_args<h, rule, merlin>& args) {
  every::try_multi_state_read(nullptr, args);
  every::workspace_bytes(args);
});
static_assert(requires(const ps::multi_state_step_args<h, rule, segments, ps::router::uniform>& args) {
  every_uniform::multi_state_step(nullptr, args, {}, true);
});

}  // namespace
