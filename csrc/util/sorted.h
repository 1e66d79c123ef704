// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <functional>
#include <ranges>

namespace spmd {

// Whether the rows of a table are in ascending order of `key`, each key once. For tables that are
// constants: static_assert(IsSortedAndUnique(kRows, &Row::op)).
template <std::ranges::range Table, typename Key = std::identity>
constexpr bool IsSortedAndUnique(const Table& table, Key key = {}) {
  return std::ranges::adjacent_find(table, std::ranges::greater_equal{}, key) ==
         std::ranges::end(table);
}

}  // namespace spmd
