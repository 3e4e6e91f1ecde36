// SPDX-License-Identifier: Apache-2.0

#include "convert.cuh"

#include <polystate/version.hpp>

#include <string>
#include <utility>

#define TEXT_OF(...) #__VA_ARGS__
#define TEXT(...) TEXT_OF(__VA_ARGS__)

namespace {

std::string& last_error() {
  thread_local std::string message;
  return message;
}

// __CUDA_ARCH_LIST__ is "900" or "800,900".
std::string build() {
  std::string text = "polystate " TEXT(POLYSTATE_VERSION_MAJOR) "." TEXT(POLYSTATE_VERSION_MINOR) "." TEXT(
      POLYSTATE_VERSION_PATCH) ", nvcc " TEXT(__CUDACC_VER_MAJOR__) "." TEXT(__CUDACC_VER_MINOR__) "." TEXT(
      __CUDACC_VER_BUILD__) ", sm ";
  const std::string architectures = TEXT(__CUDA_ARCH_LIST__);
  for (std::size_t begin = 0; begin < architectures.size();) {
    const std::size_t end = std::min(architectures.find(',', begin), architectures.size());
    text += (begin == 0 ? "" : ", ") + architectures.substr(begin, end - begin - 1);
    begin = end + 1;
  }
  return text;
}

}  // namespace

void polystate::c_api::set_last_error(std::string message) { last_error() = std::move(message); }

const char* polystate_last_error() { return last_error().c_str(); }

const char* polystate_build() {
  static const std::string text = build();
  return text.c_str();
}
