// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A layer with a bank of memory states: one recurrence, one separation, one router, composed at compile
/// time. This header states and checks the operator; include polystate/reference/multi_state.hpp for the
/// definition, polystate/cuda/multi_state.cuh for CUDA.

#include <polystate/core/argument_checks.hpp>
#include <polystate/core/dispatch.hpp>
#include <polystate/core/element.hpp>
#include <polystate/core/error.hpp>
#include <polystate/core/exec.hpp>
#include <polystate/core/tensor_view.hpp>
#include <polystate/gated_delta_rule.hpp>
#include <polystate/recurrence.hpp>
#include <polystate/routing.hpp>
#include <polystate/segment_moments.hpp>
#include <polystate/separation.hpp>
#include <polystate/ssd.hpp>
#include <polystate/state_bank.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

namespace polystate::inline POLYSTATE_ABI {

/// True, or a static_assert's sentence that says why these choices of the axes make no layer.
template <class Data, class Separation, class Router>
struct legal_axes {
  static constexpr bool value = true;
  static constexpr bool is_single = std::is_same_v<Separation, separation::single>;
  static constexpr bool is_fenwick = std::is_same_v<Separation, separation::fenwick>;
  static_assert(!is_single || std::is_same_v<Router, router::none>,
                "separation::single has one state and nothing to weigh: its router is router::none");
  static_assert(is_single || !std::is_same_v<Router, router::none>,
                "a bank of states needs a router: router::none goes with separation::single only");
  static_assert(!is_fenwick || std::is_same_v<Router, router::position<Data>>,
                "separation::fenwick weighs its levels by position: its router is router::position, raw");
};

/// Sizes that the operators support on CUDA; the reference takes any.
struct multi_state_limits {
  static constexpr size_range cuda_dk{1, 512};
  static constexpr size_range cuda_dv{1, 512};
  static constexpr size_range cuda_dr{1, 512};
};

/// Operands of multi_state(). Per token t in segment i:
///
///     S_i         <- one step of the recurrence (a new segment starts at 0; other segments' states stay)
///     mu_i, Sigma_i <- one step of the moments
///     lam_l       as the router says, over the visible segments
///     o_t          = sum_l lam_l * scale * S_l q_t       (rule ssd: then the skip D and the gate z, once a
///     token)
///
/// B batch entries, T tokens, H heads, HK (ssd: G) key heads, HR moment heads, L segments.
/// Source: MERLIN (multi-state linear attention with second-order routing), Algorithms 1 and 2;
/// docs/multi_state.md names the published models that are cells of the axes.
template <class Data, class Rule, class Separation, class Router, class State = acc_t<Data>>
struct multi_state_args {
  static_assert(legal_axes<Data, Separation, Router>::value);

  operands<Data, Rule> in;
  Separation separation{};
  key_moments<Data> moments{};  ///< the only place of k'; without shared_kq, needed where the router reads moments
  Router router{};
  index_view cu_seqlens{};              ///< (S+1), optional: packed sequences of one batch entry
  tensor_view<Data, 4> o;               ///< (B, T, H, dv), out; overlaps no other operand
  tensor_view<acc_t<Data>, 4> lam{};    ///< (B, T, H, L), optional, out; not with packed sequences
  tensor_view<State, 5> S{};            ///< (B, L, H, dv, dk), optional, out: the bank, at each segment's end
  tensor_view<acc_t<Data>, 4> mu{};     ///< (B, L, HR, dr), optional, out
  tensor_view<acc_t<Data>, 5> Sigma{};  ///< (B, L, HR, dr, dr), optional, out
  bool shared_kq = false;  ///< q' = u = q and k' = k as the state uses them, HR = HK: no moments.k, no router.q or u
  std::int64_t max_visible = 0;  ///< 0: all
};

/// Operands of multi_state_step(): T further tokens of B sequences on a bank, which is updated in place.
/// Separations single, uniform and fenwick; boundaries has no step, since its segments' lengths are unknown
/// while they are open. Where the bank has one entry and the separation is single, the step is the
/// single-state operator's.
template <class Data, class Rule, class Separation, class Router, class State = acc_t<Data>>
struct multi_state_step_args {
  static_assert(legal_axes<Data, Separation, Router>::value);
  static_assert(!std::is_same_v<Separation, separation::boundaries>,
                "separation::boundaries has no step: use uniform, and state_bank::close() to end a segment by hand");

  operands<Data, Rule> in;  ///< T tokens a sequence, any T
  Separation separation{};
  key_moments<Data> moments{};  ///< moments.k, without shared_kq, where the bank keeps moments; divide_by m
  Router router{};
  bank_view<Data, State> bank;   ///< counters say where each sequence is; room for the segments that the tokens open
  tensor_view<Data, 4> o{};      ///< (B, T, H, dv), optional, out: absent, the tokens are only written into the bank
  bool shared_kq = false;        ///< as in multi_state_args
  std::int64_t max_visible = 0;  ///< 0: all
};

/// Operands of multi_state_read(): T queries a sequence against a bank; nothing is written to it and no token
/// is counted. Every query sees all entries of its sequence, or the last max_visible; the last one counts as
/// the current one.
template <class Data, class Rule, class Router, class State = acc_t<Data>>
struct multi_state_read_args {
  static_assert(!std::is_same_v<Router, router::none>,
                "a read weighs the entries of a bank: with a single entry, router::uniform gives it weight 1");

  query_operands<Data, Rule> in;
  bank_view<Data, const State> bank;  ///< mu and Sigma where the router reads them, used as given
  Router router{};
  tensor_view<Data, 4> o;             ///< (B, T, H, dv), out
  tensor_view<acc_t<Data>, 4> lam{};  ///< (B, T, H, capacity), optional, out; 0 for entries that are not visible
  bool shared_kq = false;             ///< q' = u = the query
  bool qkp_l2norm = false;            ///< q' (not u) is divided by sqrt(sum of squares + l2norm_eps) first
  double l2norm_eps = 1e-6;
  std::int64_t max_visible = 0;  ///< 0: all
};

/// Gradients of multi_state(). The upstream ones may be absent, which means zero; the others may be absent,
/// which means not wanted and costs nothing; they are overwritten, never added to, and share memory with no other
/// operand. With shared_kq what reaches q' (or u) and k' is added to the gradients of the recurrence's query and key.
template <class Data, class Rule, class Router, class State = acc_t<Data>>
struct multi_state_grads {
  tensor_view<const Data, 4> d_o{};             ///< (B, T, H, dv), upstream
  tensor_view<const acc_t<Data>, 4> d_lam{};    ///< (B, T, H, L), upstream; not with packed sequences
  tensor_view<const State, 5> d_S{};            ///< (B, L, H, dv, dk), upstream
  tensor_view<const acc_t<Data>, 4> d_mu{};     ///< (B, L, HR, dr), upstream
  tensor_view<const acc_t<Data>, 5> d_Sigma{};  ///< (B, L, HR, dr, dr), upstream
  operand_grads<Data, Rule> in{};               ///< out
  key_moment_grads<Data> moments{};             ///< out
  router_grads<Router> router{};                ///< out
};

/// Gradients of multi_state_read() with respect to its queries; the bank is a constant. The upstream ones may
/// be absent, which means zero.
template <class Data, class Rule, class Router>
struct multi_state_read_grads {
  tensor_view<const Data, 4> d_o{};           ///< (B, T, H, dv), upstream
  tensor_view<const acc_t<Data>, 4> d_lam{};  ///< (B, T, H, capacity), upstream
  query_grads<Data, Rule> in{};               ///< out
  router_grads<Router> router{};              ///< out
};

/// Checks the sizes that the caller fixed at compile time: dims<>, dims<dk, dv> or dims<dk, dv, dr>, where a call
/// without moments has no dr.
template <class Dims>
void check_dims(argument_checks& c, bool has_moments) {
  static_assert(Dims::size == 0 || Dims::size == 2 || Dims::size == 3, "dims<>, dims<dk, dv> or dims<dk, dv, dr>");
  if constexpr (Dims::size == 3) {
    if (has_moments) {
      c.fixed<Dims>("in", "dk", "dv", "dr");
    } else {
      c.fixed<dims<Dims::values[0], Dims::values[1]>>("in", "dk", "dv");
    }
  } else {
    c.fixed<Dims>("in", "dk", "dv");
  }
}

/// The part of check() that every call on tokens shares: recurrence, moments, router. Binds the operands'
/// sizes and, where k' exists, "HR" and "dr". `keeps_moments`: whether moments are wanted beside what the
/// router reads. `whole_sequence`: T alone says how many segments there are.
template <class Dims, class Args>
void check_layer(argument_checks& c, const Args& args, bool keeps_moments, bool whole_sequence) {
  using Router = std::remove_cvref_t<decltype(args.router)>;
  using Separation = std::remove_cvref_t<decltype(args.separation)>;
  check_operands(c, args.in);
  if (!Separation::has_segments) {
    const std::string no_segments = std::string("separation ") + Separation::name + " has no segments";
    check_no_moments(c, args.moments, no_segments);
    c.expect(!keeps_moments, error_code::unexpected, "mu", "or Sigma given, but " + no_segments);
  } else if (args.shared_kq) {
    c.absent("moments.k", args.moments.k, "shared_kq makes the recurrence's key serve as k'")
        .bind("HR", c.size("HK"))
        .bind("dr", c.size("dk"));
    check_moment_rule(c, args.moments);
  } else if (Router::reads_moments || keeps_moments || args.moments.k) {
    check_moments(c, args.moments);
    c.grouped("H", "HR");
  } else {
    check_no_moments(c, args.moments, "there is no moments.k");
  }
  check_dims<Dims>(c, c.size("dr") > 0);
  check_router(c, args.router, args.shared_kq, whole_sequence && !c.failed() ? args.separation.count(c.size("T")) : 0);
  if constexpr (std::is_same_v<Separation, separation::fenwick>) {
    c.expect(args.router.position_norm == position_norm::none && args.router.position_index == position_index::absolute,
             error_code::value, "router.position_norm",
             "or position_index not as fenwick needs, supported: none and absolute, weights by level as given");
  }
  c.expect(args.max_visible >= 0, error_code::value, "max_visible",
           std::to_string(args.max_visible) + ", supported: at least 0")
      .expect(args.max_visible == 0 || Separation::has_segments, error_code::value, "max_visible",
              std::to_string(args.max_visible) + ", supported with separation " + Separation::name +
                  ", which has no segments: 0");
}

/// Segments of a sequence of T tokens, or the levels that raw weights are given for.
template <class Args>
[[nodiscard]] std::int64_t bank_entries(const Args& args, std::int64_t T) {
  if constexpr (std::is_same_v<std::remove_cvref_t<decltype(args.separation)>, separation::fenwick>) {
    return args.router.weights ? args.router.weights.extent(3) : args.separation.count(T);
  } else {
    return args.separation.count(T);
  }
}

/// Checks the inputs, which forward and backward share, and binds besides what check_layer() does "S" and,
/// where T says it, "L".
template <class Dims, class Args>
void check_inputs(argument_checks& c, const Args& args, bool keeps_moments) {
  check_separation(c, args.separation, args.cu_seqlens);
  check_layer<Dims>(c, args, keeps_moments, !args.cu_seqlens);
  c.sequences(args.cu_seqlens);
  if (!args.cu_seqlens && !c.failed()) c.bind("L", bank_entries(args, c.size("T")));
}

/// Whether `args` is a supported problem. Reads no elements, so it is safe on device pointers.
template <class Dims = dims<>, class Data, class Rule, class Separation, class Router, class State>
[[nodiscard]] status check(const multi_state_args<Data, Rule, Separation, Router, State>& args) {
  argument_checks c("multi_state");
  check_inputs<Dims>(c, args, args.mu || args.Sigma);
  c.required("o", args.o, {"B", "T", "H", "dv"})
      .optional_if(!args.cu_seqlens, "lam", args.lam, {"B", "T", "H", "L"}, "packed sequences have no lam")
      .optional("S", args.S, {"B", "L", "H", "dv", "dk"})
      .optional("mu", args.mu, {"B", "L", "HR", "dr"})
      .optional("Sigma", args.Sigma, {"B", "L", "HR", "dr", "dr"})
      .no_overlap();
  return c.result();
}

/// Whether the backward of `args`, whose outputs it does not read, is supported. Reads no elements.
template <class Dims = dims<>, class Data, class Rule, class Separation, class Router, class State>
[[nodiscard]] status check(const multi_state_args<Data, Rule, Separation, Router, State>& args,
                           const multi_state_grads<Data, Rule, Router, State>& grads) {
  argument_checks c("multi_state_backward");
  check_inputs<Dims>(c, args, grads.d_mu || grads.d_Sigma);
  c.optional("d_o", grads.d_o, {"B", "T", "H", "dv"})
      .optional_if(!args.cu_seqlens, "d_lam", grads.d_lam, {"B", "T", "H", "L"}, "packed sequences have no lam")
      .optional("d_S", grads.d_S, {"B", "L", "H", "dv", "dk"})
      .optional("d_mu", grads.d_mu, {"B", "L", "HR", "dr"})
      .optional("d_Sigma", grads.d_Sigma, {"B", "L", "HR", "dr", "dr"});
  check_grads(c, args.in, grads.in);
  check_moment_grads(c, args.moments, grads.moments);
  check_router_grads(c, grads.router, args.shared_kq);
  c.no_overlap();
  return c.result();
}

/// Whether `args` is a supported step. Reads no elements and no counters.
template <class Dims = dims<>, class Data, class Rule, class Separation, class Router, class State>
[[nodiscard]] status check(const multi_state_step_args<Data, Rule, Separation, Router, State>& args) {
  argument_checks c("multi_state_step");
  check_separation(c, args.separation, {});
  check_layer<Dims>(c, args, args.bank.mu || args.bank.Sigma, false);
  c.required("bank.S", args.bank.S, {"B", "capacity", "H", "dv", "dk"})
      .required_if(Router::reads_moments || args.bank.mu, "bank.mu", args.bank.mu, {"B", "capacity", "HR", "dr"}, "")
      .required_if(Router::reads_Sigma || args.bank.Sigma, "bank.Sigma", args.bank.Sigma,
                   {"B", "capacity", "HR", "dr", "dr"}, "")
      .required("bank.counters", args.bank.counters, {"B"})
      .expect(!args.moments.k || args.bank.mu || args.bank.Sigma, error_code::unexpected, "moments.k",
              "given, but the bank keeps no moments")
      .expect(args.moments.divide_by == divide_by::m, error_code::value, "moments.divide_by",
              "count, supported in a step: m")
      .optional("o", args.o, {"B", "T", "H", "dv"})
      .no_overlap();
  return c.result();
}

/// Checks the inputs of a read, which forward and backward share.
template <class Dims, class Data, class Rule, class Router, class State>
void check_inputs(argument_checks& c, const multi_state_read_args<Data, Rule, Router, State>& args) {
  check_query(c, args.in);
  c.required("bank.S", args.bank.S, {"B", "capacity", "H", "dv", "dk"}).grouped("H", "HK");
  if (args.shared_kq) c.bind("HR", c.size("HK")).bind("dr", c.size("dk"));
  if (Router::reads_moments) {
    c.required("bank.mu", args.bank.mu, {"B", "capacity", "HR", "dr"}).grouped("H", "HR");
  }
  if (Router::reads_Sigma) c.required("bank.Sigma", args.bank.Sigma, {"B", "capacity", "HR", "dr", "dr"});
  check_dims<Dims>(c, c.size("dr") > 0);
  c.required("bank.counters", args.bank.counters, {"B"});
  check_router(c, args.router, args.shared_kq, 0);
  c.expect(args.l2norm_eps >= 0, error_code::value, "l2norm_eps", "negative, supported: at least 0")
      .expect(args.max_visible >= 0, error_code::value, "max_visible",
              std::to_string(args.max_visible) + ", supported: at least 0");
}

/// Whether `args` is a supported read. Reads no elements and no counters.
template <class Dims = dims<>, class Data, class Rule, class Router, class State>
[[nodiscard]] status check(const multi_state_read_args<Data, Rule, Router, State>& args) {
  argument_checks c("multi_state_read");
  check_inputs<Dims>(c, args);
  c.required("o", args.o, {"B", "T", "H", "dv"}).optional("lam", args.lam, {"B", "T", "H", "capacity"}).no_overlap();
  return c.result();
}

/// Whether the backward of a read, whose outputs it does not read, is supported. Reads no elements and no
/// counters.
template <class Dims = dims<>, class Data, class Rule, class Router, class State>
[[nodiscard]] status check(const multi_state_read_args<Data, Rule, Router, State>& args,
                           const multi_state_read_grads<Data, Rule, Router>& grads) {
  argument_checks c("multi_state_read_backward");
  check_inputs<Dims>(c, args);
  c.optional("d_o", grads.d_o, {"B", "T", "H", "dv"}).optional("d_lam", grads.d_lam, {"B", "T", "H", "capacity"});
  check_query_grads(c, grads.in);
  check_router_grads(c, grads.router, args.shared_kq);
  c.no_overlap();
  return c.result();
}

/// Tokens of a call, and of a batch entry, from its recurrence's operands.
template <class Data, class Rule>
[[nodiscard]] const tensor_view<const Data, 4>& values_of(const operands<Data, Rule>& in) {
  return in.v;
}
template <class Data>
[[nodiscard]] const tensor_view<const Data, 4>& values_of(const operands<Data, rule::ssd>& in) {
  return in.x;
}

/// Refuses counters, readable here, that no bank of this capacity can have, and tokens that it has no room for.
template <class Args>
[[nodiscard]] status check_bank(const char* op, const Args& args, std::int64_t row, std::int64_t new_tokens,
                                std::int64_t* entries) {
  argument_checks c(op);
  const bank_counters now = args.bank.counters(row);
  const std::int64_t capacity = args.bank.S.extent(1);
  const std::int64_t closed = now.segments - (now.open_tokens > 0 ? 1 : 0);  // at least one token each
  bool possible = now.open_tokens >= 0 && closed >= 0 && now.tokens - now.open_tokens >= closed &&
                  (now.tokens == 0 || now.segments > 0) && now.segments <= capacity;
  std::string whose = "a bank of capacity " + std::to_string(capacity);
  if constexpr (requires { args.separation; }) {
    possible = possible && args.separation.reaches(now);
    whose += std::string(" and separation ") + args.separation.name;
  }
  c.expect(possible, error_code::value, "bank.counters",
           "sequence " + std::to_string(row) + " has tokens = " + std::to_string(now.tokens) +
               ", segments = " + std::to_string(now.segments) + ", open_tokens = " + std::to_string(now.open_tokens) +
               ", supported: those of " + whose);
  *entries = now.segments;
  if constexpr (requires { args.separation; }) {
    bank_counters after = now;
    for (std::int64_t t = 0; t < new_tokens && !c.failed(); ++t) after = count_token(args.separation, after);
    c.expect(after.segments <= capacity, error_code::shape, "bank.S",
             "capacity = " + std::to_string(capacity) + ", sequence " + std::to_string(row) + " needs " +
                 std::to_string(after.segments) + " entries; reserve() them first");
    *entries = after.segments;
  }
  return c.result();
}

/// Refuses position weights that do not cover a sequence's entries.
template <class Router>
[[nodiscard]] status check_covered(const char*, const Router&, std::int64_t) {
  return {};
}
template <class Data>
[[nodiscard]] status check_covered(const char* op, const router::position<Data>& r, std::int64_t entries) {
  argument_checks c(op);
  c.expect(r.weights.extent(3) >= entries, error_code::shape, "router.weights",
           "A = " + std::to_string(r.weights.extent(3)) + ", supported: at least the number of segments, " +
               std::to_string(entries));
  return c.result();
}
template <class Router>
[[nodiscard]] status check_covered(const char* op, const router::top_k<Router>& r, std::int64_t entries) {
  return check_covered(op, r.of, entries);
}

/// Contents of the index operands of a forward or its backward, which must be readable here; packed, also that weights
/// and the bank's tensors, named so, have an entry for each segment.
template <class Args, class State, class Moment>
[[nodiscard]] status check_contents(const char* op, const Args& args, const char* S_name,
                                    const tensor_view<State, 5>& S, const char* mu_name,
                                    const tensor_view<Moment, 4>& mu, const char* Sigma_name,
                                    const tensor_view<Moment, 5>& Sigma) {
  const std::int64_t T = values_of(args.in).extent(1);
  if (status s = check_cu_seqlens(op, args.cu_seqlens, T); !s.ok()) return s;
  if (status s = check_contents(op, args.separation, T); !s.ok()) return s;
  argument_checks c(op);
  if (!args.cu_seqlens) return c.result();
  const sequences all(1, T, args.cu_seqlens);
  std::int64_t L = 0;
  for (std::int64_t s = 0; s < all.size(); ++s) {
    c.include(check_covered(op, args.router, args.separation.count(all[s].size())));
    L += bank_entries(args, all[s].size());
  }
  c.bind("L", L)
      .optional(S_name, S, {"B", "L", "H", "dv", "dk"})
      .optional(mu_name, mu, {"B", "L", "HR", "dr"})
      .optional(Sigma_name, Sigma, {"B", "L", "HR", "dr", "dr"});
  return c.result();
}

/// Whether the contents of the index operands, readable here, are valid; call it after check().
template <class Data, class Rule, class Separation, class Router, class State>
[[nodiscard]] status check_contents(const multi_state_args<Data, Rule, Separation, Router, State>& args) {
  return check_contents("multi_state", args, "S", args.S, "mu", args.mu, "Sigma", args.Sigma);
}

/// Whether the bank's counters, readable here, are possible, and its room and the weights enough.
template <class Data, class Rule, class Separation, class Router, class State>
[[nodiscard]] status check_contents(const multi_state_step_args<Data, Rule, Separation, Router, State>& args) {
  constexpr const char* op = "multi_state_step";
  for (std::int64_t b = 0; b < args.bank.S.extent(0); ++b) {
    std::int64_t entries = 0;
    if (status s = check_bank(op, args, b, values_of(args.in).extent(1), &entries); !s.ok()) return s;
    if (status s = check_covered(op, args.router, entries); !s.ok()) return s;
  }
  return {};
}

/// The same of a read or its backward; a sequence without a segment is refused.
template <class Data, class Rule, class Router, class State>
[[nodiscard]] status check_contents(const char* op, const multi_state_read_args<Data, Rule, Router, State>& args) {
  for (std::int64_t b = 0; b < args.bank.S.extent(0); ++b) {
    std::int64_t entries = 0;
    if (status s = check_bank(op, args, b, 0, &entries); !s.ok()) return s;
    argument_checks c(op);
    c.expect(entries > 0, error_code::value, "bank.counters",
             "sequence " + std::to_string(b) + " has no segment; there is nothing to read");
    c.include(check_covered(op, args.router, entries));
    if (c.failed()) return c.result();
  }
  return {};
}

/// Scratch that the CUDA path needs, in bytes; its backend's header defines them.
template <class Dims = dims<>, class Data, class Rule, class Separation, class Router, class State>
[[nodiscard]] std::size_t workspace_bytes(const on_cuda& exec,
                                          const multi_state_args<Data, Rule, Separation, Router, State>& args);
template <class Dims = dims<>, class Data, class Rule, class Separation, class Router, class State>
[[nodiscard]] std::size_t workspace_bytes(const on_cuda& exec,
                                          const multi_state_step_args<Data, Rule, Separation, Router, State>& args);
template <class Dims = dims<>, class Data, class Rule, class Router, class State>
[[nodiscard]] std::size_t workspace_bytes(const on_cuda& exec,
                                          const multi_state_read_args<Data, Rule, Router, State>& args);

/// What the operators do, with a status for an exception. Each overload is defined in
/// polystate/reference/multi_state.hpp or polystate/cuda/multi_state.cuh: include it, or the linker will miss it.
template <class Dims = dims<>, class Data, class Rule, class Separation, class Router, class State>
[[nodiscard]] status try_multi_state(const on_cuda& exec,
                                     const multi_state_args<Data, Rule, Separation, Router, State>& args);
template <class Dims = dims<>, class Data, class Rule, class Separation, class Router, class State>
[[nodiscard]] status try_multi_state_step(const on_cuda& exec,
                                          const multi_state_step_args<Data, Rule, Separation, Router, State>& args);
template <class Dims = dims<>, class Data, class Rule, class Router, class State>
[[nodiscard]] status try_multi_state_read(const on_cuda& exec,
                                          const multi_state_read_args<Data, Rule, Router, State>& args);
template <class Dims = dims<>, class Data, class Rule, class Separation, class Router, class State>
[[nodiscard]] status try_multi_state(const on_reference& exec,
                                     const multi_state_args<Data, Rule, Separation, Router, State>& args);
template <class Dims = dims<>, class Data, class Rule, class Separation, class Router, class State>
[[nodiscard]] status try_multi_state_step(const on_reference& exec,
                                          const multi_state_step_args<Data, Rule, Separation, Router, State>& args);
template <class Dims = dims<>, class Data, class Rule, class Router, class State>
[[nodiscard]] status try_multi_state_read(const on_reference& exec,
                                          const multi_state_read_args<Data, Rule, Router, State>& args);

template <class Dims = dims<>, class Data, class Rule, class Separation, class Router, class State>
[[nodiscard]] status try_multi_state_backward(const on_reference& exec,
                                              const multi_state_args<Data, Rule, Separation, Router, State>& args,
                                              const multi_state_grads<Data, Rule, Router, State>& grads);
template <class Dims = dims<>, class Data, class Rule, class Router, class State>
[[nodiscard]] status try_multi_state_read_backward(const on_reference& exec,
                                                   const multi_state_read_args<Data, Rule, Router, State>& args,
                                                   const multi_state_read_grads<Data, Rule, Router>& grads);

/// Not on CUDA yet: calling them is a compile error that says so.
template <class Dims = dims<>, class Data, class Rule, class Separation, class Router, class State>
[[nodiscard]] status try_multi_state_backward(const on_cuda&,
                                              const multi_state_args<Data, Rule, Separation, Router, State>&,
                                              const multi_state_grads<Data, Rule, Router, State>&) {
  static_assert(polystate_detail::has_this_pass<Data>,
                "multi_state has no backward on CUDA yet, supported: on_reference");
  return {};
}
template <class Dims = dims<>, class Data, class Rule, class Router, class State>
[[nodiscard]] status try_multi_state_read_backward(const on_cuda&,
                                                   const multi_state_read_args<Data, Rule, Router, State>&,
                                                   const multi_state_read_grads<Data, Rule, Router>&) {
  static_assert(polystate_detail::has_this_pass<Data>,
                "multi_state_read has no backward on CUDA yet, supported: on_reference");
  return {};
}

/// Computes o and, if given, the weights and the bank. T = 0: no segment; fenwick's levels, if asked for, are
/// 0.
///
/// reference: serial, the definition above as written, in compute_t<Data>; any scalar type.
/// cuda:      asynchronous on exec.stream, states and sums in float; float, half and bfloat16, sizes in
///            multi_state_limits; scratch for the states of all segments (those that S cannot take), for what a token
///            reads of its own segment, and for weights: workspace_bytes(exec, args).
///
/// Tokens behind the last entry of cu_seqlens are of no sequence: the reference refuses them, on CUDA their outputs and
/// gradients are 0 and they add to no sum; the first entry counts as 0. validate(exec, args) refuses both.
///
/// Rows that are normalised (qk_l2norm, qkp_l2norm): on CUDA the range of their squares is that of gated_delta_rule().
///
/// Throws argument_error when check() fails, or on the reference when kept raw position weights sum to 0, before any
/// write; cuda_error when a launch fails. Contents that on_cuda reads on the device are clamped to the operands, and
/// validate(exec, args) checks them. Deterministic. Thread-safe. A NaN stays in its sequence and in the heads that read
/// it; on CUDA a segment of weight 0 is not read, so neither is its NaN.
template <class Dims = dims<>, class Exec, class Data, class Rule, class Separation, class Router, class State>
void multi_state(const Exec& exec, const multi_state_args<Data, Rule, Separation, Router, State>& args) {
  raise_on_error(try_multi_state<Dims>(exec, args));
}

/// Writes T tokens into the bank and, if asked, reads each behind itself: stepping through the tail of a
/// sequence equals the full run. Refuses a bank without room for the segments that the tokens open; on CUDA, where the
/// counters are the device's, such tokens are counted and not written, and validate(exec, args) refuses.
/// Guarantees as multi_state().
template <class Dims = dims<>, class Exec, class Data, class Rule, class Separation, class Router, class State>
void multi_state_step(const Exec& exec, const multi_state_step_args<Data, Rule, Separation, Router, State>& args) {
  raise_on_error(try_multi_state_step<Dims>(exec, args));
}

/// Reads the bank with T queries a sequence: with token t's query, from the bank after token t, it gives
/// token t's o (for rule ssd before skip and gate). Refuses an empty bank; on CUDA validate(exec, args) does.
/// Guarantees as multi_state().
template <class Dims = dims<>, class Exec, class Data, class Rule, class Router, class State>
void multi_state_read(const Exec& exec, const multi_state_read_args<Data, Rule, Router, State>& args) {
  raise_on_error(try_multi_state_read<Dims>(exec, args));
}

/// Computes the wanted gradients from the inputs of `args` alone; its outputs may be absent and are neither
/// read nor written.
///
/// reference: as docs/multi_state.md derives it, in compute_t<Data>; memory for a sequence's bank and its
/// derivatives, and the open segment recomputed from checkpoints, about 2 sqrt(m) entries (fenwick: 2 sqrt(T)
/// banks), beside the gradients themselves.
///
/// Throws and guarantees as multi_state().
template <class Dims = dims<>, class Exec, class Data, class Rule, class Separation, class Router, class State>
void multi_state_backward(const Exec& exec, const multi_state_args<Data, Rule, Separation, Router, State>& args,
                          const multi_state_grads<Data, Rule, Router, State>& grads) {
  raise_on_error(try_multi_state_backward<Dims>(exec, args, grads));
}

/// Computes the wanted gradients of the queries from the inputs of `args` alone. Throws and guarantees as
/// multi_state_read().
template <class Dims = dims<>, class Exec, class Data, class Rule, class Router, class State>
void multi_state_read_backward(const Exec& exec, const multi_state_read_args<Data, Rule, Router, State>& args,
                               const multi_state_read_grads<Data, Rule, Router>& grads) {
  raise_on_error(try_multi_state_read_backward<Dims>(exec, args, grads));
}

}  // namespace polystate::inline POLYSTATE_ABI
