// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Synthetic questions of two hops, as hidden states. A question has as many facts "subject, object" as segments, in
/// chains of two: the object of the first is the subject of the second. It names the subject of one first fact; that
/// fact and the one behind it are relevant. What names the second is written in another segment alone: without the
/// first it looks like every other segment.

#include "parameters.hpp"
#include "random.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace segment_retrieval {

/// Sizes of a question.
struct chain_shape {
  std::int64_t chains = 3;
  std::int64_t entities = 12;  ///< in all; a question names three a chain
  std::int64_t fillers = 4;    ///< hidden states a segment that name nothing

  [[nodiscard]] std::int64_t segments() const { return 2 * chains; }
  /// A state says who is named as the subject, who as the object, whether that is asked for, and whether anything is
  /// named at all.
  [[nodiscard]] std::int64_t state_dim() const { return 2 * entities + 2; }
};

struct fact {
  std::size_t subject, object;
};

struct chain_question {
  std::vector<fact> facts;  ///< by segment
  std::array<std::size_t, 2> relevant;
  std::size_t asked;  ///< the entity that the question names
  matrix H;           ///< (T, state dim), the segments' states one after the other
  std::vector<std::int32_t> cu_segments;

  [[nodiscard]] std::int64_t segments() const { return static_cast<std::int64_t>(facts.size()); }
  [[nodiscard]] VectorXd relevance() const {
    VectorXd t = VectorXd::Zero(segments());
    for (const std::size_t i : relevant) t(static_cast<Eigen::Index>(i)) = 1;
    return t;
  }
};

/// Marks the states that name one of the entities asked for, as a language model that has read the question would.
inline void mark(chain_question& q, const std::vector<std::size_t>& asked) {
  const auto is_asked = [&](std::size_t e) {
    return std::find(asked.begin(), asked.end(), e) != asked.end() ? 1.0 : 0.0;
  };
  const Eigen::Index at = q.H.cols() - 2;
  for (std::size_t i = 0; i < q.facts.size(); ++i) {
    const Eigen::Index first = q.cu_segments[i];
    q.H(first, at) = is_asked(q.facts[i].subject);
    q.H(first + 1, at) = is_asked(q.facts[i].object);
  }
}

inline chain_question make_question(const chain_shape& shape, random_numbers& random) {
  std::vector<std::size_t> names(static_cast<std::size_t>(shape.entities));
  for (std::size_t e = 0; e < names.size(); ++e) names[e] = e;
  random.shuffle(names);
  // Whose turn it is: each chain twice, its first fact first.
  std::vector<std::size_t> order;
  for (std::size_t c = 0; c < static_cast<std::size_t>(shape.chains); ++c) order.insert(order.end(), {c, c});
  random.shuffle(order);

  chain_question q{};
  std::vector<std::size_t> hops(static_cast<std::size_t>(shape.chains));
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::size_t c = order[i], hop = hops[c]++;
    q.facts.push_back({names[3 * c + hop], names[3 * c + hop + 1]});
    if (c == 0) q.relevant[hop] = i;  // the entities are shuffled: the first chain is any
  }
  q.asked = names[0];

  const std::int64_t a_segment = 2 + shape.fillers;
  q.H = matrix::Zero(shape.segments() * a_segment, shape.state_dim());
  const Eigen::Index entities = shape.entities, named = shape.state_dim() - 1;
  q.cu_segments = {0};
  for (const fact& f : q.facts) {
    Eigen::Index row = q.cu_segments.back();
    q.cu_segments.push_back(q.cu_segments.back() + static_cast<std::int32_t>(a_segment));
    q.H(row, static_cast<Eigen::Index>(f.subject)) = 1;
    q.H(row, named) = 1;
    ++row;
    q.H(row, entities + static_cast<Eigen::Index>(f.object)) = 1;
    q.H(row, named) = 1;
    // Fillers are as long as a name, in all directions.
    for (++row; row < q.cu_segments.back(); ++row) {
      for (Eigen::Index k = 0; k < 2 * entities; ++k) {
        q.H(row, k) = random.gaussian() / std::sqrt(static_cast<double>(2 * entities));
      }
    }
  }
  mark(q, {q.asked});
  return q;
}

}  // namespace segment_retrieval
