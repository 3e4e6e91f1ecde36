// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What a refused call says: a status, and the exceptions that carry one.

#include <polystate/core/macros.hpp>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>

namespace polystate::inline POLYSTATE_ABI {

/// Why a call was refused.
enum class error_code {
  ok,
  missing,      ///< a required operand was not given
  unexpected,   ///< an operand was given that the chosen options do not use
  shape,        ///< extents that do not fit the operator or the other operands
  stride,       ///< strides that the operand may not have
  value,        ///< an option or an index operand's content outside its range
  unsupported,  ///< right by the definition, beyond this backend's limits
  overlap,      ///< operands share memory that must not
  workspace,    ///< the scratch memory given is too small or misaligned
  device,       ///< a stream or pointer of another device
  cuda          ///< the CUDA runtime failed
};

/// Result of check() and of the try_ forms. ok() or: which operator, which argument, and what was given and
/// supported.
struct status {
  error_code code = error_code::ok;
  const char* op = "";   ///< operator, a string literal
  std::string argument;  ///< operand or option
  std::string detail;    ///< given and supported

  [[nodiscard]] bool ok() const { return code == error_code::ok; }

  /// "operator: argument: detail", or "ok".
  [[nodiscard]] std::string message() const {
    if (ok()) return "ok";
    std::string text = op;
    if (!argument.empty()) text += ": " + argument;
    return text + ": " + detail;
  }
};

/// The call was refused; nothing was written.
class argument_error : public std::invalid_argument {
 public:
  explicit argument_error(polystate::status why) : std::invalid_argument(why.message()), status_(std::move(why)) {}
  [[nodiscard]] const polystate::status& status() const { return status_; }

 private:
  polystate::status status_;
};

/// The CUDA runtime refused a launch or an allocation.
class cuda_error : public std::runtime_error {
 public:
  explicit cuda_error(polystate::status why) : std::runtime_error(why.message()), status_(std::move(why)) {}
  [[nodiscard]] const polystate::status& status() const { return status_; }

 private:
  polystate::status status_;
};

inline namespace POLYSTATE_BUILD {  // it throws or aborts

/// Throws what the status says, if it is not ok. Where exceptions are off it prints the message and aborts:
/// use the try_ forms there.
inline void raise_on_error(status s) {
  if (s.ok()) return;
#if defined(__cpp_exceptions)
  if (s.code == error_code::cuda) throw cuda_error(std::move(s));
  throw argument_error(std::move(s));
#else
  std::fprintf(stderr, "polystate: %s\n", s.message().c_str());
  std::abort();
#endif
}

}  // namespace POLYSTATE_BUILD
}  // namespace polystate::inline POLYSTATE_ABI
