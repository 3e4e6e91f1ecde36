// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Which slots of a pool of states the rows of a decoding step read and write.

#include <polystate/core/argument_checks.hpp>
#include <polystate/core/tensor_view.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace polystate::inline POLYSTATE_ABI {

/// Slots of the rows of a step. Without indices row b has slot b; without write_indices a row writes the slot
/// that it reads. -1 in either marks a padding row: nothing is read or written for it and its output is zero.
/// An index outside the pool, which validation refuses, is taken as padding too, so no access leaves the
/// pool.
class state_pool {
 public:
  state_pool() = default;
  POLYSTATE_HOST_DEVICE constexpr state_pool(std::int64_t slots, index_view read_indices, index_view write_indices)
      : slots_(slots), read_indices_(read_indices), write_indices_(write_indices) {}

  [[nodiscard]] POLYSTATE_HOST_DEVICE constexpr std::int64_t read(std::int64_t row) const {
    return read_indices_ ? read_indices_(row) : row;
  }
  [[nodiscard]] POLYSTATE_HOST_DEVICE constexpr std::int64_t write(std::int64_t row) const {
    return write_indices_ ? write_indices_(row) : read(row);
  }
  [[nodiscard]] POLYSTATE_HOST_DEVICE constexpr bool padding(std::int64_t row) const {
    return !holds(read(row)) || !holds(write(row));
  }

 private:
  [[nodiscard]] POLYSTATE_HOST_DEVICE constexpr bool holds(std::int64_t slot) const {
    return slot >= 0 && slot < slots_;
  }

  std::int64_t slots_ = 0;
  index_view read_indices_;
  index_view write_indices_;
};

/// The part of a step's check() that concerns the pool: without indices the pool has one slot a row, and
/// write_indices come only with read_indices. `state` names the pool. Uses the bound sizes "B" and "slots".
inline void check_pool_shape(argument_checks& c, const char* state, const index_view& read_indices,
                             const index_view& write_indices) {
  c.optional("read_indices", read_indices, {"B"});
  if (!read_indices) {
    c.absent("write_indices", write_indices, "read_indices is not");
    c.expect(c.size("slots") == c.size("B"), error_code::shape, state,
             "slots = " + std::to_string(c.size("slots")) +
                 ", supported without read_indices: B = " + std::to_string(c.size("B")));
  }
  c.optional("write_indices", write_indices, {"B"});
}

/// Checks the contents of pool indices, which must be readable here: -1 or a slot, and a slot that one row
/// writes is neither read nor written by another row.
inline status check_pool_indices(const char* op, std::int64_t rows, std::int64_t slots, const index_view& read_indices,
                                 const index_view& write_indices) {
  argument_checks c(op);
  if (!read_indices) return c.result();
  const auto check_range = [&](const char* name, const index_view& indices) {
    for (std::int64_t b = 0; indices && b < rows && !c.failed(); ++b) {
      c.expect(indices(b) >= -1 && indices(b) < slots, error_code::value, name,
               "entry " + std::to_string(b) + " is " + std::to_string(indices(b)) + ", supported: -1 to " +
                   std::to_string(slots - 1));
    }
  };
  check_range("read_indices", read_indices);
  check_range("write_indices", write_indices);
  if (c.failed()) return c.result();

  const state_pool pool(slots, read_indices, write_indices);
  constexpr std::int64_t nobody = -1;
  std::vector<std::int64_t> writer(static_cast<std::size_t>(slots), nobody);
  const char* written = write_indices ? "write_indices" : "read_indices";
  for (std::int64_t b = 0; b < rows && !c.failed(); ++b) {
    if (pool.padding(b)) continue;
    auto& owner = writer[static_cast<std::size_t>(pool.write(b))];
    c.expect(owner == nobody, error_code::value, written,
             "slot " + std::to_string(pool.write(b)) + " is written by rows " + std::to_string(owner) + " and " +
                 std::to_string(b));
    owner = b;
  }
  for (std::int64_t b = 0; b < rows && !c.failed(); ++b) {
    if (pool.padding(b)) continue;
    const std::int64_t owner = writer[static_cast<std::size_t>(pool.read(b))];
    c.expect(owner == nobody || owner == b, error_code::value, "read_indices",
             "slot " + std::to_string(pool.read(b)) + " is read by row " + std::to_string(b) + " and written by row " +
                 std::to_string(owner));
  }
  return c.result();
}

}  // namespace polystate::inline POLYSTATE_ABI
