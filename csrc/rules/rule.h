// SPDX-License-Identifier: Apache-2.0
// What is known about one op. One row per op, in the table of its family; a row is a line of text
// when it can be:
//
//   Einsum("aten::addmm", "+m n, m k, k n -> m n").Each({1, 2}),
//   Einsum("aten::softmax", "... [d] -> ... [d]").Decomposes(Softmax),
//   Elementwise("aten::add.Tensor").Jointly({0, 1}),
//   Computed("aten::view", ReshapeFactors).Local(LocalSize),
//
// Einsum text: operands, "->", results, separated by commas; dimensions by spaces. A letter or word
// is a factor; "..." stands for any number of leading factors, the same in every tensor (aligned at
// the right where ranks differ); "[h]" is whole; "1" is a dimension without a factor; "(a b)" a
// compound dimension, major first (sizes must then be known from elsewhere in the text); "+" before
// an operand: added to the result once when a reduced factor is cut; "=" before a result: each
// shard of a factor that it lacks computes the same, not a term; "?" after an operand's last
// dimension: the operand may be absent, the result left out (dims [0]); "()" a tensor of rank 0. A
// "+" operand of lower rank than its text is aligned at the right.
#pragma once

#include <initializer_list>
#include <memory>
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

namespace spmd::rules {

struct EinsumPattern;  // csrc/rules/einsum.h: parsed einsum text
class Builder;         // csrc/rules/builder.h: appends core ops to a graph, inferring result types

// Which factors of a call are cut (by number). Local attributes may depend on it.
using CutFactors = std::vector<bool>;

using FactorsFn = absl::StatusOr<OpFactors> (*)(const OpCall&);
using TypesFn = absl::StatusOr<std::vector<TensorType>> (*)(const OpCall&);
// The attributes of the call on tiles: a copy of call.attrs() in which those that speak of sizes,
// offsets, paddings or index bounds are replaced by expressions over start/size/extent of operands
// (o0, o1, …) and results (r0, …). A windowed operand's size is the size of its window.
using LocalFn = Attributes (*)(const OpCall&, const OpFactors&, const CutFactors&);
// The same function written in core ops. Returns one value per result of the node; none at all
// where this call has no better form.
using DecomposeFn = absl::StatusOr<std::vector<ir::ValueId>> (*)(
    Builder&, const ir::Graph& from, const ir::Node&, absl::Span<const ir::ValueId> operands);
// Calls for which the linearity below holds, where attributes or types decide.
using LinearIfFn = bool (*)(const OpCall&);

struct Rule {
  std::string op;
  std::string einsum;                            // set, or
  std::shared_ptr<const EinsumPattern> pattern;  // parsed once; null when the text is bad
  FactorsFn factors = nullptr;                   // set
  TypesFn types = nullptr;                       // required for core ops
  LocalFn local = nullptr;                       // null: the attributes go unchanged, but for
  std::vector<std::pair<std::string, Attr>> local_attributes;  // these, where anything is cut
  DecomposeFn decompose = nullptr;
  bool decompose_always = false;  // no such kernel, or worse whole: rewritten before propagation
  // Linearity, as sets of operands. each: any one of them may be unreduced (sum) while the others
  // are not. jointly: all of them or none. `monotone` ops are jointly linear for max and min too; a
  // monotone op without `jointly` is so in its first operand, for max and min only. Read them
  // through LinearityOf.
  std::vector<int> each;
  std::vector<int> jointly;
  bool jointly_all = false;        // every present operand (ops that take Tensor[])
  LinearIfFn linear_if = nullptr;  // null: for every call
  bool monotone = false;
  std::vector<int> added;      // operands added once to the result
  bool elementwise = false;    // broadcasting, nothing else
  bool random = false;         // never merged with an equal one
  double flops_per_point = 1;  // cost: flops = this × product of all factor sizes

  // Fluent setters, so that a row reads as a line.
  Rule Each(std::initializer_list<int> v) const;
  Rule Jointly(std::initializer_list<int> v) const;
  Rule JointlyAll() const;
  Rule Monotone() const;
  Rule LinearIf(LinearIfFn f) const;
  Rule Local(LocalFn f) const;
  Rule Types(TypesFn f) const;
  Rule Decomposes(DecomposeFn f) const;
  Rule DecomposesAlways(DecomposeFn f) const;
  Rule Random() const;
  Rule Flops(double per_point) const;
};

Rule Einsum(absl::string_view op, absl::string_view text);
Rule Elementwise(absl::string_view op);  // broadcasting over all operands
Rule Computed(absl::string_view op, FactorsFn factors);

// What `read` gives, which may ask a call for what it does not have: an attribute, an operand, a
// dimension. Errors: InvalidArgument naming the call then; its own.
template <typename Read>
auto Guarded(const OpCall& call, Read&& read) -> decltype(read()) {
  try {
    return read();
  } catch (const std::logic_error& e) {
    return absl::InvalidArgumentError(absl::StrCat(call.ToString(), ": ", e.what()));
  }
}

// The factors of a call. A factor of size 1 is never produced. The factors of a dimension multiply
// to its size, but where a window reads it.
// Errors: InvalidArgument when the call does not fit the rule.
absl::StatusOr<OpFactors> FactorsOf(const Rule& rule, const OpCall& call);
// Which operands of a call may hold terms that combine with `kind` while the op runs on each term.
// each: any one of them, the others not; jointly: all of them or none. Absent operands are left
// out.
struct Linearity {
  absl::InlinedVector<int, 4> each;
  absl::InlinedVector<int, 4> jointly;
};
Linearity LinearityOf(const Rule& rule, const OpCall& call, ReduceKind kind);
// Result types by the rule. Errors: Unimplemented when the rule has no types function;
// InvalidArgument when the call does not fit the rule.
absl::StatusOr<std::vector<TensorType>> InferTypes(const Rule& rule, const OpCall& call);
// The node in core ops, by rule.decompose. Errors: InvalidArgument when it does not fit; its own.
absl::StatusOr<std::vector<ir::ValueId>> Decomposed(const Rule& rule, Builder& builder,
                                                    const ir::Graph& from, const ir::Node& node,
                                                    absl::Span<const ir::ValueId> operands);
// The factors of an op without a rule: none; operands are gathered, it runs whole.
OpFactors WholeFactors(const OpCall& call);

}  // namespace spmd::rules
