// SPDX-License-Identifier: Apache-2.0
#include "csrc/ir/type.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "csrc/util/status.h"

namespace spmd {
namespace {

enum class Kind : uint8_t { kBool, kInt, kFloat, kComplex };

struct DTypeRow {
  DType dtype;
  const char* name;
  int64_t bytes;
  Kind kind;
};

constexpr DTypeRow kDTypes[] = {
    {DType::kBool, "bool", 1, Kind::kBool},      {DType::kU8, "u8", 1, Kind::kInt},
    {DType::kI8, "i8", 1, Kind::kInt},           {DType::kU16, "u16", 2, Kind::kInt},
    {DType::kI16, "i16", 2, Kind::kInt},         {DType::kU32, "u32", 4, Kind::kInt},
    {DType::kI32, "i32", 4, Kind::kInt},         {DType::kU64, "u64", 8, Kind::kInt},
    {DType::kI64, "i64", 8, Kind::kInt},         {DType::kF8E4M3FN, "f8e4m3fn", 1, Kind::kFloat},
    {DType::kF8E5M2, "f8e5m2", 1, Kind::kFloat}, {DType::kF16, "f16", 2, Kind::kFloat},
    {DType::kBF16, "bf16", 2, Kind::kFloat},     {DType::kF32, "f32", 4, Kind::kFloat},
    {DType::kF64, "f64", 8, Kind::kFloat},       {DType::kC32, "c32", 4, Kind::kComplex},
    {DType::kC64, "c64", 8, Kind::kComplex},     {DType::kC128, "c128", 16, Kind::kComplex},
};

constexpr bool InEnumOrder() {
  uint8_t next = 0;
  for (const DTypeRow& row : kDTypes) {
    if (static_cast<uint8_t>(row.dtype) != next++) return false;
  }
  return next == static_cast<uint8_t>(DType::kC128) + 1;
}
static_assert(InEnumOrder(), "kDTypes is indexed by the enumerator");

const DTypeRow& Row(DType dtype) { return kDTypes[static_cast<uint8_t>(dtype)]; }

}  // namespace

absl::string_view DTypeName(DType dtype) { return Row(dtype).name; }

absl::StatusOr<DType> ParseDType(absl::string_view name) {
  for (const DTypeRow& row : kDTypes) {
    if (name == row.name) return row.dtype;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", name, "' is no element type; expected one like f32, bf16, i64 or bool"));
}

int64_t ByteSize(DType dtype) { return Row(dtype).bytes; }
bool IsFloating(DType dtype) { return Row(dtype).kind == Kind::kFloat; }
bool IsComplex(DType dtype) { return Row(dtype).kind == Kind::kComplex; }

DType RealOf(DType dtype) {
  switch (dtype) {
    case DType::kC32:
      return DType::kF16;
    case DType::kC64:
      return DType::kF32;
    case DType::kC128:
      return DType::kF64;
    default:
      return dtype;
  }
}
bool IsIntegral(DType dtype, bool include_bool) {
  return Row(dtype).kind == Kind::kInt || (include_bool && Row(dtype).kind == Kind::kBool);
}

bool IsTensorSize(absl::Span<const int64_t> dims) {
  int64_t elements = 1;
  for (const int64_t size : dims) {
    // A size of 0 must not hide an overflow of the other dimensions.
    const int64_t factor = std::max<int64_t>(size, 1);
    if (size < 0 || factor > kMaxElements / elements) return false;
    elements *= factor;
  }
  return true;
}

std::string TensorType::ToString() const {
  return absl::StrCat(DTypeName(dtype), DimsToString(dims));
}

absl::StatusOr<TensorType> TensorType::Parse(Scanner& in) {
  TensorType type;
  SPMD_ASSIGN_OR_RETURN(const absl::string_view dtype, in.Identifier("a type like f32[32,128]"));
  SPMD_ASSIGN_OR_RETURN(type.dtype, ParseDType(dtype));
  SPMD_RETURN_IF_ERROR(in.Expect("["));
  if (in.Consume("]")) return type;
  do {
    const size_t begin = in.position();
    SPMD_ASSIGN_OR_RETURN(const int64_t size, in.Integer("the size of a dimension"));
    type.dims.push_back(size);
    if (!IsTensorSize(type.dims)) {
      in.Seek(begin);
      return in.Error("sizes >= 0 with a product of at most 2^48");
    }
  } while (in.Consume(","));
  SPMD_RETURN_IF_ERROR(in.Expect("]"));
  return type;
}

absl::StatusOr<TensorType> TensorType::Parse(absl::string_view text) {
  Scanner in(text);
  SPMD_ASSIGN_OR_RETURN(TensorType type, Parse(in));
  SPMD_RETURN_IF_ERROR(in.ExpectEnd());
  return type;
}

}  // namespace spmd
