// SPDX-License-Identifier: Apache-2.0

// Files that somebody broke, by accident or on purpose. Built with the address and undefined-behaviour
// sanitizers, whatever the rest of the build uses.

#include "case_file.hpp"
#include "replay/edited_case.hpp"
#include "replay_case.hpp"

#include <polystate/core/error.hpp>
#include <polystate/interop/safetensors.hpp>

#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <new>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

struct allocations {
  std::size_t largest = 0;
  std::size_t held = 0;
  std::size_t most_held = 0;
};
allocations measured;

}  // namespace

// malloc is the sanitizer's, so bounds and leaks stay checked.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  void* data = std::malloc(bytes != 0 ? bytes : 1);
  if (data == nullptr) return nullptr;
  measured.largest = std::max(measured.largest, bytes);
  measured.held += malloc_usable_size(data);
  measured.most_held = std::max(measured.most_held, measured.held);
  return data;
}
void* operator new(std::size_t bytes) {
  void* data = operator new(bytes, std::nothrow);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}
void operator delete(void* data) noexcept {
  if (data != nullptr) measured.held -= malloc_usable_size(data);
  std::free(data);
}
void operator delete(void* data, std::size_t) noexcept { operator delete(data); }

namespace {

namespace st = polystate::safetensors;
using bytes = std::vector<std::byte>;

constexpr const char* file_name = "some/case.safetensors";

bytes to_bytes(std::string_view text) {
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

/// A file with this header, its length field right, and so many bytes of data.
bytes file_of(std::string_view header, std::size_t data = 0) {
  const std::uint64_t length = header.size();
  bytes content(sizeof length);
  std::memcpy(content.data(), &length, sizeof length);
  const bytes text = to_bytes(header);
  content.insert(content.end(), text.begin(), text.end());
  content.resize(content.size() + data);
  return content;
}

/// Parses; if the file is accepted, maps it onto its operator and runs that. Anything but a good file or the
/// documented exceptions, with the file's name and on one line, fails the test. The reason, or "".
std::string attempt(const bytes& content) {
  const auto named = [](const std::string& text) {
    EXPECT_EQ(text.rfind(file_name, 0), 0U) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    EXPECT_LT(text.size(), 600U);
    return text;
  };
  const std::size_t size = content.size();
  bytes copy = content;
  const std::size_t held = measured.held;
  measured.largest = 0;
  measured.most_held = held;
  std::string fault;
  try {
    const auto file = st::parse(file_name, std::move(copy));
    // The file itself was allocated before; what is new is a small multiple of its header.
    EXPECT_LE(measured.largest, 2 * size + 4096);
    EXPECT_LE(measured.most_held - held, 16 * size + 65536);
    for (const auto& [name, t] : file.tensors()) {
      EXPECT_EQ(file.bytes(name).size(), t.end - t.begin);
    }
    const auto c = replay::case_file::from(file);
    (void)replay::replay_case(c, {});
    return "";
  } catch (const st::error& e) {
    fault = named(e.what());
  } catch (const replay::malformed& e) {
    fault = named(e.what());
  } catch (const polystate::argument_error& e) {
    return e.what();
  }
  EXPECT_LE(measured.largest, 2 * size + 65536);
  return fault;
}

struct bad_header {
  const char* wanted;  // in the error's text
  std::string header;
  std::size_t data = 0;
};

std::string tensor_x(const std::string& fields) { return "{\"x\":{" + fields + "}}"; }
std::string shaped(const std::string& shape, const std::string& offsets = "[0,8]") {
  return tensor_x(R"("dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets);
}
std::string repeated(std::string_view piece, int times) {
  std::string text;
  for (int i = 0; i < times; ++i) text += piece;
  return text;
}

std::vector<bad_header> bad_headers() {
  const std::string rest = R"("dtype":"F32","data_offsets":[0,8])";
  const std::string good = R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  return {
      {"does not begin with", ""},
      {"does not begin with", "[]"},
      {"does not begin with", " {}"},
      {"does not begin with", "\xef\xbb\xbf{}"},
      {"a zero byte", std::string("{}\0garbage", 10)},
      {"no JSON", "{"},
      {"no JSON", "{}x"},
      {"no JSON", "{}{}"},
      {"no JSON", "{\"x\":"},
      {"no JSON", "{\"x"},
      {"no JSON", "{\"x\\ud800\":1}"},
      {"no JSON", "{\"\xff\":1}"},
      {"no JSON", "{\"\xc0\xaf\":1}"},
      {"no JSON", "{/**/}"},
      {"no JSON", "{" + good + "}"},
      {"no JSON", shaped("[2,]"), 8},
      {"no JSON", shaped("[02]"), 8},
      {"no JSON", shaped("[NaN]"), 8},
      {"no JSON", shaped("[1e999]"), 8},
      {"tensor \"x\": the number 1", "{\"x\":1}"},
      {"tensor \"x\": null", "{\"x\":null}"},
      {"tensor \"x\": a string", "{\"x\":\"y\"}"},
      {"tensor \"x\": an array", "{\"x\":[]}"},
      {"tensor \"x\": dtype is missing", "{\"x\":{}}"},
      {"shape is missing", tensor_x(rest), 8},
      {"data_offsets is missing", tensor_x(R"("dtype":"F32","shape":[2])"), 8},
      {"is no field of a tensor", tensor_x(R"("strides":[1],"shape":[2],)" + rest), 8},
      {"shape is given twice", tensor_x(R"("shape":[2],"shape":[2],)" + rest), 8},
      {"tensor \"x\": twice", R"({"x":)" + good + R"(,"x":)" + good + "}", 8},
      {"twice", R"({"__metadata__":{},"__metadata__":{}})"},
      {"\"k\" is given twice", R"({"__metadata__":{"k":"1","k":"2"}})"},
      {"the number 1", R"({"__metadata__":{"k":1}})"},
      {"null", R"({"__metadata__":{"k":null}})"},
      {"an object", R"({"__metadata__":{"k":{}}})"},
      {"an array", R"({"__metadata__":[]})"},
      {"null", R"({"__metadata__":null})"},
      {"a string", R"({"__metadata__":"k"})"},
      {"unknown dtype \"F33\"", tensor_x(R"("dtype":"F33","shape":[2],"data_offsets":[0,8])"), 8},
      {"unknown dtype \"f32\"", tensor_x(R"("dtype":"f32","shape":[2],"data_offsets":[0,8])"), 8},
      {"the number 5", tensor_x(R"("dtype":5,"shape":[2],"data_offsets":[0,8])"), 8},
      {"a string", shaped("\"2\""), 8},
      {"a string", shaped("[\"2\"]"), 8},
      {"the number -2", shaped("[-2]"), 8},
      {"the number 0", shaped("[-0]"), 8},
      {"the number 2.0", shaped("[2.0]"), 8},
      {"the number 2e0", shaped("[2e0]"), 8},
      {"the extent 9223372036854775808", shaped("[9223372036854775808]"), 8},
      {"the number 18446744073709551616", shaped("[18446744073709551616]"), 8},
      {"an array", shaped("[[2]]"), 8},
      {"an object", shaped("[{}]"), 8},
      {"a boolean", shaped("[true]"), 8},
      {"does not fit 63 bits", shaped("[4294967296,4294967296]"), 8},
      {"does not fit 63 bits", shaped("[9223372036854775807,2]"), 8},
      {"does not fit 63 bits", shaped("[4611686018427387904]"), 8},
      {"does not fit 63 bits", shaped("[4294967296,4294967296,0]", "[0,0]")},
      {"its shape needs 12 bytes", shaped("[3]"), 8},
      {"its shape needs 4 bytes", shaped("[]"), 8},
      {"its shape needs 0 bytes", shaped("[2,0]"), 8},
      {"has not two entries", shaped("[2]", "[]"), 8},
      {"has not two entries", shaped("[2]", "[0]"), 8},
      {"the number 9", shaped("[2]", "[0,8,9]"), 8},
      {"the number -1", shaped("[2]", "[-1,7]"), 8},
      {"data_offsets [8, 0]", shaped("[2]", "[8,0]"), 8},
      {"of 8 bytes of data", shaped("[4]", "[0,16]"), 8},
      {"of 8 bytes of data", shaped("[2]", "[18446744073709551608,18446744073709551615]"), 8},
      {"leave a gap", shaped("[2]", "[4,12]"), 12},
      {"the tensors take 8 of 12", shaped("[2]"), 12},
      {"the tensors take 0 of 1", "{}", 1},
      {"tensor \"y\": data_offsets [4, 12] overlap",
       R"({"x":)" + good + R"(,"y":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", 12},
      {"tensor \"y\": data_offsets [0, 8] overlap", R"({"x":)" + good + R"(,"y":)" + good + "}", 8},
      {"tensor \"y\": data_offsets [9, 17] leave a gap",
       R"({"x":)" + good + R"(,"y":{"dtype":"F32","shape":[2],"data_offsets":[9,17]}})", 17},
      {"is no field of a tensor", repeated("{\"a\":", 20000)},
      {"an array", shaped(repeated("[", 20000))},
      {"tensor \"a?b", "{\"a\\nb\":1}"},
      {"tensor \"aaa", "{\"" + std::string(50000, 'a') + "\":1}"},
      {"unknown dtype \"bbb", tensor_x("\"dtype\":\"" + std::string(50000, 'b') + "\"")},
      {"no JSON", shaped("[" + std::string(50000, '1') + "]"), 8},
      {"no JSON", "{\"" + std::string(50000, 'c')},
      {"more than 64 axes", shaped("[" + repeated("1,", 20000) + "1]"), 8},
  };
}

TEST(malformed_header, is_refused_with_its_reason) {
  int index = 0;
  for (const auto& h : bad_headers()) {
    const std::string fault = attempt(file_of(h.header, h.data));
    EXPECT_NE(fault.find(h.wanted), std::string::npos)
        << "header " << index << ", " << h.header.substr(0, 100) << ": " << (fault.empty() ? "accepted" : fault);
    ++index;
  }
}

TEST(malformed_header, length_field) {
  const bytes good = file_of("{}");
  EXPECT_NE(attempt({}).find("shorter than"), std::string::npos);
  EXPECT_NE(attempt(bytes(7)).find("shorter than"), std::string::npos);
  for (const std::uint64_t length :
       {std::uint64_t{3}, std::uint64_t{1} << 31, std::uint64_t{1} << 63, ~std::uint64_t{0}, ~std::uint64_t{0} - 7}) {
    bytes content = good;
    std::memcpy(content.data(), &length, sizeof length);
    EXPECT_NE(attempt(content).find("a header of " + std::to_string(length)), std::string::npos);
  }
  // Long enough for the file, and beyond what the format allows.
  bytes content(8 + st::longest_header + 1, std::byte{' '});
  const std::uint64_t length = st::longest_header + 1;
  std::memcpy(content.data(), &length, sizeof length);
  content[8] = std::byte{'{'};
  EXPECT_NE(attempt(content).find("supported: up to"), std::string::npos);
}

TEST(well_formed_header, is_accepted) {
  const std::string good = R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  for (const auto& [header, data] : std::vector<std::pair<std::string, std::size_t>>{
           {"{}", 0},
           {"{}      ", 0},
           {"{\"x\":" + good + "}\n", 8},
           {R"({"y":{"data_offsets":[8,12],"dtype":"I32","shape":[]},"__metadata__":{"a":"b"},"x":)" + good + "}", 12},
           {R"({"e":{"dtype":"F64","shape":[0,3],"data_offsets":[0,0]},"x":)" + good + "}", 8},
           {R"({"e":{"dtype":"F64","shape":[0,3],"data_offsets":[8,8]},"x":)" + good + "}", 8},
           {R"({"c":{"dtype":"F8_E4M3","shape":[8],"data_offsets":[0,8]}})", 8}}) {
    EXPECT_NO_THROW((void)st::parse(file_name, file_of(header, data))) << header;
  }
}

bytes content_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  bytes content(std::filesystem::file_size(path));
  in.read(reinterpret_cast<char*>(content.data()), static_cast<std::streamsize>(content.size()));
  EXPECT_TRUE(in.good());
  return content;
}

/// The smallest golden case of each operator, of those small enough to be run thousands of times.
std::vector<std::pair<std::string, bytes>> small_cases() {
  std::map<std::string, std::filesystem::path> smallest;
  for (const auto& entry : std::filesystem::directory_iterator(REPLAY_CASES)) {
    if (entry.path().extension() != ".safetensors") continue;
    const std::string stem = entry.path().stem().string();
    auto& path = smallest[stem.substr(0, stem.find("__"))];
    if (path.empty() || entry.file_size() < std::filesystem::file_size(path)) path = entry.path();
  }
  std::vector<std::pair<std::string, bytes>> cases;
  for (const auto& [op, path] : smallest) {
    if (std::filesystem::file_size(path) <= 40'000) cases.emplace_back(path.stem().string(), content_of(path));
  }
  EXPECT_GE(cases.size(), 8U);
  return cases;
}

std::size_t header_end(const bytes& content) {
  std::uint64_t length = 0;
  std::memcpy(&length, content.data(), sizeof length);
  return 8 + length;
}

TEST(broken_case, truncated_anywhere_is_refused) {
  for (const auto& [name, content] : small_cases()) {
    EXPECT_EQ(attempt(content), "") << name;
    const std::size_t step = std::max<std::size_t>(1, content.size() / 500);
    for (std::size_t size = 0; size < content.size(); size += step) {
      EXPECT_NE(attempt(bytes(content.begin(), content.begin() + static_cast<std::ptrdiff_t>(size))), "")
          << name << " cut at " << size;
    }
    bytes longer = content;
    longer.push_back(std::byte{0});
    EXPECT_NE(attempt(longer), "") << name;
  }
}

TEST(broken_case, with_flipped_bits_is_refused_or_run) {
  std::mt19937 random(1);
  int refused = 0;
  int accepted = 0;
  for (const auto& [name, content] : small_cases()) {
    for (int i = 0; i < 400; ++i) {
      bytes broken = content;
      // Three of four in the header: flips in the data are mostly another number.
      const std::size_t range = i % 4 != 0 ? header_end(content) : content.size();
      for (int flips = 1 + i % 3; flips > 0; --flips) broken[random() % range] ^= std::byte(1u << random() % 8);
      (attempt(broken).empty() ? accepted : refused)++;
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(accepted, 100);
}

constexpr const char* hostile_numbers[] = {"0",
                                           "1",
                                           "2",
                                           "-1",
                                           "16",
                                           "255",
                                           "65536",
                                           "1048576",
                                           "2147483647",
                                           "4294967296",
                                           "9223372036854775807",
                                           "-9223372036854775808",
                                           "18446744073709551615",
                                           "1e308",
                                           "nan",
                                           "inf",
                                           "0.5",
                                           ""};

TEST(broken_case, with_a_hostile_parameter_is_refused_or_run) {
  const std::string path = ::testing::TempDir() + "safetensors_parameter";
  for (const auto& [name, content] : small_cases()) {
    const polystate::testing::edited_case original(REPLAY_CASES "/" + name + ".safetensors");
    for (const auto& [key, value] : original.metadata) {
      if (key.rfind("param.", 0) != 0) continue;
      for (const char* number : hostile_numbers) {
        SCOPED_TRACE(name + ", " + key + " = " + number);
        polystate::testing::edited_case edited = original;
        edited.metadata[key] = number;
        edited.write(path);
        (void)attempt(content_of(path));
      }
    }
  }
  std::filesystem::remove(path);
}

/// Pieces of a header exchanged for others that are plausible at their place, so that the syntax survives.
TEST(broken_case, with_other_numbers_and_names_is_refused_or_run) {
  std::mt19937 random(2);
  const auto is_digit = [](std::byte b) { return b >= std::byte{'0'} && b <= std::byte{'9'}; };
  for (const auto& small : small_cases()) {
    const bytes& content = small.second;
    const std::size_t end = header_end(content);
    for (int i = 0; i < 400; ++i) {
      std::size_t begin = 8 + random() % (end - 8);
      while (begin < end && !is_digit(content[begin])) ++begin;
      if (begin == end) continue;
      std::size_t stop = begin;
      while (stop < end && is_digit(content[stop])) ++stop;
      const auto at = [&](std::size_t offset) { return content.begin() + static_cast<std::ptrdiff_t>(offset); };
      std::string header(reinterpret_cast<const char*>(content.data()) + 8, begin - 8);
      header += hostile_numbers[random() % std::size(hostile_numbers)];
      header.append(reinterpret_cast<const char*>(content.data()) + stop, end - stop);
      bytes broken = file_of(header);
      broken.insert(broken.end(), at(end), content.end());
      (void)attempt(broken);
    }
  }
}

TEST(unreadable_file, is_named) {
  const std::string path = ::testing::TempDir() + "safetensors_unreadable";
  for (const std::string& name : {path + "/missing", std::string("/dev/zero"), std::string("/")}) {
    try {
      (void)st::read(name);
      ADD_FAILURE() << name;
    } catch (const st::error& e) {
      EXPECT_EQ(std::string(e.what()).rfind(name, 0), 0U) << e.what();
    }
  }
}

}  // namespace
