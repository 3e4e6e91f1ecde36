// SPDX-License-Identifier: Apache-2.0

#include "judge.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

namespace replay {

double tolerance(const case_file& c, const std::string& tensor_name, element type) {
  const double f32_error = c.stated_error("f32", tensor_name);
  const double bf16_error = c.stated_error("bf16", tensor_name);
  switch (type) {
    case element::f64:
      return std::max(1e-11, 16 * f32_error * 0x1p-29);
    case element::f32:
      return std::max(5e-5, 16 * f32_error);
    case element::f16:
      return std::max(2e-3, bf16_error);
    case element::bf16:
      return std::max(1e-2, 4 * bf16_error);
  }
  return 0;
}

const judgement& worse(const judgement& a, const judgement& b) {
  const auto badness = [](const judgement& j) {
    const double share = j.limit > 0 ? j.error / j.limit : j.error;
    return std::tuple(!j.passed, std::isnan(share) ? std::numeric_limits<double>::infinity() : share);
  };
  return badness(b) > badness(a) ? b : a;
}

judgement judge(const std::string& tensor_name, const tensor& expected, const tensor& computed, double limit) {
  judgement j{.tensor = tensor_name, .limit = limit};
  if (expected.is_index) {
    j.limit = 0;
    for (std::size_t i = 0; i < expected.indices.size(); ++i) {
      j.error += expected.indices[i] == computed.indices[i] ? 0 : 1;
    }
    j.passed = j.error == 0;
    return j;
  }
  // long double: squares of values near 1e-200 must not vanish.
  long double difference = 0;
  long double norm = 0;
  double largest = 0;
  for (std::size_t i = 0; i < expected.values.size(); ++i) {
    const double want = expected.values[i];
    const double got = computed.values[i];
    if (std::isnan(want) && std::isnan(got)) continue;
    if (std::isinf(want) && got == want) continue;
    if (!std::isfinite(want) || !std::isfinite(got)) {
      j.error = std::numeric_limits<double>::quiet_NaN();
      return j;
    }
    const long double d = static_cast<long double>(got) - static_cast<long double>(want);
    difference += d * d;
    norm += static_cast<long double>(want) * static_cast<long double>(want);
    largest = std::max(largest, std::abs(static_cast<double>(d)));
  }
  j.error = norm > 0 ? static_cast<double>(std::sqrt(difference / norm)) : largest;
  constexpr double negligible = 1e-30;
  j.passed = j.error <= limit || largest <= negligible;
  return j;
}

}  // namespace replay
