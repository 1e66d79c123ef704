// SPDX-License-Identifier: Apache-2.0
// Lists of integers that the host knows: the places that a mask chooses, which it has found itself
// (csrc/trace/ops/choose_elements.h).
//
//   rows = mask.nonzero()          the host knows [n, d] integers
//   samples = rows[:, 0]           so it knows these, too: a value of its own, without a record
//
// Of two such values with equal integers a tape has one input (Tape::Use), whichever tensors they
// come from. So the compiler sees that rows which were read by one list are written by another that
// is the same (csrc/partition/own_rows.h). That depends on the integers only and not on which
// tensors are alive, so it is the same in all processes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "csrc/trace/value/buffer.h"
#include "csrc/trace/value/view_recipe.h"

namespace spmd::trace {

// Thread safety: guarded by the session's lock.
struct HostList {
  at::Tensor host;  // contiguous integers, as long as the value lives
  uint64_t hash = 0;
  // What was read of it, by recipe. The older half of many is forgotten.
  std::vector<std::pair<RecipePtr, ValuePtr>> parts;
};

// A value on the host whose integers stay known. `host` is copied.
ValuePtr ListValue(const at::Tensor& host);
// What `recipe` reads of `list`; the same value each time. Requires: `list` is such a value.
ValuePtr PartOfList(Value& list, const RecipePtr& recipe);
// Whether both are such values, of the same type and with the same integers. A list of fewer than
// two is the same as no other: equal ones are mostly a coincidence, and another program is compiled
// for it.
bool SameList(const Value& a, const Value& b);

}  // namespace spmd::trace
