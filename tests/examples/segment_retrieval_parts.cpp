// SPDX-License-Identifier: Apache-2.0

// What segment_retrieval is made of: gradients against differences, questions, scores.

#include "support/finite_differences.hpp"
#include "support/run_program.hpp"

#include "report.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <fstream>
#include <set>
#include <string>
#include <vector>

namespace segment_retrieval {
namespace {

using polystate::testing::central_difference;
using polystate::testing::difference_tolerance;
using polystate::testing::relative_deviation;
using polystate::testing::smallest_size_differences_resolve;

MatrixXd random_matrix(Eigen::Index rows, Eigen::Index columns, random_numbers& random) {
  MatrixXd m(rows, columns);
  for (double& x : m.reshaped()) x = random.uniform(-1, 1);
  return m;
}

/// <dy, mixer(x)> along every parameter and every entry of x.
template <class Mixer>
void expect_gradients(const Mixer& mixer, std::int64_t in, std::int64_t out) {
  random_numbers random(1);
  VectorXd theta(mixer.parameters());
  for (double& x : theta) x = random.uniform(-1, 1);
  MatrixXd x = random_matrix(in, 4, random);
  const MatrixXd dy = random_matrix(out, 4, random);
  const auto objective = [&] { return mixer.forward(theta.data(), x).cwiseProduct(dy).sum(); };
  VectorXd d_theta = VectorXd::Constant(theta.size(), 7);  // gradients are added
  const MatrixXd dx = mixer.backward(theta.data(), x, dy, d_theta.data());
  std::vector<double> got, want;
  for (Eigen::Index i = 0; i < theta.size(); ++i) {
    got.push_back(d_theta(i) - 7);
    want.push_back(central_difference(theta(i), objective));
  }
  EXPECT_LE(relative_deviation(got, want, smallest_size_differences_resolve), difference_tolerance);
  got.clear();
  want.clear();
  for (Eigen::Index i = 0; i < x.size(); ++i) {
    got.push_back(dx.reshaped()(i));
    want.push_back(central_difference(x.reshaped()(i), objective));
  }
  EXPECT_LE(relative_deviation(got, want, smallest_size_differences_resolve), difference_tolerance);
}

TEST(SegmentRetrievalMixers, Gradients) {
  expect_gradients(perceptron{3, 5, 2}, 3, 2);
  expect_gradients(gru{3, 2}, 3, 2);
  expect_gradients(lstm{3, 2}, 3, 2);
  expect_gradients(two_layers<gru>{{3, 2}, {2, 3}}, 3, 3);
  expect_gradients(two_layers<lstm>{{3, 2}, {2, 3}}, 3, 3);
}

// One unit, one step, worked by hand; and that a step sees the one before it.
TEST(SegmentRetrievalMixers, ByHand) {
  const std::vector<double> of_gru = {0, 0, 1, 0, 0, 2, 0, 0, 0};  // W (r, u, c), U, b
  MatrixXd x(1, 2);
  x << 1, 0;
  const MatrixXd y = gru{1, 1}.forward(of_gru.data(), x);
  EXPECT_NEAR(y(0, 0), std::tanh(1.0) / 2, 1e-15);
  EXPECT_NEAR(y(0, 1), y(0, 0) / 2 + std::tanh(y(0, 0)) / 2, 1e-15);
  const std::vector<double> of_lstm = {0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0};  // W (i, f, o, c), U, b
  const MatrixXd z = lstm{1, 1}.forward(of_lstm.data(), x);
  EXPECT_NEAR(z(0, 0), std::tanh(std::tanh(1.0) / 2) / 2, 1e-15);
  EXPECT_NEAR(z(0, 1), std::tanh(std::tanh(1.0) / 4) / 2, 1e-15);
}

// The whole of a retriever: pooling, mixer, heads, loss.
TEST(SegmentRetrieval, LossGradientsOfEveryRetriever) {
  training_options small;
  small.dim = 3;
  random_numbers random(2);
  const chain_question q = make_question(small.questions, random);
  const auto all = make_retrievers(small);
  ASSERT_EQ(all.size(), 6U);
  for (const retriever& r : all) {
    VectorXd theta = r.initial(random);
    VectorXd d_theta = VectorXd::Zero(theta.size());
    const double loss = r.add_gradient(theta, q, d_theta);
    VectorXd nothing = d_theta;
    EXPECT_EQ(r.add_gradient(theta, q, nothing), loss) << r.name;
    const VectorXd expected = 2 * d_theta;
    EXPECT_EQ(nothing, expected) << r.name << ": gradients are added";
    std::vector<double> got, want;
    for (int direction = 0; direction < 20; ++direction) {
      VectorXd along(theta.size());
      for (double& x : along) x = random.uniform(-1, 1);
      got.push_back(d_theta.dot(along));
      double distance = 0;
      const VectorXd at = theta;
      want.push_back(central_difference(distance, [&] {
        VectorXd unused = VectorXd::Zero(theta.size());
        return r.add_gradient(at + distance * along, q, unused);
      }));
    }
    EXPECT_LE(relative_deviation(got, want, smallest_size_differences_resolve), 10 * difference_tolerance) << r.name;
  }
}

TEST(SegmentRetrieval, MatchedParameters) {
  for (const std::int64_t dim : {8, 24}) {
    training_options chosen;
    chosen.dim = dim;
    const auto all = make_retrievers(chosen);
    for (const retriever& r : all) {
      // A unit more or less is within 6 per cent.
      const double ratio = static_cast<double>(r.parameters()) / static_cast<double>(all[0].parameters());
      EXPECT_NEAR(ratio, 1, 0.06) << r.name;
      random_numbers random(1);
      EXPECT_EQ(r.initial(random).size(), r.parameters());
      EXPECT_TRUE(r.initial(random).allFinite()) << r.name;
    }
  }
}

TEST(SegmentRetrieval, QuestionsAreChains) {
  random_numbers random(3);
  const chain_shape shape{.chains = 3, .entities = 12};
  constexpr int questions = 3000;
  int guessed = 0;
  for (int n = 0; n < questions; ++n) {
    const chain_question q = make_question(shape, random);
    ASSERT_EQ(q.segments(), 6);
    const auto [i, j] = q.relevant;
    ASSERT_LT(i, j);
    EXPECT_EQ(q.facts[i].subject, q.asked);
    EXPECT_EQ(q.facts[i].object, q.facts[j].subject);
    std::set<std::size_t> names;
    int marked = 0;
    for (std::size_t k = 0; k < q.facts.size(); ++k) {
      names.insert({q.facts[k].subject, q.facts[k].object});
      const Eigen::Index row = q.cu_segments[k];
      EXPECT_EQ(q.H(row, static_cast<Eigen::Index>(q.facts[k].subject)), 1);
      EXPECT_EQ(q.H(row + 1, shape.entities + static_cast<Eigen::Index>(q.facts[k].object)), 1);
      for (Eigen::Index t = row; t < q.cu_segments[k + 1]; ++t) marked += q.H(t, q.H.cols() - 2) == 1;
    }
    EXPECT_EQ(names.size(), 9U);
    EXPECT_EQ(marked, 1) << "the question names one entity, and one segment it";
    guessed += j == i + 1;  // what knows the order alone guesses the next segment
  }
  // with_order = (1 + share guessed) / 2; four standard deviations of the share are 4 sqrt(1/3 2/3 / 3000) = 0.034.
  EXPECT_NEAR((1 + guessed / static_cast<double>(questions)) / 2, chance(3).with_order, 0.017);
  EXPECT_NEAR(chance(2).by_itself, 2.0 / 3, 1e-15);
}

// Scores that mark the asked entity: the first pass finds the first fact, the second what that names.
TEST(SegmentRetrieval, RecallAndBest) {
  EXPECT_EQ(best(std::vector<double>{1, 3, 3, 2}, 3), (std::vector<std::size_t>{1, 2, 3}));
  EXPECT_EQ(recall(std::array<std::size_t, 2>{0, 2}, std::vector<std::size_t>{2, 3}), 0.5);
  const summary s({1, 2, 3, 6});
  EXPECT_EQ(s.mean, 3);
  EXPECT_NEAR(s.deviation, std::sqrt(14.0 / 3), 1e-15);
}

class SegmentRetrievalTexts : public ::testing::Test {
 protected:
  text_collection read(const std::string& content) {
    std::ofstream(folder_.file("q.json")) << content;
    return text_collection::read(folder_.file("q.json"));
  }
  static std::string question(const std::string& text, const std::vector<std::string>& paragraphs) {
    nlohmann::json q = {{"question", text}, {"paragraphs", nlohmann::json::array()}};
    for (const auto& p : paragraphs) {
      q["paragraphs"].push_back({{"title", "T"}, {"paragraph_text", p}, {"is_supporting", true}});
    }
    return "[" + q.dump() + "]";
  }

 private:
  polystate::testing::temporary_folder folder_;
};

TEST_F(SegmentRetrievalTexts, Bm25ByHand) {
  const auto texts = read(question("Red, red fox?", {"a red RED fox", "fox b", "c d e f g"}));
  ASSERT_EQ(texts.questions().size(), 1U);
  ASSERT_EQ(texts.distinct_paragraphs(), 3U);
  const auto scores = bm25(texts, texts.questions()[0]);
  const double red = std::log(1 + 2.5 / 1.5), fox = std::log(1 + 1.5 / 2.5), mean = 14.0 / 3;
  const auto length = [&](double words) { return 1.2 * (0.25 + 0.75 * words / mean); };
  EXPECT_NEAR(scores[0], 2 * red * 2 * 2.2 / (2 + length(5)) + fox * 2.2 / (1 + length(5)), 1e-14);
  EXPECT_NEAR(scores[1], fox * 2.2 / (1 + length(3)), 1e-14);
  EXPECT_EQ(scores[2], 0);
}

// The routers' weights rank as the moments worked out word by word.
TEST_F(SegmentRetrievalTexts, RoutersByHand) {
  const auto texts = read(question("red fox runs", {"a red red fox", "fox b c", "c d runs", "d", "e f g h i"}));
  const auto& q = texts.questions()[0];
  const word_keys keys(texts, 16, 5);
  Eigen::VectorXd query = Eigen::VectorXd::Zero(16);
  for (const auto w : q.words) query += keys.of(w).cast<double>();
  query.normalize();
  std::vector<double> mean, variance;
  for (const auto& p : q.paragraphs) {
    double sum = 0, squares = 0;
    for (const auto w : p) {
      const double score = keys.of(w).cast<double>().dot(query);
      sum += score / static_cast<double>(p.size());
      squares += score * score / static_cast<double>(p.size());
    }
    mean.push_back(sum);
    variance.push_back(squares - sum * sum);
  }
  const auto softmax = [](const std::vector<double>& x) {
    std::vector<double> e;
    double all = 0;
    for (const double y : x) all += std::exp(y);
    for (const double y : x) e.push_back(std::exp(y) / all);
    return e;
  };
  const auto by_mean = softmax(mean), by_variance = softmax(variance);
  const paragraph_bank bank(keys, q);
  const auto meanpool = bank.meanpool(), merlin = bank.merlin(0), mixed = bank.merlin(0.5F);
  for (std::size_t i = 0; i < mean.size(); ++i) {
    EXPECT_NEAR(meanpool[i], by_mean[i], 1e-6);
    EXPECT_NEAR(merlin[i], by_variance[i], 1e-6);
    EXPECT_NEAR(mixed[i], (by_mean[i] + by_variance[i]) / 2, 1e-6);
  }
}

}  // namespace
}  // namespace segment_retrieval
