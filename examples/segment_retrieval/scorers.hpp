// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Scores of a question's paragraphs without any training: BM25 on words, and the library's routers on the moments of
/// word vectors.

#include "musique.hpp"
#include "random.hpp"

#include <polystate/reference/multi_state.hpp>
#include <polystate/reference/segment_moments.hpp>

#include <Eigen/Core>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace segment_retrieval {

namespace ps = polystate;

/// log(1 + (n - df + 1/2) / (df + 1/2)) over the n distinct paragraphs of the file, df of them with the word.
inline double idf(const text_collection& of, std::size_t word) {
  const auto n = static_cast<double>(of.distinct_paragraphs());
  const auto df = static_cast<double>(of.paragraphs_with(word));
  return std::log1p((n - df + 0.5) / (df + 0.5));
}

/// Robertson & Zaragoza 2009, with k1 = 1.2, b = 0.75; lengths relative to the mean of the question's paragraphs. A
/// word that the question repeats counts as often.
inline std::vector<double> bm25(const text_collection& of, const text_question& q) {
  constexpr double k1 = 1.2, b = 0.75;
  double mean_length = 0;
  for (const auto& p : q.paragraphs) mean_length += static_cast<double>(p.size());
  mean_length /= static_cast<double>(q.paragraphs.size());
  std::vector<double> scores;
  for (const auto& p : q.paragraphs) {
    std::map<std::size_t, double> count;
    for (const std::size_t word : p) ++count[word];
    const double length = k1 * (1 - b + b * static_cast<double>(p.size()) / mean_length);
    double score = 0;
    for (const std::size_t word : q.words) {
      const auto found = count.find(word);
      if (found == count.end()) continue;
      score += idf(of, word) * found->second * (k1 + 1) / (found->second + length);
    }
    scores.push_back(score);
  }
  return scores;
}

/// A word's key: a fixed random direction, as long as its idf.
class word_keys {
 public:
  word_keys(const text_collection& of, Eigen::Index dim, std::uint64_t seed)
      : keys_(dim, static_cast<Eigen::Index>(of.distinct_words())) {
    random_numbers random(seed);
    for (Eigen::Index word = 0; word < keys_.cols(); ++word) {
      Eigen::VectorXd direction(dim);
      for (double& x : direction) x = random.gaussian();
      keys_.col(word) = (idf(of, static_cast<std::size_t>(word)) * direction.normalized()).cast<float>();
    }
  }
  [[nodiscard]] Eigen::Index dim() const { return keys_.rows(); }
  [[nodiscard]] auto of(std::size_t word) const { return keys_.col(static_cast<Eigen::Index>(word)); }

 private:
  Eigen::MatrixXf keys_;  // (dim, words)
};

/// A question's paragraphs as the segments of a bank: the mean and the second moment of their words' keys. The query is
/// the normalised sum of the question's.
class paragraph_bank {
 public:
  paragraph_bank(const word_keys& keys, const text_question& q)
      : dim_(keys.dim()),
        segments_(static_cast<std::int64_t>(q.paragraphs.size())),
        query_(Eigen::VectorXf::Zero(dim_)) {
    std::vector<std::int32_t> boundaries = {0};
    for (const auto& p : q.paragraphs) boundaries.push_back(boundaries.back() + static_cast<std::int32_t>(p.size()));
    Eigen::MatrixXf tokens(dim_, boundaries.back());
    Eigen::Index t = 0;
    for (const auto& p : q.paragraphs) {
      for (const std::size_t word : p) tokens.col(t++) = keys.of(word);
    }
    for (const std::size_t word : q.words) query_ += keys.of(word);
    query_.normalize();
    mu_.resize(static_cast<std::size_t>(segments_ * dim_));
    Sigma_.resize(static_cast<std::size_t>(segments_ * dim_ * dim_));
    counters_ = {.tokens = tokens.cols(), .segments = segments_, .open_tokens = 0};
    ps::segment_moments(ps::on_reference{}, ps::segment_moments_args<float, ps::separation::boundaries>{
                                                .moments = {.k = {tokens.data(), {1, tokens.cols(), 1, dim_}}},
                                                .separation = {.boundaries = {boundaries.data(), {segments_ + 1}}},
                                                .mu = {mu_.data(), {1, segments_, 1, dim_}},
                                                .Sigma = {Sigma_.data(), {1, segments_, 1, dim_, dim_}}});
  }

  /// The mean alone.
  [[nodiscard]] std::vector<double> meanpool() const {
    return weights(ps::router::meanpool<float>{.u = {query_.data(), {1, 1, 1, dim_}}});
  }
  /// gamma softmax(mean) + (1 - gamma) softmax(variance): with gamma 0 the variance alone.
  [[nodiscard]] std::vector<double> merlin(float gamma) const {
    const float tau = 1;
    return weights(ps::router::merlin<float>{.q = {query_.data(), {1, 1, 1, dim_}},
                                             .gamma = {&gamma, {1, 1, 1}},
                                             .tau_mu = {&tau, {1}},
                                             .tau_sigma = {&tau, {1}}});
  }

 private:
  template <class Router>
  [[nodiscard]] std::vector<double> weights(const Router& router) const {
    // Nothing is recalled here, only weighted: every state is the same 0.
    const float nothing = 0;
    float read = 0;
    std::vector<float> lam(static_cast<std::size_t>(segments_));
    const ps::bank_view<float, const float> bank{.S = {&nothing, {1, segments_, 1, 1, 1}, {0, 0, 0, 0, 0}},
                                                 .mu = {mu_.data(), {1, segments_, 1, dim_}},
                                                 .Sigma = {Sigma_.data(), {1, segments_, 1, dim_, dim_}},
                                                 .counters = {&counters_, {1}}};
    ps::multi_state_read(ps::on_reference{}, ps::multi_state_read_args<float, ps::rule::linear, Router>{
                                                 .in = {.q = {&nothing, {1, 1, 1, 1}}},
                                                 .bank = bank,
                                                 .router = router,
                                                 .o = {&read, {1, 1, 1, 1}},
                                                 .lam = {lam.data(), {1, 1, 1, segments_}}});
    return {lam.begin(), lam.end()};
  }

  std::int64_t dim_, segments_;
  Eigen::VectorXf query_;
  std::vector<float> mu_, Sigma_;
  ps::bank_counters counters_;
};

}  // namespace segment_retrieval
