// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/rule.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "csrc/rules/einsum.h"
#include "csrc/rules/row.h"
#include "csrc/util/status.h"

namespace spmd::rules {
namespace {

std::string Str(absl::string_view text) { return std::string(text.data(), text.size()); }

absl::Status CheckShape(const OpCall& call, const OpFactors& f) {
  auto error = [&](auto&&... what) {
    return absl::InvalidArgumentError(
        absl::StrCat("the rule of ", call.ToString(), " gives ", f.ToString(), ": ", what...));
  };
  if (f.operands.size() != call.operands.size() || f.results.size() != call.results.size()) {
    return error("the call has ", call.operands.size(), " operands and ", call.results.size(),
                 " results");
  }
  for (size_t i = 0; i < f.operands.size(); ++i) {
    const size_t rank = call.operands[i] ? call.operands[i]->dims.size() : 0;
    if (f.operands[i].size() != rank) return error("operand ", i, " has rank ", rank);
  }
  for (size_t i = 0; i < f.results.size(); ++i) {
    const size_t rank = call.results[i].dims.size();
    if (f.results[i].size() != rank) return error("result ", i, " has rank ", rank);
  }
  const int count = static_cast<int>(f.factors.size());
  for (const Factor& factor : f.factors) {
    if (factor.size < 0 || factor.granularity < 1) return error("a factor has no size");
  }
  for (const Window& w : f.windows) {
    if (w.factor < 0 || w.factor >= count || !call.has(w.operand) || w.dim < 0 ||
        w.dim >= call.operand(w.operand).rank() || w.extent != f.factors[w.factor].size) {
      return error("a window names no dimension");
    }
    int64_t ordered = 0;
    for (const Interval& part : w.order) {
      if (!part.HasPositions()) return error("a window's order has an index of no tensor");
      ordered += part.size();
    }
    if (!w.order.empty() && ordered != w.extent) {
      return error("a window's order has ", ordered, " indices");
    }
  }
  return absl::OkStatus();
}

bool HasWindow(const OpFactors& f, int operand, int dim) {
  return std::any_of(f.windows.begin(), f.windows.end(),
                     [&](const Window& w) { return w.operand == operand && w.dim == dim; });
}

// True if the factors of a dimension multiply to its size, or if it has none.
bool Multiply(const OpFactors& f, const DimFactors& dim, int64_t size) {
  int64_t product = 1;
  for (const int factor : dim) {
    if (factor < 0 || factor >= static_cast<int>(f.factors.size())) return false;
    if (__builtin_mul_overflow(product, f.factors[factor].size, &product)) return false;
  }
  return dim.empty() || product == size;
}

absl::Status CheckSizes(const OpCall& call, const OpFactors& f) {
  const auto error = [&](const char* what, size_t k, size_t d, int64_t size) {
    return absl::InvalidArgumentError(absl::StrCat("the rule of ", call.ToString(), " gives ",
                                                   f.ToString(), ": dimension ", d, " of ", what,
                                                   " ", k, " has size ", size));
  };
  for (size_t k = 0; k < f.operands.size(); ++k) {
    for (size_t d = 0; d < f.operands[k].size(); ++d) {
      const int64_t size = call.operand(static_cast<int>(k)).dims[d];
      const bool windowed = HasWindow(f, static_cast<int>(k), static_cast<int>(d));
      if (!windowed && !Multiply(f, f.operands[k][d], size)) return error("operand", k, d, size);
    }
  }
  for (size_t k = 0; k < f.results.size(); ++k) {
    for (size_t d = 0; d < f.results[k].size(); ++d) {
      const int64_t size = call.results[k].dims[d];
      if (!Multiply(f, f.results[k][d], size)) return error("result", k, d, size);
    }
  }
  return absl::OkStatus();
}

// The factors by the einsum text or by rule.factors, unchecked.
absl::StatusOr<OpFactors> RawFactors(const Rule& rule, const OpCall& call) {
  if (rule.pattern != nullptr) return EinsumFactors(*rule.pattern, call);
  if (rule.factors != nullptr) return rule.factors(call);
  SPMD_RETURN_IF_ERROR(ParseEinsum(rule.einsum).status());
  return absl::InvalidArgumentError(absl::StrCat("the rule of ", rule.op, " has no factors"));
}

absl::StatusOr<OpFactors> CheckedFactors(const Rule& rule, const OpCall& call) {
  return Guarded(call, [&]() -> absl::StatusOr<OpFactors> {
    SPMD_ASSIGN_OR_RETURN(OpFactors factors, RawFactors(rule, call));
    SPMD_RETURN_IF_ERROR(CheckShape(call, factors));
    SPMD_RETURN_IF_ERROR(CheckSizes(call, factors));
    return factors;
  });
}

absl::Status CheckDims(const OpCall& call, const std::vector<TensorType>& types) {
  for (const TensorType& type : types) {
    if (IsTensorSize(type.dims)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(call.ToString(), " would give a tensor of sizes ", DimsToString(type.dims)));
  }
  return absl::OkStatus();
}

// Removes factors of size 1, which cannot be sharded, with their windows, and renumbers the others.
void DropTrivial(OpFactors* f) {
  std::vector<int> renumbered(f->factors.size(), -1);
  int kept = 0;
  for (size_t i = 0; i < f->factors.size(); ++i) {
    if (f->factors[i].size == 1) continue;
    f->factors[kept] = f->factors[i];
    renumbered[i] = kept++;
  }
  if (kept == static_cast<int>(f->factors.size())) return;
  f->factors.resize(kept);
  for (auto* tensors : {&f->operands, &f->results}) {
    for (TensorFactors& tensor : *tensors) {
      for (DimFactors& dim : tensor) {
        DimFactors rest;
        for (int factor : dim) {
          if (renumbered[factor] >= 0) rest.push_back(renumbered[factor]);
        }
        dim = std::move(rest);
      }
    }
  }
  std::vector<Window> windows;
  for (Window& w : f->windows) {
    if (renumbered[w.factor] < 0) continue;
    w.factor = renumbered[w.factor];
    windows.push_back(std::move(w));
  }
  f->windows = std::move(windows);
}

// Leaves factors of size 1 in dimensions of size 1 only, one in each.
void KeepOneTrivial(OpFactors* f) {
  for (auto* tensors : {&f->operands, &f->results}) {
    for (TensorFactors& tensor : *tensors) {
      for (DimFactors& dim : tensor) {
        DimFactors rest;
        for (int factor : dim) {
          if (f->factors[factor].size != 1) rest.push_back(factor);
        }
        if (rest.empty() && !dim.empty()) rest.push_back(dim[0]);
        dim = std::move(rest);
      }
    }
  }
}

absl::InlinedVector<int, 4> Present(const std::vector<int>& operands, const OpCall& call) {
  absl::InlinedVector<int, 4> present;
  for (int i : operands) {
    if (call.has(i)) present.push_back(i);
  }
  return present;
}

}  // namespace

Rule::Rule(const Row& row)
    : RuleFields(row),
      op(Str(row.op)),
      einsum(Str(row.einsum)),
      each(row.each.begin(), row.each.end()),
      jointly(row.jointly.begin(), row.jointly.end()),
      added(row.added.begin(), row.added.end()) {
  if (factors != nullptr) return;
  absl::StatusOr<EinsumPattern> parsed = ParseEinsum(einsum);
  if (!parsed.ok()) return;
  for (size_t i = 0; i < parsed->operands.size(); ++i) {
    if (parsed->operands[i].added) added.push_back(static_cast<int>(i));
  }
  pattern = std::make_shared<const EinsumPattern>(*std::move(parsed));
}

absl::StatusOr<OpFactors> FactorsOf(const Rule& rule, const OpCall& call) {
  SPMD_ASSIGN_OR_RETURN(OpFactors factors, CheckedFactors(rule, call));
  DropTrivial(&factors);
  return factors;
}

absl::StatusOr<OpFactors> FactorsWithOnes(const Rule& rule, const OpCall& call) {
  SPMD_ASSIGN_OR_RETURN(OpFactors factors, CheckedFactors(rule, call));
  KeepOneTrivial(&factors);
  return factors;
}

Linearity LinearityOf(const Rule& rule, const OpCall& call, ReduceKind kind) {
  Linearity linear;
  if (rule.linear_if != nullptr && !rule.linear_if(call)) return linear;
  const bool sum = kind == ReduceKind::kSum;
  const bool extremum = kind == ReduceKind::kMax || kind == ReduceKind::kMin;
  if (!sum && !(extremum && rule.monotone)) return linear;
  // Complex numbers have no order, so max and min do not apply.
  const auto is_complex = [](const TensorType& type) { return IsComplex(type.dtype); };
  if (extremum && std::any_of(call.results.begin(), call.results.end(), is_complex)) return linear;
  if (sum) linear.each = Present(rule.each, call);
  linear.jointly = Present(rule.jointly, call);
  if (rule.jointly_all) {
    for (size_t i = 0; i < call.operands.size(); ++i) {
      if (call.has(static_cast<int>(i))) linear.jointly.push_back(static_cast<int>(i));
    }
  }
  if (extremum && linear.jointly.empty() && call.has(0)) linear.jointly.push_back(0);
  return linear;
}

absl::StatusOr<std::vector<TensorType>> InferTypes(const Rule& rule, const OpCall& call) {
  if (rule.types == nullptr) {
    return absl::UnimplementedError(absl::StrCat(
        "the rule of ", rule.op, " does not say its result types; only core ops can be built"));
  }
  return Guarded(call, [&]() -> absl::StatusOr<std::vector<TensorType>> {
    SPMD_ASSIGN_OR_RETURN(std::vector<TensorType> types, rule.types(call));
    SPMD_RETURN_IF_ERROR(CheckDims(call, types));
    return types;
  });
}

absl::StatusOr<std::vector<ir::ValueId>> Decomposed(const Rule& rule, Builder& builder,
                                                    const ir::Graph& from, const ir::Node& node,
                                                    absl::Span<const ir::ValueId> operands) {
  const OpCall call = OpCall::Of(from, node);
  return Guarded(call, [&] { return rule.decompose(builder, from, node, operands); });
}

OpFactors WholeFactors(const OpCall& call) {
  OpFactors f;
  for (const TensorType* type : call.operands) {
    f.operands.emplace_back(type == nullptr ? 0 : type->dims.size());
  }
  for (const TensorType& type : call.results) f.results.emplace_back(type.dims.size());
  return f;
}

}  // namespace spmd::rules
