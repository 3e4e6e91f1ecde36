// SPDX-License-Identifier: Apache-2.0
#pragma once

// Case files with a fault: a good file, taken apart, edited, and written again.

#include <polystate/interop/safetensors.hpp>

#include <cstddef>
#include <cstring>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace polystate::testing {

struct edited_case {
  struct stored {
    safetensors::dtype type;
    safetensors::shape_type shape;
    std::vector<std::byte> bytes;
  };
  std::map<std::string, stored> tensors;
  safetensors::metadata_type metadata;

  explicit edited_case(const std::filesystem::path& path) {
    const auto file = safetensors::read(path);
    metadata = file.metadata();
    for (const auto& [name, t] : file.tensors()) {
      const auto bytes = file.bytes(name);
      tensors[name] = {t.type, t.shape, {bytes.begin(), bytes.end()}};
    }
  }

  /// A tensor of float64 values, added or replaced.
  void set(const std::string& name, const safetensors::shape_type& shape, const std::vector<double>& values) {
    const auto bytes = std::as_bytes(std::span(values));
    tensors[name] = {safetensors::dtype::f64, shape, {bytes.begin(), bytes.end()}};
  }

  void write(const std::filesystem::path& path) const {
    std::vector<safetensors::tensor_source> sources;
    for (const auto& [name, t] : tensors) sources.push_back({name, t.type, t.shape, t.bytes});
    safetensors::write(path, sources, metadata);
  }
};

}  // namespace polystate::testing
