// SPDX-License-Identifier: Apache-2.0
// Element types and tensor types. They have no strides, which the trace resolves.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "csrc/util/dims.h"
#include "csrc/util/scanner.h"

namespace spmd {

enum class DType : uint8_t {
  kBool,
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kU64,
  kI64,
  kF8E4M3FN,
  kF8E5M2,
  kF16,
  kBF16,
  kF32,
  kF64,
  kC32,
  kC64,
  kC128
};

// "bool" "u8" "i64" "bf16" "f32" "c64" "f8e4m3fn" …
absl::string_view DTypeName(DType dtype);
absl::StatusOr<DType> ParseDType(absl::string_view name);
int64_t ByteSize(DType dtype);
bool IsFloating(DType dtype);  // complex excluded
bool IsComplex(DType dtype);
DType RealOf(DType dtype);  // the type of a complex number's parts; the same for other types
bool IsIntegral(DType dtype, bool include_bool);

// True if a tensor may have these sizes: none is negative, and the product of all sizes other than
// 0 is at most 2^48, so that byte counts and sums of them fit in an int64_t.
bool IsTensorSize(absl::Span<const int64_t> dims);

struct TensorType {
  DType dtype = DType::kF32;
  Dims dims;

  int rank() const { return static_cast<int>(dims.size()); }
  int64_t NumElements() const { return ::spmd::NumElements(dims); }
  int64_t ByteSize() const { return NumElements() * ::spmd::ByteSize(dtype); }
  std::string ToString() const;  // "f32[32,128]"
  // Errors: InvalidArgument with the offending text; more than 2^48 elements.
  static absl::StatusOr<TensorType> Parse(absl::string_view text);
  static absl::StatusOr<TensorType> Parse(Scanner& in);  // leaves the text that follows

  friend bool operator==(const TensorType& a, const TensorType& b) {
    return a.dtype == b.dtype && a.dims == b.dims;
  }
  template <typename H>
  friend H AbslHashValue(H h, const TensorType& t) {
    return H::combine(std::move(h), t.dtype, t.dims);
  }
};

}  // namespace spmd
