// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/tables/attention.h"

#include "absl/strings/str_cat.h"
#include "csrc/util/status.h"

namespace spmd::rules {
namespace {

class Heads {
 public:
  static absl::StatusOr<Heads> Of(const OpCall& call, int query, int mask) {
    Heads h;
    for (int i = query; i < query + 3; ++i) {
      if (!call.has(i) || call.operand(i).rank() != 4) {
        return absl::InvalidArgumentError(
            absl::StrCat(call.ToString(), ": query, key and value should have rank 4"));
      }
    }
    const Dims &q = call.operand(query).dims, &k = call.operand(query + 1).dims,
               &v = call.operand(query + 2).dims;
    if (k[1] == 0 || q[1] % k[1] != 0 || v[1] != k[1] || k[2] != v[2] || q[3] != k[3]) {
      return absl::InvalidArgumentError(
          absl::StrCat(call.ToString(),
                       ": expected query [b,h,s,d], key [b,hk,t,d], value [b,hk,t,e] where hk "
                       "divides h"));
    }
    const bool causal = call.attrs().GetBoolOr("is_causal", false);
    h.f_.factors = {{.size = q[0]},
                    {.size = k[1]},
                    {.size = q[1] / k[1]},
                    {.size = q[2], .whole = causal},
                    {.size = k[2], .whole = true},
                    {.size = q[3], .whole = true}};
    // Equal depths are one factor. Neither depth may be sharded, and the product of the factors'
    // sizes remains the amount of work.
    if (v[3] != q[3]) {
      h.e_ = 6;
      h.f_.factors.push_back({.size = v[3], .whole = true});
    }
    h.full_ = {q[0], q[1], q[2], k[2]};
    h.mask_ = mask;
    return h;
  }

  TensorFactors Query() const { return {{0}, {1, 2}, {3}, {5}}; }
  TensorFactors Key() const { return {{0}, {1}, {4}, {5}}; }
  TensorFactors Value() const { return {{0}, {1}, {4}, {e_}}; }
  TensorFactors Out() const { return {{0}, {1, 2}, {3}, {e_}}; }
  TensorFactors Rows() const { return {{0}, {1, 2}, {3}}; }
  // The mask broadcasts to [b,h,s,t].
  TensorFactors Mask(const OpCall& call) const {
    if (!call.has(mask_)) return {};
    const TensorFactors all = {{0}, {1, 2}, {3}, {4}};
    const Dims& dims = call.operand(mask_).dims;
    SPMD_REQUIRE(dims.size() <= all.size(), "the mask has rank ", dims.size());
    TensorFactors tensor;
    for (size_t i = 0; i < dims.size(); ++i) {
      const size_t d = 4 - dims.size() + i;
      tensor.push_back(dims[i] == full_[d] ? all[d] : DimFactors{});
    }
    return tensor;
  }
  OpFactors Take() { return std::move(f_); }

 private:
  OpFactors f_;
  int e_ = 5;
  Dims full_;
  int mask_ = -1;
};

// Adds the mask's factors, unless the operand is left out at the end of the list.
void AddMask(const OpCall& call, size_t mask, const Heads& h, OpFactors* f) {
  if (call.operands.size() > mask) f->operands.push_back(h.Mask(call));
}

}  // namespace

absl::StatusOr<OpFactors> AttentionFactors(const OpCall& call) {
  SPMD_ASSIGN_OR_RETURN(Heads h, Heads::Of(call, /*query=*/0, /*mask=*/3));
  OpFactors f = h.Take();
  f.operands = {h.Query(), h.Key(), h.Value()};
  AddMask(call, 3, h, &f);
  f.results = {h.Out(), h.Rows()};
  return f;
}

absl::StatusOr<OpFactors> AttentionBackwardFactors(const OpCall& call) {
  SPMD_ASSIGN_OR_RETURN(Heads h, Heads::Of(call, /*query=*/1, /*mask=*/6));
  OpFactors f = h.Take();
  f.operands = {h.Out(), h.Query(), h.Key(), h.Value(), h.Out(), h.Rows()};
  AddMask(call, 6, h, &f);
  f.results = {h.Query(), h.Key(), h.Value()};
  return f;
}

absl::StatusOr<std::vector<TensorType>> AttentionTypes(const OpCall& call) {
  const TensorType &q = call.operand(0), &v = call.operand(2);
  const Dims& n = q.dims;
  return std::vector<TensorType>{
      {q.dtype, {n[0], n[1], n[2], v.dims[3]}},
      {q.dtype == DType::kF64 ? DType::kF64 : DType::kF32, {n[0], n[1], n[2]}}};
}

absl::StatusOr<std::vector<TensorType>> AttentionBackwardTypes(const OpCall& call) {
  return std::vector<TensorType>{call.operand(1), call.operand(2), call.operand(3)};
}

}  // namespace spmd::rules
