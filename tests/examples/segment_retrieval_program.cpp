// SPDX-License-Identifier: Apache-2.0

// segment_retrieval as its users meet it.

#include "support/run_program.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>

namespace {

using nlohmann::json;
using polystate::testing::content_of;
using polystate::testing::finished_program;
using polystate::testing::run_program;
using polystate::testing::temporary_folder;

class segment_retrieval_program : public ::testing::Test {
 protected:
  static finished_program run(const std::string& arguments) {
    return run_program(SEGMENT_RETRIEVAL_PROGRAM, arguments);
  }
  /// The same, and what it wrote as JSON.
  json result_of(const std::string& arguments) {
    const std::string path = folder_.file("result.json");
    const auto r = run(arguments + " --json '" + path + "'");
    EXPECT_EQ(r.status, 0) << r.err;
    printed_ = r.out;
    progress_ = r.err;
    return json::parse(content_of(path));
  }
  static std::map<std::string, json> by_name(const json& rows, const std::string& key) {
    std::map<std::string, json> all;
    for (const auto& row : rows) all[row.at(key)] = row;
    return all;
  }
  std::string file(const std::string& content) {
    std::ofstream(folder_.file("questions.json")) << content;
    return "--file '" + folder_.file("questions.json") + "'";
  }

  temporary_folder folder_;
  std::string printed_, progress_;
};

/// Questions of three words among 12 paragraphs of 30 words drawn from 2,000; two paragraphs hold two of the three.
json random_questions(int count) {
  std::mt19937 random(5);
  const auto word = [&] { return "w" + std::to_string(random() % 2000) + " "; };
  json all = json::array();
  for (int n = 0; n < count; ++n) {
    const std::string a = word(), b = word(), c = word();
    json q = {{"question", a + b + c}, {"paragraphs", json::array()}};
    for (int p = 0; p < 12; ++p) {
      std::string text;
      for (int i = 0; i < 28; ++i) text += word();
      if (p == 3) text += a + b;
      if (p == 8) text += b + c;
      q["paragraphs"].push_back({{"title", word()}, {"paragraph_text", text}, {"is_supporting", p == 3 || p == 8}});
    }
    all.push_back(q);
  }
  return all;
}

TEST_F(segment_retrieval_program, scores_paragraphs_without_training) {
  const json text = result_of("--part text --vector-seeds 1 " + file(random_questions(60).dump()))["text"];
  EXPECT_EQ(text["questions"], 60);
  EXPECT_EQ(text["paragraphs"], 720);
  auto rows = by_name(text["rows"], "scorer");
  ASSERT_EQ(rows.size(), 4U);
  // Paragraphs that share two rare words with the question: BM25 misses none of 120 but by a coincidence of other
  // words.
  EXPECT_GE(rows["bm25"]["recall"], 0.98);
  // Chance is 4 of 12; five standard errors of 60 questions are at most 5 sqrt(1/4 / 60) = 0.33 beside it. A word in
  // thirty is a thirtieth of the mean but nearly all of the variance along the question.
  EXPECT_GT(rows["meanpool"]["recall"], 0.67);
  EXPECT_GT(rows["merlin, variance"]["recall"], 0.67);
  EXPECT_GT(rows["merlin, mixed"]["recall"], 0.67);
  for (const auto& [name, row] : rows) {
    EXPECT_NE(printed_.find("\n" + name), std::string::npos) << printed_;
    if (name == "bm25") continue;
    EXPECT_NEAR(row["above_bm25"].get<double>(), row["recall"].get<double>() - rows["bm25"]["recall"].get<double>(),
                1e-12);
  }
}

TEST_F(segment_retrieval_program, reads_its_own_questions) {
  const json text = result_of("--part text --routing-dim 64")["text"];
  EXPECT_EQ(text["file"], "questions.json");
  EXPECT_EQ(text["questions"], 10);
  EXPECT_EQ(text["paragraphs"], 120);
  // 23 supporting paragraphs, 4 of 12 by chance; one standard error is about 0.1.
  EXPECT_GT(by_name(text["rows"], "scorer")["bm25"]["recall"], 0.45);
}

// What a retriever cannot see, it cannot find; what can see it, learns to.
TEST_F(segment_retrieval_program, trains_retrievers) {
  const json few =
      result_of("--part chains --retrievers pool-only 'mean pool' --seeds 2 --steps 300 --tests 500")["chains"];
  EXPECT_NEAR(few["best_by_itself"].get<double>(), 2.0 / 3, 1e-12);
  auto rows = by_name(few["rows"], "retriever");
  ASSERT_EQ(rows.size(), 2U);
  for (const auto& [name, row] : rows) {
    // The second fact is found or not, half of a question's recall: over 2 x 500 questions one standard error is
    // sqrt(1/3 2/3 / 1000) / 2 = 0.0075.
    EXPECT_NEAR(row["one_pass"]["mean"].get<double>(), 2.0 / 3, 4 * 0.0075) << name;
    // The second pass asks for what the first found.
    EXPECT_GT(row["chained"]["mean"], 0.95) << name;
  }
  EXPECT_TRUE(progress_.starts_with("training:   0%\n") && progress_.ends_with("training: 100%\n")) << progress_;

  const json mara = result_of("--part chains --retrievers mara --seeds 2 --steps 1000 --tests 500")["chains"];
  // Order alone leads to 0.75, with a standard error of sqrt(1/4 / 1000) / 2 = 0.008.
  EXPECT_GT(mara["rows"][0]["one_pass"]["mean"], 0.75 + 6 * 0.008);
  EXPECT_GT(mara["rows"][0]["global"]["mean"], 0.75 + 6 * 0.008);
}

TEST_F(segment_retrieval_program, repeats_itself) {
  const std::string few = "--part chains --retrievers gru lstm --seeds 1 --steps 5 --tests 20 --dim 4 --batch 2";
  const json first = result_of(few);
  EXPECT_EQ(result_of(few), first);
  EXPECT_EQ(first["chains"]["rows"].size(), 2U);
  EXPECT_FALSE(first.contains("text"));
}

TEST_F(segment_retrieval_program, says_in_a_line_what_is_wrong) {
  const auto refused = [](const std::string& arguments, const std::string& reason) {
    const auto r = run(arguments);
    EXPECT_EQ(r.status, 2) << arguments;
    EXPECT_EQ(r.out, "") << arguments;
    EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
    EXPECT_TRUE(r.err.starts_with("segment_retrieval: ")) << r.err;
    EXPECT_NE(r.err.find(reason), std::string::npos) << arguments << ": " << r.err;
  };
  refused("--file '" + folder_.file("none") + "'", "cannot read");
  refused("--file '" + std::filesystem::temp_directory_path().string() + "'", "folder");
  refused(file("[]"), "no questions");
  refused(file("{"), "question 0");
  refused(file("[1]"), "question 0");
  json questions = random_questions(2);
  questions[1].erase("question");
  refused(file(questions.dump()), "question 1");
  questions = random_questions(2);
  for (auto& p : questions[1]["paragraphs"]) p["is_supporting"] = false;
  refused(file(questions.dump()), "question 1: has no supporting paragraph");
  questions = random_questions(1);
  questions[0]["paragraphs"][4]["title"] = questions[0]["paragraphs"][4]["paragraph_text"] = "!";
  refused(file(questions.dump()), "question 0: paragraph 4 has no words");
  questions[0]["question"] = "?";
  refused(file(questions.dump()), "question 0: has no words");
  for (const char* option :
       {"--routing-dim", "--vector-seeds", "--chains", "--seeds", "--steps", "--batch", "--tests"}) {
    for (const char* value : {"0", "-1", "abc", "1.5", "''"}) refused(std::string(option) + " " + value, option);
  }
  refused("--part both", "--part");
  refused("--retrievers transformer", "--retrievers");
  refused("--json /nowhere/at/all.json", "cannot be written");
  refused("extra", "extra");
}

TEST_F(segment_retrieval_program, helps) {
  const auto r = run("--help");
  EXPECT_EQ(r.status, 0);
  for (const char* option : {"--file", "--part", "--retrievers", "--chains", "--seeds", "--steps", "--json"}) {
    EXPECT_NE(r.out.find(option), std::string::npos) << option;
  }
}

}  // namespace
