// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Retrievers of one size, trained on chains of two facts and asked for both.

#include "chains.hpp"
#include "jobs.hpp"
#include "retriever.hpp"
#include "statistics.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace segment_retrieval {

struct training_options {
  chain_shape questions = {.chains = 2, .entities = 6};
  std::int64_t dim = 24;
  std::int64_t seeds = 4;
  std::int64_t steps = 1200;
  std::int64_t batch = 8;
  std::int64_t tests = 500;  ///< questions that are asked of a trained retriever
  double rate = 0.01;
  std::vector<std::string> retrievers = {};  ///< names; none: all
};

/// In the order of the table.
inline std::vector<std::string> retriever_names() {
  return {"mara", "mean pool + mamba", "pool-only", "mean pool", "gru", "lstm"};
}

/// What one trained retriever finds; each a mean over the questions asked.
struct trained_result {
  double recall = 0;      ///< of the two facts among the two best segments, by the local head in one pass
  double second_hop = 0;  ///< the second fact among them
  double global = 0;      ///< recall by the global head
  double chained = 0;     ///< recall of chained selection, two passes
  double loss = 0;        ///< mean over the last tenth of the training
};

/// The sizes of a layer of this kind with which a retriever comes nearest to so many parameters.
template <class Make>
void match_parameters(retriever& r, std::int64_t parameters, const Make& make) {
  const auto distance = [&](std::int64_t width) {
    make(r, width);
    return std::abs(r.parameters() - parameters);
  };
  std::int64_t width = 1;
  while (distance(width + 1) < distance(width)) ++width;
  make(r, width);
}

/// Those that are asked for, all with as many parameters as MaRA as far as sizes in whole numbers allow.
inline std::vector<retriever> make_retrievers(const training_options& chosen) {
  const std::int64_t D = chosen.dim;
  const retriever mara{.name = "mara",
                       .attention = true,
                       .state_dim = chosen.questions.state_dim(),
                       .attention_dim = 8,
                       .D = D,
                       .segments = chosen.questions.segments(),
                       .mixer = mamba_layers{.D = D, .states = 8},
                       .out = D};
  const auto per_segment = [D](retriever& r, std::int64_t width) {
    r.mixer = perceptron{D, width, D};
    r.out = D;
  };
  const auto units = [D](retriever& r, std::int64_t width, auto make) {
    r.mixer = two_layers<decltype(make(D, width))>{make(D, width), make(width, width)};
    r.out = width;
  };
  std::vector<retriever> all(retriever_names().size(), mara);
  for (std::size_t i = 0; i < all.size(); ++i) all[i].name = retriever_names()[i];
  all[1].attention = all[3].attention = false;
  for (const std::size_t i : {std::size_t{2}, std::size_t{3}}) match_parameters(all[i], mara.parameters(), per_segment);
  match_parameters(all[4], mara.parameters(), [&](retriever& r, std::int64_t width) {
    units(r, width, [](std::int64_t in, std::int64_t out) { return gru{in, out}; });
  });
  match_parameters(all[5], mara.parameters(), [&](retriever& r, std::int64_t width) {
    units(r, width, [](std::int64_t in, std::int64_t out) { return lstm{in, out}; });
  });
  const auto unwanted = [&](const retriever& r) {
    const auto& names = chosen.retrievers;
    return !names.empty() && std::find(names.begin(), names.end(), r.name) == names.end();
  };
  all.erase(std::remove_if(all.begin(), all.end(), unwanted), all.end());
  return all;
}

/// The two segments that chained selection chooses: in the second pass the question also asks for whatever the first
/// segment names.
inline std::array<std::int64_t, 2> choose_in_chain(const retriever& r, const VectorXd& theta, chain_question q) {
  std::array<std::int64_t, 2> chosen{};
  VectorXd now;
  ps::mara_chain(
      [&](std::int64_t, const ps::tensor_view<const std::int64_t, 1>& anchors) {
        std::vector<std::size_t> asked = {q.asked};
        for (std::int64_t i = 0; i < anchors.extent(0); ++i) {
          const fact& named = q.facts[static_cast<std::size_t>(anchors(i))];
          asked.insert(asked.end(), {named.subject, named.object});
        }
        mark(q, asked);
        now = r.score(theta, q).r;
        return view(std::as_const(now));
      },
      {.candidates = q.segments(), .passes = 2, .topk = {chosen.data(), {2}}});
  return chosen;
}

inline trained_result examine(const retriever& r, const VectorXd& theta, const training_options& chosen,
                              random_numbers& random) {
  trained_result sum;
  const double share = 1 / static_cast<double>(chosen.tests);
  for (std::int64_t i = 0; i < chosen.tests; ++i) {
    const chain_question q = make_question(chosen.questions, random);
    const scores found = r.score(theta, q);
    const auto local = best(found.r, 2);
    sum.recall += share * recall(q.relevant, local);
    sum.second_hop += share * recall(std::array{q.relevant[1]}, local);
    sum.global += share * recall(q.relevant, best(found.r_global, 2));
    sum.chained += share * recall(q.relevant, choose_in_chain(r, theta, q));
  }
  return sum;
}

/// Trains with fresh questions at every step; a seed fixes the initial parameters, those questions and the ones asked.
inline trained_result train(const retriever& r, const training_options& chosen, std::uint64_t seed) {
  random_numbers random(seed);
  VectorXd theta = r.initial(random);
  adam optimizer(theta.size());
  double loss = 0;
  const std::int64_t last_tenth = chosen.steps - std::max<std::int64_t>(1, chosen.steps / 10);
  for (std::int64_t step = 0; step < chosen.steps; ++step) {
    VectorXd gradient = VectorXd::Zero(theta.size());
    double sum = 0;
    for (std::int64_t b = 0; b < chosen.batch; ++b) {
      sum += r.add_gradient(theta, make_question(chosen.questions, random), gradient);
    }
    const auto scale = static_cast<double>(chosen.batch);
    if (step >= last_tenth) loss += sum / scale / static_cast<double>(chosen.steps - last_tenth);
    // Rising over 20 steps, falling to 0 over the last quarter.
    const auto done = static_cast<double>(step), all = static_cast<double>(chosen.steps);
    const double rate = chosen.rate * std::min({1.0, (done + 1) / 20, 4 * (all - done) / all});
    optimizer.step(theta, gradient / scale, rate);
  }
  trained_result result = examine(r, theta, chosen, random);
  result.loss = loss;
  return result;
}

/// results[retriever][seed]
inline std::vector<std::vector<trained_result>> train_all(const std::vector<retriever>& retrievers,
                                                          const training_options& chosen) {
  const auto seeds = static_cast<std::size_t>(chosen.seeds);
  std::vector<std::vector<trained_result>> results(retrievers.size(), std::vector<trained_result>(seeds));
  const auto jobs = static_cast<std::int64_t>(retrievers.size() * seeds);
  shared_progress shown("training", jobs);
  // Retriever by retriever: the slowest come first, so that no core waits for them in the end.
  for_each_job(jobs, [&](std::int64_t i) {
    const std::size_t which = static_cast<std::size_t>(i) / seeds, seed = static_cast<std::size_t>(i) % seeds;
    results[which][seed] = train(retrievers[which], chosen, seed);
    shown.advance();
  });
  return results;
}

}  // namespace segment_retrieval
