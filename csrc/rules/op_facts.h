// SPDX-License-Identifier: Apache-2.0
// What is known about an op besides how its dimensions relate (csrc/rules/rule.h): when its kernel
// fails, what the kernel needs, and for what other ops it can be exchanged. Algorithms ask for
// these facts and do not compare the names of ops (docs/design/0031-op-facts.md). Every fact has a
// careful default, which holds for ops without a rule, too.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "csrc/ir/type.h"

namespace spmd::rules {

// What decides whether a call fails while it runs, after its types and attributes were accepted. A
// program gives up its donated inputs only after all calls that may fail.
enum class Failure : uint8_t {
  kOnValues,    // the elements of its operands: a singular matrix, a probability below 0
  kOnIndices,   // for common element types, only an index in operand 1 that is out of range
  kOnIntegers,  // kOnValues if the result has an integer type (division by zero), else kNever
  kNever,
};

// What an op does with whole dimensions, for passes that rewrite a call on other dimensions.
enum class DimsUse : uint8_t {
  kOther,
  kReshapes,  // the elements of operand 0 in their order, with the dimensions `size`
  kExpands,   // operand 0 repeated, as broadcasting to the dimensions `size` does
  kPermutes,  // operand 0 with its dimensions in the order `dims`
  // A product for each index of dimension 0; OpFacts::batched is for several dimensions,
  // OpFacts::for_one for two matrices.
  kBatches,
  // Combines the elements over the dimensions `dim` (all of them if it is empty or there is none),
  // which are left out unless `keepdim`.
  kReduces,
  kAlong,  // along the dimension `dim`, for each index of the other dimensions alone
  // The same, also along several dimensions `dims`, and the result may lack the dimension, or have
  // it in another size.
  kInDim,
  // The same for each index of the dimensions in front of some last ones, of which no attribute has
  // the number or size. OpFacts::for_one is for two matrices.
  kForEach,
  // Operand 1 has a class for each row of operand 0, which may have one more dimension: the
  // classes.
  kClassOfRow,
  kFills,  // the same in each element
};

// What an op does with blocks of the dimension `dim` (csrc/partition/block_ops.h).
enum class BlockUse : uint8_t {
  kNone,
  kTake,   // indices [start, end) of operand 0
  kPlace,  // operand 0 at [start, end), zeros elsewhere
  kPut,    // operand 1 at [start, end) of operand 0
  kJoin,   // all operands, one after another
};

// Operands 0 and 1 are matrices whose product is the result. Operands with more than two dimensions
// count as matrices of their last dimension. An operand 2, if there is one, is added to each row.
struct MatrixProduct {
  bool left_transposed = false;
  bool right_transposed = false;
  friend constexpr bool operator==(MatrixProduct a, MatrixProduct b) = default;
};

// The op writes operand 1 to where the op `view` with the same attributes reads a part of operand
// 0.
struct PutsBack {
  absl::string_view view;
  // The attributes that say where the part begins and how far apart its indices are. Without
  // `begin` that is known only when the program runs; without `step` the indices are adjacent.
  absl::string_view begin;
  absl::string_view step;
  bool drops_dim = false;  // the part lacks the dimension `dim`
};

// The op takes rows out of operand 0 by lists of indices, or writes rows to it by such lists.
enum class RowsByList : uint8_t { kNone, kTakes, kWrites };

// The op pads operand `image` with zeros, as many as its attribute `padding` says. Its kernel has
// the trailing sizes of operand 1 or, for the gradient of the kernel, of the result.
struct ZeroPadding {
  int image = 0;
  bool kernel_is_result = false;
};

struct OpFacts {
  Failure fails = Failure::kOnValues;
  // With kOnIndices: indices must be below the attribute of this name (any index is in range if it
  // is negative). Without a name, below the size of dimension `dim` of operand 0.
  absl::string_view index_bound = "";

  // How the op runs.
  absl::string_view kernel = "";   // the operator that runs instead, with the same arguments
  bool needs_contiguous = false;   // all operands
  bool needs_own_threads = false;  // must not run inside a parallel region
  // The result is operand 0.
  bool is_operand = false;
  // Each element of the results is an element of operand 0.
  bool same_elements = false;
  // Each element of the results is an element of operand 0, or zero. If operand 0 is sharded, one
  // device has the element and the partial sums of the others are zero.
  bool looks_up = false;
  RowsByList rows = RowsByList::kNone;
  // The results are `start` + `step` · i for the indices i of their one dimension.
  bool enumerates = false;
  // Each element of the result is that of operand 0, in another element type.
  bool converts = false;

  // How an op that resamples an image weights inputs: "nearest", "nearest_exact" (of the middle of
  // what an output covers), "linear", "cubic", the latter two antialiased ("linear_aa",
  // "cubic_aa"), or "reflect" for padding.
  absl::string_view filter = "";

  // How the op may be exchanged for others.
  bool adds = false;  // the result is operand 0 + `alpha` · operand 1
  std::optional<MatrixProduct> product = std::nullopt;
  // The op that adds this op's result to its operand 0 and has this op's operands after that; and
  // of that op, this one.
  absl::string_view added_by = "";
  absl::string_view adds_result_of = "";
  // The op that computes from this op's operands, and the result of a log softmax, the gradient
  // before that log softmax.
  absl::string_view through_log_softmax = "";
  std::optional<PutsBack> puts_back = std::nullopt;
  std::optional<ZeroPadding> padding = std::nullopt;
  DimsUse dims = DimsUse::kOther;
  // With kInDim and kFills: the attribute that has the sizes of the result; `dim` is a number of
  // the result's dimensions then.
  absl::string_view sizes = "";
  absl::string_view batched = "";
  absl::string_view for_one = "";
  BlockUse blocks = BlockUse::kNone;
};

// Whether a call whose first result has elements of type `result` can fail while it runs.
bool MayFail(const OpFacts& facts, DType result);

}  // namespace spmd::rules
