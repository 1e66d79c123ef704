// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "csrc/program/analysis.h"
#include "csrc/program/coalesce.h"
#include "csrc/program/turns.h"
#include "csrc/runtime/executor_impl.h"
#include "csrc/runtime/kernels/register.h"
#include "csrc/runtime/places.h"
#include "csrc/util/status.h"

namespace spmd::runtime {

using program::Instruction;
using program::kNoValue;
using program::OpCode;
using program::Program;
using program::ValueId;

namespace {

std::string Megabytes(int64_t bytes) {
  return absl::StrCat(static_cast<double>(bytes * 10 / (int64_t{1} << 20)) / 10, " MiB");
}

// All devices of the program are the same torch device, and it computes.
bool AtOnePlace(const Program& program, const Backend& backend) {
  if (backend.planning() || program.grids.empty()) return false;
  const c10::Device first = backend.torch_device(program.grids[0]->device_ids()[0]);
  for (const GridPtr& grid : program.grids) {
    if (NeedsPositions(*grid, backend)) return false;
    if (backend.torch_device(grid->device_ids()[0]) != first) return false;
  }
  return true;
}

// An eighth of the devices' intermediates is little beside what all of them share.
constexpr int64_t kMostWaves = 8;

AxisMask AxesForTurns(const Program& program, LoadedProgram::Options::Turns turns) {
  using Turns = LoadedProgram::Options::Turns;
  if (turns == Turns::kNever) return 0;
  program::TurnOptions options;
  options.most_groups = kMostWaves;
  options.where_it_pays = turns == Turns::kWhereTheyPay;
  if (options.where_it_pays) options.more_groups_than = at::get_num_threads();
  return program::AxesForTurns(program, options);
}

absl::Status CheckMemory(const Program& program, const Backend& backend) {
  const int64_t limit = backend.memory_limit();
  if (limit <= 0) return absl::OkStatus();
  const program::MemoryReport report = program::PeakMemory(program);
  if (report.peak_bytes <= limit) return absl::OkStatus();
  std::string text = absl::StrCat("the program needs ", Megabytes(report.peak_bytes),
                                  " per device; ", backend.name(), " has ", Megabytes(limit),
                                  ". The largest values when it is fullest:");
  for (size_t i = 0; i < report.live.size() && i < 10; ++i) {
    const program::Value& value = program.values[report.live[i].value];
    absl::StrAppend(&text, "\n  ", Megabytes(report.live[i].bytes), "  %", value.name, ": ",
                    value.type.ToString(), " ",
                    value.sharding.ToString(*program.grids[value.grid]));
  }
  return absl::ResourceExhaustedError(text);
}

// One bound for each input: the tightest.
void AddBound(const IndexBound& bound, std::vector<IndexBound>& bounds) {
  for (IndexBound& known : bounds) {
    if (known.index != bound.index) continue;
    known.size = std::min(known.size, bound.size);
    return;
  }
  bounds.push_back(bound);
}

}  // namespace

std::string DescribeInstruction(const Program& program, int index) {
  const Instruction& instruction = program.instructions[index];
  std::string text = instruction.code == OpCode::kCall
                         ? instruction.op
                         : std::string(program::OpCodeName(instruction.code));
  const auto type = [&](ValueId id) {
    return id == kNoValue ? std::string("_") : program.values[id].type.ToString();
  };
  absl::StrAppend(&text, "(",
                  absl::StrJoin(instruction.operands, ", ",
                                [&](std::string* out, ValueId id) { out->append(type(id)); }),
                  ")");
  if (instruction.source >= 0 &&
      instruction.source < static_cast<int32_t>(program.sources.size())) {
    absl::StrAppend(&text, " at ", program.sources[instruction.source]);
  }
  return text;
}

void LoadedProgram::Impl::FindWhatOutlives() {
  outlives.assign(program.values.size(), 0);
  for (const program::Input& input : program.inputs) {
    if (!input.donated) outlives[input.value] = 1;
  }
  for (const program::Output& output : program.outputs) outlives[output.value] = 1;
}

absl::Status LoadedProgram::Impl::FindPlaces() {
  for (const GridPtr& grid : written.grids) {
    per_position = per_position || NeedsPositions(*grid, backend);
    for (int64_t id : grid->device_ids()) {
      on_cpu = on_cpu && backend.torch_device(id).is_cpu();
      if (!backend.elastic() && id >= backend.num_devices()) {
        return absl::InvalidArgumentError(absl::StrCat("the program's mesh ", grid->ToString(),
                                                       " names device ", id, "; ", backend.name(),
                                                       " has ", backend.num_devices()));
      }
    }
  }
  per_position = per_position || !options.deduplicate;
  if (backend.planning()) per_position = false;
  return absl::OkStatus();
}

absl::Status LoadedProgram::Impl::Load() {
  RegisterKernels();
  SPMD_RETURN_IF_ERROR(CheckMemory(written, backend));
  SPMD_RETURN_IF_ERROR(FindPlaces());
  PlacementCache cache(program, per_position);
  for (size_t id = 0; id < program.values.size(); ++id) {
    placements.push_back(cache.Of(static_cast<ValueId>(id)));
  }
  FindWhatOutlives();
  if (backend.planning()) {
    // Shapes follow from placements; what remains is that the ops exist.
    for (const Instruction& instruction : program.instructions) {
      if (instruction.code == OpCode::kCall) SPMD_RETURN_IF_ERROR(Bind(instruction).status());
    }
    return absl::OkStatus();
  }
  identity.resize(program.values.size());
  const std::vector<Sharers> sharers = FindSharers(program, outlives);
  const CallStep::Context context{program, backend, placements, sharers};
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    if (instruction.code == OpCode::kFree) {
      steps.emplace_back();
    } else if (instruction.code == OpCode::kCall) {
      SPMD_ASSIGN_OR_RETURN(CallStep step, CallStep::Make(context, static_cast<int>(i)));
      for (size_t k = 0; k < instruction.results.size(); ++k) {
        identity[instruction.results[k]] = step.identity(static_cast<int>(k));
      }
      steps.push_back(std::move(step));
    } else {
      SPMD_ASSIGN_OR_RETURN(MoveStep step, MakeMove(static_cast<int>(i)));
      steps.push_back(std::move(step));
    }
  }
  MakeSchedule();
  FindCommit();
  table.resize(program.values.size());
  return absl::OkStatus();
}

absl::StatusOr<MoveStep> LoadedProgram::Impl::MakeMove(int index) {
  const Instruction& instruction = program.instructions[index];
  if (instruction.operands.size() != instruction.results.size()) {
    return absl::InvalidArgumentError(absl::StrCat(program::OpCodeName(instruction.code), " has ",
                                                   instruction.operands.size(), " operands and ",
                                                   instruction.results.size(), " results"));
  }
  MoveStep step;
  step.fill = instruction.fill;
  for (size_t k = 0; k < instruction.operands.size(); ++k) {
    const ValueId from = instruction.operands[k], to = instruction.results[k];
    MovePlanPtr& plan = plans[{placements[from].get(), placements[to].get()}];
    if (plan == nullptr) {
      plan = std::make_shared<const MovePlan>(
          MovePlan::Make(*placements[from], *placements[to], backend));
    }
    step.parts.push_back({from, to, plan, identity[from]});
    for (size_t i = 0; i < plan->tiles.size(); ++i) {
      if (plan->tiles[i].action != TileMove::Action::kIdentity) continue;
      identity[to].resize(plan->tiles.size());
      identity[to][i] = 1;
    }
  }
  return step;
}

// Devices at one place take turns. A wave has work for all cores, and there are no more waves than
// save memory.
void LoadedProgram::Impl::MakeSchedule() {
  // What takes this part of the program's work at most is not worth waiting for.
  constexpr int64_t kNegligiblePart = int64_t{1} << 14;
  int64_t devices = 1, bytes = 0;
  for (const GridPtr& grid : program.grids) {
    for (int64_t id : grid->device_ids()) devices = std::max(devices, id + 1);
  }
  for (const Step& step : steps) {
    if (const auto* call = std::get_if<CallStep>(&step)) bytes += call->bytes();
  }
  int64_t wave = devices;
  if (on_cpu && AtOnePlace(program, backend)) {
    const int64_t as_one = kept == 0 ? 1 : devices / program.grids[0]->SizeOfMask(kept);
    wave = std::max<int64_t>(at::get_num_threads() * as_one, CeilDiv(devices, kMostWaves));
  }
  std::vector<int64_t> tiles;
  for (const PlacementPtr& place : placements) tiles.push_back(place->count());
  Scheduler scheduler(tiles, outlives, wave, bytes / kNegligiblePart);
  for (size_t i = 0; i < steps.size(); ++i) {
    if (const auto* call = std::get_if<CallStep>(&steps[i])) {
      AddToSchedule(static_cast<int>(i), *call, scheduler);
    } else if (const auto* move = std::get_if<MoveStep>(&steps[i])) {
      AddToSchedule(static_cast<int>(i), *move, scheduler);
    }
  }
  schedule = std::move(scheduler).Finish();
}

void LoadedProgram::Impl::AddToSchedule(int step, const CallStep& call,
                                        Scheduler& scheduler) const {
  std::vector<TileRef> reads, writes, wholes;
  for (int64_t i = 0; i < call.num_items(); ++i) {
    reads.clear();
    writes.clear();
    wholes.clear();
    call.AppendReads(i, reads);
    call.AppendWrites(i, writes);
    call.AppendWholes(i, wholes);
    // A whole with fewer tiles has none with this part's number.
    wholes.erase(std::remove_if(wholes.begin(), wholes.end(),
                                [&](const TileRef& whole) {
                                  return whole.index >= placements[whole.value]->count();
                                }),
                 wholes.end());
    WorkItem item;
    item.index = static_cast<int32_t>(i);
    scheduler.AddCall(step, item, reads, writes, call.DevicesOf(i),
                      call.bytes() / std::max<int64_t>(call.num_items(), 1), wholes);
  }
}

void LoadedProgram::Impl::AddToSchedule(int step, const MoveStep& move,
                                        Scheduler& scheduler) const {
  std::vector<std::vector<TileRef>> terms;
  for (size_t p = 0; p < move.parts.size(); ++p) {
    const MoveStep::Part& part = move.parts[p];
    const DType dtype = program.values[part.to].type.dtype;
    for (size_t i = 0; i < part.plan->tiles.size(); ++i) {
      const TileMove& tile = part.plan->tiles[i];
      terms.clear();
      for (const std::vector<Piece>& pieces : tile.terms) {
        std::vector<TileRef>& term = terms.emplace_back();
        for (const Piece& piece : pieces) {
          if (piece.source >= 0) term.push_back({part.from, piece.source});
        }
      }
      WorkItem item;
      item.index = static_cast<int32_t>(i);
      item.part = static_cast<int32_t>(p);
      const TileRef made{part.to, item.index};
      if (tile.action == TileMove::Action::kReduce) {
        scheduler.AddSum(step, item, terms, made, !RoundsOnce(part.plan->kind, dtype));
      } else {
        scheduler.AddMove(step, item, terms.empty() ? std::vector<TileRef>() : terms[0], made);
      }
    }
  }
}

// Before the first batch that overwrites or drops what was given, and after all that can fail;
// early, after all that can fail for other reasons than indices that are seen to be in range.
void LoadedProgram::Impl::FindCommit() {
  std::vector<uint8_t> donated(program.values.size(), 0);
  for (const program::Input& input : program.inputs) donated[input.value] = input.donated;
  const auto is_given = [&](ValueId id) { return donated[id] != 0; };
  std::vector<int> maker(program.values.size(), -1);
  for (size_t i = 0; i < steps.size(); ++i) {
    for (ValueId id : program.instructions[i].results) maker[id] = static_cast<int>(i);
  }
  size_t fallible = 0, unbounded = 0, first_write = schedule.batches.size();
  for (size_t b = 0; b < schedule.batches.size(); ++b) {
    const Batch& batch = schedule.batches[b];
    bool writes = std::any_of(batch.dead.begin(), batch.dead.end(),
                              [&](const TileRef& tile) { return is_given(tile.value); });
    if (const auto* call = std::get_if<CallStep>(&steps[batch.step])) {
      if (call->binding().can_fail_on_values) {
        fallible = b + 1;
        const auto bound = FindIndexBound(program, program.instructions[batch.step], maker);
        if (bound.has_value()) {
          AddBound(*bound, bounds);
        } else {
          unbounded = b + 1;
        }
      }
      const absl::Span<const ValueId> wholes = call->wholes();
      writes = writes || (std::any_of(wholes.begin(), wholes.end(), is_given) &&
                          std::any_of(batch.items.begin(), batch.items.end(),
                                      [](const WorkItem& item) { return item.may_write_through; }));
    }
    if (writes) first_write = std::min(first_write, b);
  }
  commit = std::max(fallible, first_write);
  // Elsewhere than on the host a look at indices would wait for them.
  early_commit = on_cpu ? std::max(unbounded, first_write) : commit;
}

absl::StatusOr<std::shared_ptr<LoadedProgram>> LoadedProgram::Load(Program program,
                                                                   std::shared_ptr<Backend> backend,
                                                                   Options options) {
  std::shared_ptr<LoadedProgram> loaded(new LoadedProgram(std::move(program), std::move(backend)));
  AxisMask kept = 0;
  if (options.coalesce && options.deduplicate && AtOnePlace(loaded->program_, *loaded->backend_)) {
    kept = AxesForTurns(loaded->program_, options.turns);
    if (kept != 0) {
      loaded->coalesced_ = program::CoalesceKeeping(loaded->program_, kept);
      if (!program::Verify(*loaded->coalesced_).ok()) kept = 0;
    }
    if (kept == 0) loaded->coalesced_ = program::Coalesce(loaded->program_);
  }
  loaded->impl_ =
      std::make_unique<Impl>(loaded->coalesced_ ? *loaded->coalesced_ : loaded->program_,
                             loaded->program_, kept, *loaded->backend_, options);
  SPMD_RETURN_IF_ERROR(loaded->impl_->Load());
  return loaded;
}

LoadedProgram::LoadedProgram(Program program, std::shared_ptr<Backend> backend)
    : program_(std::move(program)), backend_(std::move(backend)) {}

LoadedProgram::~LoadedProgram() = default;

}  // namespace spmd::runtime
