// SPDX-License-Identifier: Apache-2.0
// What is known about one op. Each op has one row in the table of its family; where possible, a row
// is a line of text:
//
//   Einsum("aten::addmm", "+m n, m k, k n -> m n").Each({1, 2}),
//   Einsum("aten::softmax", "... [d] -> ... [d]").Decomposes(Softmax),
//   Elementwise("aten::add.Tensor").Jointly({0, 1}),
//   Computed("aten::view", ReshapeFactors).Local(LocalViewSize),
//
// Einsum text lists operands, "->", results, separated by commas; dimensions are separated by
// spaces. A letter or word is a factor. "..." stands for any number of leading factors, the same in
// every tensor (aligned at the right where ranks differ). "[h]" is whole. "1" is a dimension
// without a factor. "(a b)" is a compound dimension, major first, whose sizes must be known from
// elsewhere in the text. "+" before an operand: it is added to the result once when a reduced
// factor is sharded; if its rank is lower than its text's, it is aligned at the right. "=" before a
// result: each shard of a factor that it lacks computes a full copy, not a partial result. "?"
// after the last dimension: the operand may be absent, the result left out (dims [0]). "()" is a
// tensor of rank 0.
#pragma once

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "csrc/ir/graph.h"
#include "csrc/rules/factors.h"
#include "csrc/rules/op_call.h"
#include "csrc/rules/op_facts.h"
#include "csrc/util/checked_vector.h"

namespace spmd::rules {

struct EinsumPattern;  // csrc/rules/einsum.h: parsed einsum text
struct RingForm;       // csrc/rules/tables/rings.h: how blocks travel around a ring of devices
class Builder;         // csrc/rules/builder.h: appends core ops to a graph, inferring result types

// By factor number: whether a call shards the factor. Local attributes may depend on it.
using CutFactors = std::vector<bool>;

using FactorsFn = absl::StatusOr<OpFactors> (*)(const OpCall&);
using TypesFn = absl::StatusOr<std::vector<TensorType>> (*)(const OpCall&);
// The attributes of the call on tiles: a copy of call.attrs() in which sizes, offsets, paddings and
// index bounds are replaced by expressions over start/size/extent of operands (o0, o1, …) and
// results (r0, …). The size of a windowed operand is that of its window.
using LocalFn = Attributes (*)(const OpCall&, const OpFactors&, const CutFactors&);
// The operands of a node that is being rewritten; reading one that it does not have throws as
// reading an OpCall does.
using Operands = CheckedSpan<const ir::ValueId>;
// The same function written in core ops. Returns one value per result of the node, or none if this
// call has no better form.
using DecomposeFn = absl::StatusOr<std::vector<ir::ValueId>> (*)(Builder&, const ir::Graph& from,
                                                                 const ir::Node&,
                                                                 Operands operands);
// A better form of a call, which depends on what computes its operands; nullopt if there is none.
using CombineFn = std::optional<ir::ValueId> (*)(Builder&, Operands operands, const Attributes&);
// Where attributes or types decide: true for calls for which the linearity below holds.
using LinearIfFn = bool (*)(const OpCall&);

// What the row of a built-in op and the rule of a user have in common.
struct RuleFields {
  // Factors come from einsum text or from `factors`.
  FactorsFn factors = nullptr;
  TypesFn types = nullptr;  // required for core ops
  // Local attributes come from `local`. If it is null, the call's attributes are used, with those
  // of Rule::local_attributes replaced where any factor is sharded.
  LocalFn local = nullptr;
  DecomposeFn decompose = nullptr;
  // Rewritten before propagation: there is no kernel, or running whole is always worse.
  bool decompose_always = false;
  // How it is written where an index enumerates a dimension (csrc/rules/tables/batch_index.h).
  DecomposeFn decompose_batch = nullptr;
  const RingForm* ring = nullptr;  // null: it is not written in steps
  CombineFn combine = nullptr;
  bool jointly_all = false;        // every present operand (ops that take Tensor[])
  LinearIfFn linear_if = nullptr;  // null: for every call
  bool monotone = false;
  bool elementwise = false;    // broadcasts, and has no other factors
  bool random = false;         // never merged with an equal one
  double flops_per_point = 1;  // cost: flops = this × product of all factor sizes
  OpFacts facts;
};

struct Row;  // csrc/rules/row.h: a line of a table

struct Rule : RuleFields {
  Rule() = default;
  // If the text of `row` is malformed, `pattern` is null.
  Rule(const Row& row);  // NOLINT(google-explicit-constructor)

  std::string op;
  std::string einsum;
  std::shared_ptr<const EinsumPattern> pattern;  // the parsed form of `einsum`
  std::vector<std::pair<std::string, Attr>> local_attributes;
  // Linearity, as sets of operands that may be unreduced (sum). each: any one of them, while the
  // others are not. jointly: all of them or none. Operands of `monotone` ops are jointly linear for
  // max and min too; a monotone op without `jointly` is monotone in its first operand only. Read
  // all this through LinearityOf.
  std::vector<int> each;
  std::vector<int> jointly;
  std::vector<int> added;  // operands added once to the result
};

// Returns read(), which may ask a call for an attribute, operand or dimension that it does not
// have.
// Errors: InvalidArgument naming the call if so; else those of read().
template <typename Read>
auto Guarded(const OpCall& call, Read&& read) -> decltype(read()) {
  try {
    return read();
  } catch (const std::logic_error& e) {
    return absl::InvalidArgumentError(absl::StrCat(call.ToString(), ": ", e.what()));
  }
}

// The factors of a call. None has size 1. The factors of a dimension multiply to its size, except
// where a window reads it.
// Errors: InvalidArgument when the call does not fit the rule.
absl::StatusOr<OpFactors> FactorsOf(const Rule& rule, const OpCall& call);
// The same, but dimensions of size 1 that do not broadcast have a factor, too.
absl::StatusOr<OpFactors> FactorsWithOnes(const Rule& rule, const OpCall& call);
// The operands of a call that may hold partial results of kind `kind` while the op runs on each of
// them. each: any one of them while the others are reduced; jointly: all of them or none. Absent
// operands are left out.
struct Linearity {
  absl::InlinedVector<int, 4> each;
  absl::InlinedVector<int, 4> jointly;
};
Linearity LinearityOf(const Rule& rule, const OpCall& call, ReduceKind kind);
// The result types by the rule.
// Errors: Unimplemented when the rule has no types function; InvalidArgument when the call does not
// fit the rule.
absl::StatusOr<std::vector<TensorType>> InferTypes(const Rule& rule, const OpCall& call);
// The node written in core ops by rule.decompose.
// Errors: InvalidArgument when it does not fit; those of rule.decompose.
absl::StatusOr<std::vector<ir::ValueId>> Decomposed(const Rule& rule, Builder& builder,
                                                    const ir::Graph& from, const ir::Node& node,
                                                    absl::Span<const ir::ValueId> operands);
// The factors of an op without a rule. There are none, so its operands are gathered and every
// device computes the op in full.
OpFactors WholeFactors(const OpCall& call);

}  // namespace spmd::rules
