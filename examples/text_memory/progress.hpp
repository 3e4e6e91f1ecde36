// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// How far a long act has come, on stderr: one line that renews itself on a terminal, else a line a quarter.

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

namespace text_memory {

class progress {
 public:
  progress(std::string what, std::int64_t steps)
      : what_(std::move(what)), steps_(steps), resolution_(terminal_ ? 100 : 4) {
    show();
  }
  /// Shows nothing.
  static progress silent(std::int64_t steps) { return progress(steps); }
  progress(const progress&) = delete;
  progress& operator=(const progress&) = delete;
  /// Leaves a terminal's line empty for what comes next.
  ~progress() {
    if (resolution_ > 0 && terminal_) std::fputs("\r\033[K", stderr);
  }

  void advance(std::int64_t steps = 1) {
    const std::int64_t shown = done_ * resolution_ / steps_;
    done_ += steps;
    if (done_ * resolution_ / steps_ != shown) show();
  }

 private:
  explicit progress(std::int64_t steps) : steps_(steps) {}

  void show() const {
    std::fprintf(stderr, terminal_ ? "\r%s: %3d%%\033[K" : "%s: %3d%%\n", what_.c_str(),
                 static_cast<int>(done_ * 100 / steps_));
    std::fflush(stderr);
  }

  bool terminal_ = isatty(STDERR_FILENO) != 0;
  std::string what_;
  std::int64_t steps_;
  std::int64_t resolution_ = 0;  // shown 100 times, or 4, or never
  std::int64_t done_ = 0;
};

}  // namespace text_memory
