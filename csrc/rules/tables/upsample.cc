// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/tables/upsample.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/match.h"
#include "csrc/rules/registry.h"
#include "csrc/rules/tables/call_factors.h"
#include "csrc/rules/tables/sliding.h"

namespace spmd::rules {
namespace {

// PyTorch multiplies by the reciprocal in single precision. Up to here that equals exact division;
// the first exception is 41.
constexpr int64_t kLargestExact = 32;

// The number of copies of each index along spatial dimension i, or 0 if it is not a whole number.
int64_t Copies(const OpCall& call, int64_t in, int64_t out, int i, int rank) {
  if (in == 0 || out % in != 0 || out / in > kLargestExact) return 0;
  const int64_t copies = out / in;
  const double scale = call.attrs().GetDoubleOr(ScaleName(i, rank), static_cast<double>(copies));
  return scale == static_cast<double>(copies) ? copies : 0;
}

// The tensor with the copies is the result if `fine_is_result`, else the operand.
OpFactors Nearest(const OpCall& call, int rank, bool fine_is_result) {
  CallFactors f(call);
  const int leading = PassLeading(f, call, rank);
  for (int i = 0; i < rank; ++i) {
    const int d = leading + i;
    const int64_t operand = call.operand(0).dims[d], result = call.results[0].dims[d];
    const int64_t copies = fine_is_result ? Copies(call, operand, result, i, rank)
                                          : Copies(call, result, operand, i, rank);
    if (copies == 0) {
      f.OverOperand(0, d, f.AddWhole(operand));
      f.OverResult(d, f.AddWhole(result));
      continue;
    }
    const int index = f.Add(fine_is_result ? operand : result);
    f.OverOperand(0, d, index);
    f.OverResult(d, index);
    const int copy = f.AddWhole(copies);
    if (fine_is_result) {
      f.OverResult(d, copy);
    } else {
      f.OverOperand(0, d, copy);
    }
  }
  return f.Take();
}

}  // namespace

const char* ScaleName(int i, int rank) {
  static constexpr std::array<const char*, 3> kNames = {"scales_d", "scales_h", "scales_w"};
  return rank == 1 ? "scales" : kNames[3 - rank + i];
}

double GivenScale(const OpCall& call, int i, int rank) {
  if (call.attrs().GetBoolOr("align_corners", false)) return 0;
  return std::max(call.attrs().GetDoubleOr(ScaleName(i, rank), 0), 0.0);
}

bool IsAntialiased(const OpCall& call) { return absl::EndsWith(FactsOf(call.op).filter, "_aa"); }

bool KeepsDimension(const OpCall& call, int i, int rank, int64_t in, int64_t out) {
  if (in != out) return false;
  const double scale = GivenScale(call, i, rank);
  return scale == 0 || scale == 1 || FactsOf(call.op).filter == "linear";
}

absl::StatusOr<OpFactors> InterpolateFactors(const OpCall& call, int rank) {
  CallFactors f(call);
  const int leading = PassLeading(f, call, rank);
  for (int i = 0; i < rank; ++i) {
    const int d = leading + i;
    const int64_t operand = call.operand(0).dims[d], result = call.results[0].dims[d];
    if (KeepsDimension(call, i, rank, operand, result) && !IsAntialiased(call)) {
      f.Pass(d, d);
    } else {
      f.OverOperand(0, d, f.AddWhole(operand));
      f.OverResult(d, f.AddWhole(result));
    }
  }
  return f.Take();
}

absl::StatusOr<OpFactors> NearestFactors(const OpCall& call, int rank) {
  return Nearest(call, rank, /*fine_is_result=*/true);
}
absl::StatusOr<OpFactors> NearestBackwardFactors(const OpCall& call, int rank) {
  return Nearest(call, rank, /*fine_is_result=*/false);
}

absl::StatusOr<std::vector<TensorType>> UpsampleTypes(const OpCall& call) {
  return std::vector<TensorType>{
      WithSpatialSizes(call.operand(0), call.attrs().GetInts("output_size"))};
}

absl::StatusOr<std::vector<TensorType>> UpsampleBackwardTypes(const OpCall& call) {
  const std::vector<int64_t>& size = call.attrs().GetInts("input_size");
  return std::vector<TensorType>{{call.operand(0).dtype, Dims(size.begin(), size.end())}};
}

Attributes LocalUpsampleBackward(const OpCall& call, const OpFactors& factors,
                                 const CutFactors& cut, int rank) {
  Attributes local = WithLocalDims(call, factors, cut, "input_size");
  local.Set("output_size", LocalSpatialSizes(call, factors, cut, Operand(0), rank));
  return local;
}

}  // namespace spmd::rules
