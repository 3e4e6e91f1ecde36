// SPDX-License-Identifier: Apache-2.0

// text_memory as its users meet it.

#include "support/run_program.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace {

using polystate::testing::finished_program;
using polystate::testing::run_program;
using polystate::testing::temporary_folder;

struct row {
  double right;             // per cent
  std::string own_segment;  // per cent, or "-"
  std::size_t bytes;
};

/// The table's rows by their readers.
std::map<std::string, row> table(const std::string& out) {
  std::map<std::string, row> rows;
  std::istringstream lines(out.substr(out.find("reader")));
  std::string line;
  std::getline(lines, line);  // the header
  while (std::getline(lines, line) && !line.empty()) {
    std::istringstream columns(line);
    std::string reader;
    row r;
    columns >> reader >> r.right >> r.own_segment >> r.bytes;
    EXPECT_TRUE(columns) << line;
    rows[reader] = r;
  }
  return rows;
}

/// The number in front of ` name` in the first lines.
std::size_t number_of(const std::string& out, const std::string& name) {
  const std::size_t end = out.find(" " + name);
  EXPECT_NE(end, std::string::npos) << name << " in " << out;
  const std::size_t begin = out.find_last_of("\n ,:", end - 1) + 1;
  return std::stoul(out.substr(begin, end - begin));
}

class text_memory_program : public ::testing::Test {
 protected:
  [[nodiscard]] std::string file(const std::string& content) const {
    const std::string path = folder_.file("text");
    std::ofstream(path) << content;
    return "--text '" + path + "'";
  }
  static finished_program run(const std::string& arguments) { return run_program(TEXT_MEMORY_PROGRAM, arguments); }

 private:
  temporary_folder folder_;
};

/// 1,500 tokens of words drawn from 300: nearly every pair occurs once, so every word can be told.
std::string random_text() {
  std::mt19937 random(7);
  std::string text;
  for (int i = 0; i < 1502; ++i) text.append("w").append(std::to_string(random() % 300)).append(" ");
  return text;
}

TEST_F(text_memory_program, answers_better_the_better_its_reader) {
  const auto r = run(file(random_text()));
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(number_of(r.out, "tokens,"), 1500U);
  EXPECT_EQ(number_of(r.out, "segments"), 24U);
  EXPECT_EQ(number_of(r.out, "choose"), 256U);
  const std::size_t questions = number_of(r.out, "questions");
  const std::size_t asked = number_of(r.out, "score");
  EXPECT_EQ(asked, questions / 2);
  EXPECT_GT(asked, 700U);

  auto rows = table(r.out);
  ASSERT_EQ(rows.size(), 6U) << r.out;
  // Whole numbers of questions, printed to a tenth of a per cent.
  for (const auto& [reader, of] : rows) {
    const double right = of.right / 100 * static_cast<double>(asked);
    EXPECT_NEAR(right, std::round(right), 0.0005 * static_cast<double>(asked) + 1e-9) << reader;
    EXPECT_LE(of.right, 100) << reader;
  }
  // Over 700 questions one standard deviation of a percentage is at most 1.9; what is compared lies 10 of
  // them apart or more.
  EXPECT_LT(rows["single"].right, 20);
  EXPECT_GT(rows["uniform"].right, rows["single"].right + 10);
  EXPECT_GT(rows["meanpool"].right, rows["uniform"].right + 10);
  EXPECT_GT(rows["merlin"].right, 95);
  EXPECT_GT(rows["softmax"].right, 99);

  for (const char* reader : {"single", "uniform", "softmax"}) EXPECT_EQ(rows[reader].own_segment, "-") << reader;
  EXPECT_GT(std::stod(rows["merlin"].own_segment), 95);
  EXPECT_GT(std::stod(rows["meanpool"].own_segment), 100.0 / 24 + 5);

  const std::size_t state = 128 * 128 * sizeof(float);
  EXPECT_EQ(rows["single"].bytes, state);
  EXPECT_EQ(rows["uniform"].bytes, 24 * state);
  EXPECT_EQ(rows["position"].bytes, 24 * state);
  EXPECT_EQ(rows["meanpool"].bytes, 24 * (state + 128 * sizeof(float)));
  EXPECT_EQ(rows["merlin"].bytes, 24 * (2 * state + 128 * sizeof(float)));
  EXPECT_EQ(rows["softmax"].bytes, 1500 * 2 * 128 * sizeof(float));
}

TEST_F(text_memory_program, has_nothing_to_route_with_one_segment) {
  // Weights cannot help where one segment holds the whole text.
  const auto r = run(file(random_text()) + " --segment-length 5000 --dim 32");
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(number_of(r.out, "segments"), 1U);
  auto rows = table(r.out);
  for (const char* reader : {"uniform", "position", "meanpool", "merlin"}) {
    EXPECT_EQ(rows[reader].right, rows["single"].right) << reader;
    EXPECT_EQ(rows[reader].own_segment, "-") << reader;
  }
  EXPECT_LT(rows["single"].right, 10);
}

TEST_F(text_memory_program, obeys_its_options) {
  const std::string text = file(random_text());
  const auto r = run(text + " --segment-length 100 --dim 32 --routing-dim 16 --seed 5");
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(number_of(r.out, "segments"), 15U);
  auto rows = table(r.out);
  EXPECT_EQ(rows["single"].bytes, 32 * 32 * sizeof(float));
  EXPECT_EQ(rows["meanpool"].bytes, 15 * (32 * 32 + 16) * sizeof(float));
  EXPECT_EQ(rows["merlin"].bytes, 15 * (32 * 32 + 16 * 16 + 16) * sizeof(float));

  EXPECT_EQ(run(text + " --segment-length 100 --dim 32 --routing-dim 16 --seed 5").out, r.out);
  EXPECT_NE(run(text + " --segment-length 100 --dim 32 --routing-dim 16 --seed 6").out, r.out);
}

TEST_F(text_memory_program, asks_a_sample_of_many_questions) {
  const std::string text = file(random_text()) + " --dim 32";
  const auto all = run(text);
  const auto some = run(text + " --questions 301");
  ASSERT_EQ(some.status, 0) << some.err;
  EXPECT_EQ(number_of(some.out, "questions"), number_of(all.out, "questions"));
  EXPECT_NE(some.out.find(", a sample of 301: 64 choose the scales, 150 score\n"), std::string::npos) << some.out;
  EXPECT_EQ(all.out.find("sample"), std::string::npos) << all.out;
  auto rows = table(some.out);
  ASSERT_EQ(rows.size(), 6U) << some.out;
  EXPECT_NEAR(rows["uniform"].right, table(all.out)["uniform"].right, 15);  // four deviations of 150 questions
  EXPECT_EQ(run(text + " --questions 301").out, some.out);
  EXPECT_NE(run(text + " --questions 301 --seed 1").out, some.out);
}

TEST_F(text_memory_program, recalls_a_phrase) {
  const auto r = run(file(random_text() + "one Two three " + random_text()) + " --ask 'One, two'");
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(table(r.out).size(), 6U);
  EXPECT_NE(r.out.find("\nasked: one two\nin the text: three (segment 23)\n"), std::string::npos) << r.out;
  const std::size_t merlin = r.out.find("  merlin     recalls: three\n");
  ASSERT_NE(merlin, std::string::npos) << r.out;
  EXPECT_NE(r.out.find("  softmax    recalls: three\n", merlin), std::string::npos) << r.out;
  // Its own segment comes first, with the longest bar and its words.
  const std::size_t segment = r.out.find("segment    23", merlin);
  ASSERT_NE(segment, std::string::npos) << r.out;
  EXPECT_EQ(r.out.find("segment  ", merlin), segment);
  EXPECT_NE(r.out.find("# < written here", segment), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("segment 23 says:", segment), std::string::npos) << r.out;
  EXPECT_NE(r.out.find(" three", r.out.find("segment 23 says:", segment)), std::string::npos) << r.out;
}

/// Numbers in front of a row's scales, of the rows behind a header.
std::vector<std::vector<double>> numbers_behind(const std::string& out, const std::string& header) {
  const std::size_t at = out.find(header);
  EXPECT_NE(at, std::string::npos) << header << " in " << out;
  std::istringstream lines(out.substr(at));
  std::string line;
  std::getline(lines, line);
  std::vector<std::vector<double>> rows;
  while (std::getline(lines, line) && !line.empty()) {
    std::istringstream columns(line);
    std::vector<double> row;
    std::string word;
    while (columns >> word && word != "gamma") row.push_back(word == "all" ? 0 : std::stod(word));
    rows.push_back(row);
  }
  return rows;
}

TEST_F(text_memory_program, sweeps_over_segments_and_routing_dims) {
  const std::string text = file(random_text()) + " --dim 48 --seed 3";
  const auto r = run(text + " --sweep");
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_NE(r.err.find("sweeping:   0%\n"), std::string::npos) << r.err;
  EXPECT_TRUE(r.err.ends_with("sweeping: 100%\n")) << r.err;

  constexpr double pairs = 1500 * 2 * 48 * sizeof(float);
  EXPECT_EQ(number_of(r.out, "bytes"), static_cast<std::size_t>(pairs));
  const auto cells = numbers_behind(r.out, " segment  routing dim");
  ASSERT_EQ(cells.size(), 10U) << r.out;  // a routing dim of 64 is more than the keys have
  std::map<std::pair<double, double>, double> right;
  for (const auto& cell : cells) {
    ASSERT_EQ(cell.size(), 6U) << r.out;
    const double m = cell[0], R = cell[1];
    right[{m, R}] = cell[2];
    EXPECT_EQ(cell[4], std::ceil(1500 / m) * (48 * 48 + R + R * R) * sizeof(float)) << m << ' ' << R;
    EXPECT_NEAR(cell[5], cell[4] / pairs, 0.0051) << m << ' ' << R;
  }
  ASSERT_EQ(right.size(), 10U);
  // Shorter segments and more routing dims are easier; what is compared lies 10 standard deviations apart.
  EXPECT_GT((right[{32, 32}]), (right[{512, 32}]) + 20);
  EXPECT_GT((right[{32, 32}]), (right[{32, 16}]) + 20);

  // The same sizes by themselves.
  auto alone = table(run(text + " --segment-length 64 --routing-dim 32").out);
  EXPECT_EQ(alone["merlin"].right, (right[{64, 32}]));

  const auto best = numbers_behind(r.out, "       k  right (%)");
  ASSERT_EQ(best.size(), 5U) << r.out;
  constexpr double state = 48 * 48 * sizeof(float), moments = 24 * (32 + 32 * 32) * sizeof(float);
  for (std::size_t i = 0; i < 4; ++i) {
    const double k = 1 << i;
    EXPECT_EQ(best[i][0], k);
    EXPECT_EQ(best[i][2], k * state + moments);
    EXPECT_NEAR(best[i][3], (k * state + moments) / (24 * state + moments), 0.0051);
  }
  EXPECT_EQ(best[4][1], (right[{64, 32}]));
  EXPECT_EQ(best[4][2], 24 * state + moments);
  EXPECT_NEAR(best[3][1], best[4][1], 6);  // the 8 best of 24 segments carry nearly all of the weight
}

TEST_F(text_memory_program, keeps_progress_out_of_the_table) {
  const auto r = run(file("a b c d e f g"));
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(r.out.find('%', r.out.find("scales\n")), std::string::npos) << r.out;
  EXPECT_TRUE(r.err.starts_with("writing the text:   0%\n")) << r.err;
  EXPECT_TRUE(r.err.ends_with(": 100%\n")) << r.err;
  EXPECT_EQ(r.err.find('\r'), std::string::npos);
}

TEST_F(text_memory_program, says_in_a_line_what_is_wrong) {
  const std::string good = file("one two three four five");
  temporary_folder other;
  const auto text = [&](const std::string& content) {
    std::ofstream(other.file("bad")) << content;
    return "--text '" + other.file("bad") + "'";
  };
  const auto refused = [](const std::string& arguments, const std::string& reason) {
    const auto r = run(arguments);
    EXPECT_EQ(r.status, 2) << arguments;
    EXPECT_EQ(r.out, "") << arguments;
    EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
    EXPECT_TRUE(r.err.starts_with("text_memory: ")) << r.err;
    EXPECT_NE(r.err.find(reason), std::string::npos) << arguments << ": " << r.err;
  };
  refused("--text '" + other.file("none") + "'", "cannot read");
  refused("--text ''", "cannot read");
  refused("--text '" + std::filesystem::temp_directory_path().string() + "'", "folder");
  refused(text(""), "too few words");
  refused(text("word"), "too few words");
  refused(text("two words"), "too few words");
  refused(text("a a a a a a"), "too short");
  refused(good + " --ask 'two one'", "no \"two one\"");
  refused(good + " --ask 'four five'", "no \"four five\"");
  refused(good + " --ask two", "two words, not 1");
  refused(good + " --ask 'one two three'", "two words, not 3");
  refused(good + " --ask ''", "two words, not 0");
  refused(good + " --routing-dim 65 --dim 64", "more than --dim 64");
  refused(text(random_text()) + " --dim 1024 --segment-length 1", "GiB");
  for (const char* option : {"--dim", "--routing-dim", "--segment-length", "--questions", "--seed"}) {
    for (const char* value : {"-1", "abc", "1.5", "12x", "99999999999999999999", "''"}) {
      refused(good + " " + option + " " + value, option);
    }
    if (std::string(option) != "--seed") refused(good + " " + option + " 0", "0 not in range");
    refused(good + " " + option, option);
  }
  refused(good + " --colour", "--colour");
  for (const char* option : {"--segment-length 8", "--routing-dim 8", "--ask 'one two'"}) {
    refused(good + " --sweep " + option, "excludes");
  }
  refused(good + " extra", "extra");
}

TEST_F(text_memory_program, helps) {
  const auto r = run("--help");
  EXPECT_EQ(r.status, 0);
  for (const char* option :
       {"--text", "--segment-length", "--dim", "--routing-dim", "--ask", "--questions", "--seed", "--sweep"}) {
    EXPECT_NE(r.out.find(option), std::string::npos) << option;
  }
}

TEST_F(text_memory_program, recalls_the_gpl) {
  if (!std::filesystem::exists("/usr/share/common-licenses/GPL-3")) GTEST_SKIP() << "no GPL-3 on this machine";
  const auto r = run("");
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(number_of(r.out, "segments"), 89U);
  auto rows = table(r.out);
  EXPECT_LT(rows["single"].right, 10);
  EXPECT_LT(rows["uniform"].right, 15);
  EXPECT_LT(rows["position"].right, 15);
  EXPECT_GT(rows["meanpool"].right, rows["uniform"].right + 5);
  EXPECT_LT(rows["meanpool"].right, 35);
  EXPECT_GE(rows["merlin"].right, 95);
  EXPECT_GE(rows["softmax"].right, 99);
}

}  // namespace
