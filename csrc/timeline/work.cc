// SPDX-License-Identifier: Apache-2.0
#include "csrc/timeline/work.h"

#include <algorithm>
#include <vector>

#include "csrc/cost/tile.h"
#include "csrc/rules/registry.h"
#include "csrc/rules/rule.h"

namespace spmd::timeline {
namespace {

using program::Instruction;
using program::Program;
using program::ValueId;
using rules::OpFactors;
using rules::TensorFactors;

// Rules with this many FLOPs per point or more work on products.
constexpr double kProductFlops = 2;

// The type of the largest tile.
TensorType TileType(const Program& program, ValueId id) {
  const program::Value& value = program.values[id];
  const Grid& grid = *program.grids[value.grid];
  TensorType type = value.type;
  for (int d = 0; d < type.rank(); ++d) {
    type.dims[d] = cost::MaxShardSize(value.sharding.dims[d], value.type.dims[d], grid);
  }
  for (const program::WindowDim& window : value.windows) {
    const AxisList& axes = value.sharding.dims[window.dim].axes;
    const int64_t shards = grid.size(axes);
    int64_t largest = 0;
    for (int64_t shard : {int64_t{0}, shards / 2, shards - 1}) {
      largest = std::max(largest, window.At(grid, axes, shard).size());
    }
    type.dims[window.dim] = largest;
  }
  return type;
}

struct TileCall {
  std::vector<TensorType> types;  // of the operands
  rules::OpCall call;
};

TileCall CallOnTiles(const Program& program, const Instruction& instruction) {
  TileCall tiles;
  tiles.types.reserve(instruction.operands.size());
  tiles.call.op = instruction.op;
  tiles.call.attributes = &instruction.attributes;
  for (ir::OperandGroup group : instruction.groups) tiles.call.groups.push_back(group);
  for (ValueId id : instruction.operands) {
    if (id == program::kNoValue) {
      tiles.call.operands.push_back(nullptr);
      continue;
    }
    tiles.types.push_back(TileType(program, id));
    tiles.call.operands.push_back(&tiles.types.back());
  }
  for (ValueId id : instruction.results) tiles.call.results.push_back(TileType(program, id));
  return tiles;
}

// True if the call sums over a factor that two operands have.
bool SumsProducts(const OpFactors& factors) {
  for (size_t f = 0; f < factors.factors.size(); ++f) {
    const int factor = static_cast<int>(f);
    int operands = 0;
    for (size_t k = 0; k < factors.operands.size(); ++k) {
      operands += factors.InOperand(factor, static_cast<int>(k));
    }
    for (size_t r = 0; operands >= 2 && r < factors.results.size(); ++r) {
      if (!factors.InResult(factor, static_cast<int>(r))) return true;
    }
  }
  return false;
}

// An op that runs over a whole dimension that a result has, too, normalises it.
bool Normalises(const OpFactors& factors) {
  for (size_t f = 0; f < factors.factors.size(); ++f) {
    const int factor = static_cast<int>(f);
    if (factors.factors[f].whole && factors.InAnyOperand(factor) && factors.InAnyResult(factor)) {
      return true;
    }
  }
  return false;
}

// A result lacks a factor of an operand.
bool Reduces(const OpFactors& factors) {
  for (size_t f = 0; f < factors.factors.size(); ++f) {
    const int factor = static_cast<int>(f);
    for (size_t r = 0; r < factors.results.size(); ++r) {
      if (factors.InAnyOperand(factor) && !factors.InResult(factor, static_cast<int>(r))) {
        return true;
      }
    }
  }
  return false;
}

double Padded(int64_t n, int64_t to) {
  to = std::max<int64_t>(to, 1);
  return static_cast<double>(CeilDiv(n, to) * to);
}

// The number of points of the call's factors where the last dimension of each tensor is padded to
// columns, and the one before to rows. Padding lengthens the minor factor of a dimension.
double PaddedPoints(const OpFactors& factors, const machine::Machine& machine) {
  std::vector<int64_t> padding(factors.factors.size(), 1);
  const auto pad = [&](const TensorFactors& tensor) {
    const size_t rank = tensor.size();
    for (size_t d = rank < 2 ? 0 : rank - 2; d < rank; ++d) {
      if (tensor[d].empty()) continue;
      int64_t& widest = padding[tensor[d].back()];
      const int64_t to = d + 1 == rank ? machine.tile_columns : machine.tile_rows;
      widest = std::max(widest, to);
    }
  };
  for (const TensorFactors& tensor : factors.operands) pad(tensor);
  for (const TensorFactors& tensor : factors.results) pad(tensor);
  double points = 1;
  for (size_t f = 0; f < factors.factors.size(); ++f) {
    points *= Padded(factors.factors[f].size, padding[f]);
  }
  return points;
}

int TensorsWith(const OpFactors& factors, int factor) {
  int tensors = 0;
  for (size_t k = 0; k < factors.operands.size(); ++k) {
    tensors += factors.InOperand(factor, static_cast<int>(k));
  }
  for (size_t r = 0; r < factors.results.size(); ++r) {
    tensors += factors.InResult(factor, static_cast<int>(r));
  }
  return tensors;
}

// A position of the kernel of a convolution is a dimension of the kernel alone: one of its two
// other tensors is read at a place that moves with it.
bool IsPositionOfKernel(const OpFactors& factors, int factor) {
  return TensorsWith(factors, factor) == 1;
}

bool Convolves(const OpFactors& factors) {
  for (size_t f = 0; f < factors.factors.size(); ++f) {
    if (IsPositionOfKernel(factors, static_cast<int>(f))) return true;
  }
  return false;
}

// Points of a convolution at which something is multiplied. Where the image that is read through
// the window is smaller than what is computed (the gradient of a strided convolution), the window
// meets an element of it as often as there are elements.
double ConvolvedPoints(const OpFactors& factors, const rules::OpCall& call) {
  double points = 1;
  for (const rules::Factor& factor : factors.factors) points *= static_cast<double>(factor.size);
  for (const rules::Window& window : factors.windows) {
    const auto computed = static_cast<double>(factors.factors[window.factor].size);
    const auto read = static_cast<double>(call.operands[window.operand]->dims[window.dim]);
    if (read < computed) points *= read / computed;
  }
  return points;
}

// How much the points of a convolution grow on a matrix unit. Compilers choose the layout of images
// and kernels, so that what is padded are the sides of the product that each position of the kernel
// is: what it sums over and the channels of the second operand to columns, all of the first
// operand's own dimensions together to rows. (In the gradient of the kernel positions of the image
// are summed over.)
double ConvolutionPadding(const OpFactors& factors, const machine::Machine& machine) {
  int64_t rows = 1, columns = 1, summed = 1;
  for (size_t f = 0; f < factors.factors.size(); ++f) {
    const int factor = static_cast<int>(f);
    if (IsPositionOfKernel(factors, factor)) continue;
    const int64_t size = factors.factors[f].size;
    if (!factors.InAnyResult(factor)) {
      summed *= size;
    } else if (factors.InOperand(factor, 0)) {
      if (!factors.InOperand(factor, 1)) rows *= size;
    } else {
      columns *= size;
    }
  }
  const auto growth = [](int64_t n, int64_t to) {
    return n == 0 ? 1 : Padded(n, to) / static_cast<double>(n);
  };
  return growth(rows, machine.tile_rows) * growth(columns, machine.tile_columns) *
         growth(summed, machine.tile_columns);
}

// The devices that have different tiles of an operand or a result. Along an axis along which an
// operand is a partial sum every device works on its own term.
int64_t Shares(const Program& program, const Instruction& call) {
  AxisMask used = 0;
  const auto add = [&](ValueId id) {
    if (id != program::kNoValue) used |= program.values[id].sharding.DimAxes();
  };
  for (ValueId id : call.operands) add(id);
  for (ValueId id : call.results) add(id);
  if (call.results.empty()) return 1;
  return program.grids[program.values[call.results[0]].grid]->SizeOfMask(used);
}

CallKind KindOf(const rules::Rule& rule, const OpFactors& factors) {
  if (rule.elementwise) return CallKind::kPointwise;
  if (rule.flops_per_point == 0) return CallKind::kView;
  if (rule.flops_per_point < 1) return CallKind::kOther;  // moves elements
  if (Normalises(factors)) return CallKind::kNormalisation;
  return Reduces(factors) ? CallKind::kReduction : CallKind::kPointwise;
}

}  // namespace

Work WorkOf(const Program& program, const Instruction& call, const machine::Machine& machine) {
  Work work;
  const bool reads = std::any_of(call.operands.begin(), call.operands.end(),
                                 [](ValueId id) { return id != program::kNoValue; });
  if (!reads) {
    work.kind = CallKind::kCreation;
    return work;
  }
  const rules::Rule* const rule = rules::Find(call.op);
  if (rule == nullptr) return work;
  if (rule->elementwise || rule->flops_per_point < 1) {
    work.kind = KindOf(*rule, {});
    return work;
  }
  const TileCall tiles = CallOnTiles(program, call);
  const absl::StatusOr<OpFactors> factors = rules::FactorsOf(*rule, tiles.call);
  if (!factors.ok()) return work;
  if (rule->flops_per_point < kProductFlops || !SumsProducts(*factors)) {
    work.kind = KindOf(*rule, *factors);
    return work;
  }
  work.kind = CallKind::kProduct;
  if (Convolves(*factors)) {
    work.flops = rule->flops_per_point * ConvolvedPoints(*factors, tiles.call);
    work.padded_flops = work.flops * ConvolutionPadding(*factors, machine);
  } else {
    work.flops = rule->flops_per_point;
    for (const rules::Factor& factor : factors->factors) {
      work.flops *= static_cast<double>(factor.size);
    }
    work.padded_flops = rule->flops_per_point * PaddedPoints(*factors, machine);
  }
  if (call.attributes.GetBoolOr("is_causal", false)) {
    // A kernel that knows the mask skips the half that it hides.
    work.flops /= 2;
    work.padded_flops /= 2;
  }
  work.shares = Shares(program, call);
  return work;
}

}  // namespace spmd::timeline
