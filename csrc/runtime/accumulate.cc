// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/accumulate.h"

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "csrc/runtime/tiled_tensor.h"

namespace spmd::runtime {
namespace {

// The number of elements per block. All terms are added to a block while it is in the nearest
// cache.
constexpr int64_t kBlock = 2048;

template <typename T>
void SumBlocks(absl::Span<const void* const> terms, int64_t numel,
               absl::Span<void* const> targets) {
  using Work = at::opmath_type<T>;
  const auto term = [&](size_t t) { return static_cast<const T*>(terms[t]); };
  at::parallel_for(0, numel, 4 * kBlock, [&](int64_t begin, int64_t end) {
    Work block[kBlock];
    for (int64_t at = begin; at < end; at += kBlock) {
      const int64_t n = std::min(kBlock, end - at);
      const T* first = term(0) + at;
      for (int64_t i = 0; i < n; ++i) block[i] = static_cast<Work>(first[i]);
      for (size_t t = 1; t < terms.size(); ++t) {
        const T* next = term(t) + at;
        for (int64_t i = 0; i < n; ++i) block[i] += static_cast<Work>(next[i]);
      }
      for (void* const target : targets) {
        T* const to = static_cast<T*>(target) + at;
        for (int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(block[i]);
      }
    }
  });
}

bool IsSummedInBlocks(at::ScalarType type) {
  return at::isFloatingType(type) && !at::isFloat8Type(type);
}

// Requires: IsSummedInBlocks(type).
void SumRows(at::ScalarType type, absl::Span<const void* const> terms, int64_t n,
             absl::Span<void* const> targets) {
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, type, "spmd all_reduce",
                                  [&] { SumBlocks<scalar_t>(terms, n, targets); });
}

// Sums contiguous floating-point terms on the CPU. False if they are something else, and nothing
// was done.
bool SumOnCpu(const std::vector<at::Tensor>& terms, at::Tensor& target) {
  if (!target.is_cpu() || !target.is_contiguous() || !IsSummedInBlocks(target.scalar_type())) {
    return false;
  }
  std::vector<const void*> data;
  for (const at::Tensor& term : terms) {
    if (!term.is_contiguous()) return false;
    data.push_back(term.const_data_ptr());
  }
  void* const targets[] = {target.mutable_data_ptr()};
  SumRows(target.scalar_type(), data, target.numel(), targets);
  return true;
}

c10::Scalar IdentityOf(ReduceKind kind, at::ScalarType type) {
  const bool real = at::isFloatingType(type);
  const double infinity = std::numeric_limits<double>::infinity();
  switch (kind) {
    case ReduceKind::kSum:
    case ReduceKind::kOr:
      return 0;
    case ReduceKind::kProd:
    case ReduceKind::kAnd:
      return 1;
    case ReduceKind::kMax:
      if (real) return -infinity;
      break;
    case ReduceKind::kMin:
      if (real) return infinity;
      break;
  }
  const bool lowest = kind == ReduceKind::kMax;
  switch (type) {
    case at::kBool:
      return lowest ? 0 : 1;
    case at::kByte:
      return lowest ? 0 : 255;
    case at::kChar:
      return lowest ? -128 : 127;
    case at::kShort:
      return lowest ? -32768 : 32767;
    case at::kInt:
      return lowest ? std::numeric_limits<int32_t>::lowest() : std::numeric_limits<int32_t>::max();
    default:
      return lowest ? std::numeric_limits<int64_t>::lowest() : std::numeric_limits<int64_t>::max();
  }
}

}  // namespace

void AccumulateInto(ReduceKind kind, const at::Tensor& term, at::Tensor& target) {
  switch (kind) {
    case ReduceKind::kSum:
      target.add_(term);
      return;
    case ReduceKind::kProd:
      target.mul_(term);
      return;
    case ReduceKind::kMax:
      at::maximum_out(target, target, term);
      return;
    case ReduceKind::kMin:
      at::minimum_out(target, target, term);
      return;
    case ReduceKind::kAnd:
      target.logical_and_(term);
      return;
    case ReduceKind::kOr:
      target.logical_or_(term);
      return;
  }
}

void AccumulateTerms(ReduceKind kind, const std::vector<at::Tensor>& terms, at::Tensor& target) {
  if (kind == ReduceKind::kSum && SumOnCpu(terms, target)) return;
  if (!target.is_same(terms[0])) target.copy_(terms[0]);
  for (size_t t = 1; t < terms.size(); ++t) AccumulateInto(kind, terms[t], target);
}

void AccumulateRows(ReduceKind kind, at::ScalarType type, absl::Span<const void* const> terms,
                    int64_t n, absl::Span<void* const> targets) {
  if (kind == ReduceKind::kSum && IsSummedInBlocks(type)) {
    SumRows(type, terms, n, targets);
    return;
  }
  const auto row = [&](const void* at) { return at::from_blob(const_cast<void*>(at), {n}, type); };
  std::vector<at::Tensor> rows;
  for (const void* const term : terms) rows.push_back(row(term));
  at::Tensor sum = row(targets[0]);
  AccumulateTerms(kind, rows, sum);
  for (void* const target : targets.subspan(1)) std::memcpy(target, targets[0], sum.nbytes());
}

at::Tensor IdentityTile(const Backend& backend, const Place& place, ReduceKind kind, DType dtype,
                        const Dims& dims) {
  const at::ScalarType type = ToScalarType(dtype);
  return backend.Allocate(place, {}, type)
      .fill_(IdentityOf(kind, type))
      .expand(at::IntArrayRef(dims.data(), dims.size()));
}

}  // namespace spmd::runtime
