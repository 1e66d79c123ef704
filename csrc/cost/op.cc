// SPDX-License-Identifier: Apache-2.0
#include "csrc/cost/op.h"

#include <algorithm>
#include <vector>

#include "csrc/util/dims.h"
#include "csrc/util/status.h"

namespace spmd::cost {
namespace {

using rules::OpFactors;
using rules::TensorFactors;

double Padded(int64_t n, int64_t to) {
  return static_cast<double>(CeilDiv(n, std::max<int64_t>(to, 1)) * std::max<int64_t>(to, 1));
}

// The multiple that the hardware pads dimension `dim` to: columns for the last, rows for the one
// before.
int64_t PaddingOf(size_t dim, size_t rank, const machine::Machine& machine) {
  if (dim + 1 == rank) return machine.tile_columns;
  return dim + 2 == rank ? machine.tile_rows : 1;
}

class TileCost {
 public:
  TileCost(const OpFactors& factors, absl::Span<const int64_t> shards,
           const machine::Machine& machine)
      : factors_(factors), shards_(shards), machine_(machine), padding_(shards.size(), 1) {}

  void Count(const TensorType& type, const TensorFactors& tensor) {
    double elements = 1;
    for (size_t d = 0; d < type.dims.size(); ++d) {
      const int64_t padding = PaddingOf(d, type.dims.size(), machine_);
      int64_t parts = 1;
      for (int f : tensor[d]) parts *= shards_[f];
      elements *= Padded(CeilDiv(type.dims[d], parts), padding);
      // Padding lengthens the minor factor of a dimension.
      if (!tensor[d].empty()) {
        int64_t& widest = padding_[tensor[d].back()];
        widest = std::max(widest, padding);
      }
    }
    bytes_ += elements * static_cast<double>(ByteSize(type.dtype));
  }

  double Points() const {
    double points = 1;
    for (size_t f = 0; f < factors_.factors.size(); ++f) {
      points *= Padded(CeilDiv(factors_.factors[f].size, shards_[f]), padding_[f]);
    }
    return points;
  }
  double bytes() const { return bytes_; }

 private:
  const OpFactors& factors_;
  absl::Span<const int64_t> shards_;
  const machine::Machine& machine_;
  std::vector<int64_t> padding_;  // by factor
  double bytes_ = 0;
};

}  // namespace

double OpSeconds(const OpFactors& factors, const rules::Rule* rule, const rules::OpCall& call,
                 absl::Span<const int64_t> shards, const machine::Machine& machine) {
  SPMD_CHECK(shards.size() == factors.factors.size(), call.ToString(), " has ",
             factors.factors.size(), " factors; ", shards.size(), " shard counts given");
  TileCost tile(factors, shards, machine);
  for (size_t i = 0; i < call.operands.size(); ++i) {
    if (call.has(static_cast<int>(i))) tile.Count(call.operand(i), factors.operands[i]);
  }
  for (size_t i = 0; i < call.results.size(); ++i) tile.Count(call.results[i], factors.results[i]);
  const double flops = (rule == nullptr ? 1 : rule->flops_per_point) * tile.Points();
  return std::max(flops / machine.flops, tile.bytes() / machine.memory_bandwidth);
}

}  // namespace spmd::cost
