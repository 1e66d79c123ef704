// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/promotion.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "csrc/util/status.h"

namespace spmd::rules {
namespace {

enum Category { kNothing, kBoolean, kInteger, kReal, kComplexNumber };

Category CategoryOf(DType t) {
  if (t == DType::kBool) return kBoolean;
  if (IsComplex(t)) return kComplexNumber;
  return IsFloating(t) ? kReal : kInteger;
}

bool IsUnsigned(DType t) {
  return t == DType::kU8 || t == DType::kU16 || t == DType::kU32 || t == DType::kU64;
}

DType SignedOfSize(int64_t bytes) {
  return bytes == 1   ? DType::kI8
         : bytes == 2 ? DType::kI16
         : bytes == 4 ? DType::kI32
                      : DType::kI64;
}

DType PromoteIntegers(DType a, DType b) {
  if (IsUnsigned(a) == IsUnsigned(b)) return ByteSize(a) >= ByteSize(b) ? a : b;
  const DType u = IsUnsigned(a) ? a : b, s = IsUnsigned(a) ? b : a;
  if (ByteSize(s) > ByteSize(u)) return s;
  return SignedOfSize(std::min<int64_t>(2 * ByteSize(u), 8));
}

DType PromoteReals(DType a, DType b) {
  if (ByteSize(a) == ByteSize(b)) return ByteSize(a) == 1 ? DType::kF16 : DType::kF32;
  return ByteSize(a) > ByteSize(b) ? a : b;
}

DType PromoteComplex(DType a, DType b) {
  const bool wide = a == DType::kF64 || b == DType::kF64 || a == DType::kC128 || b == DType::kC128;
  if (wide) return DType::kC128;
  const bool half = (a == DType::kC32 || ByteSize(a) <= 2 || !(IsFloating(a) || IsComplex(a))) &&
                    (b == DType::kC32 || ByteSize(b) <= 2 || !(IsFloating(b) || IsComplex(b)));
  return half ? DType::kC32 : DType::kC64;
}

Category ScalarCategory(const Attributes& attributes) {
  Category highest = kNothing;
  // The scalars that promote. "alpha" does not: it multiplies in the type of the operands. "min"
  // and "max" belong to clamp, "weight" to lerp; dims and flags of other ops have other names.
  for (absl::string_view name :
       {"other", "value", "exponent", "self", "min", "max", "weight", "fill_value"}) {
    const Attr* attr = attributes.Find(name);
    if (attr == nullptr) continue;
    Category c = kNothing;
    if (std::holds_alternative<bool>(*attr)) c = kBoolean;
    if (std::holds_alternative<int64_t>(*attr)) c = kInteger;
    if (std::holds_alternative<double>(*attr)) c = kReal;
    if (std::holds_alternative<std::complex<double>>(*attr)) c = kComplexNumber;
    highest = std::max(highest, c);
  }
  return highest;
}

DType DefaultOf(Category c, DType operands) {
  switch (c) {
    case kBoolean:
      return DType::kBool;
    case kInteger:
      return DType::kI64;
    case kComplexNumber:
      return operands == DType::kF64 ? DType::kC128 : DType::kC64;
    default:
      return DType::kF32;
  }
}

}  // namespace

DType Promote(DType a, DType b) {
  if (a == b) return a;
  if (IsComplex(a) || IsComplex(b)) return PromoteComplex(a, b);
  const Category ca = CategoryOf(a), cb = CategoryOf(b);
  if (ca != cb) return ca > cb ? a : b;
  return ca == kReal ? PromoteReals(a, b) : PromoteIntegers(a, b);
}

DType PromotedDType(const OpCall& call) {
  struct Group {
    bool any = false;
    DType type = DType::kBool;
    void Add(DType t) {
      type = any ? Promote(type, t) : t;
      any = true;
    }
    Category category() const { return any ? CategoryOf(type) : kNothing; }
  };
  Group dimensioned, scalars;
  for (const TensorType* type : call.operands) {
    if (type == nullptr) continue;
    (type->rank() > 0 ? dimensioned : scalars).Add(type->dtype);
  }
  if (scalars.category() > dimensioned.category()) {
    if (dimensioned.any) scalars.Add(dimensioned.type);
    dimensioned = scalars;
  }
  const Category attribute = call.attributes ? ScalarCategory(call.attrs()) : kNothing;
  if (attribute > dimensioned.category()) {
    return DefaultOf(attribute, dimensioned.any ? dimensioned.type : DType::kF32);
  }
  return dimensioned.type;
}

absl::StatusOr<Dims> BroadcastDims(const OpCall& call) {
  int rank = 0;
  for (const TensorType* type : call.operands) {
    if (type != nullptr) rank = std::max(rank, type->rank());
  }
  Dims dims(rank, 1);
  for (const TensorType* type : call.operands) {
    if (type == nullptr) continue;
    for (int i = 0; i < type->rank(); ++i) {
      int64_t& known = dims[rank - type->rank() + i];
      if (known != 1 && type->dims[i] != 1 && known != type->dims[i]) {
        return absl::InvalidArgumentError(absl::StrCat(call.ToString(), ": sizes ", known, " and ",
                                                       type->dims[i], " do not broadcast"));
      }
      if (known == 1) known = type->dims[i];
    }
  }
  return dims;
}

absl::StatusOr<std::vector<TensorType>> PromotedTypes(const OpCall& call) {
  SPMD_ASSIGN_OR_RETURN(Dims dims, BroadcastDims(call));
  return std::vector<TensorType>{{PromotedDType(call), std::move(dims)}};
}

absl::StatusOr<OpFactors> BroadcastFactors(const OpCall& call) {
  SPMD_ASSIGN_OR_RETURN(const Dims dims, BroadcastDims(call));
  const int rank = static_cast<int>(dims.size());
  OpFactors f;
  for (int64_t size : dims) f.factors.push_back({.size = size});
  auto factors_of = [&](const TensorType* type) {
    TensorFactors tensor;
    for (int i = 0; type != nullptr && i < type->rank(); ++i) {
      const int factor = rank - type->rank() + i;
      tensor.push_back(type->dims[i] == dims[factor] ? DimFactors{factor} : DimFactors{});
    }
    return tensor;
  };
  for (const TensorType* type : call.operands) f.operands.push_back(factors_of(type));
  for (const TensorType& type : call.results) {
    if (type.dims != dims) {
      return absl::InvalidArgumentError(absl::StrCat(call.ToString(), " has a result ",
                                                     type.ToString(), "; expected dims ",
                                                     DimsToString(dims)));
    }
    f.results.push_back(factors_of(&type));
  }
  return f;
}

}  // namespace spmd::rules
