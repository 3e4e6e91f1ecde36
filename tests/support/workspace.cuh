// SPDX-License-Identifier: Apache-2.0
#pragma once

// A caller's workspace, as tests give it.

#include "support/device.cuh"

#include <polystate/core/exec.hpp>

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace polystate::testing {

/// Exactly `bytes` of scratch memory, every byte 0xff, with a guard band on both sides.
class guarded_workspace {
 public:
  explicit guarded_workspace(std::size_t bytes) : bytes_(bytes), memory_(bytes + 2 * guard) {
    POLYSTATE_CUDA_REQUIRE(cudaMemset(memory_.data(), 0xff, memory_.bytes()));
    POLYSTATE_CUDA_REQUIRE(cudaDeviceSynchronize());  // streams of tests do not wait for the default one
  }

  [[nodiscard]] polystate::workspace whole() const { return {begin(), bytes_}; }
  /// All but one byte of it, and all of it a little late.
  [[nodiscard]] polystate::workspace too_small() const { return {begin(), bytes_ - 1}; }
  [[nodiscard]] polystate::workspace misaligned() const { return {begin() + 16, bytes_}; }

  [[nodiscard]] bool guards_untouched() const {
    const auto is_poison = [](const std::byte* from) {
      std::vector<std::byte> host(guard);
      POLYSTATE_CUDA_REQUIRE(cudaMemcpy(host.data(), from, guard, cudaMemcpyDeviceToHost));
      return std::all_of(host.begin(), host.end(), [](std::byte b) { return b == std::byte{0xff}; });
    };
    return is_poison(begin() - guard) && is_poison(begin() + bytes_);
  }

 private:
  static constexpr std::size_t guard = 16 * workspace_alignment;
  [[nodiscard]] std::byte* begin() const { return static_cast<std::byte*>(memory_.data()) + guard; }

  std::size_t bytes_;
  device_memory memory_;
};

}  // namespace polystate::testing
