// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "csrc/program/terms.h"
#include "csrc/runtime/dispatch_guard.h"
#include "csrc/runtime/executor_impl.h"
#include "csrc/runtime/interrupt.h"
#include "csrc/runtime/observers.h"
#include "csrc/runtime/one_place/tile_memory.h"
#include "csrc/runtime/one_place/workers.h"
#include "csrc/runtime/places.h"
#include "csrc/runtime/rounds.h"
#include "csrc/runtime/tiled_tensor.h"
#include "csrc/runtime/under_way.h"
#include "csrc/util/status.h"

namespace spmd::runtime {

using program::kNoValue;
using program::ValueId;

namespace {

constexpr absl::string_view kFailedOp = "torch_spmd/failed op";

bool TakesWork(const MoveStep::Part& part, int32_t tile) {
  if (part.products != nullptr) return part.products->copies();
  const TileMove::Action action = part.plan->tiles[tile].action;
  return action == TileMove::Action::kCopy || action == TileMove::Action::kReduce;
}

// The tiles of a result. Tiles are copied if they are small parts of a large tensor, which they
// would keep in memory as a whole, or if they are conjugate or negative views.
std::vector<at::Tensor> Compact(absl::Span<const at::Tensor> tiles) {
  absl::flat_hash_map<const c10::StorageImpl*, int64_t> shown;  // bytes
  for (const at::Tensor& tile : tiles) {
    if (!tile.defined()) continue;  // another process holds it
    shown[tile.storage().unsafeGetStorageImpl()] += static_cast<int64_t>(tile.nbytes());
  }
  std::vector<at::Tensor> result;
  for (const at::Tensor& tile : tiles) {
    if (!tile.defined()) {
      result.push_back(tile);
      continue;
    }
    const c10::Storage& storage = tile.storage();
    const bool mostly_hidden =
        static_cast<int64_t>(storage.nbytes()) > 2 * shown[storage.unsafeGetStorageImpl()] + 4096;
    result.push_back(mostly_hidden || tile.is_conj() || tile.is_neg() ? tile.clone() : tile);
  }
  return result;
}

}  // namespace

absl::Status LoadedProgram::Impl::Bring(absl::Span<Argument> inputs, Failure& failed) {
  if (inputs.size() != program.inputs.size()) {
    return absl::InvalidArgumentError(absl::StrCat("the program has ", program.inputs.size(),
                                                   " inputs; ", inputs.size(), " are given"));
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const ValueId id = program.inputs[i].value;
    const program::Value& wanted = program.values[id];
    const TiledTensorPtr& given = inputs[i].value;
    if (given == nullptr || given->dtype != wanted.type.dtype ||
        given->layout.dims() != wanted.type.dims) {
      return absl::InvalidArgumentError(absl::StrCat(
          "input %", wanted.name, " is ", wanted.type.ToString(), "; got ",
          given == nullptr ? std::string("nothing")
                           : TensorType{given->dtype, given->layout.dims()}.ToString()));
    }
    const Placement& to = *placements[id];
    const bool same = held.coalesced ? given->whole && to.count() == 1
                                     : SamePlacement(given->layout, to.layout()) && !given->whole &&
                                           wanted.windows.empty() &&
                                           given->per_position == held.per_position &&
                                           given->devices_per_process == held.devices_per_process;
    if (same) {
      table[id] = given->tiles;
      continue;
    }
    const DispatchGuard guard;
    const Placement from = PlacementOf(*given);
    const MovePlan plan = MovePlan::Make(from, to, backend);
    const at::ScalarType type = ToScalarType(program::HeldType(given->dtype, from.sharding()));
    if (!failed.status.ok()) {
      if (!plan.transfer.exchanges) continue;
      const TransferPart part{&plan, given->tiles, type};
      SPMD_RETURN_IF_ERROR(RunTransfer(*backend.tile_peers(), {&part, 1}, /*failed=*/true,
                                       [](const auto&, bool) {}));
      continue;
    }
    try {
      SPMD_ASSIGN_OR_RETURN(table[id], RunMovePlan(plan, given->tiles, type, wanted.type.dtype,
                                                   backend.tile_peers()));
    } catch (const std::exception& e) {
      if (backend.peers() == nullptr) throw;
      failed = {StatusFromException(e, absl::StrCat("moving the input ", wanted.type.ToString()))};
    }
  }
  return absl::OkStatus();
}

void LoadedProgram::Impl::MakeTile(const MoveStep& step, const WorkItem& item) {
  const MoveStep::Part& part = step.parts[item.part];
  const MoveRequest request{absl::MakeSpan(table[part.from]), part.identity,
                            program.values[part.to].type.dtype, step.fill, item.may_take_first()};
  at::Tensor& tile = table[part.to][item.index];
  if (part.products != nullptr) {
    tile = part.products->Take(item.index, table);
  } else if (item.end_term > 0) {
    AddTerms(*part.plan, item.index, item.begin_term, item.end_term, request, tile);
  } else {
    tile = RunTileMove(*part.plan, item.index, request);
  }
}

absl::Status LoadedProgram::Impl::RunMove(const MoveStep& step, const Batch& batch) {
  if (step.exchanges) {
    return Exchange(step, /*failed=*/false,
                    [&](std::vector<std::vector<at::Tensor>> slots, bool borrowed) {
                      MakeTilesOfSlots(step, batch, std::move(slots), borrowed);
                    });
  }
  absl::InlinedVector<const WorkItem*, 16> work, products;
  int64_t bytes = 0;
  for (const WorkItem& item : batch.items) {
    const MoveStep::Part& part = step.parts[item.part];
    const TileMove& tile = part.plan->tiles[item.index];
    table[part.to].resize(part.plan->tiles.size());
    if (part.products != nullptr && item.end_term > 0) {
      products.push_back(&item);
      continue;
    }
    if (!TakesWork(part, item.index)) {
      MakeTile(step, item);
      continue;
    }
    work.push_back(&item);
    const int64_t terms = std::max(item.end_term - item.begin_term, 1);
    bytes += NumElements(tile.dims) * terms * ByteSize(program.values[part.to].type.dtype);
  }
  ForEachTile(static_cast<int64_t>(work.size()), bytes, held.shares_cpu,
              [&](int64_t n) { MakeTile(step, *work[n]); });
  if (!products.empty()) RunSumsOfProducts(step, products);
  return absl::OkStatus();
}

void LoadedProgram::Impl::MakeTilesOfSlots(const MoveStep& step, const Batch& batch,
                                           std::vector<std::vector<at::Tensor>> slots,
                                           bool borrowed) {
  for (size_t p = 0; p < slots.size(); ++p) {
    const MoveStep::Part& part = step.parts[p];
    // While its tiles are made, what was received for a part stands behind its sources.
    std::vector<at::Tensor>& sources = table[part.from];
    const int64_t count = part.plan->num_sources;
    sources.resize(count);
    for (at::Tensor& slot : slots[p]) sources.push_back(std::move(slot));
    for (const WorkItem& item : batch.items) {
      if (item.index == WorkItem::kExchange || item.part != static_cast<int32_t>(p)) continue;
      std::vector<at::Tensor>& made = table[part.to];
      made.resize(part.plan->tiles.size());
      MakeTile(step, item);
      if (borrowed && SharesASlot(*part.plan, item.index)) {
        made[item.index] = made[item.index].clone();
      }
    }
    table[part.from].resize(count);
  }
}

void LoadedProgram::Impl::RunSumsOfProducts(const MoveStep& step,
                                            absl::Span<const WorkItem* const> items) {
  std::vector<WorkItem> at_once;
  for (const WorkItem* item : items) {
    if (!step.parts[item->part].products->Copies(*item, table)) {
      at_once.push_back(*item);
      continue;
    }
    for (WorkItem term = *item; term.begin_term < item->end_term; ++term.begin_term) {
      term.end_term = term.begin_term + 1;
      ComputeSums(step, {&term, 1});
    }
  }
  if (!at_once.empty()) ComputeSums(step, at_once);
}

void LoadedProgram::Impl::ComputeSums(const MoveStep& step, absl::Span<const WorkItem> items) {
  std::vector<ProductsInto> sums;
  std::vector<std::pair<const ProductsInto*, int64_t>> blocks;
  int64_t bytes = 0;
  sums.reserve(items.size());
  for (const WorkItem& item : items) {
    sums.push_back(step.parts[item.part].products->Prepare(item, table));
    bytes += sums.back().bytes();
    for (int64_t b = 0; b < sums.back().num_blocks(); ++b) blocks.emplace_back(&sums.back(), b);
  }
  ForEachTile(static_cast<int64_t>(blocks.size()), bytes, held.shares_cpu,
              [&](int64_t n) { blocks[n].first->ComputeBlock(blocks[n].second); });
}

void LoadedProgram::Impl::RunCall(const CallStep& step, const Batch& batch,
                                  const std::vector<c10::Scalar>& scalars) {
  const std::vector<c10::IValue> values = step.ScalarValues(scalars);
  step.PrepareResults(table);
  // Workers that need the GIL while the caller holds it would wait for ever.
  const bool alone = step.binding().is_view || step.binding().may_need_python ||
                     step.binding().facts->needs_own_threads;
  const auto n = static_cast<int64_t>(batch.items.size());
  const int64_t bytes = alone ? 0 : step.bytes() / step.num_items() * n;
  ForEachTile(n, bytes, held.shares_cpu,
              [&](int64_t i) { step.RunItem(batch.items[i], values, table); });
}

size_t LoadedProgram::Impl::CommitOfRun() const {
  const auto holds = [&](const IndexBound& b) {
    const std::vector<at::Tensor>& tiles = table[b.index];
    const bool on_host = !tiles.empty() && tiles[0].is_cpu();
    return (held.shares_cpu || !on_host) && Holds(b, tiles);
  };
  const bool early = early_commit < commit && std::all_of(bounds.begin(), bounds.end(), holds);
  return early ? early_commit : commit;
}

absl::Status LoadedProgram::Impl::Exchange(const MoveStep& step, bool failed, TakeSlots take) {
  std::vector<TransferPart> parts;
  for (const MoveStep::Part& part : step.parts) {
    const program::Value& from = program.values[part.from];
    const DType type = program::HeldType(from.type.dtype, from.sharding);
    parts.push_back({part.plan.get(), table[part.from], ToScalarType(type)});
  }
  return RunTransfer(*backend.tile_peers(), parts, failed, take);
}

absl::Status LoadedProgram::Impl::RunBatch(const Batch& batch,
                                           const std::vector<c10::Scalar>& scalars) {
  if (const auto* call = std::get_if<CallStep>(&steps[batch.step])) {
    RunCall(*call, batch, scalars);
  } else if (const auto* move = std::get_if<MoveStep>(&steps[batch.step])) {
    return RunMove(*move, batch);
  }
  return absl::OkStatus();
}

absl::Status LoadedProgram::Impl::RunForOthers(const Step& step) {
  const auto* const move = std::get_if<MoveStep>(&step);
  if (move == nullptr || !move->exchanges) return absl::OkStatus();
  return Exchange(*move, /*failed=*/true, [](const auto&, bool) {});
}

const std::vector<std::string>* LoadedProgram::Impl::NamesForObservers() {
  if (!Observed()) return nullptr;
  if (names.empty()) {
    names = NameInstructions(program);
    for (std::string& name : names) name.insert(0, "spmd: ");
  }
  return &names;
}

LoadedProgram::Impl::Failure LoadedProgram::Impl::FailureOf(const std::exception& e,
                                                            int step) const {
  Failure failure{StatusFromException(e, DescribeInstruction(program, step)), step};
  failure.status.SetPayload(kFailedOp, absl::Cord(program.instructions[step].op));
  return failure;
}

void LoadedProgram::Impl::DropDead(const Batch& batch) {
  for (const TileRef& tile : batch.dead) {
    if (static_cast<size_t>(tile.index) < table[tile.value].size()) {
      table[tile.value][tile.index].reset();
    }
  }
}

void LoadedProgram::Impl::TakeArguments(absl::Span<Argument> inputs) const {
  for (size_t k = 0; k < inputs.size(); ++k) {
    if (inputs[k].donate && program.inputs[k].donated) inputs[k].value.reset();
  }
}

absl::Status LoadedProgram::Impl::RunSteps(absl::Span<Argument> inputs,
                                           const std::vector<c10::Scalar>& scalars,
                                           Failure& failed) {
  const DispatchGuard guard;
  const TileMemory::Scope kept;
  Peers* const peers = backend.peers();
  const size_t take = CommitOfRun();
  const std::vector<std::string>* const seen_as = NamesForObservers();
  std::optional<UnderWay> exchange;
  size_t begun = 0;  // the batch of the exchange
  for (size_t b = 0; b <= schedule.batches.size(); ++b) {
    if (exchange.has_value() && b == ends_before[begun]) {
      const Batch& batch = schedule.batches[begun];
      try {
        SPMD_RETURN_IF_ERROR(exchange->End());
      } catch (const std::exception& e) {
        failed = FailureOf(e, batch.step);  // the earliest
      }
      exchange.reset();
      DropDead(batch);
    }
    if (b <= take && Interrupted()) {
      if (peers != nullptr) FailAsInterrupted(*peers);
      return absl::CancelledError("interrupted; no tensor was changed");
    }
    if (b == take) {
      if (votes == Votes::kTwice) SPMD_RETURN_IF_ERROR(Vote(*peers, failed.status, failed.step));
      // From here on the program may write into its donated arguments.
      if (votes != Votes::kBeforeCommit) TakeArguments(inputs);
    }
    if (b == schedule.batches.size()) break;
    const Batch& batch = schedule.batches[b];
    if (failed.status.ok() && seen_as == nullptr && !ends_before.empty() && ends_before[b] > 0) {
      begun = b;
      exchange.emplace([this, &scalars, at = &batch] { return RunBatch(*at, scalars); });
      continue;
    }
    if (failed.status.ok()) {
      try {
        std::optional<ObservedInstruction> observed;
        if (seen_as != nullptr) observed.emplace((*seen_as)[batch.step]);
        SPMD_RETURN_IF_ERROR(RunBatch(batch, scalars));
      } catch (const std::exception& e) {
        failed = FailureOf(e, batch.step);
        if (peers == nullptr) return failed.status;
        // The exchange of the step has taken place, if it has one.
      }
    } else {
      SPMD_RETURN_IF_ERROR(RunForOthers(steps[batch.step]));
    }
    DropDead(batch);
  }
  return absl::OkStatus();
}

at::Tensor LoadedProgram::Impl::PutTogether(ValueId id) {
  const program::Value& value = program.values[id];
  const Placement whole(WholeLayout(value.type.dims), /*per_position=*/false);
  const MovePlan plan = MovePlan::Make(*placements[id], whole, backend);
  return RunTileMove(plan, 0, {absl::MakeSpan(table[id]), identity[id], value.type.dtype});
}

std::vector<TiledTensorPtr> LoadedProgram::Impl::TakeOutputs() {
  const DispatchGuard guard;
  std::vector<TiledTensorPtr> outputs;
  for (const program::Output& output : program.outputs) {
    const program::Value& value = program.values[output.value];
    const Layout layout =
        held.coalesced ? written.LayoutOf(output.value) : placements[output.value]->layout();
    auto result = std::make_shared<TiledTensor>(TiledTensor{
        layout, value.type.dtype, {}, held.per_position, held.coalesced, held.devices_per_process});
    if (held.coalesced && table[output.value].size() > 1) {
      result->tiles.push_back(PutTogether(output.value));
    } else {
      // If a value is an output twice, the results share its tiles.
      if (held.devices_per_process > 0)
        table[output.value].resize(placements[output.value]->count());
      result->tiles = Compact(table[output.value]);
    }
    outputs.push_back(std::move(result));
  }
  return outputs;
}

std::vector<TiledTensorPtr> LoadedProgram::Impl::PlannedOutputs() {
  const DispatchGuard guard;
  if (planned.empty()) {
    for (const program::Output& output : program.outputs) {
      const Placement& place = *placements[output.value];
      const DType dtype = program.values[output.value].type.dtype;
      const DType type = program::HeldType(dtype, place.sharding());
      TiledTensor& result = planned.emplace_back(TiledTensor{place.layout(), dtype, {}, false});
      absl::flat_hash_map<Dims, at::Tensor> made;  // equal shapes share a tensor
      for (int64_t i = 0; i < place.count(); ++i) {
        const Dims& dims = place.DimsOf(i);
        at::Tensor& tile = made[dims];
        if (!tile.defined()) {
          const Place at = backend.place(place.grid().device_ids()[place.PositionOf(i)]);
          tile =
              backend.Allocate(at, at::IntArrayRef(dims.data(), dims.size()), ToScalarType(type));
        }
        result.tiles.push_back(tile);
      }
    }
  }
  std::vector<TiledTensorPtr> outputs;
  outputs.reserve(planned.size());
  for (const TiledTensor& result : planned) {
    outputs.push_back(std::make_shared<TiledTensor>(result));
  }
  return outputs;
}

absl::StatusOr<std::vector<TiledTensorPtr>> LoadedProgram::Impl::Run(
    absl::Span<Argument> inputs, const std::vector<c10::Scalar>& scalars) {
  if (scalars.size() != program.scalars.size()) {
    return absl::InvalidArgumentError(absl::StrCat("the program has ", program.scalars.size(),
                                                   " run-time scalars; ", scalars.size(),
                                                   " are given"));
  }
  if (backend.planning()) return PlannedOutputs();
  at::RecordFunction seen(at::RecordScope::USER_SCOPE);
  if (seen.isActive()) seen.before(absl::StrCat("spmd: ", options.name));
  const auto cleanup = absl::MakeCleanup([this] {
    for (std::vector<at::Tensor>& tiles : table) tiles.clear();
  });
  Peers* const peers = backend.peers();
  const char* doing = "agreeing on a program";
  try {
    if (peers != nullptr) SPMD_RETURN_IF_ERROR(AgreeToRun(*peers, fingerprint, scalars));
    doing = "moving the inputs";
    Failure failed;
    SPMD_RETURN_IF_ERROR(Bring(inputs, failed));
    doing = "running a program";
    SPMD_RETURN_IF_ERROR(RunSteps(inputs, scalars, failed));
    doing = "taking the results";
    if (peers == nullptr) return TakeOutputs();
    std::vector<TiledTensorPtr> outputs;
    try {
      if (failed.status.ok()) outputs = TakeOutputs();
    } catch (const std::exception& e) {
      failed = {StatusFromException(e, doing), static_cast<int>(steps.size())};
    }
    doing = "voting";
    SPMD_RETURN_IF_ERROR(Vote(*peers, failed.status, failed.step));
    if (votes == Votes::kBeforeCommit) TakeArguments(inputs);
    return outputs;
  } catch (const std::exception& e) {
    const absl::Status status = StatusFromException(e, doing);
    if (peers == nullptr) return status;
    // The other processes would wait for this one.
    peers->Fail(InProcess(status, peers->rank()));
    return peers->failure();
  }
}

absl::StatusOr<std::vector<TiledTensorPtr>> LoadedProgram::Run(
    absl::Span<Argument> inputs, const std::vector<c10::Scalar>& scalars) {
  return impl_->Run(inputs, scalars);
}

std::string FailedOp(const absl::Status& status) {
  return std::string(status.GetPayload(kFailedOp).value_or(absl::Cord()));
}

}  // namespace spmd::runtime
