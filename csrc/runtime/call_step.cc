// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/call_step.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "csrc/program/terms.h"
#include "csrc/rules/registry.h"
#include "csrc/runtime/accumulate.h"
#include "csrc/runtime/moves.h"
#include "csrc/runtime/tiled_tensor.h"
#include "csrc/util/status.h"

namespace spmd::runtime {
namespace {

// The tile in row-major order. Kernels that reinterpret memory expect these strides even for
// dimensions of size 1 and for empty tiles.
at::Tensor Dense(const at::Tensor& tile) {
  at::Tensor dense = tile.contiguous();
  std::vector<int64_t> strides(dense.dim());
  int64_t next = 1;
  for (int64_t d = dense.dim(); d-- > 0;) {
    strides[d] = next;
    next *= std::max<int64_t>(dense.size(d), 1);
  }
  if (dense.strides() == at::IntArrayRef(strides)) return dense;
  return dense.as_strided(dense.sizes(), strides);
}

using program::Instruction;
using program::kNoValue;

at::IntArrayRef Sizes(const Dims& dims) { return {dims.data(), dims.size()}; }

AxisList AxesIn(const Grid& grid, AxisMask mask) {
  AxisList axes;
  for (AxisId a = 0; a < grid.num_axes(); ++a) {
    if ((mask & MaskOf(a)) != 0) axes.push_back(a);
  }
  return axes;
}

// The first position of this process for each distinct coordinate along `axes`; with `all`, every
// position of this process.
std::vector<int64_t> FirstPositions(const Grid& grid, AxisMask axes, bool all, const Homes& homes) {
  std::vector<int64_t> positions;
  if (all) {
    for (int64_t p = 0; p < grid.num_devices(); ++p) {
      if (homes.IsHere(homes.Of(grid, p))) positions.push_back(p);
    }
    return positions;
  }
  const AxisList used = AxesIn(grid, axes);
  if (homes.devices_per_process > 0) {
    absl::flat_hash_set<int64_t> seen;
    for (int64_t p = 0; p < grid.num_devices(); ++p) {
      if (homes.IsHere(homes.Of(grid, p)) && seen.insert(grid.Coordinate(p, used)).second) {
        positions.push_back(p);
      }
    }
    return positions;
  }
  const int64_t n = grid.size(used);
  for (int64_t i = 0; i < n; ++i) positions.push_back(grid.WithCoordinate(0, used, i));
  return positions;
}

AxisMask ExpressionAxes(const Expr& e) {
  switch (e.op()) {
    case Expr::Op::kConst:
    case Expr::Op::kStart:
    case Expr::Op::kSize:
    case Expr::Op::kExtent:
      return 0;
    case Expr::Op::kCoord:
      return MaskOf(static_cast<AxisId>(e.dim()));
    default:
      return ExpressionAxes(e.lhs()) | ExpressionAxes(e.rhs());
  }
}

}  // namespace

absl::StatusOr<CallStep> CallStep::Make(const Context& context, int instruction) {
  return Make(context, context.program.instructions[instruction], context.sharers[instruction]);
}

absl::StatusOr<CallStep> CallStep::Make(const Context& context, const Instruction& call,
                                        const Sharers& sharers) {
  CallStep step;
  step.backend_ = &context.backend;
  for (const program::ValueId id : call.operands) {
    step.operands_.push_back(id);
    step.operand_places_.push_back(id == kNoValue ? nullptr : context.placements[id]);
  }
  for (const program::ValueId id : call.results) {
    step.results_.push_back(id);
    step.result_places_.push_back(context.placements[id]);
    step.result_kinds_.push_back(context.program.values[id].sharding.reduce_kind);
  }
  SPMD_RETURN_IF_ERROR(step.PlanTypes(context, call));
  SPMD_RETURN_IF_ERROR(step.PlanItems(context, call));
  step.PlanOverwriting(sharers);
  return step;
}

// If results are partial sums that are held in a wider type than the program says, the op computes
// them in that type, from operands in that type. This is not done for an op that rounds nothing: it
// would cast a table of which it reads a few rows. A user's op may support no type but its own, so
// its partial sums are rounded one by one.
absl::Status CallStep::PlanTypes(const Context& context, const Instruction& call) {
  std::vector<DType> own_types;
  bool of_terms = false;
  for (size_t k = 0; k < operands_.size(); ++k) {
    const bool absent = operands_[k] == kNoValue;
    const DType own = absent ? DType::kF32 : context.program.values[operands_[k]].type.dtype;
    own_types.push_back(own);
    operand_types_.push_back(absent ? own : program::HeldType(own, operand_places_[k]->sharding()));
    of_terms = of_terms || operand_types_.back() != own;
  }
  for (size_t k = 0; k < results_.size(); ++k) {
    const DType own = context.program.values[results_[k]].type.dtype;
    result_types_.push_back(program::HeldType(own, result_places_[k]->sharding()));
    widens_ = widens_ || result_types_.back() != own;
  }
  const bool wide =
      IsBuiltIn(call.op) && (of_terms || (widens_ && !rules::FactsOf(call.op).looks_up));
  for (const DType own : own_types) {
    given_types_.push_back(ToScalarType(wide ? program::Widened(own) : own));
  }
  if (!wide) {
    SPMD_ASSIGN_OR_RETURN(binding_, Bind(call));
    return absl::OkStatus();
  }
  Instruction widened = call;
  for (const auto& [name, attr] : call.attributes) {
    if (const DType* dtype = std::get_if<DType>(&attr)) {
      widened.attributes.Set(name, program::Widened(*dtype));
    }
  }
  SPMD_ASSIGN_OR_RETURN(binding_, Bind(widened));
  return absl::OkStatus();
}

absl::Status CallStep::PlanItems(const Context& context, const Instruction& call) {
  if (results_.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(call.op, " has no results"));
  }
  const Grid& grid = result_places_[0]->grid();
  AxisMask axes = 0;
  for (const PlacementPtr& place : result_places_) axes |= place->sharding().UsedAxes();
  const bool all = result_places_[0]->per_position();
  const std::vector<int64_t> positions = FirstPositions(grid, axes, all, context.backend.homes());
  num_items_ = static_cast<int64_t>(positions.size());
  for (const PlacementPtr& place : operand_places_) {
    if (place != nullptr && place->layout().grid() != result_places_[0]->layout().grid() &&
        !(place->grid() == grid)) {
      return absl::InvalidArgumentError(
          absl::StrCat(call.op, ": an operand lives on grid ", place->grid().ToString(),
                       ", the result on ", grid.ToString(), "; an exchange must come between"));
    }
  }
  // Positions that differ only along these axes need the same results.
  const AxisList unused = AxesIn(grid, ~axes);
  for (int64_t p : positions) {
    places_.push_back(context.backend.place(grid.device_ids()[p]));
    const int64_t last = all ? p : grid.WithCoordinate(p, unused, grid.size(unused) - 1);
    const auto [a, b] = std::minmax(grid.device_ids()[p], grid.device_ids()[last]);
    wanted_.push_back({a, b});
  }
  PlanOperands(call, positions);
  PlanResults(call, positions);
  PlanExpressions(call, positions);
  for (size_t k = 0; k < operands_.size(); ++k) {
    if (operand_places_[k] == nullptr) continue;
    bytes_ += operand_places_[k]->total_elements() * ByteSize(operand_types_[k]);
  }
  for (size_t k = 0; k < results_.size(); ++k) {
    bytes_ += result_places_[k]->total_elements() * ByteSize(result_types_[k]);
  }
  return absl::OkStatus();
}

void CallStep::PlanOperands(const Instruction& call, absl::Span<const int64_t> positions) {
  operand_tiles_.reserve(positions.size() * operands_.size());
  for (int64_t position : positions) {
    for (size_t k = 0; k < operands_.size(); ++k) {
      operand_tiles_.push_back(operand_places_[k] == nullptr
                                   ? kAbsent
                                   : static_cast<int32_t>(operand_places_[k]->IndexAt(position)));
    }
  }
  for (const program::AddedOnce& added : call.added_once) {
    if (operand_places_[added.operand] == nullptr) continue;
    bool optional = false;
    for (const OpBinding::TensorArgument& t : binding_.tensors) {
      optional = optional || (t.operand == added.operand && t.optional);
    }
    for (size_t i = 0; i < positions.size(); ++i) {
      if (result_places_[0]->grid().Coordinate(positions[i], added.axes) == 0) continue;
      operand_tiles_[i * operands_.size() + added.operand] = optional ? kAbsent : kZeros;
    }
  }
}

// A non-empty result of a sum over an empty tile is the identity, and the op is not called. The
// tile must be empty along a dimension that the axes of the sum shard: a part of a concatenation of
// partial sums may be empty for other reasons.
bool CallStep::ReducedOperandIsEmpty(int64_t item) const {
  AxisMask summed = 0;
  for (const auto& place : result_places_) summed |= place->sharding().UnreducedAxes();
  for (size_t k = 0; k < operands_.size(); ++k) {
    const int32_t index = operand_tiles_[item * operands_.size() + k];
    if (index < 0) continue;
    const Placement& place = *operand_places_[k];
    if (!place.TileIsEmpty(place.TileOf(index)) || NumElements(place.layout().dims()) == 0) {
      continue;
    }
    const Dims& dims = place.DimsOf(index);
    for (size_t d = 0; d < dims.size(); ++d) {
      if (dims[d] == 0 && (MaskOf(place.sharding().dims[d].axes) & summed)) return true;
    }
  }
  return false;
}

void CallStep::PlanResults(const Instruction& call, absl::Span<const int64_t> positions) {
  const size_t n = results_.size();
  std::vector<std::vector<uint8_t>> made(n);
  identity_.resize(n);
  for (size_t k = 0; k < n; ++k) made[k].resize(result_places_[k]->count());
  for (size_t i = 0; i < positions.size(); ++i) {
    const bool reduced_empty = ReducedOperandIsEmpty(static_cast<int64_t>(i));
    bool computed = false;
    for (size_t k = 0; k < n; ++k) {
      const Placement& place = *result_places_[k];
      ResultTile tile;
      tile.index = static_cast<int32_t>(place.IndexAt(positions[i]));
      if (made[k][tile.index]) {
        tile.source = ResultSource::kOtherItem;
      } else if (place.TileIsEmpty(place.TileOf(tile.index))) {
        tile.source = ResultSource::kEmpty;
      } else if (reduced_empty && place.sharding().IsUnreduced()) {
        tile.source = ResultSource::kIdentity;
        identity_[k].resize(place.count());
        identity_[k][tile.index] = 1;
      } else {
        computed = true;
      }
      made[k][tile.index] = 1;
      result_tiles_.push_back(tile);
    }
    computed_.push_back(computed);
  }
}

void CallStep::PlanExpressions(const Instruction& call, absl::Span<const int64_t> positions) {
  if (binding_.expressions.empty()) return;
  int64_t position = 0;
  const auto place = [&](TensorRef tensor) -> const Placement& {
    return tensor.kind == TensorRef::Kind::kOperand ? *operand_places_[tensor.index]
                                                    : *result_places_[tensor.index];
  };
  Expr::Env env;
  env.start = [&](TensorRef tensor, int dim) {
    return place(tensor).TileBegin(place(tensor).TileAt(position), dim);
  };
  env.size = [&](TensorRef tensor, int dim) {
    return place(tensor).DimsOfTile(place(tensor).TileAt(position))[dim];
  };
  env.extent = [&](TensorRef tensor, int dim) { return place(tensor).layout().dims()[dim]; };
  env.coord = [&](int axis) {
    return result_places_[0]->grid().Coordinate(position, static_cast<AxisId>(axis));
  };
  for (int64_t p : positions) {
    position = p;
    std::vector<c10::IValue>& values = expression_values_.emplace_back();
    for (const OpBinding::ExpressionArgument& argument : binding_.expressions) {
      std::vector<int64_t> numbers;
      for (const Expr& e : argument.expressions) numbers.push_back(e.Evaluate(env));
      values.push_back(argument.is_list ? c10::IValue(std::move(numbers))
                                        : c10::IValue(numbers[0]));
    }
  }
}

// Any operand that dies here may be overwritten. What the program says (Instruction::updates) is
// for computing its memory only.
void CallStep::PlanOverwriting(const Sharers& sharers) {
  takes_.assign(num_items_, 0);
  if (!binding_.in_place.has_value() || binding_.overwritten.size() != results_.size()) return;
  std::vector<int> operands;
  for (size_t k = 0; k < results_.size(); ++k) {
    const auto is_written = [&](const OpBinding::TensorArgument& t) {
      return t.argument == binding_.overwritten[k];
    };
    const auto it = std::find_if(binding_.tensors.begin(), binding_.tensors.end(), is_written);
    if (it == binding_.tensors.end() || operand_places_[it->operand] == nullptr ||
        operand_types_[it->operand] != result_types_[k] ||
        given_types_[it->operand] != ToScalarType(result_types_[k])) {
      return;
    }
    operands.push_back(it->operand);
  }
  if (operands[0] != 0) return;
  overwritten_ = std::move(operands);
  for (int64_t i = 0; i < num_items_; ++i) takes_[i] = TakenBy(i);
  sharers_ = sharers;
}

// The operands that the item overwrites, as bits; none, unless every result can be written over its
// operand.
uint8_t CallStep::TakenBy(int64_t item) const {
  const int32_t* const tiles = &operand_tiles_[item * operands_.size()];
  uint8_t taken = 0;
  for (size_t k = 0; k < results_.size(); ++k) {
    const int operand = overwritten_[k];
    const ResultTile& made = result_tiles_[item * results_.size() + k];
    // Absent operands are not read.
    const auto read = std::count_if(tiles, tiles + operand, [](int32_t t) { return t >= 0; });
    if (tiles[operand] < 0 || made.source != ResultSource::kOp || read >= WorkItem::kMostTaken ||
        operand_places_[operand]->DimsOf(tiles[operand]) != result_places_[k]->DimsOf(made.index)) {
      return 0;
    }
    taken |= static_cast<uint8_t>(1 << read);
  }
  return taken;
}

bool CallStep::MayRunInPlace(const WorkItem& work, const ValueTable& table) const {
  const uint8_t taken = takes_[work.index];
  if (taken == 0 || (work.may_take & taken) != taken) return false;
  const int32_t* const tiles = &operand_tiles_[work.index * operands_.size()];
  for (const int operand : overwritten_) {
    const at::Tensor& tile = table[operands_[operand]][tiles[operand]];
    if (operand == 0 ? !MayWriteInto(tile, tiles[0], work.may_write_through, table)
                     : !IsExclusive(tile)) {
      return false;
    }
  }
  return true;
}

// True if nothing holds the memory except the operand and the values that are known to die with
// this write, and no two elements share memory.
bool CallStep::MayWriteInto(const at::Tensor& tile, int32_t index, bool may_write_through,
                            const ValueTable& table) const {
  if (sharers_.wholes.empty() ? sharers_.part == kNoValue : !may_write_through) {
    return IsExclusive(tile);
  }
  if (tile.use_count() != 1 || !tile.has_storage()) return false;
  size_t holders = 1;
  bool alone = true;
  const auto shares = [&](program::ValueId id) {
    if (id == kNoValue || index >= std::ssize(table[id])) return false;
    const at::Tensor& other = table[id][index];
    if (!other.defined() || !other.has_storage() || !other.is_alias_of(tile)) return false;
    alone = alone && other.use_count() == 1;
    ++holders;
    return true;
  };
  // A part that lies elsewhere in the same memory would be overwritten while it is read.
  if (shares(sharers_.part) && !sharers_.place.Holds(table[sharers_.part][index], tile)) {
    return false;
  }
  const at::Tensor* all = &tile;
  for (const program::ValueId id : sharers_.wholes) {
    if (shares(id)) all = &table[id][index];
  }
  return alone && tile.storage().use_count() == holders && all->is_non_overlapping_and_dense();
}

void CallStep::AppendReads(int64_t item, std::vector<TileRef>& reads) const {
  for (size_t k = 0; k < operands_.size(); ++k) {
    const int32_t index = operand_tiles_[item * operands_.size() + k];
    if (index >= 0) reads.push_back({operands_[k], index});
  }
}

void CallStep::AppendWrites(int64_t item, std::vector<TileRef>& writes) const {
  for (size_t k = 0; k < results_.size(); ++k) {
    const ResultTile& tile = result_tiles_[item * results_.size() + k];
    if (tile.source != ResultSource::kOtherItem) writes.push_back({results_[k], tile.index});
  }
}

void CallStep::AppendWholes(int64_t item, std::vector<TileRef>& wholes) const {
  if (takes_[item] == 0) return;
  const int32_t index = operand_tiles_[item * operands_.size()];
  for (const program::ValueId id : sharers_.wholes) wholes.push_back({id, index});
}

Scheduler::Devices CallStep::DevicesOf(int64_t item) const { return wanted_[item]; }

std::vector<c10::IValue> CallStep::ScalarValues(absl::Span<const c10::Scalar> scalars) const {
  std::vector<c10::IValue> values;
  for (const OpBinding::ScalarArgument& argument : binding_.scalars) {
    values.push_back(ScalarValue(scalars[argument.slot], argument.type));
  }
  return values;
}

at::Tensor CallStep::OperandTile(int64_t item, int operand, ValueTable& table) const {
  const at::Tensor tile = HeldTile(item, operand, table);
  return !tile.defined() || tile.scalar_type() == given_types_[operand]
             ? tile
             : tile.to(given_types_[operand]);
}

at::Tensor CallStep::HeldTile(int64_t item, int operand, ValueTable& table) const {
  const int32_t index = operand_tiles_[item * operands_.size() + operand];
  if (index == kAbsent) return at::Tensor();
  if (index == kZeros) {
    const Placement& place = *operand_places_[operand];
    // The tile that the operand would have here; all tiles along the axes of the cut have the same
    // size.
    const int32_t like = static_cast<int32_t>(
        place.IndexAt(result_places_[0]->PositionOf(result_tiles_[item * results_.size()].index)));
    return IdentityTile(*backend_, places_[item], ReduceKind::kSum, operand_types_[operand],
                        place.DimsOf(like));
  }
  return table[operands_[operand]][index];
}

void CallStep::RunItem(const WorkItem& work, absl::Span<const c10::IValue> scalars,
                       ValueTable& table) const {
  const int64_t item = work.index;
  StoreUncomputed(item, table);
  if (!computed_[item]) return;
  torch::jit::Stack stack(binding_.constants);
  for (size_t k = 0; k < binding_.scalars.size(); ++k) {
    stack[binding_.scalars[k].argument] = scalars[k];
  }
  for (size_t k = 0; k < binding_.expressions.size(); ++k) {
    stack[binding_.expressions[k].argument] = expression_values_[item][k];
  }
  for (int argument : binding_.devices) stack[argument] = places_[item].device;
  for (const OpBinding::GroupArgument& g : binding_.groups) {
    if (g.optional_elements) {
      c10::List<std::optional<at::Tensor>> list;
      for (int k = 0; k < g.group.size; ++k) {
        at::Tensor tile = OperandTile(item, g.group.begin + k, table);
        list.push_back(tile.defined() ? std::optional<at::Tensor>(std::move(tile)) : std::nullopt);
      }
      stack[g.argument] = std::move(list);
    } else {
      c10::List<at::Tensor> list;
      for (int k = 0; k < g.group.size; ++k) {
        list.push_back(OperandTile(item, g.group.begin + k, table));
      }
      stack[g.argument] = std::move(list);
    }
  }
  const bool in_place = MayRunInPlace(work, table);
  for (const OpBinding::TensorArgument& t : binding_.tensors) {
    if (in_place &&
        std::find(overwritten_.begin(), overwritten_.end(), t.operand) != overwritten_.end()) {
      // The table gives up the tile, so that only the op and its result hold it.
      const int32_t index = operand_tiles_[item * operands_.size() + t.operand];
      stack[t.argument] = std::move(table[operands_[t.operand]][index]);
      continue;
    }
    at::Tensor tile = OperandTile(item, t.operand, table);
    if (tile.defined()) {
      stack[t.argument] = binding_.facts->needs_contiguous ? Dense(tile) : std::move(tile);
    } else {
      stack[t.argument] = t.optional ? c10::IValue() : c10::IValue(at::Tensor());
    }
  }
  backend_->Run(in_place ? *binding_.in_place : *binding_.op, stack);
  StoreResults(item, stack, table);
}

void CallStep::PrepareResults(ValueTable& table) const {
  for (size_t k = 0; k < results_.size(); ++k) {
    table[results_[k]].resize(result_places_[k]->count());
  }
}

void CallStep::StoreUncomputed(int64_t item, ValueTable& table) const {
  for (size_t k = 0; k < results_.size(); ++k) {
    const ResultTile& tile = result_tiles_[item * results_.size() + k];
    const Dims& dims = result_places_[k]->DimsOf(tile.index);
    at::Tensor& target = table[results_[k]][tile.index];
    if (tile.source == ResultSource::kEmpty) {
      target = backend_->Allocate(places_[item], Sizes(dims), ToScalarType(result_types_[k]));
    } else if (tile.source == ResultSource::kIdentity) {
      target = IdentityTile(*backend_, places_[item], result_kinds_[k], result_types_[k], dims);
    }
  }
}

void CallStep::StoreResults(int64_t item, torch::jit::Stack& stack, ValueTable& table) const {
  size_t k = 0;
  const auto store = [&](at::Tensor result) {
    if (k >= results_.size()) return;
    const ResultTile& tile = result_tiles_[item * results_.size() + k];
    if (tile.source == ResultSource::kOp) {
      const Dims& dims = result_places_[k]->DimsOf(tile.index);
      const at::ScalarType type = ToScalarType(result_types_[k]);
      if (result.defined() && widens_) result = result.to(type);
      TORCH_CHECK(result.defined() && result.sizes() == Sizes(dims) && result.scalar_type() == type,
                  "result ", k, " is ",
                  result.defined() ? c10::str(result.scalar_type(), result.sizes())
                                   : std::string("undefined"),
                  " where the program says ", type, Sizes(dims));
      table[results_[k]][tile.index] = std::move(result);
    }
    ++k;
  };
  for (c10::IValue& value : stack) {
    if (value.isTensor()) {
      store(std::move(value).toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& t : value.toTensorVector()) store(t);
    }
  }
  TORCH_CHECK(k == results_.size(), "gave ", k, " results where the program has ", results_.size());
}

}  // namespace spmd::runtime
