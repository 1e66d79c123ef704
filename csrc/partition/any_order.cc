// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/any_order.h"

#include <algorithm>
#include <variant>

namespace spmd::partition {
namespace {

using propagate::NodeFactors;

// Whether a tile's attributes say where it begins along the factor.
bool KnowsItsPlace(const NodeFactors& nf, const rules::OpCall& call, int f) {
  bool knows = false;
  const auto look = [&](const Expr& e) {
    e.ForEachVariable([&](const Expr& v) {
      knows = knows || v.op() == Expr::Op::kStart || v.op() == Expr::Op::kCoord;
    });
  };
  const auto look_at_all = [&](const auto& attributes) {
    for (const auto& [name, attr] : attributes) {
      if (const auto* e = std::get_if<Expr>(&attr)) look(*e);
      if (const auto* list = std::get_if<std::vector<Expr>>(&attr)) {
        for (const Expr& e : *list) look(e);
      }
    }
  };
  look_at_all(nf.rule->local_attributes);
  if (nf.rule->local != nullptr) {
    rules::CutFactors cut(nf->factors.size(), false);
    cut[f] = true;
    look_at_all(nf.rule->local(call, *nf, cut));
  }
  return knows;
}

// Whether the factor is a whole dimension of every tensor that has it.
bool IsADimension(const std::vector<rules::TensorFactors>& tensors, int f) {
  for (const rules::TensorFactors& tensor : tensors) {
    for (const rules::DimFactors& dim : tensor) {
      if (dim.size() > 1 && std::find(dim.begin(), dim.end(), f) != dim.end()) return false;
    }
  }
  return true;
}

}  // namespace

bool IsInAnyOrder(const NodeFactors& nf, const rules::OpCall& call, int f) {
  const rules::Factor& factor = nf->factors[f];
  if (factor.whole || factor.granularity > 1) return false;
  if (std::any_of(nf->windows.begin(), nf->windows.end(),
                  [&](const rules::Window& w) { return w.factor == f; })) {
    return false;
  }
  return IsADimension(nf->operands, f) && IsADimension(nf->results, f) &&
         !KnowsItsPlace(nf, call, f);
}

}  // namespace spmd::partition
