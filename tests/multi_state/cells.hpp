// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which cells of the axes there are.

#include "multi_state/cases.hpp"

#include <gtest/gtest.h>

#include <string>

namespace polystate::testing {

/// The cells of one recurrence.
template <class Rule>
struct cells_of {
  template <class Separation, class Router>
  using at = cell<Rule, Separation, Router>;
  using position = router::position<double>;
  using meanpool = router::meanpool<double>;
  using merlin = router::merlin<double>;
  using cumulant = router::cumulant<double>;
  template <class Router>
  using k = router::top_k<Router>;
  using single = separation::single;
  using uniform = separation::uniform;
  using boundaries = separation::boundaries;
  using fenwick = separation::fenwick;
  using even = router::uniform;

  using readable =
      ::testing::Types<at<uniform, even>, at<uniform, position>, at<uniform, meanpool>, at<uniform, merlin>,
                       at<uniform, cumulant>, at<uniform, k<even>>, at<uniform, k<position>>, at<uniform, k<meanpool>>,
                       at<uniform, k<merlin>>, at<uniform, k<cumulant>>, at<fenwick, position>>;
  using stepping = ::testing::Types<at<single, router::none>, at<uniform, even>, at<uniform, position>,
                                    at<uniform, meanpool>, at<uniform, merlin>, at<uniform, cumulant>,
                                    at<uniform, k<even>>, at<uniform, k<position>>, at<uniform, k<meanpool>>,
                                    at<uniform, k<merlin>>, at<uniform, k<cumulant>>, at<fenwick, position>>;
  using all = ::testing::Types<at<single, router::none>, at<uniform, even>, at<uniform, position>,
                               at<uniform, meanpool>, at<uniform, merlin>, at<uniform, cumulant>, at<uniform, k<even>>,
                               at<uniform, k<position>>, at<uniform, k<meanpool>>, at<uniform, k<merlin>>,
                               at<uniform, k<cumulant>>, at<fenwick, position>, at<boundaries, even>,
                               at<boundaries, position>, at<boundaries, meanpool>, at<boundaries, merlin>,
                               at<boundaries, cumulant>, at<boundaries, k<even>>, at<boundaries, k<position>>,
                               at<boundaries, k<meanpool>>, at<boundaries, k<merlin>>, at<boundaries, k<cumulant>>>;
};

struct cell_names {
  template <class Cell>
  static std::string GetName(int) {
    return Cell::name();
  }
};

}  // namespace polystate::testing
