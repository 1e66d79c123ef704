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
// reason. Integers, flags and names are structural, except for a list.
//
// Starts are a kind of their own: numbers of elements by which an op moves. The compiler knows them
// until they change (csrc/trace/tape/starts.h); which arguments they are is decided here, too.
//
//   aten::slice.Tensor(x, dim=0, start=32, end=64)   `start`, and `end`, which follows from it
//   aten::roll(x, shifts=3, dims=0)                  `shifts`
#pragma once

#include <ATen/core/function_schema.h>

#include <cstdint>
#include <string_view>

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

// What the op does with its start.
enum class StartUse : uint8_t {
  kNone,
  kLowerTriangle,
  kNarrow,  // as a slice, but with a length in place of an end
  kRoll,
  kSelect,
  kSelectGradient,  // zeros except for what a select has read
  kSelectInto,      // writes what a select reads
  kSlice,
  kSliceGradient,
  kSliceInto,
  kUpperTriangle,
};

// Where an op has its start. The dimension of slices and selects is the argument before it, the end
// of a slice and its step are the two after it.
struct StartArgument {
  StartUse use = StartUse::kNone;
  uint8_t number = 0;  // of the argument
};

// Of the op with this full name; `use` is kNone for most.
StartArgument StartArgumentOf(std::string_view op);

}  // namespace spmd::trace
