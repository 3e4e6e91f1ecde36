// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Two units of one program, built with different options: what each can tell of itself.

#define DECLARE_UNIT(name)                                                        \
  namespace name {                                                                \
  /** Asks for a plan that is refused: whether that threw an argument_error. */   \
  bool throws_when_refused();                                                     \
  /** The same of a chained selection, whose hook both units may share. */        \
  bool throws_when_a_chain_is_refused();                                          \
  /** Makes a bank, copies it, writes to the copy: whether the first kept its. */ \
  bool copies_a_bank();                                                           \
  /** Whether adjusted_g() leaves a NaN one. */                                   \
  bool keeps_nan();                                                               \
  /** Whether a check() refuses an infinite offset. */                            \
  bool refuses_infinity();                                                        \
  }

DECLARE_UNIT(first)
DECLARE_UNIT(second)
