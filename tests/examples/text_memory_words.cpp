// SPDX-License-Identifier: Apache-2.0

// How text_memory takes a text apart, and which questions it asks.

#include "estimate.hpp"
#include "memory.hpp"
#include "readers.hpp"
#include "score.hpp"
#include "text.hpp"
#include "vectors.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace {

using namespace text_memory;
using words = std::vector<std::string>;

TEST(text_memory_words, are_runs_of_letters_digits_and_apostrophes_in_lower_case) {
  EXPECT_EQ(split_into_words("The GPL's v3,\n(c) 2007--FSF  'x'"),
            (words{"the", "gpl's", "v3", "c", "2007", "fsf", "'x'"}));
  EXPECT_EQ(split_into_words("na\xc3\xafve"), (words{"na", "ve"}));
  EXPECT_EQ(split_into_words(" .,; \n"), words{});
  EXPECT_EQ(split_into_words(""), words{});
}

TEST(text_memory_words, make_tokens_and_questions) {
  const text t({"a", "b", "c", "a", "b", "d", "b", "a"});
  EXPECT_EQ(t.tokens(), 6U);
  EXPECT_EQ(t.distinct_words(), 4U);
  EXPECT_EQ(t.spelling(t.next_word(0)), "c");
  EXPECT_EQ(t.find("a", "b"), (std::vector<std::size_t>{0, 3}));
  EXPECT_EQ(t.questions(), (std::vector<std::size_t>{1, 2, 4, 5}));  // "a b" occurs twice
  EXPECT_EQ(t.words_of(1, 3), "b c a b");
  EXPECT_THROW((void)t.find("b", "a"), bad_input);  // nothing follows it
  EXPECT_THROW((void)t.find("a", "z"), bad_input);
}

TEST(text_memory_questions, choose_on_even_ones_and_score_on_odd_ones) {
  for (const std::size_t count : {2U, 3U, 100U, 512U, 513U, 2835U}) {
    std::vector<std::size_t> all(count);
    std::iota(all.begin(), all.end(), std::size_t{0});
    const questions exam(all, {.most = 3000, .seed = 0});
    EXPECT_FALSE(exam.is_sample());
    EXPECT_EQ(exam.scoring.size(), count / 2);
    EXPECT_EQ(exam.choosing.size(), std::min<std::size_t>((count + 1) / 2, 256));
    EXPECT_EQ(std::set(exam.choosing.begin(), exam.choosing.end()).size(), exam.choosing.size());
    for (const auto q : exam.choosing) EXPECT_EQ(q % 2, 0U);
    for (const auto q : exam.scoring) EXPECT_EQ(q % 2, 1U);
    EXPECT_LT(all.size() - exam.choosing.back(), 2 * (all.size() / 256 + 2)) << "not spread over the text";
  }
}

TEST(text_memory_questions, sample_a_long_text_by_seed) {
  std::vector<std::size_t> all(5000);
  std::iota(all.begin(), all.end(), std::size_t{0});
  const auto exam = [&](std::size_t most, std::uint32_t seed) { return questions(all, {most, seed}); };
  for (const std::size_t most : {2U, 3U, 100U, 999U, 4999U}) {
    const questions some = exam(most, 1);
    EXPECT_TRUE(some.is_sample());
    EXPECT_EQ(some.all, 5000U);
    EXPECT_EQ(some.kept, most);
    EXPECT_EQ(some.scoring.size(), most / 2);
    EXPECT_EQ(some.choosing.size(), std::min<std::size_t>((most + 1) / 2, 64));
    std::set<std::size_t> asked(some.scoring.begin(), some.scoring.end());
    asked.insert(some.choosing.begin(), some.choosing.end());
    EXPECT_EQ(asked.size(), some.scoring.size() + some.choosing.size()) << "a question chooses or scores, once";
    EXPECT_LT(*asked.rbegin(), 5000U);
  }
  EXPECT_GT(exam(999, 1).scoring.back(), 4500U) << "not spread over the text";
  EXPECT_EQ(exam(999, 1).scoring, exam(999, 1).scoring);
  EXPECT_NE(exam(999, 1).scoring, exam(999, 2).scoring);
}

TEST(text_memory_estimate, grows_with_the_text) {
  const auto expected = [](int count, std::size_t asked) {
    std::vector<std::string> words;
    std::mt19937 random(5);
    for (int i = 0; i < count; ++i) words.push_back(std::to_string(random() % 997));
    const text all(words);
    const questions exam(all.questions(), {asked, 0});
    return estimate(all, exam, {.segment_length = 32, .dim = 64, .routing_dim = 32}, make_readers);
  };
  // Both are told from the same first tokens, so what differs is the length alone, 64 times: far beyond noise.
  const cost brief = expected(1000, 200);
  const cost long_one = expected(64000, 200);
  EXPECT_GT(brief.writing, 0);
  EXPECT_GT(brief.asking, 0);
  EXPECT_GT(long_one.writing, 8 * brief.writing);
  EXPECT_GT(long_one.asking, 4 * brief.asking);
  EXPECT_LT(long_one.seconds(), long_one.writing + long_one.asking + 1e-9);
}

TEST(text_memory_vectors, have_unit_length_and_keys_know_the_order) {
  const text t({"a", "b", "a", "b", "c", "a"});
  const text_vectors v(t, 128, 32, 1);
  for (const auto* m : {&v.words, &v.keys, &v.routing_keys, &v.values}) {
    EXPECT_LT((m->colwise().norm().array() - 1).abs().maxCoeff(), 1e-5F);
  }
  EXPECT_EQ(v.routing_keys.rows(), 32);
  EXPECT_LT((v.routing_keys.col(0) - v.keys.col(0).head(32).normalized()).norm(), 1e-6F);
  EXPECT_EQ(v.keys.col(0), v.keys.col(2));                      // "a b", twice
  EXPECT_LT(std::abs(v.keys.col(0).dot(v.keys.col(1))), 0.5F);  // "a b", "b a"
  EXPECT_EQ(v.values.col(0), v.words.col(0));                   // "a" follows
  EXPECT_NE(v.words, text_vectors(t, 128, 32, 2).words);        // another seed

  const Eigen::Vector3f a(1, 2, 3);
  const Eigen::Vector3f b(4, 5, 6);
  EXPECT_LT((pair_key(a, b) - Eigen::Vector3f(3 * 4, 1 * 5, 2 * 6).normalized()).norm(), 1e-6F);
}

}  // namespace
