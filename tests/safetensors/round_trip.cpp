// SPDX-License-Identifier: Apache-2.0

#include <polystate/interop/safetensors.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace {

namespace st = polystate::safetensors;

class written_file : public ::testing::Test {
 protected:
  [[nodiscard]] std::string path() const {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    return ::testing::TempDir() + "safetensors_" + test->name();
  }
  void TearDown() override { std::filesystem::remove(path()); }
};

TEST_F(written_file, reads_back_equal_in_every_type) {
  const std::vector<double> f64 = {1.5, -2, 3e300};
  const std::vector<float> f32 = {1.5f, -2};
  const std::vector<polystate::half> f16 = {polystate::half(0.5f)};
  const std::vector<polystate::bfloat16> bf16 = {polystate::bfloat16(-3.f), polystate::bfloat16(7.f)};
  const std::vector<std::int64_t> i64 = {std::int64_t{-1} << 40};
  const std::vector<std::int32_t> i32 = {1, -2, 3};
  const std::vector<std::byte> bytes(3, std::byte{7});
  const std::vector<st::tensor_source> sources = {
      st::source("odd", {1}, std::span(f16)),         {"bytes", st::dtype::u8, {3}, bytes},
      st::source("a.f64", {3, 1}, std::span(f64)),    st::source("a.f32", {2}, std::span(f32)),
      st::source("a \"bf16\"", {2}, std::span(bf16)), st::source("scalar", {}, std::span(i64)),
      st::source("i32", {1, 3, 1}, std::span(i32)),   {"empty", st::dtype::f64, {4, 0, 2}, {}},
  };
  st::write(path(), sources, {{"key", "value\n\"quoted\""}, {"", ""}});

  const auto file = st::read(path());
  EXPECT_EQ(file.tensors().size(), sources.size());
  EXPECT_EQ(file.metadata(), (st::metadata_type{{"key", "value\n\"quoted\""}, {"", ""}}));
  for (const auto& s : sources) EXPECT_EQ(file.at(s.name).shape, s.shape) << s.name;
  EXPECT_EQ(file.values<double>("a.f64"), f64);
  EXPECT_EQ(file.values<float>("a.f32"), f32);
  EXPECT_EQ(file.values<polystate::half>("odd").at(0).bits, f16[0].bits);
  EXPECT_EQ(file.values<polystate::bfloat16>("a \"bf16\"").at(1).bits, bf16[1].bits);
  EXPECT_EQ(file.values<std::int64_t>("scalar"), i64);
  EXPECT_EQ(file.values<std::int32_t>("i32"), i32);
  EXPECT_TRUE(file.values<double>("empty").empty());
  EXPECT_EQ(file.bytes("bytes").size(), 3U);
  // Aligned to its element, whatever the order in which it was given.
  for (const auto& [name, t] : file.tensors()) EXPECT_EQ(t.begin % st::info(t.type).bytes, 0U) << name;
}

TEST_F(written_file, without_tensors) {
  st::write(path(), {});
  EXPECT_TRUE(st::read(path()).tensors().empty());
}

TEST_F(written_file, asked_for_what_it_does_not_hold) {
  const std::vector<float> x = {1};
  st::write(path(), std::vector{st::source("x", {1}, std::span(x))});
  const auto file = st::read(path());
  for (const auto& ask :
       {+[](const st::file& f) { (void)f.values<double>("x"); }, +[](const st::file& f) { (void)f.values<float>("y"); },
        +[](const st::file& f) { (void)f.bytes("y"); }}) {
    try {
      ask(file);
      ADD_FAILURE() << "no error";
    } catch (const st::error& e) {
      EXPECT_NE(std::string(e.what()).find(path() + ": tensor \""), std::string::npos) << e.what();
    }
  }
}

TEST_F(written_file, refuses_what_the_format_cannot_say) {
  const std::vector<float> x = {1, 2};
  const auto good = st::source("x", {2}, std::span(x));
  EXPECT_THROW(st::write(path(), std::vector{good, good}), st::error);
  EXPECT_THROW(st::write(path(), std::vector{st::source("x", {3}, std::span(x))}), st::error);
  EXPECT_THROW(st::write(path(), std::vector{st::source("x", {-2, -1}, std::span(x))}), st::error);
  EXPECT_THROW(st::write(path(), std::vector{st::source("__metadata__", {2}, std::span(x))}), st::error);
  EXPECT_THROW(st::write(path(), std::vector{st::source("\xff", {2}, std::span(x))}), st::error);
  EXPECT_THROW(st::write(path(), std::vector{good}, {{"key", "\xc3"}}), st::error);
  EXPECT_THROW(st::write(path() + "/no/such/folder", std::vector{good}), st::error);
  EXPECT_THROW(st::write("/dev/full", std::vector{good}), st::error);
}

}  // namespace
