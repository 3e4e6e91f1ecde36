// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Reads and writes .safetensors files: 8 bytes of header length (little-endian), a JSON header, raw data.
/// Needs nlohmann-json 3.11 (Debian: nlohmann-json3-dev).
///
/// Files are read as if an adversary had written them. Whatever their bytes, read() and parse() return a file
/// whose tensors lie within its data, or throw safetensors::error; they hold the file's own bytes once and
/// otherwise a small multiple of its header, never a size that the header merely claims.

#include <polystate/core/element.hpp>
#include <polystate/core/macros.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

namespace polystate::inline POLYSTATE_ABI::safetensors {

static_assert(std::endian::native == std::endian::little, "the format's values are copied as they are");

/// The file cannot be read, written or trusted. The text names the file and, where one is at fault, the
/// tensor.
class error : public std::runtime_error {
 public:
  error(std::string_view file, std::string_view why)
      : std::runtime_error(std::string(file) + ": " + std::string(why)) {}
  error(std::string_view file, std::string_view tensor, std::string_view why)
      : error(file, "tensor \"" + printable(tensor) + "\": " + std::string(why)) {}

  /// A name from a file, on one line and of bounded length.
  static std::string printable(std::string_view name) {
    constexpr std::size_t longest = 100;
    std::string text(name.substr(0, longest));
    std::replace_if(
        text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
    return name.size() > longest ? text + "..." : text;
  }
};

/// Element types of the format. Those without a C++ type here are read and written as bytes.
enum class dtype { boolean, u8, i8, f8_e4m3, f8_e5m2, f8_e8m0, u16, i16, f16, bf16, u32, i32, f32, u64, i64, f64, c64 };

/// A dtype's name in the header and its size.
struct dtype_info {
  dtype type;
  const char* name;
  std::size_t bytes;
};
inline constexpr dtype_info dtypes[] = {
    {dtype::boolean, "BOOL", 1},    {dtype::u8, "U8", 1},           {dtype::i8, "I8", 1},
    {dtype::f8_e4m3, "F8_E4M3", 1}, {dtype::f8_e5m2, "F8_E5M2", 1}, {dtype::f8_e8m0, "F8_E8M0", 1},
    {dtype::u16, "U16", 2},         {dtype::i16, "I16", 2},         {dtype::f16, "F16", 2},
    {dtype::bf16, "BF16", 2},       {dtype::u32, "U32", 4},         {dtype::i32, "I32", 4},
    {dtype::f32, "F32", 4},         {dtype::u64, "U64", 8},         {dtype::i64, "I64", 8},
    {dtype::f64, "F64", 8},         {dtype::c64, "C64", 8}};

constexpr const dtype_info& info(dtype type) { return dtypes[static_cast<std::size_t>(type)]; }

/// The dtype of a C++ type: double, float, half, bfloat16, std::int64_t, std::int32_t.
template <class T>
inline constexpr std::optional<dtype> dtype_of = std::nullopt;
template <>
inline constexpr std::optional<dtype> dtype_of<double> = dtype::f64;
template <>
inline constexpr std::optional<dtype> dtype_of<float> = dtype::f32;
template <>
inline constexpr std::optional<dtype> dtype_of<half> = dtype::f16;
template <>
inline constexpr std::optional<dtype> dtype_of<bfloat16> = dtype::bf16;
template <>
inline constexpr std::optional<dtype> dtype_of<std::int64_t> = dtype::i64;
template <>
inline constexpr std::optional<dtype> dtype_of<std::int32_t> = dtype::i32;

using shape_type = std::vector<std::int64_t>;
using metadata_type = std::map<std::string, std::string, std::less<>>;

/// Longest header that is read or written, in bytes: the limit of the format's own implementation.
inline constexpr std::uint64_t longest_header = 100'000'000;

/// Bytes of a tensor; nothing if an extent is negative or the product of the extents that are not 0 does not
/// fit 63 bits.
inline std::optional<std::uint64_t> size_in_bytes(dtype type, const shape_type& shape) {
  auto bytes = static_cast<std::int64_t>(info(type).bytes);
  bool empty = false;
  for (const std::int64_t extent : shape) {
    if (extent < 0) return std::nullopt;
    if (extent == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(bytes, extent, &bytes)) {
      return std::nullopt;
    }
  }
  return empty ? 0 : static_cast<std::uint64_t>(bytes);
}

/// A tensor of a file: its data are the bytes begin .. end-1 after the header, row-major.
struct tensor {
  dtype type = dtype::u8;
  shape_type shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// A file in memory.
class file {
 public:
  using tensors_type = std::map<std::string, tensor, std::less<>>;

  file(std::string name, std::vector<std::byte> content, std::size_t data_begin, tensors_type tensors,
       metadata_type metadata)
      : name_(std::move(name)),
        content_(std::move(content)),
        data_begin_(data_begin),
        tensors_(std::move(tensors)),
        metadata_(std::move(metadata)) {}

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const tensors_type& tensors() const { return tensors_; }
  [[nodiscard]] const metadata_type& metadata() const { return metadata_; }

  /// The tensor of that name; throws error if there is none.
  [[nodiscard]] const tensor& at(std::string_view tensor_name) const {
    const auto found = tensors_.find(tensor_name);
    if (found == tensors_.end()) throw error(name_, tensor_name, "not in the file");
    return found->second;
  }

  /// A tensor's raw bytes; of any alignment, valid as long as the file.
  [[nodiscard]] std::span<const std::byte> bytes(std::string_view tensor_name) const {
    const tensor& t = at(tensor_name);
    return std::span(content_).subspan(data_begin_ + t.begin, t.end - t.begin);
  }

  /// A copy of a tensor's elements; throws error if there is none of that name or its dtype is not T's.
  template <class T>
  [[nodiscard]] std::vector<T> values(std::string_view tensor_name) const {
    static_assert(dtype_of<T>.has_value(), "no dtype of the format has this C++ type");
    const tensor& t = at(tensor_name);
    if (t.type != *dtype_of<T>) {
      throw error(name_, tensor_name,
                  std::string("dtype ") + info(t.type).name + ", asked for as " + info(*dtype_of<T>).name);
    }
    const auto raw = bytes(tensor_name);
    std::vector<T> v(raw.size() / sizeof(T));
    if (!v.empty()) std::memcpy(static_cast<void*>(v.data()), raw.data(), raw.size());
    return v;
  }

 private:
  std::string name_;
  std::vector<std::byte> content_;
  std::size_t data_begin_;
  tensors_type tensors_;
  metadata_type metadata_;
};

/// A tensor to be written; `bytes` are its elements, row-major.
struct tensor_source {
  std::string name;
  dtype type;
  shape_type shape;
  std::span<const std::byte> bytes;
};

/// A tensor to be written from elements, which must outlive it.
template <class T>
[[nodiscard]] tensor_source source(std::string name, shape_type shape, std::span<const T> values) {
  static_assert(dtype_of<T>.has_value(), "no dtype of the format has this C++ type");
  return {std::move(name), *dtype_of<T>, std::move(shape), std::as_bytes(values)};
}

}  // namespace polystate::inline POLYSTATE_ABI::safetensors

namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::safetensors_header {

namespace st = polystate::safetensors;

inline constexpr std::size_t length_bytes = 8;
inline constexpr const char* metadata_key = "__metadata__";
// The format sets no limit; this one keeps a shape no larger in memory than its tensor's entry in the header.
inline constexpr std::size_t most_axes = 64;

/// Takes the header's JSON as events, so that nothing but the expected structure is ever held in memory, and
/// repeated keys are seen.
class events {
 public:
  explicit events(std::string_view file) : file_(file) {}

  st::file::tensors_type tensors;
  st::metadata_type metadata;

  bool null() { return unexpected("null"); }
  bool boolean(bool) { return unexpected("a boolean"); }
  bool number_integer(std::int64_t value) { return unexpected("the number " + std::to_string(value)); }
  bool number_float(double, const std::string& text) { return unexpected("the number " + st::error::printable(text)); }
  bool binary(std::vector<std::uint8_t>&) { return unexpected("binary data"); }

  bool number_unsigned(std::uint64_t value) {
    if (where_ == place::shape) {
      if (value > static_cast<std::uint64_t>((std::numeric_limits<std::int64_t>::max)())) {
        return unexpected("the extent " + std::to_string(value));
      }
      if (tensor().shape.size() == most_axes) return fault("more than 64 axes");
      tensor().shape.push_back(static_cast<std::int64_t>(value));
    } else if (where_ == place::offsets && offsets_ < 2) {
      (offsets_++ == 0 ? tensor().begin : tensor().end) = value;
    } else {
      return unexpected("the number " + std::to_string(value));
    }
    return true;
  }

  bool string(const std::string& text) {
    if (where_ == place::metadata) {
      metadata[key_] = text;
      return true;
    }
    if (where_ != place::tensor || key_ != "dtype") return unexpected("a string");
    for (const auto& known : st::dtypes) {
      if (text == known.name) {
        tensor().type = known.type;
        return true;
      }
    }
    throw st::error(file_, name_, "unknown dtype \"" + st::error::printable(text) + "\"");
  }

  bool start_object(std::size_t) {
    if (where_ == place::outside) {
      where_ = place::header;
    } else if (where_ == place::header && name_ == metadata_key) {
      where_ = place::metadata;
    } else if (where_ == place::header) {
      where_ = place::tensor;
      seen_ = 0;
    } else {
      return unexpected("an object");
    }
    return true;
  }

  bool key(const std::string& text) {
    if (where_ == place::header) {
      name_ = text;
      const bool first = text == metadata_key ? !std::exchange(metadata_seen_, true) : tensors.try_emplace(text).second;
      if (!first) throw st::error(file_, name_, "twice in the header");
      return true;
    }
    key_ = text;
    if (where_ == place::metadata) {
      if (metadata.count(text) != 0) return fault("\"" + st::error::printable(text) + "\" is given twice");
      return true;
    }
    for (unsigned i = 0; i < std::size(fields); ++i) {
      if (text != fields[i]) continue;
      if ((seen_ & (1u << i)) != 0) return fault(std::string(text) + " is given twice");
      seen_ |= 1u << i;
      return true;
    }
    return fault("\"" + st::error::printable(text) + "\" is no field of a tensor");
  }

  bool end_object() {
    if (where_ == place::tensor) {
      for (unsigned i = 0; i < std::size(fields); ++i) {
        if ((seen_ & (1u << i)) == 0) return fault(std::string(fields[i]) + " is missing");
      }
    }
    where_ = where_ == place::header ? place::outside : place::header;
    return true;
  }

  bool start_array(std::size_t) {
    if (where_ == place::tensor && key_ == "shape") {
      where_ = place::shape;
    } else if (where_ == place::tensor && key_ == "data_offsets") {
      where_ = place::offsets;
      offsets_ = 0;
    } else {
      return unexpected("an array");
    }
    return true;
  }

  bool end_array() {
    if (where_ == place::offsets && offsets_ != 2) return fault("data_offsets has not two entries");
    where_ = place::tensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) {
    throw st::error(file_, "the header is no JSON: byte " + std::to_string(position) + " of it");
  }

 private:
  enum class place { outside, header, metadata, tensor, shape, offsets };
  static constexpr const char* fields[] = {"dtype", "shape", "data_offsets"};

  st::tensor& tensor() { return tensors.find(name_)->second; }

  bool fault(const std::string& why) const {
    if (where_ == place::outside) throw st::error(file_, "header: " + why);
    throw st::error(file_, name_, why);
  }
  bool unexpected(const std::string& what) const {
    const bool in_field = where_ != place::outside && where_ != place::header;
    return fault(what + " stands where none is expected" +
                 (in_field ? ", in \"" + st::error::printable(key_) + "\"" : ""));
  }

  std::string_view file_;
  place where_ = place::outside;
  std::string name_;  // of the header's entry
  std::string key_;   // of the field in it
  unsigned seen_ = 0;
  int offsets_ = 0;
  bool metadata_seen_ = false;
};

/// The format allows neither gaps nor overlaps: the tensors, in the order of their offsets, tile the data.
inline void check_layout(std::string_view file, const st::file::tensors_type& tensors, std::uint64_t data_bytes) {
  std::vector<const st::file::tensors_type::value_type*> order;
  order.reserve(tensors.size());
  for (const auto& entry : tensors) order.push_back(&entry);
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  std::uint64_t end = 0;
  for (const auto* entry : order) {
    const auto& [name, t] = *entry;
    const std::string range = "data_offsets [" + std::to_string(t.begin) + ", " + std::to_string(t.end) + "]";
    if (t.end < t.begin || t.end > data_bytes) {
      throw st::error(file, name, range + " of " + std::to_string(data_bytes) + " bytes of data");
    }
    if (t.begin != end) {
      throw st::error(file, name,
                      range + (t.begin < end ? " overlap" : " leave a gap after") +
                          " the tensor before, which ends at " + std::to_string(end));
    }
    const auto bytes = st::size_in_bytes(t.type, t.shape);
    if (!bytes) throw st::error(file, name, "the shape's size does not fit 63 bits");
    if (*bytes != t.end - t.begin) {
      throw st::error(file, name, range + ", its shape needs " + std::to_string(*bytes) + " bytes");
    }
    end = t.end;
  }
  if (end != data_bytes) {
    throw st::error(file,
                    "the tensors take " + std::to_string(end) + " of " + std::to_string(data_bytes) + " bytes of data");
  }
}

}  // namespace polystate::inline POLYSTATE_ABI::polystate_detail::inline POLYSTATE_BUILD::safetensors_header

namespace polystate::inline POLYSTATE_ABI::safetensors {

/// The file with these bytes. `name` is for error texts. Throws error.
[[nodiscard]] inline file parse(std::string name, std::vector<std::byte> content) {
  namespace header = polystate_detail::safetensors_header;
  std::uint64_t length = 0;
  if (content.size() < header::length_bytes) throw error(name, "shorter than the header's length field");
  std::memcpy(&length, content.data(), sizeof length);
  const std::uint64_t rest = content.size() - header::length_bytes;
  if (length > rest) {
    throw error(name, "a header of " + std::to_string(length) + " bytes in a file with " + std::to_string(rest) +
                          " bytes after its length field");
  }
  if (length > longest_header) {
    throw error(name,
                "a header of " + std::to_string(length) + " bytes, supported: up to " + std::to_string(longest_header));
  }
  const auto* text = reinterpret_cast<const char*>(content.data()) + header::length_bytes;
  if (length == 0 || text[0] != '{') throw error(name, "the header does not begin with '{'");
  // The JSON parser takes a zero byte for the end of its input.
  if (std::memchr(text, 0, length) != nullptr) throw error(name, "a zero byte in the header");

  header::events events(name);
  nlohmann::json::sax_parse(text, text + length, &events);
  header::check_layout(name, events.tensors, rest - length);
  return {std::move(name), std::move(content), header::length_bytes + length, std::move(events.tensors),
          std::move(events.metadata)};
}

/// Reads a file. Throws error.
[[nodiscard]] inline file read(const std::filesystem::path& path) {
  const std::string name = path.string();
  std::error_code failure;
  // A device or a pipe has no size that could bound what is read.
  if (!std::filesystem::is_regular_file(path, failure)) throw error(name, "not a readable file");
  const std::uintmax_t size = std::filesystem::file_size(path, failure);
  std::ifstream in(path, std::ios::binary);
  if (failure || !in) throw error(name, "cannot be opened");
  std::vector<std::byte> content;
  try {
    content.resize(size);
  } catch (const std::exception&) {  // length_error or bad_alloc
    throw error(name, std::to_string(size) + " bytes do not fit in memory");
  }
  if (!in.read(reinterpret_cast<char*>(content.data()), static_cast<std::streamsize>(size))) {
    throw error(name, "cannot be read to its end");
  }
  return parse(name, std::move(content));
}

/// Writes a file: larger element types first, so that every tensor is aligned to its element. Throws error; a
/// file that could not be written completely may remain.
inline void write(const std::filesystem::path& path, std::span<const tensor_source> tensors,
                  const metadata_type& metadata = {}) {
  namespace header = polystate_detail::safetensors_header;
  const std::string name = path.string();
  std::vector<const tensor_source*> order;
  for (const auto& t : tensors) order.push_back(&t);
  std::stable_sort(order.begin(), order.end(),
                   [](const auto* a, const auto* b) { return info(a->type).bytes > info(b->type).bytes; });

  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!metadata.empty()) json[header::metadata_key] = metadata;
  std::uint64_t end = 0;
  for (const tensor_source* t : order) {
    if (json.contains(t->name) || t->name == header::metadata_key) {
      throw error(name, t->name, "the name is taken");
    }
    if (size_in_bytes(t->type, t->shape) != t->bytes.size()) {
      throw error(name, t->name, std::to_string(t->bytes.size()) + " bytes do not fill its shape");
    }
    const std::uint64_t begin = std::exchange(end, end + t->bytes.size());
    json[t->name] = {{"dtype", info(t->type).name}, {"shape", t->shape}, {"data_offsets", {begin, end}}};
  }
  std::string text;
  try {
    text = json.dump();
  } catch (const nlohmann::json::exception&) {
    throw error(name, "a name or a metadata text is not UTF-8");
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > longest_header) throw error(name, "the header would be too long");

  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  const auto put = [&out](const void* data, std::size_t bytes) {
    out.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  };
  const std::uint64_t length = text.size();
  put(&length, sizeof length);
  put(text.data(), text.size());
  for (const tensor_source* t : order) put(t->bytes.data(), t->bytes.size());
  out.close();
  if (!out) throw error(name, "cannot be written");
}

}  // namespace polystate::inline POLYSTATE_ABI::safetensors
