// SPDX-License-Identifier: Apache-2.0

// How text_memory takes a text apart, and which questions it asks.

#include "score.hpp"
#include "text.hpp"
#include "vectors.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <numeric>
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
    const questions exam(all);
    EXPECT_EQ(exam.scoring.size(), count / 2);
    EXPECT_EQ(exam.choosing.size(), std::min<std::size_t>((count + 1) / 2, 256));
    EXPECT_EQ(std::set(exam.choosing.begin(), exam.choosing.end()).size(), exam.choosing.size());
    for (const auto q : exam.choosing) EXPECT_EQ(q % 2, 0U);
    for (const auto q : exam.scoring) EXPECT_EQ(q % 2, 1U);
    EXPECT_LT(all.size() - exam.choosing.back(), 2 * (all.size() / 256 + 2)) << "not spread over the text";
  }
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
