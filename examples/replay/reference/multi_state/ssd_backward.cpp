// SPDX-License-Identifier: Apache-2.0

#include "instantiate_backward.hpp"

template struct replay::reference::multi_state_backward_runner<polystate::rule::ssd>;
