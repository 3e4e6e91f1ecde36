// SPDX-License-Identifier: Apache-2.0

#include "instantiate.hpp"

template struct replay::reference::multi_state_runners<polystate::rule::gated_delta>;
