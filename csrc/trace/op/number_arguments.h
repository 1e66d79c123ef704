// SPDX-License-Identifier: Apache-2.0
// Which numbers among the arguments of an op are passed at each run, so that another value needs no
// other program. Only this file decides it.
//
//   op                                    a number that changes
//   aten::add.Tensor(…, alpha=0.1)        is free: nothing of the call depends on its value
//   aten::huber_loss(…, delta=2.0)        is asked about: Meta may refuse a value, or a fake kernel
//                                         of a user's op may derive a shape from it; no new program
//   aten::linalg_vector_norm(x, ord=3)    is asked about; the orders 0, 1, 2 and ±inf are known
//   aten::sum(x, dim=3)                   is structural: rules and decompositions read it
//
// Every argument of type float or Scalar (optional or not, and lists of them in foreach ops) is
// passed at run time, except for a list of those that decide a shape or a function, each with its
// reason. Integers, flags and names are structural, except for a list. The starts of slices and
// other counts of elements are known to the compiler until they change: csrc/trace/tape/starts.h.
#pragma once

#include <ATen/core/function_schema.h>

#include <cstdint>

#include "absl/container/inlined_vector.h"

namespace spmd::trace {

enum class NumberUse : uint8_t {
  kStructural,  // its value is in every key
  kAsked,       // in the key of shapes, and compared when calls are replayed; in no program's key
  kFree,        // in no key at all
};

struct NumberArgument {
  NumberUse use = NumberUse::kStructural;
  // Values that the compiler knows nevertheless, since they allow a better program: a factor of 1,
  // a fill with 0. They are in the program's key.
  absl::InlinedVector<double, 2> known;
};

// Requires: `argument` is one of `schema`, and is not a tensor.
NumberArgument NumberArgumentOf(const c10::FunctionSchema& schema, const c10::Argument& argument);

}  // namespace spmd::trace
