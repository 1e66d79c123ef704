// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/factors.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace spmd::rules {
namespace {

bool Lists(const TensorFactors& tensor, int factor) {
  return std::any_of(tensor.begin(), tensor.end(), [factor](const DimFactors& dim) {
    return std::find(dim.begin(), dim.end(), factor) != dim.end();
  });
}

bool AnyLists(const std::vector<TensorFactors>& tensors, int factor) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [factor](const TensorFactors& t) { return Lists(t, factor); });
}

// The letters of factors: a … z, a1 … z1, a2 …
std::string Letter(int factor) {
  std::string letter(1, static_cast<char>('a' + factor % 26));
  if (factor >= 26) absl::StrAppend(&letter, factor / 26);
  return letter;
}

std::string DimText(const DimFactors& dim, const std::vector<Factor>& factors) {
  if (dim.empty()) return "1";
  std::string text = absl::StrJoin(dim, " ", [&](std::string* out, int f) {
    absl::StrAppend(out, factors[f].whole ? absl::StrCat("[", Letter(f), "]") : Letter(f));
  });
  return dim.size() == 1 ? text : absl::StrCat("(", text, ")");
}

std::string TensorsText(const std::vector<TensorFactors>& tensors,
                        const std::vector<Factor>& factors) {
  return absl::StrJoin(tensors, ", ", [&](std::string* out, const TensorFactors& tensor) {
    absl::StrAppend(out, tensor.empty()
                             ? "()"
                             : absl::StrJoin(tensor, " ", [&](std::string* o, const DimFactors& d) {
                                 absl::StrAppend(o, DimText(d, factors));
                               }));
  });
}

}  // namespace

bool OpFactors::InOperand(int factor, int operand) const {
  return Lists(operands[operand], factor);
}
bool OpFactors::InResult(int factor, int result) const { return Lists(results[result], factor); }
bool OpFactors::InAnyResult(int factor) const { return AnyLists(results, factor); }
bool OpFactors::InAnyOperand(int factor) const { return AnyLists(operands, factor); }

std::string OpFactors::ToString() const {
  std::string text =
      absl::StrCat(TensorsText(operands, factors), " -> ", TensorsText(results, factors), "  {");
  for (int f = 0; f < static_cast<int>(factors.size()); ++f) {
    const Factor& factor = factors[f];
    absl::StrAppend(&text, f == 0 ? "" : ", ", Letter(f), "=", factor.size);
    if (factor.reduce != ReduceKind::kSum) {
      absl::StrAppend(&text, " ", ReduceKindName(factor.reduce));
    }
    if (factor.granularity != 1) absl::StrAppend(&text, " by ", factor.granularity);
  }
  text += "}";
  for (const Window& w : windows) {
    absl::StrAppend(&text, " window(o", w.operand, ",", w.dim, " ", Letter(w.factor), ": ",
                    w.begin.ToString(), " to ", w.end.ToString(), " of ", w.extent);
    if (w.fill != 0) absl::StrAppend(&text, " fill ", w.fill);
    for (const Interval& part : w.order) {
      absl::StrAppend(&text, &part == &w.order[0] ? " order " : ",", part.begin, "..", part.end);
    }
    text += ")";
  }
  return text;
}

}  // namespace spmd::rules
