// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Independent jobs on all cores, with their progress. What a job computes does not depend on which thread runs it.

#include "text_memory/progress.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace segment_retrieval {

/// Progress that jobs share: its destructor ends the line.
class shared_progress {
 public:
  shared_progress(std::string what, std::int64_t steps) : shown_(std::move(what), steps) {}
  void advance() {
    const std::lock_guard lock(mutex_);
    shown_.advance();
  }

 private:
  std::mutex mutex_;
  text_memory::progress shown_;
};

/// Calls job(0) .. job(count-1); rethrows the first exception of any.
template <class Job>
void for_each_job(std::int64_t count, const Job& job) {
  std::atomic<std::int64_t> next{0};
  std::exception_ptr failure;
  std::mutex failing;
  const auto work = [&] {
    for (std::int64_t i = next++; i < count; i = next++) {
      try {
        job(i);
      } catch (...) {
        const std::lock_guard lock(failing);
        if (!failure) failure = std::current_exception();
        return;
      }
    }
  };
  const auto cores = static_cast<std::int64_t>(std::max(1U, std::thread::hardware_concurrency()));
  std::vector<std::thread> threads;
  for (std::int64_t i = 1; i < std::min(cores, count); ++i) threads.emplace_back(work);
  work();
  for (auto& t : threads) t.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace segment_retrieval
