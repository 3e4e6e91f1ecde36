// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Every contract; no Eigen, no CUDA. Add the backend headers of the operators that you call.

#include <polystate/adapters/mamba_block.hpp>
#include <polystate/adapters/segment_retrieval.hpp>
#include <polystate/adapters/token_modulation.hpp>
#include <polystate/causal_conv1d.hpp>
#include <polystate/gate.hpp>
#include <polystate/gated_delta_rule.hpp>
#include <polystate/memory_plan.hpp>
#include <polystate/multi_state.hpp>
#include <polystate/parameter_plan.hpp>
#include <polystate/recurrence.hpp>
#include <polystate/routing.hpp>
#include <polystate/segment_moments.hpp>
#include <polystate/selective_scan.hpp>
#include <polystate/separation.hpp>
#include <polystate/ssd.hpp>
#include <polystate/state_bank.hpp>
#include <polystate/version.hpp>
