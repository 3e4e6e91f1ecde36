// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// mara_loss as it is defined: docs/segment_retrieval.md.

#include <polystate/adapters/mara_loss.hpp>
#include <polystate/reference/adjoint.hpp>
#include <polystate/reference/eigen.hpp>

#include <cmath>

namespace polystate::inline POLYSTATE_ABI {

namespace polystate_detail::inline POLYSTATE_BUILD::reference {

/// x - log sum exp x
template <class Scalar>
vector<Scalar> log_softmax(const vector<Scalar>& x) {
  using std::exp;
  using std::log;
  Scalar largest = x(0);
  for (const Scalar& y : x) largest = y > largest ? y : largest;
  Scalar sum(0);
  for (const Scalar& y : x) sum += exp(y - largest);
  const Scalar shift = largest + log(sum);
  return x - vector<Scalar>::Constant(x.size(), shift);
}

/// -t.log softmax(x), t the relevance as a distribution:  dx = softmax(x) - t
template <class Scalar>
struct cross_entropy {
  Scalar value;
  vector<Scalar> d_x;

  cross_entropy(const vector<Scalar>& x, const vector<Scalar>& relevance) {
    using std::exp;
    const vector<Scalar> t = relevance / relevance.sum();
    const vector<Scalar> log_p = log_softmax(x);
    value = Scalar(0);
    d_x = vector<Scalar>(x.size());
    for (Eigen::Index i = 0; i < x.size(); ++i) {
      if (t(i) > Scalar(0)) value -= t(i) * log_p(i);  // a slot that cannot be, at -inf, is no loss where t is 0
      d_x(i) = exp(log_p(i)) - t(i);
    }
  }
};

/// The mean of max(0, margin - r_i + r_j) over relevant i and other j.
template <class Scalar>
struct pairwise_margin {
  Scalar value;
  vector<Scalar> d_r;

  pairwise_margin(const vector<Scalar>& r, const vector<Scalar>& relevance, double margin)
      : value(0), d_r(vector<Scalar>::Zero(r.size())) {
    std::int64_t pairs = 0;
    for (Eigen::Index i = 0; i < r.size(); ++i) {
      if (!(relevance(i) > Scalar(0))) continue;
      for (Eigen::Index j = 0; j < r.size(); ++j) {
        if (relevance(j) > Scalar(0)) continue;
        ++pairs;
        const Scalar excess = Scalar(margin) - r(i) + r(j);
        if (!(excess > Scalar(0))) continue;
        value += excess;
        d_r(i) -= Scalar(1);
        d_r(j) += Scalar(1);
      }
    }
    if (pairs == 0) return;
    value /= Scalar(static_cast<double>(pairs));
    d_r /= Scalar(static_cast<double>(pairs));
  }
};

}  // namespace polystate_detail::inline POLYSTATE_BUILD::reference

template <class Data>
[[nodiscard]] status check(const on_reference&, const mara_loss_args<Data>& args) {
  const status s = check(args);
  return s.ok() ? check_contents("mara_loss", args) : s;
}
template <class Data>
[[nodiscard]] status check(const on_reference&, const mara_loss_args<Data>& args, const mara_loss_grads<Data>& grads) {
  const status s = check(args, grads);
  return s.ok() ? check_contents("mara_loss_backward", args) : s;
}

template <class Data>
status try_mara_loss(const on_reference& exec, const mara_loss_args<Data>& args) {
  namespace ref = polystate_detail::reference;
  using Scalar = compute_t<Data>;
  if (status s = check(exec, args); !s.ok()) return s;

  const ref::vector<Scalar> r = ref::load(args.r);
  const ref::vector<Scalar> relevance = ref::load<const acc_t<Data>, Scalar>(args.relevance);
  const Scalar local = ref::cross_entropy<Scalar>(r, relevance).value;
  const Scalar margin = ref::pairwise_margin<Scalar>(r, relevance, args.margin).value;
  Scalar global(0);
  if (args.r_global) {
    global = ref::cross_entropy<Scalar>(ref::load(args.r_global),
                                        ref::load<const acc_t<Data>, Scalar>(args.global_relevance))
                 .value;
  }
  args.loss(0) = static_cast<acc_t<Data>>(Scalar(args.local_weight) * local + Scalar(args.global_weight) * global +
                                          Scalar(args.margin_weight) * margin);
  if (args.parts) {
    args.parts(0) = static_cast<acc_t<Data>>(local);
    args.parts(1) = static_cast<acc_t<Data>>(global);
    args.parts(2) = static_cast<acc_t<Data>>(margin);
  }
  return {};
}

template <class Data>
status try_mara_loss_backward(const on_reference& exec, const mara_loss_args<Data>& args,
                              const mara_loss_grads<Data>& grads) {
  namespace ref = polystate_detail::reference;
  using Scalar = compute_t<Data>;
  if (status s = check(exec, args, grads); !s.ok()) return s;

  const Scalar d_loss = grads.d_loss ? static_cast<Scalar>(grads.d_loss(0)) : Scalar(0);
  if (grads.d_r) {
    const ref::vector<Scalar> r = ref::load(args.r);
    const ref::vector<Scalar> relevance = ref::load<const acc_t<Data>, Scalar>(args.relevance);
    const Scalar local = d_loss * Scalar(args.local_weight);
    const Scalar margin = d_loss * Scalar(args.margin_weight);
    ref::store(grads.d_r, local * ref::cross_entropy<Scalar>(r, relevance).d_x +
                              margin * ref::pairwise_margin<Scalar>(r, relevance, args.margin).d_r);
  }
  if (grads.d_r_global) {
    const Scalar global = d_loss * Scalar(args.global_weight);
    ref::store(grads.d_r_global,
               global * ref::cross_entropy<Scalar>(ref::load(args.r_global),
                                                   ref::load<const acc_t<Data>, Scalar>(args.global_relevance))
                            .d_x);
  }
  return {};
}

}  // namespace polystate::inline POLYSTATE_ABI
