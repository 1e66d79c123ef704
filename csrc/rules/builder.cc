// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/builder.h"

#include <utility>

#include "csrc/rules/registry.h"
#include "csrc/util/status.h"

namespace spmd::rules {

std::vector<ir::ValueId> Builder::CallAll(absl::string_view op, std::vector<ir::ValueId> operands,
                                          Attributes attributes,
                                          std::vector<ir::OperandGroup> groups, int updates) {
  const Rule* rule = Find(op);
  SPMD_CHECK(rule != nullptr, op, " has no rule");
  ir::Graph::NodeSpec spec;
  spec.op = rule->op;
  spec.operands.assign(operands.begin(), operands.end());
  spec.groups.assign(groups.begin(), groups.end());
  spec.attributes = std::move(attributes);
  spec.task = task_;
  spec.source = source_;
  spec.updates = updates;

  OpCall call;
  call.op = spec.op;
  for (ir::ValueId v : spec.operands) {
    call.operands.push_back(v == ir::kNoValue ? nullptr : &graph_->type(v));
  }
  call.groups = spec.groups;
  call.attributes = &spec.attributes;
  const absl::StatusOr<std::vector<TensorType>> types = InferTypes(*rule, call);
  SPMD_REQUIRE(types.ok(), types.status().message());

  const ir::NodeId node = graph_->AddNode(std::move(spec), *types);
  std::vector<ir::ValueId> results;
  for (size_t k = 0; k < types->size(); ++k) {
    results.push_back(graph_->result(node, static_cast<int>(k)));
  }
  return results;
}

ir::ValueId Builder::Call(absl::string_view op, std::vector<ir::ValueId> operands,
                          Attributes attributes) {
  const std::vector<ir::ValueId> results = CallAll(op, std::move(operands), std::move(attributes));
  SPMD_CHECK(results.size() == 1, op, " has ", results.size(), " results");
  return results[0];
}

// The scalar as a float, or as an integer for integral tensors, which a float would promote.
static Attr ScalarFor(DType dtype, double s) {
  if (IsIntegral(dtype, /*include_bool=*/true) &&
      s == static_cast<double>(static_cast<int64_t>(s))) {
    return static_cast<int64_t>(s);
  }
  return s;
}

ir::ValueId Builder::Add(ir::ValueId a, ir::ValueId b) {
  return Call("aten::add.Tensor", {a, b}, {{"alpha", int64_t{1}}});
}
ir::ValueId Builder::Sub(ir::ValueId a, ir::ValueId b) {
  return Call("aten::sub.Tensor", {a, b}, {{"alpha", int64_t{1}}});
}
ir::ValueId Builder::Mul(ir::ValueId a, ir::ValueId b) { return Call("aten::mul.Tensor", {a, b}); }
ir::ValueId Builder::Div(ir::ValueId a, ir::ValueId b) { return Call("aten::div.Tensor", {a, b}); }
ir::ValueId Builder::AddScalar(ir::ValueId a, double s) {
  return Call("aten::add.Scalar", {a},
              {{"other", ScalarFor(type(a).dtype, s)}, {"alpha", int64_t{1}}});
}
ir::ValueId Builder::MulScalar(ir::ValueId a, double s) {
  return Call("aten::mul.Scalar", {a}, {{"other", ScalarFor(type(a).dtype, s)}});
}
ir::ValueId Builder::DivScalar(ir::ValueId a, double s) {
  return Call("aten::div.Scalar", {a}, {{"other", ScalarFor(type(a).dtype, s)}});
}
ir::ValueId Builder::AddScalar(ir::ValueId a, const Attr& s) { return AddScaled(a, s, 1); }
ir::ValueId Builder::MulScalar(ir::ValueId a, const Attr& s) {
  return Call("aten::mul.Scalar", {a}, {{"other", s}});
}
ir::ValueId Builder::DivScalar(ir::ValueId a, const Attr& s) {
  return Call("aten::div.Scalar", {a}, {{"other", s}});
}
ir::ValueId Builder::AddScaled(ir::ValueId a, const Attr& s, double factor) {
  return Call("aten::add.Scalar", {a}, {{"other", s}, {"alpha", ScalarFor(DType::kI64, factor)}});
}
ir::ValueId Builder::Square(ir::ValueId a) { return Mul(a, a); }
ir::ValueId Builder::Sqrt(ir::ValueId a) { return Call("aten::sqrt", {a}); }
ir::ValueId Builder::Where(ir::ValueId condition, ir::ValueId a, ir::ValueId b) {
  return Call("aten::where.self", {condition, a, b});
}
ir::ValueId Builder::Constant(double value, DType dtype) {
  return Call(
      "spmd::full", {},
      {{"size", std::vector<int64_t>{}}, {"value", ScalarFor(dtype, value)}, {"dtype", dtype}});
}
ir::ValueId Builder::Number(const Attr& value) {
  return Call("spmd::full", {},
              {{"size", std::vector<int64_t>{}}, {"value", value}, {"dtype", DType::kF64}});
}
ir::ValueId Builder::OneMinus(const Attr& value) { return AddScalar(Neg(Number(value)), 1); }
ir::ValueId Builder::Iota(int64_t n, int dim, int rank) {
  const ir::ValueId line = Call("spmd::iota", {},
                                {{"size", n},
                                 {"start", int64_t{0}},
                                 {"step", int64_t{1}},
                                 {"offset", int64_t{0}},
                                 {"dtype", DType::kI64}});
  if (rank == 1) return line;
  std::vector<int64_t> size(rank, 1);
  size[dim] = n;
  return View(line, std::move(size));
}
ir::ValueId Builder::Alias(ir::ValueId a) { return Call("aten::alias", {a}); }
ir::ValueId Builder::Neg(ir::ValueId a) { return Call("aten::neg", {a}); }
ir::ValueId Builder::Exp(ir::ValueId a) { return Call("aten::exp", {a}); }
ir::ValueId Builder::Log(ir::ValueId a) { return Call("aten::log", {a}); }
ir::ValueId Builder::Rsqrt(ir::ValueId a) { return Call("aten::rsqrt", {a}); }
ir::ValueId Builder::Sum(ir::ValueId a, std::vector<int64_t> dims, bool keepdim) {
  return Call("aten::sum.dim_IntList", {a},
              {{"dim", std::move(dims)}, {"keepdim", keepdim}, {"dtype", NoneAttr{}}});
}
ir::ValueId Builder::Amax(ir::ValueId a, std::vector<int64_t> dims, bool keepdim) {
  return Call("aten::amax", {a}, {{"dim", std::move(dims)}, {"keepdim", keepdim}});
}
ir::ValueId Builder::View(ir::ValueId a, std::vector<int64_t> size) {
  return Call("aten::view", {a}, {{"size", std::move(size)}});
}
ir::ValueId Builder::Permute(ir::ValueId a, std::vector<int64_t> dims) {
  return Call("aten::permute", {a}, {{"dims", std::move(dims)}});
}
ir::ValueId Builder::Slice(ir::ValueId a, int64_t dim, int64_t start, int64_t end) {
  return Call("aten::slice.Tensor", {a},
              {{"dim", dim}, {"start", start}, {"end", end}, {"step", int64_t{1}}});
}
ir::ValueId Builder::Cast(ir::ValueId a, DType dtype) {
  if (type(a).dtype == dtype) return a;
  return Call("spmd::cast", {a}, {{"dtype", dtype}});
}

}  // namespace spmd::rules
