// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Memory and time of a backend; here of those that run on the host. buffer.cuh has those of CUDA.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>

namespace replay {

/// Bytes that the backend can use.
template <class Exec>
class buffer {
 public:
  // Exactly as many as asked for: an access beyond them is then the address sanitizer's to find.
  explicit buffer(std::size_t bytes) : bytes_(bytes), data_(new std::byte[bytes]) {}

  [[nodiscard]] void* data() const { return data_.get(); }
  [[nodiscard]] std::size_t size() const { return bytes_; }
  void write(const void* from) { std::copy_n(static_cast<const std::byte*>(from), bytes_, data_.get()); }
  void read(void* to) const { std::copy_n(data_.get(), bytes_, static_cast<std::byte*>(to)); }
  /// Every byte 0xff: NaN in all element types, -1 in the integers.
  void poison() { std::memset(data_.get(), 0xff, bytes_); }

 private:
  std::size_t bytes_;
  std::unique_ptr<std::byte[]> data_;
};

/// Returns once the calls made so far are done.
template <class Exec>
void wait_for(const Exec&) {}

/// Milliseconds that one call takes.
template <class Exec, class F>
double milliseconds(const Exec&, F&& call) {
  using clock = std::chrono::steady_clock;
  const auto begin = clock::now();
  call();
  return std::chrono::duration<double, std::milli>(clock::now() - begin).count();
}

}  // namespace replay
