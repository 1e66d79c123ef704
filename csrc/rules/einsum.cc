// SPDX-License-Identifier: Apache-2.0
// Fits einsum text to a call: finds the name of each dimension, the sizes of the names, and the
// factors.
#include "csrc/rules/einsum.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "csrc/rules/promotion.h"
#include "csrc/rules/registry.h"
#include "csrc/util/status.h"

namespace spmd::rules {
namespace {

// One dimension of a tensor of the call, with its text.
struct BoundDim {
  const EinsumDim* text;
  int ellipsis_index;  // position within "...", aligned at the right; -1 for named dimensions
};
using BoundTensor = std::vector<BoundDim>;

class Binding {
 public:
  Binding(const EinsumPattern& pattern, const OpCall& call)
      : pattern_(pattern), call_(call), sizes_(pattern.names.size(), -1) {}

  absl::Status Bind() {
    SPMD_RETURN_IF_ERROR(CheckCounts());
    SPMD_RETURN_IF_ERROR(MeasureEllipsis());
    ellipsis_.assign(ellipsis_rank_, 1);
    for (size_t i = 0; i < call_.operands.size(); ++i) {
      const TensorType* type = call_.operands[i];
      operands_.push_back(type ? BindDims(pattern_.operands[i], *type) : BoundTensor());
      if (type) SPMD_RETURN_IF_ERROR(TakeSizes(operands_.back(), *type));
    }
    for (size_t i = 0; i < call_.results.size(); ++i) {
      if (IsLeftOut(static_cast<int>(i))) {
        static const EinsumDim kNothing;
        results_.push_back({{&kNothing, -1}});
        continue;
      }
      results_.push_back(BindDims(pattern_.results[i], call_.results[i]));
      SPMD_RETURN_IF_ERROR(TakeSizes(results_.back(), call_.results[i]));
    }
    return SolveCompounds();
  }

  absl::StatusOr<OpFactors> Factors() {
    OpFactors f;
    name_factor_.assign(sizes_.size(), -1);
    for (size_t i = 0; i < operands_.size(); ++i) {
      f.operands.emplace_back();
      for (size_t d = 0; d < operands_[i].size(); ++d) {
        f.operands.back().push_back(DimFactorsOf(operands_[i][d], call_.operand(i).dims[d], &f));
      }
    }
    for (size_t i = 0; i < results_.size(); ++i) {
      f.same.push_back(pattern_.results[i].same);
      f.results.emplace_back();
      for (size_t d = 0; d < results_[i].size(); ++d) {
        const int64_t size = call_.results[i].dims[d];
        f.results.back().push_back(DimFactorsOf(results_[i][d], size, &f));
        if (size == 1 && Size(results_[i][d]) != 1) {
          return Error("result ", i, " has size 1 where an operand has more");
        }
      }
    }
    return f;
  }

  Dims ResultDims(int result) const {
    Dims dims;
    for (const EinsumDim& text : pattern_.results[result].dims) {
      if (text.ellipsis) {
        dims.insert(dims.end(), ellipsis_.begin(), ellipsis_.end());
      } else {
        dims.push_back(Size({&text, -1}));
      }
    }
    return dims;
  }

 private:
  template <typename... Args>
  absl::Status Error(const Args&... what) const {
    return absl::InvalidArgumentError(
        absl::StrCat(call_.ToString(), " does not fit its einsum rule: ", what...));
  }

  // True for a result that the call's mode leaves out, which has dims [0].
  bool IsLeftOut(int result) const {
    const Dims& dims = call_.results[result].dims;
    return pattern_.results[result].optional && dims.size() == 1 && dims[0] == 0;
  }

  absl::Status CheckCounts() const {
    if (call_.operands.size() > pattern_.operands.size()) {
      return Error("the rule has ", pattern_.operands.size(), " operands");
    }
    for (size_t i = 0; i < pattern_.operands.size(); ++i) {
      if (!call_.has(static_cast<int>(i)) && !pattern_.operands[i].optional) {
        return Error("operand ", i, " is absent");
      }
    }
    if (!call_.results.empty() && call_.results.size() != pattern_.results.size()) {
      return Error("the rule has ", pattern_.results.size(), " results");
    }
    return absl::OkStatus();
  }

  absl::Status MeasureTensor(const EinsumTensor& text, const TensorType& type, const char* what) {
    const int extra = type.rank() - text.named_rank();
    const bool fits = text.ellipsis >= 0 ? extra >= 0 : extra == 0 || (text.added && extra < 0);
    if (!fits) return Error(what, " ", type.ToString(), " should have rank ", text.named_rank());
    if (text.ellipsis >= 0) ellipsis_rank_ = std::max(ellipsis_rank_, extra);
    return absl::OkStatus();
  }

  absl::Status MeasureEllipsis() {
    for (size_t i = 0; i < call_.operands.size(); ++i) {
      if (!call_.has(static_cast<int>(i))) continue;
      SPMD_RETURN_IF_ERROR(MeasureTensor(pattern_.operands[i], call_.operand(i), "operand"));
    }
    for (size_t i = 0; i < call_.results.size(); ++i) {
      if (IsLeftOut(static_cast<int>(i))) continue;
      SPMD_RETURN_IF_ERROR(MeasureTensor(pattern_.results[i], call_.results[i], "result"));
    }
    return absl::OkStatus();
  }

  BoundTensor BindDims(const EinsumTensor& text, const TensorType& type) const {
    BoundTensor bound;
    const int extra = type.rank() - text.named_rank();
    for (const EinsumDim& dim : text.dims) {
      if (!dim.ellipsis) bound.push_back({&dim, -1});
      for (int i = 0; dim.ellipsis && i < extra; ++i) {
        bound.push_back({&dim, ellipsis_rank_ - extra + i});
      }
    }
    // The number of leading dimensions that a "+" operand lacks.
    const int missing = static_cast<int>(bound.size()) - type.rank();
    bound.erase(bound.begin(), bound.begin() + missing);
    return bound;
  }

  absl::Status TakeSizes(const BoundTensor& bound, const TensorType& type) {
    for (size_t d = 0; d < bound.size(); ++d) {
      int64_t* known = nullptr;
      if (bound[d].ellipsis_index >= 0)
        known = &ellipsis_[bound[d].ellipsis_index];
      else if (bound[d].text->names.size() == 1)
        known = &sizes_[bound[d].text->names[0]];
      if (bound[d].text->names.size() > 1) compounds_.push_back({bound[d].text, type.dims[d]});
      if (known == nullptr) continue;
      const int64_t size = type.dims[d];
      if (*known != -1 && *known != 1 && size != 1 && *known != size) {
        return Error("sizes ", *known, " and ", size, " of one factor differ");
      }
      if (*known == -1 || *known == 1) *known = size;
    }
    return absl::OkStatus();
  }

  // Finds the size of a compound dimension's one unknown name.
  absl::Status SolveCompounds() {
    for (bool progress = true; progress;) {
      progress = false;
      for (const auto& [text, size] : compounds_) {
        int64_t known = 1;
        int unknown = -1, unknowns = 0;
        for (int name : text->names) {
          if (sizes_[name] >= 0)
            known *= sizes_[name];
          else
            unknown = name, ++unknowns;
        }
        if (unknowns != 1 || known == 0 || size % known != 0) continue;
        sizes_[unknown] = size / known;
        progress = true;
      }
    }
    for (const auto& [text, size] : compounds_) {
      if (const int64_t product = Size({text, -1}); product != size && size != 1) {
        return Error("a compound dimension of size ", size, " does not split");
      }
    }
    return absl::OkStatus();
  }

  // The size of a dimension by its names; 1 for "1", negative when unknown.
  int64_t Size(const BoundDim& bound) const {
    if (bound.ellipsis_index >= 0) return ellipsis_[bound.ellipsis_index];
    int64_t size = 1;
    for (int name : bound.text->names) {
      if (sizes_[name] < 0) return -1;
      size *= sizes_[name];
    }
    return size;
  }

  DimFactors DimFactorsOf(const BoundDim& bound, int64_t size, OpFactors* f) {
    DimFactors dim;
    if (bound.ellipsis_index >= 0) {
      if (ellipsis_factor_ < 0) {
        ellipsis_factor_ = static_cast<int>(f->factors.size());
        for (int64_t n : ellipsis_) f->factors.push_back({.size = n});
      }
      dim.push_back(ellipsis_factor_ + bound.ellipsis_index);
    }
    for (int name : bound.text->names) {
      if (name_factor_[name] < 0) {
        name_factor_[name] = static_cast<int>(f->factors.size());
        f->factors.push_back(
            {.size = sizes_[name], .whole = pattern_.whole[name], .reduce = pattern_.reduce[name]});
      }
      dim.push_back(name_factor_[name]);
    }
    if (size == 1 && Size(bound) != 1) dim.clear();  // broadcasts
    return dim;
  }

  const EinsumPattern& pattern_;
  const OpCall& call_;
  int ellipsis_rank_ = 0;
  Dims ellipsis_;               // sizes within "..."
  std::vector<int64_t> sizes_;  // by name; -1: unknown
  std::vector<std::pair<const EinsumDim*, int64_t>> compounds_;
  std::vector<BoundTensor> operands_, results_;
  int ellipsis_factor_ = -1;  // factor number of the first dimension of "..."
  std::vector<int> name_factor_;
};

}  // namespace

absl::StatusOr<OpFactors> EinsumFactors(const EinsumPattern& pattern, const OpCall& call) {
  Binding binding(pattern, call);
  SPMD_RETURN_IF_ERROR(binding.Bind());
  return binding.Factors();
}

absl::StatusOr<std::vector<TensorType>> EinsumTypes(const OpCall& call) {
  const Rule* rule = Find(call.op);
  SPMD_CHECK(rule != nullptr && rule->pattern != nullptr, call.op, " has no einsum rule");
  OpCall operands_only = call;
  operands_only.results.clear();
  Binding binding(*rule->pattern, operands_only);
  SPMD_RETURN_IF_ERROR(binding.Bind());
  std::vector<TensorType> types;
  for (size_t k = 0; k < rule->pattern->results.size(); ++k) {
    types.push_back({PromotedDType(call), binding.ResultDims(static_cast<int>(k))});
  }
  return types;
}

}  // namespace spmd::rules
