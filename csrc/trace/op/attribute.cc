// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/op/attribute.h"

#include <algorithm>
#include <vector>

#include "csrc/runtime/tiled_tensor.h"
#include "csrc/util/status.h"

namespace spmd::trace {

bool IsRuntimeValue(const ArgInfo& info, const c10::IValue& arg) {
  const NumberArgument& number = info.number;
  if (number.use == NumberUse::kStructural || arg.isNone()) return false;
  if (number.known.empty() || !arg.isScalar() || arg.isComplexDouble()) return true;
  const double value = arg.toScalar().toDouble();
  return std::find(number.known.begin(), number.known.end(), value) == number.known.end();
}

Attr AttrOf(const ArgInfo& info, const c10::IValue& v) {
  if (v.isNone()) return NoneAttr{};
  if (v.isBool()) return v.toBool();
  if (v.isInt()) {
    if (info.is_dtype) return runtime::FromScalarType(static_cast<c10::ScalarType>(v.toInt()));
    return v.toInt();
  }
  if (v.isDouble()) return v.toDouble();
  if (v.isComplexDouble()) {
    const auto c = v.toComplexDouble();
    return std::complex<double>(c.real(), c.imag());
  }
  if (v.isString()) return v.toStringRef();
  if (v.isIntList()) return v.toIntVector();
  if (v.isDoubleList()) return v.toDoubleVector();
  if (v.isBoolList()) {
    std::vector<bool> out;
    for (const bool b : v.toBoolList()) out.push_back(b);
    return out;
  }
  SPMD_CHECK(v.isList(), "argument '", info.name, "' of kind ", v.tagKind(), " is no attribute");
  std::vector<int64_t> ints;
  std::vector<double> doubles;
  bool all_ints = true;
  for (const c10::IValue& item : v.toListRef()) {
    all_ints = all_ints && item.isInt();
    ints.push_back(item.isInt() ? item.toInt() : 0);
    doubles.push_back(item.toScalar().toDouble());
  }
  if (all_ints) return ints;
  return doubles;
}

}  // namespace spmd::trace
