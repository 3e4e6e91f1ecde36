// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// One case in memory: an operator's inputs, parameters and expected values. docs/replay.md has the format.
/// Seen by .cu files, so neither Eigen nor the JSON library stands behind it.

#include <polystate/version.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace polystate::inline POLYSTATE_ABI::safetensors {
class file;
}

namespace replay {

/// The file does not hold what its operator needs. The text names the file and the tensor or parameter.
class malformed : public std::runtime_error {
 public:
  malformed(std::string_view file, std::string_view subject, std::string_view why)
      : std::runtime_error(std::string(file) + ": " + std::string(subject) + ": " + std::string(why)) {}
};

/// The case is right and asks for something that is not there (yet); the text says what.
class skipped : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Data types that a case can be run in.
enum class element { f64, f32, f16, bf16 };
inline constexpr std::array<std::pair<const char*, element>, 4> elements = {
    {{"f64", element::f64}, {"f32", element::f32}, {"f16", element::f16}, {"bf16", element::bf16}}};

/// "f64", "f32", "f16", "bf16".
const char* name_of(element type);

/// The type of that name, if there is one.
std::optional<element> element_named(std::string_view name);

/// The value of that type that is nearest.
double round_to(element type, double value);
double largest_finite(element type);

/// A tensor's values, row-major. Floating-point values are widened to double, which is exact.
struct tensor {
  std::vector<std::int64_t> shape;
  bool is_index = false;
  std::vector<double> values;         ///< of a floating-point tensor
  std::vector<std::int64_t> indices;  ///< of an index tensor
};

class case_file {
 public:
  /// Throws polystate::safetensors::error or malformed.
  static case_file read(const std::filesystem::path& path);
  static case_file from(const polystate::safetensors::file& file);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const std::string& op() const { return op_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] element type() const { return type_; }
  [[nodiscard]] const std::map<std::string, tensor>& tensors() const { return tensors_; }

  /// Whether any tensor's name begins so: "grad.".
  [[nodiscard]] bool has_any(std::string_view prefix) const;
  [[nodiscard]] const tensor* find(const std::string& tensor_name) const;
  /// Throws malformed if there is none of that name.
  [[nodiscard]] const tensor& at(const std::string& tensor_name) const;

  /// Parameters: `param.<name>` of the metadata. They throw malformed where the text is no such value, and,
  /// without a default, where the parameter is missing.
  [[nodiscard]] bool has_parameter(const std::string& parameter) const;
  /// The names of all that the file has.
  [[nodiscard]] std::vector<std::string> parameters() const;
  [[nodiscard]] const std::string& text(const std::string& parameter) const;
  [[nodiscard]] std::int64_t integer(const std::string& parameter, std::optional<std::int64_t> otherwise = {}) const;
  [[nodiscard]] double number(const std::string& parameter, std::optional<double> otherwise = {}) const;
  [[nodiscard]] bool flag(const std::string& parameter, std::optional<bool> otherwise = {}) const;
  /// One of the named values; throws skipped for a name that is not among them.
  template <class Value, std::size_t N>
  [[nodiscard]] Value choice(const std::string& parameter, const std::pair<const char*, Value> (&choices)[N],
                             std::type_identity_t<std::optional<Value>> otherwise = {}) const {
    if (otherwise && !has_parameter(parameter)) return *otherwise;
    for (const auto& [choice_name, value] : choices) {
      if (text(parameter) == choice_name) return value;
    }
    throw no_such_choice(parameter);
  }
  /// For a parameter's text that nothing here implements.
  [[nodiscard]] skipped no_such_choice(const std::string& parameter) const;

  /// How hard the tensor is for an element type ("f32", "bf16"): the relative L2 error that the case states,
  /// or 0.
  [[nodiscard]] double stated_error(const char* type, const std::string& tensor_name) const;

  /// A fault of this file.
  [[nodiscard]] malformed fault(const std::string& tensor_name, std::string_view why) const;

  /// The same case with inputs and upstream gradients rounded to `type`, and whether that changed a value.
  /// Throws skipped if a finite value would become infinite.
  [[nodiscard]] std::pair<case_file, bool> rounded(element type) const;

 private:
  [[nodiscard]] const std::string& metadata(const std::string& key) const;

  std::string path_;
  std::string op_;
  std::string name_;
  element type_ = element::f32;
  std::map<std::string, tensor> tensors_;
  std::map<std::string, std::string, std::less<>> metadata_;
};

}  // namespace replay
