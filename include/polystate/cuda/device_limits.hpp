// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What schedules are chosen for. Host code without CUDA.

#include <polystate/core/error.hpp>
#include <polystate/core/macros.hpp>

#include <cstddef>
#include <string>

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda {

/// Shared memory that any device gives a block without being asked, and the most that a kernel here asks for.
inline constexpr std::size_t shared_bytes_without_asking = std::size_t{48} << 10;
inline constexpr std::size_t most_shared_bytes = std::size_t{227} << 10;

/// What a device says that a block may have, within reason: drivers have reported absurd numbers.
constexpr std::size_t sane_shared_bytes(long long reported) {
  if (reported < static_cast<long long>(shared_bytes_without_asking)) return shared_bytes_without_asking;
  return reported > static_cast<long long>(most_shared_bytes) ? most_shared_bytes : static_cast<std::size_t>(reported);
}

/// Of one device. A block has up to 99 KiB of shared memory on sm_86, sm_89 and sm_120, 163 KiB on sm_80 and sm_87, 227
/// KiB on sm_90 and sm_100.
struct device_limits {
  int multiprocessors = 1;
  std::size_t shared_bytes = shared_bytes_without_asking;  ///< of a block, at most
};

/// Refuses a size whose smallest tile is larger than the device's shared memory. `sizes`: "dk = 512".
[[nodiscard]] inline status check_shared_memory(const char* op, const char* argument, const std::string& sizes,
                                                std::size_t needed, std::size_t supported) {
  if (needed <= supported) return {};
  return {error_code::unsupported, op, argument,
          sizes + " takes " + std::to_string(needed) +
              " bytes of shared memory a block, supported on this device: up to " + std::to_string(supported)};
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::cuda
