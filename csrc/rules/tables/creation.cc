// SPDX-License-Identifier: Apache-2.0
// Ops that create tensors from attributes. Every dimension of the result may be sharded; the local
// call has the tile's sizes and offsets. PyTorch's full, zeros, arange … are recorded as spmd::full
// and spmd::iota.
#include <algorithm>
#include <utility>

#include "csrc/rules/families.h"
#include "csrc/rules/promotion.h"
#include "csrc/rules/tables/call_factors.h"
#include "csrc/util/status.h"

namespace spmd::rules {
namespace {

absl::StatusOr<OpFactors> ResultFactors(const OpCall& call) {
  OpFactors f = WholeFactors(call);
  for (int d = 0; d < call.results[0].rank(); ++d) {
    f.factors.push_back({.size = call.results[0].dims[d]});
    f.results[0][d].push_back(d);
  }
  return f;
}

// The numbers of one row are drawn together, so the last dimension is whole.
absl::StatusOr<OpFactors> RowFactors(const OpCall& call) {
  SPMD_ASSIGN_OR_RETURN(OpFactors f, BroadcastFactors(call));
  for (int factor : f.results[0].back()) f.factors[factor].whole = true;
  return f;
}

bool AnyCut(const CutFactors& cut) {
  return std::any_of(cut.begin(), cut.end(), [](bool c) { return c; });
}

std::vector<Expr> SizesOfResult(const OpCall& call) {
  std::vector<Expr> sizes;
  for (int d = 0; d < call.results[0].rank(); ++d) sizes.push_back(Expr::Size(Result(0), d));
  return sizes;
}
std::vector<Expr> StartsOfResult(const OpCall& call) {
  std::vector<Expr> starts;
  for (int d = 0; d < call.results[0].rank(); ++d) starts.push_back(Expr::Start(Result(0), d));
  return starts;
}

Attributes LocalResultSize(const OpCall& call, const OpFactors&, const CutFactors& cut) {
  Attributes local = call.attrs();
  if (AnyCut(cut)) local.Set("size", SizesOfResult(call));
  return local;
}
Attributes LocalResultOffset(const OpCall& call, const OpFactors&, const CutFactors& cut) {
  Attributes local = call.attrs();
  if (AnyCut(cut)) local.Set("offset", StartsOfResult(call));
  return local;
}
Attributes LocalSizeAndOffset(const OpCall& call, const OpFactors& f, const CutFactors& cut) {
  Attributes local = LocalResultSize(call, f, cut);
  if (AnyCut(cut)) local.Set("offset", StartsOfResult(call));
  return local;
}
Attributes LocalIota(const OpCall& call, const OpFactors&, const CutFactors& cut) {
  Attributes local = call.attrs();
  if (!AnyCut(cut)) return local;
  local.Set("size", Expr::Size(Result(0), 0));
  local.Set("offset", Expr::Start(Result(0), 0));
  return local;
}

using Types = absl::StatusOr<std::vector<TensorType>>;

DType DTypeOf(const OpCall& call) {
  const Attr* attr = call.attrs().Find("dtype");
  if (attr != nullptr && std::holds_alternative<DType>(*attr)) return std::get<DType>(*attr);
  return DType::kF32;
}
Types SizeTypes(const OpCall& call) {
  const std::vector<int64_t>& size = call.attrs().GetInts("size");
  return std::vector<TensorType>{{DTypeOf(call), Dims(size.begin(), size.end())}};
}
Types IotaTypes(const OpCall& call) {
  return std::vector<TensorType>{{DTypeOf(call), {call.attrs().GetInt("size")}}};
}
Types DrawnTypes(const OpCall& call) { return std::vector<TensorType>{call.operand(0)}; }
Types DropoutTypes(const OpCall& call) {
  return std::vector<TensorType>{call.operand(0), {DType::kBool, call.operand(0).dims}};
}

// An op that draws one number for each element of its parameters.
constexpr Row Drawn(absl::string_view op, FactorsFn factors) {
  return Computed(op, factors).Local(LocalResultOffset).Types(DrawnTypes).Random();
}

constexpr auto kCreationRows = Rows(
    Drawn("spmd::binomial", BroadcastFactors), Drawn("spmd::dirichlet", RowFactors).CannotFail(),
    Computed("spmd::dropout", BroadcastFactors)
        .Local(LocalResultOffset)
        .Types(DropoutTypes)
        .Random()
        .CannotFail(),
    Computed("spmd::full", ResultFactors)
        .Local(LocalResultSize)
        .Types(SizeTypes)
        .CannotFail()
        .With(&OpFacts::dims, DimsUse::kFills)
        .With(&OpFacts::sizes, "size"),
    Computed("spmd::iota", ResultFactors)
        .Local(LocalIota)
        .Types(IotaTypes)
        .CannotFail()
        .With(&OpFacts::enumerates, true),
    Drawn("spmd::poisson", BroadcastFactors),
    Computed("spmd::random", ResultFactors)
        .Local(LocalSizeAndOffset)
        .Types(SizeTypes)
        .Random()
        .CannotFail(),
    Drawn("spmd::standard_gamma", BroadcastFactors).CannotFail(),
    // Small tables, which every device computes in full.
    All(Computed("", NoFactors).CannotFail(), {"aten::bartlett_window",
                                               "aten::bartlett_window.periodic",
                                               "aten::blackman_window",
                                               "aten::blackman_window.periodic",
                                               "aten::eye",
                                               "aten::eye.m",
                                               "aten::fft_fftfreq",
                                               "aten::fft_rfftfreq",
                                               "aten::hamming_window",
                                               "aten::hamming_window.periodic",
                                               "aten::hamming_window.periodic_alpha",
                                               "aten::hamming_window.periodic_alpha_beta",
                                               "aten::hann_window",
                                               "aten::hann_window.periodic",
                                               "aten::kaiser_window",
                                               "aten::kaiser_window.beta",
                                               "aten::kaiser_window.periodic",
                                               "aten::linspace",
                                               "aten::logspace",
                                               "aten::tril_indices",
                                               "aten::triu_indices"}));
static_assert(AreRowsOf(Family::kCreation, kCreationRows), "see csrc/rules/families.h");

}  // namespace

absl::Span<const Row> CreationRows() { return kCreationRows; }

}  // namespace spmd::rules
