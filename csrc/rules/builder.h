// SPDX-License-Identifier: Apache-2.0
// Appends core ops to a graph, with result types from their rules. Decompositions are written with
// it.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "csrc/ir/graph.h"

namespace spmd::rules {

// A call that does not fit, as in the decomposition of an ill-typed op, throws as reading an OpCall
// does. Every node gets the task and source of the node that is being rewritten.
class Builder {
 public:
  Builder(ir::Graph* graph, int64_t task, int32_t source)
      : graph_(graph), task_(task), source_(source) {}

  ir::Graph& graph() { return *graph_; }
  const TensorType& type(ir::ValueId v) const { return graph_->type(v); }
  int rank(ir::ValueId v) const { return type(v).rank(); }

  // Appends any core op by name.
  std::vector<ir::ValueId> CallAll(absl::string_view op, std::vector<ir::ValueId> operands,
                                   Attributes attributes = {},
                                   std::vector<ir::OperandGroup> groups = {}, int updates = -1);
  ir::ValueId Call(absl::string_view op, std::vector<ir::ValueId> operands,
                   Attributes attributes = {});

  // Short names for common ops; element-wise ops broadcast as in PyTorch.
  ir::ValueId Add(ir::ValueId a, ir::ValueId b);
  ir::ValueId Sub(ir::ValueId a, ir::ValueId b);
  ir::ValueId Mul(ir::ValueId a, ir::ValueId b);
  ir::ValueId Div(ir::ValueId a, ir::ValueId b);
  ir::ValueId AddScalar(ir::ValueId a, double s);
  ir::ValueId MulScalar(ir::ValueId a, double s);
  ir::ValueId DivScalar(ir::ValueId a, double s);
  // The same with the number in an attribute, which may be passed at run time.
  // Requires: `a` does not have an integer type.
  ir::ValueId AddScalar(ir::ValueId a, const Attr& s);
  ir::ValueId MulScalar(ir::ValueId a, const Attr& s);
  ir::ValueId DivScalar(ir::ValueId a, const Attr& s);
  // a + factor · s
  ir::ValueId AddScaled(ir::ValueId a, const Attr& s, double factor);
  ir::ValueId Square(ir::ValueId a);
  ir::ValueId Sqrt(ir::ValueId a);
  ir::ValueId Where(ir::ValueId condition, ir::ValueId a, ir::ValueId b);
  // A tensor of rank 0. It combines with a tensor of the same category without promoting it.
  ir::ValueId Constant(double value, DType dtype);
  // The number in an attribute as a tensor of rank 0 in double precision, for arithmetic with it.
  ir::ValueId Number(const Attr& value);
  ir::ValueId OneMinus(const Attr& value);
  // 0, 1, … n-1 as i64 along dimension `dim` of a tensor of `rank` dimensions; the others have size
  // 1.
  ir::ValueId Iota(int64_t n, int dim, int rank);
  ir::ValueId Neg(ir::ValueId a);
  ir::ValueId Exp(ir::ValueId a);
  ir::ValueId Log(ir::ValueId a);
  ir::ValueId Rsqrt(ir::ValueId a);
  ir::ValueId Sum(ir::ValueId a, std::vector<int64_t> dims, bool keepdim);
  ir::ValueId Amax(ir::ValueId a, std::vector<int64_t> dims, bool keepdim);
  ir::ValueId View(ir::ValueId a, std::vector<int64_t> size);
  ir::ValueId Permute(ir::ValueId a, std::vector<int64_t> dims);
  ir::ValueId Slice(ir::ValueId a, int64_t dim, int64_t start, int64_t end);
  ir::ValueId Cast(ir::ValueId a, DType dtype);
  // The same value, which may have another sharding.
  ir::ValueId Alias(ir::ValueId a);

 private:
  ir::Graph* graph_;
  int64_t task_;
  int32_t source_;
};

}  // namespace spmd::rules
