// SPDX-License-Identifier: Apache-2.0
#include "csrc/ir/fingerprint.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"
#include "csrc/ir/graph.h"

namespace spmd::ir {
namespace {

// A bijection in which every bit of the result depends on every bit of the argument: two rounds of
// xor-shift and multiplication by an odd constant.
uint64_t Scramble(uint64_t x) {
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93;
  x ^= x >> 32;
  return x;
}

uint64_t Rotate(uint64_t x, int by) { return (x << by) | (x >> (64 - by)); }

void AddAnnotationTo(Fingerprinter& f, const std::optional<Annotation>& annotation) {
  f.Add(annotation.has_value());
  if (!annotation.has_value()) return;
  const int hold = annotation->of_parameter ? 3 : static_cast<int>(annotation->hold);
  f.Add(annotation->grid).Add(hold).Add(annotation->sharding);
}

void AddNodeTo(Fingerprinter& f, const Node& node) {
  f.Add(node.op).Add(static_cast<int64_t>(node.operands.size()));
  for (ValueId operand : node.operands) f.Add(operand);
  f.Add(static_cast<int64_t>(node.groups.size()));
  for (OperandGroup group : node.groups) f.Add(group.begin).Add(group.size);
  f.Add(node.attributes).Add(node.first_result).Add(node.num_results);
  f.Add(node.updates).Add(node.task).Add(node.cut.has_value());
  if (!node.cut.has_value()) return;
  f.Add(node.cut_grid).Add(static_cast<int64_t>(node.cut->size()));
  for (const FactorCut& cut : *node.cut) {
    f.Add(cut.factor).Add(absl::MakeConstSpan(cut.axes)).Add(cut.chunk);
  }
}

}  // namespace

std::string Fingerprint::ToString() const { return absl::StrFormat("%016x%016x", hi, lo); }

Fingerprinter& Fingerprinter::Add(uint64_t word) {
  // Each lane is a bijection of its state for a given word, because the constants are odd.
  lo_ = Scramble(lo_ ^ word) + 0x9e3779b97f4a7c15;
  hi_ = Scramble(hi_ + Rotate(word, 29) * 0xa0761d6478bd642f) ^ Rotate(lo_, 17);
  return *this;
}

Fingerprinter& Fingerprinter::Add(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return Add(bits);
}

Fingerprinter& Fingerprinter::Add(absl::string_view bytes) {
  Add(static_cast<uint64_t>(bytes.size()));
  for (size_t i = 0; i < bytes.size(); i += 8) {
    uint64_t word = 0;
    for (size_t k = i; k < std::min(i + 8, bytes.size()); ++k) {
      word = word << 8 | static_cast<uint8_t>(bytes[k]);
    }
    Add(word);
  }
  return *this;
}

Fingerprinter& Fingerprinter::Add(absl::Span<const int64_t> list) {
  Add(static_cast<uint64_t>(list.size()));
  for (int64_t item : list) Add(item);
  return *this;
}

Fingerprinter& Fingerprinter::Add(absl::Span<const AxisId> axes) {
  Add(static_cast<uint64_t>(axes.size()));
  for (AxisId axis : axes) Add(static_cast<int>(axis));
  return *this;
}

Fingerprinter& Fingerprinter::Add(const TensorType& type) {
  return Add(static_cast<int>(type.dtype)).Add(absl::MakeConstSpan(type.dims));
}

Fingerprinter& Fingerprinter::Add(const Attributes& attributes) {
  for (const auto& [name, value] : attributes) {
    // Different values have different texts; see attributes.h.
    Add(absl::string_view(name)).Add(absl::string_view(AttrToString(value)));
  }
  return Add(~uint64_t{0});  // marks the end, in place of a length
}

Fingerprinter& Fingerprinter::Add(const Sharding& sharding) {
  Add(static_cast<uint64_t>(sharding.dims.size()));
  for (const DimSharding& dim : sharding.dims) {
    Add(absl::MakeConstSpan(dim.axes)).Add(dim.chunk).Add(dim.open);
  }
  Add(absl::MakeConstSpan(sharding.unreduced)).Add(static_cast<int>(sharding.reduce_kind));
  return sharding.manual.empty() ? *this : Add(absl::MakeConstSpan(sharding.manual));
}

Fingerprinter& Fingerprinter::Add(const Grid& grid) {
  Add(absl::MakeConstSpan(grid.device_ids())).Add(grid.num_axes());
  for (int a = 0; a < grid.num_axes(); ++a) {
    const SubAxis& axis = grid.axis(static_cast<AxisId>(a));
    Add(absl::string_view(axis.axis)).Add(axis.index).Add(axis.size);
    if (axis.bandwidth != 1) Add(axis.bandwidth);
  }
  return *this;
}

Fingerprint Fingerprinter::Finish() const {
  return {Scramble(hi_ ^ Rotate(lo_, 31)), Scramble(lo_ + hi_)};
}

Fingerprint Graph::ComputeFingerprint() const {
  Fingerprinter f;
  f.Add(static_cast<int64_t>(grids_.size()));
  for (const GridPtr& grid : grids_) f.Add(*grid);
  f.Add(static_cast<int64_t>(scalars_.size()));
  for (ScalarKind kind : scalars_) f.Add(static_cast<int>(kind));
  f.Add(static_cast<int64_t>(values_.size()));
  for (const Value& value : values_) {
    f.Add(value.type).Add(value.producer).Add(value.index);
    AddAnnotationTo(f, value.annotation);
  }
  f.Add(static_cast<int64_t>(nodes_.size()));
  for (const Node& node : nodes_) AddNodeTo(f, node);
  f.Add(static_cast<int64_t>(outputs_.size()));
  for (const Output& output : outputs_) {
    f.Add(output.value).Add(output.becomes);
    f.Add((output.may_stay_unreduced ? 1 : 0) + (output.held ? 2 : 0));
  }
  return f.Finish();
}

}  // namespace spmd::ir
