// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A text as vectors. Nothing is trained: each word is a random direction. A matrix has one column a word or
/// a token.

#include "text.hpp"

#include <polystate/core/tensor_view.hpp>

#include <Eigen/Core>

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace text_memory {

namespace ps = polystate;
using Eigen::MatrixXf;

/// Columns of unit length with random directions.
inline MatrixXf random_directions(Eigen::Index dim, Eigen::Index count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> gaussian;
  MatrixXf m(dim, count);
  for (float& x : m.reshaped()) x = gaussian(random);
  m.colwise().normalize();
  return m;
}

/// normalise(roll(a, 1) * b), elementwise: rolling makes the key of "a b" differ from that of "b a".
inline Eigen::VectorXf pair_key(const Eigen::VectorXf& a, const Eigen::VectorXf& b) {
  const Eigen::Index dim = a.size();
  Eigen::VectorXf rolled(dim);
  rolled << a.tail(1), a.head(dim - 1);
  return rolled.cwiseProduct(b).normalized();
}

/// What is written for each token, and what is asked with.
struct text_vectors {
  MatrixXf words;         ///< (dim, distinct words)
  MatrixXf keys;          ///< (dim, tokens)
  MatrixXf routing_keys;  ///< (routing dim, tokens): the first entries of the keys, normalised again
  MatrixXf values;        ///< (dim, tokens): the vectors of the words that follow

  text_vectors(const text& of, Eigen::Index dim, Eigen::Index routing_dim, std::uint64_t seed)
      : words(random_directions(dim, static_cast<Eigen::Index>(of.distinct_words()), seed)),
        keys(dim, static_cast<Eigen::Index>(of.tokens())),
        values(dim, keys.cols()) {
    const auto vector_of = [&](std::size_t word) { return words.col(static_cast<Eigen::Index>(word)); };
    for (Eigen::Index t = 0; t < keys.cols(); ++t) {
      const auto token = static_cast<std::size_t>(t);
      const auto [first, second] = of.pair_of(token);
      keys.col(t) = pair_key(vector_of(first), vector_of(second));
      values.col(t) = vector_of(of.next_word(token));
    }
    routing_keys = keys.topRows(routing_dim).colwise().normalized();
  }
};

/// The keys of some tokens.
struct queries {
  MatrixXf keys;
  MatrixXf routing_keys;

  queries(const text_vectors& from, const std::vector<std::size_t>& tokens)
      : keys(from.keys(Eigen::all, tokens)), routing_keys(from.routing_keys(Eigen::all, tokens)) {}
};

/// Columns as an operand of shape (batch 1, time, heads 1, dim).
inline ps::tensor_view<const float, 4> as_operand(const MatrixXf& m) { return {m.data(), {1, m.cols(), 1, m.rows()}}; }
inline ps::tensor_view<float, 4> as_operand(MatrixXf& m) { return {m.data(), {1, m.cols(), 1, m.rows()}}; }

}  // namespace text_memory
