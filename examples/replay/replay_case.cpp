// SPDX-License-Identifier: Apache-2.0

#include "replay_case.hpp"

#include "judge.hpp"
#include "parameters.hpp"
#include "registry.hpp"

#include <polystate/core/error.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>

namespace replay {

namespace {

std::string text_of(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

/// What one pass over the case has found.
struct pass_result {
  std::optional<judgement> worst;  // absent: nothing to judge
  computed what;
};

const char* prefix_of(pass which) { return which == pass::forward ? "out." : "din."; }

/// A pass as the backend runs it; an input that the case's options do not read has gradient 0.
computed run_pass(runner* run, const request& r, pass which) {
  computed what = run(r);
  if (which != pass::backward) return what;
  for (const std::string& input : what.unused) {
    if (!input.starts_with("in.")) continue;
    const std::string name = "din." + input.substr(3);
    const tensor* expected = r.file.find(name);
    if (expected == nullptr || expected->shape != r.file.at(input).shape || r.file.at(input).is_index) continue;
    tensor zero{.shape = expected->shape, .values = std::vector<double>(expected->values.size(), 0), .indices = {}};
    what.tensors.push_back({name, std::move(zero), largest_finite(r.type)});
  }
  return what;
}

/// The expected values: the file's, or for other inputs than the file's the definition's, run in double.
std::vector<computed_tensor> expected_values(const case_file& rounded, bool inputs_changed, pass which) {
  if (inputs_changed) {
    runner* const definition = find_runner(rounded.op(), "reference", which);
    if (definition == nullptr) throw skipped("no reference for inputs in another dtype yet");
    return run_pass(definition, {.file = rounded, .type = element::f64}, which).tensors;
  }
  std::vector<computed_tensor> expected;
  for (const auto& [name, t] : rounded.tensors()) {
    if (name.starts_with(prefix_of(which))) expected.push_back({name, t});
  }
  return expected;
}

pass_result replay_pass(const case_file& rounded, bool inputs_changed, runner* run, pass which, element type,
                        const options& chosen) {
  pass_result r;
  r.what = run_pass(run, {.file = rounded, .type = type, .repeat = chosen.repeat}, which);
  const auto expected = expected_values(rounded, inputs_changed, which);
  const auto named = [](const std::vector<computed_tensor>& tensors, const std::string& name) {
    return std::find_if(tensors.begin(), tensors.end(), [&](const auto& t) { return t.name == name; });
  };
  for (const auto& [name, t] : rounded.tensors()) {
    if (!name.starts_with(prefix_of(which))) continue;
    const auto got = named(r.what.tensors, name);
    if (got == r.what.tensors.end()) {
      throw rounded.fault(name, "not computed by " + rounded.op() + " with these options");
    }
    const auto want = named(expected, name);
    for (const double value : want->values.values) {
      if (std::isfinite(value) && std::abs(value) > got->largest_finite) {
        throw skipped(name + " leaves the range of " + name_of(type));
      }
    }
    const double limit = chosen.tolerance_factor * tolerance(rounded, name, type);
    const judgement j = judge(name, want->values, got->values, limit);
    r.worst = r.worst ? worse(*r.worst, j) : j;
  }
  return r;
}

std::string missing_backend(const case_file& file, const std::string& exec) {
  if (exec == "cuda" && !built_with_cuda()) return "built without CUDA";
  return file.op() + " has no " + exec + " backend yet";
}

outcome replay_or_throw(const case_file& file, const options& chosen) {
  if (!has_operator(file.op())) throw skipped("operator not there yet");
  refuse_unknown_parameters(file);
  runner* const forward = find_runner(file.op(), chosen.exec, pass::forward);
  runner* const backward = find_runner(file.op(), chosen.exec, pass::backward);
  if (forward == nullptr) throw skipped(missing_backend(file, chosen.exec));
  const bool has_gradients = file.has_any("din.");

  outcome out;
  std::string remarks;
  std::vector<std::pair<pass, runner*>> plan;
  if (chosen.which != passes::backward) plan.emplace_back(pass::forward, forward);
  if (chosen.which != passes::forward && has_gradients && backward != nullptr) {
    plan.emplace_back(pass::backward, backward);
  }
  const std::string no_backward = "no " + chosen.exec + " backward yet";
  if (chosen.which == passes::backward && plan.empty()) {
    throw skipped(has_gradients ? no_backward : "the case has no gradients");
  }
  if (chosen.which == passes::all && has_gradients && backward == nullptr) {
    remarks += "; " + no_backward + ", din.* not checked";
  }

  const element type = chosen.type.value_or(file.type());
  const auto [rounded, inputs_changed] = file.rounded(type);
  std::optional<judgement> worst;
  std::string times;
  std::vector<std::string> unused;
  for (const auto& [which, run] : plan) {
    pass_result r = replay_pass(rounded, inputs_changed, run, which, type, chosen);
    if (r.worst) worst = worst ? worse(*worst, *r.worst) : *r.worst;
    if (chosen.repeat > 0) {
      times +=
          std::string(which == pass::forward ? ", forward " : ", backward ") + text_of(r.what.milliseconds) + " ms";
    }
    // The forward speaks for the inputs, the backward for what flows into it.
    const char* const speaks_for = which == pass::forward ? "in." : "grad.";
    std::copy_if(r.what.unused.begin(), r.what.unused.end(), std::back_inserter(unused),
                 [&](const std::string& name) { return name.starts_with(speaks_for); });
    std::move(r.what.tensors.begin(), r.what.tensors.end(), std::back_inserter(out.tensors));
  }
  if (!worst) throw file.fault("out.*", "no expected values in the file");
  for (const auto& name : unused) remarks += "; " + name + " not used";

  out.result = worst->passed ? verdict::passed : verdict::failed;
  out.text = worst->tensor + " error " + text_of(worst->error) + ", limit " + text_of(worst->limit) + times + remarks;
  return out;
}

}  // namespace

outcome replay_case(const case_file& file, const options& chosen) {
  try {
    return replay_or_throw(file, chosen);
  } catch (const skipped& why) {
    return {.result = verdict::skipped, .text = why.what(), .tensors = {}};
  } catch (const polystate::argument_error& refusal) {
    // A backend's limit is no fault of the case; any other refusal is.
    if (refusal.status().code != polystate::error_code::unsupported) throw;
    return {.result = verdict::skipped, .text = refusal.what(), .tensors = {}};
  } catch (const polystate::cuda_error& failure) {
    return {.result = verdict::failed, .text = failure.what(), .tensors = {}};
  }
}

}  // namespace replay
