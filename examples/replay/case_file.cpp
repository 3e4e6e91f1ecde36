// SPDX-License-Identifier: Apache-2.0

#include "case_file.hpp"

#include <polystate/core/element.hpp>
#include <polystate/interop/safetensors.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

namespace replay {

namespace {

namespace st = polystate::safetensors;

constexpr const char* format = "polystate-case-1";

// An empty tensor's other extents cost no bytes in the file, but loops and outputs in the operators.
constexpr std::int64_t largest_empty_shape = std::int64_t{1} << 24;

/// The whole text as a number.
template <class Number>
std::optional<Number> parse_number(const std::string& text) {
  Number value{};
  const char* end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data(), end, value);
  if (failure != std::errc{} || stop != end) return std::nullopt;
  return value;
}

template <class T>
tensor load_floating_point(const st::file& file, const std::string& name) {
  tensor t;
  const auto stored = file.values<T>(name);
  t.values.reserve(stored.size());
  for (const T& value : stored) t.values.push_back(static_cast<double>(value));
  return t;
}

template <class T>
tensor load_indices(const st::file& file, const std::string& name) {
  tensor t;
  t.is_index = true;
  const auto stored = file.values<T>(name);
  t.indices.assign(stored.begin(), stored.end());
  return t;
}

tensor load(const st::file& file, const std::string& name) {
  const bool is_input = name.starts_with("in.");
  if (!is_input && !name.starts_with("out.") && !name.starts_with("grad.") && !name.starts_with("din.")) {
    throw st::error(file.name(), name, "names begin with in., out., grad. or din.");
  }
  switch (file.at(name).type) {
    case st::dtype::f64:
      return load_floating_point<double>(file, name);
    case st::dtype::f32:
      return load_floating_point<float>(file, name);
    case st::dtype::f16:
      return load_floating_point<polystate::half>(file, name);
    case st::dtype::bf16:
      return load_floating_point<polystate::bfloat16>(file, name);
    case st::dtype::i32:
      if (is_input) return load_indices<std::int32_t>(file, name);
      break;
    case st::dtype::i64:
      if (name.starts_with("out.")) return load_indices<std::int64_t>(file, name);
      break;
    default:
      break;
  }
  throw st::error(file.name(), name,
                  std::string("dtype ") + st::info(file.at(name).type).name +
                      ", supported: F64, F32, F16, BF16, and for indices I32 (in.) and I64 (out.)");
}

}  // namespace

double round_to(element type, double value) {
  switch (type) {
    case element::f64:
      break;
    case element::f32:
      return static_cast<double>(static_cast<float>(value));
    case element::f16:
      return static_cast<double>(polystate::half(value));
    case element::bf16:
      return static_cast<double>(polystate::bfloat16(value));
  }
  return value;
}

double largest_finite(element type) {
  switch (type) {
    case element::f64:
      break;
    case element::f32:
      return static_cast<double>(std::numeric_limits<float>::max());
    case element::f16:
      return 65504;
    case element::bf16:
      return 0x1.fep127;
  }
  return std::numeric_limits<double>::max();
}

const char* name_of(element type) {
  const auto found = std::find_if(elements.begin(), elements.end(), [&](const auto& e) { return e.second == type; });
  return found->first;
}

std::optional<element> element_named(std::string_view name) {
  for (const auto& [known, type] : elements) {
    if (name == known) return type;
  }
  return std::nullopt;
}

case_file case_file::read(const std::filesystem::path& path) { return from(st::read(path)); }

case_file case_file::from(const st::file& file) {
  case_file c;
  c.path_ = file.name();
  c.metadata_ = file.metadata();
  if (c.metadata("format") != format) {
    throw malformed(c.path_, "format", "supported: " + std::string(format));
  }
  c.op_ = c.metadata("op");
  c.name_ = c.metadata("name");
  const auto type = element_named(c.metadata("dtype"));
  if (!type) throw malformed(c.path_, "dtype", "supported: f64, f32, f16, bf16");
  c.type_ = *type;
  for (const auto& [name, stored] : file.tensors()) {
    std::int64_t product = 1;
    bool empty = false;
    for (const std::int64_t extent : stored.shape) {
      empty = empty || extent == 0;
      if (extent != 0) product *= extent;  // fits: the reader saw to it
    }
    if (empty && product > largest_empty_shape) {
      throw st::error(file.name(), name, "an empty tensor with extents that multiply to more than 2^24");
    }
    tensor t = load(file, name);
    t.shape = stored.shape;
    c.tensors_.emplace(name, std::move(t));
  }
  return c;
}

bool case_file::has_any(std::string_view prefix) const {
  return std::any_of(tensors_.begin(), tensors_.end(),
                     [&](const auto& entry) { return entry.first.starts_with(prefix); });
}

const tensor* case_file::find(const std::string& tensor_name) const {
  const auto found = tensors_.find(tensor_name);
  return found == tensors_.end() ? nullptr : &found->second;
}

const tensor& case_file::at(const std::string& tensor_name) const {
  const tensor* t = find(tensor_name);
  if (t == nullptr) throw fault(tensor_name, "not in the file, and " + op_ + " needs it");
  return *t;
}

bool case_file::has_parameter(const std::string& parameter) const {
  return metadata_.find("param." + parameter) != metadata_.end();
}

std::vector<std::string> case_file::parameters() const {
  constexpr std::string_view prefix = "param.";
  std::vector<std::string> names;
  for (const auto& [key, value] : metadata_) {
    if (key.starts_with(prefix)) names.push_back(key.substr(prefix.size()));
  }
  return names;
}

const std::string& case_file::text(const std::string& parameter) const { return metadata("param." + parameter); }

std::int64_t case_file::integer(const std::string& parameter, std::optional<std::int64_t> otherwise) const {
  if (otherwise && !has_parameter(parameter)) return *otherwise;
  const auto value = parse_number<std::int64_t>(text(parameter));
  if (!value) throw malformed(path_, "param." + parameter, "no integer of 64 bits");
  return *value;
}

double case_file::number(const std::string& parameter, std::optional<double> otherwise) const {
  if (otherwise && !has_parameter(parameter)) return *otherwise;
  const auto value = parse_number<double>(text(parameter));
  if (!value || std::isnan(*value)) throw malformed(path_, "param." + parameter, "no number");
  return *value;
}

bool case_file::flag(const std::string& parameter, std::optional<bool> otherwise) const {
  if (otherwise && !has_parameter(parameter)) return *otherwise;
  const std::string& value = text(parameter);
  if (value != "0" && value != "1") throw malformed(path_, "param." + parameter, "neither 0 nor 1");
  return value == "1";
}

skipped case_file::no_such_choice(const std::string& parameter) const {
  return skipped(parameter + " \"" + st::error::printable(text(parameter)) + "\" is not there yet");
}

double case_file::stated_error(const char* type, const std::string& tensor_name) const {
  const std::string key = std::string(type) + "_err." + tensor_name;
  const auto found = metadata_.find(key);
  if (found == metadata_.end()) return 0;
  const auto value = parse_number<double>(found->second);
  if (!value || !std::isfinite(*value) || *value < 0) throw malformed(path_, key, "no error of at least 0");
  return *value;
}

malformed case_file::fault(const std::string& tensor_name, std::string_view why) const {
  return {path_, "tensor \"" + st::error::printable(tensor_name) + "\"", why};
}

std::pair<case_file, bool> case_file::rounded(element type) const {
  case_file c = *this;
  bool changed = false;
  for (auto& [name, t] : c.tensors_) {
    if (!name.starts_with("in.") && !name.starts_with("grad.")) continue;
    for (double& value : t.values) {
      const double nearest = round_to(type, value);
      if (std::isfinite(value) && !std::isfinite(nearest)) {
        throw skipped(st::error::printable(name) + " leaves the range of " + name_of(type));
      }
      changed = changed || (nearest != value && !std::isnan(value));
      value = nearest;
    }
  }
  return {std::move(c), changed};
}

const std::string& case_file::metadata(const std::string& key) const {
  const auto found = metadata_.find(key);
  if (found == metadata_.end()) throw malformed(path_, key, "not in the file's metadata");
  return found->second;
}

}  // namespace replay
