// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>

#include "absl/strings/str_split.h"
#include "csrc/reference/op_args.h"

namespace spmd::reference {
namespace {

// The labels of a tensor of `rank`. The dimensions that '.' stands for are labelled 'Z' for the
// last one, 'Y', …; named ones are lower-case letters.
std::string ExpandEllipsis(absl::string_view labels, int rank) {
  std::string out;
  const int leading = std::min(rank - (static_cast<int>(labels.size()) - 1), 26);
  for (char label : labels) {
    if (label != '.') {
      out.push_back(label);
      continue;
    }
    for (int d = 0; d < leading; ++d) out.push_back(static_cast<char>('Z' + 1 + d - leading));
  }
  return out;
}

using Sizes = std::map<char, int64_t>;

// Records the sizes of the labels; a leading dimension of size 1 broadcasts. Returns false if a
// size does not fit.
bool Collect(const std::string& labels, absl::Span<const int64_t> dims, Sizes& sizes) {
  if (labels.size() != dims.size()) return false;
  for (size_t d = 0; d < dims.size(); ++d) {
    const auto [it, inserted] = sizes.try_emplace(labels[d], dims[d]);
    if (inserted || it->second == dims[d]) continue;
    if (labels[d] > 'Z' || (dims[d] != 1 && it->second != 1)) return false;
    it->second = std::max(it->second, dims[d]);
  }
  return true;
}

Dims DimsOf(const std::string& labels, const Sizes& sizes) {
  Dims dims;
  for (char label : labels) dims.push_back(sizes.at(label));
  return dims;
}

}  // namespace

absl::StatusOr<Literal> Contract(const OpArgs& args, int k, absl::string_view spec,
                                 absl::Span<const Literal* const> operands) {
  const std::vector<absl::string_view> sides = absl::StrSplit(spec, "->");
  const std::vector<absl::string_view> texts = absl::StrSplit(sides[0], ',');
  std::vector<std::string> labels;
  Sizes sizes;
  size_t leading = 0;
  for (size_t i = 0; i < operands.size(); ++i) {
    labels.push_back(ExpandEllipsis(texts[i], operands[i]->type.rank()));
    if (texts[i][0] == '.') leading = std::max(leading, labels[i].size() - texts[i].size() + 1);
    if (!Collect(labels[i], operands[i]->type.dims, sizes)) {
      return args.Error(absl::StrCat("operand ", i, ", ", operands[i]->type.ToString(),
                                     ", does not fit '", spec, "'"));
    }
  }
  const std::string out_labels =
      ExpandEllipsis(sides[1], static_cast<int>(sides[1].size() - 1 + leading));
  std::string all = out_labels;
  for (const auto& [label, size] : sizes) {
    if (all.find(label) == std::string::npos) all.push_back(label);
  }
  SPMD_ASSIGN_OR_RETURN(Literal out, args.Make(k, DimsOf(out_labels, sizes)));
  const Dims space = DimsOf(all, sizes);
  double points = static_cast<double>(operands.size());
  for (const int64_t size : space) points *= static_cast<double>(size);
  SPMD_RETURN_IF_ERROR(args.CheckWork(points));
  for (int64_t i = 0, count = NumElements(space); i < count; ++i) {
    const Dims index = Unravel(i, space);
    double product = 1;
    for (size_t o = 0; o < operands.size(); ++o) {
      Dims at;
      for (char label : labels[o]) at.push_back(index[all.find(label)]);
      product *= operands[o]->data[RavelBroadcast(at, operands[o]->type.dims)];
    }
    out.data[Ravel(absl::MakeConstSpan(index).subspan(0, out_labels.size()), out.type.dims)] +=
        product;
  }
  return out;
}

}  // namespace spmd::reference
