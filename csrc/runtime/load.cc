// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "csrc/program/one_place/coalesce.h"
#include "csrc/program/one_place/fuse_sums.h"
#include "csrc/program/one_place/turns.h"
#include "csrc/runtime/executor_impl.h"
#include "csrc/runtime/kernels/register.h"
#include "csrc/runtime/memory_check.h"
#include "csrc/runtime/one_place/tile_memory.h"
#include "csrc/runtime/one_place/waves.h"
#include "csrc/runtime/one_place/write_through.h"
#include "csrc/runtime/places.h"
#include "csrc/util/status.h"

namespace spmd::runtime {

using program::Instruction;
using program::kNoValue;
using program::OpCode;
using program::Program;
using program::ValueId;

namespace {

AxisMask AxesForTurns(const Program& program, LoadedProgram::Options::Turns turns) {
  using Turns = LoadedProgram::Options::Turns;
  if (turns == Turns::kNever) return 0;
  program::TurnOptions options;
  options.most_groups = kMostWaves;
  options.where_it_pays = turns == Turns::kWhereTheyPay;
  if (options.where_it_pays) options.more_groups_than = at::get_num_threads();
  return program::AxesForTurns(program, options);
}

// True if all devices of the program share a place and the backend is not planning.
bool AtOnePlace(const Program& program, const Backend& backend) {
  if (backend.planning() || program.grids.empty() || backend.peers() != nullptr) return false;
  const Place first = backend.place(program.grids[0]->device_ids()[0]);
  for (const GridPtr& grid : program.grids) {
    if (NeedsPositions(*grid, backend)) return false;
    if (backend.place(grid->device_ids()[0]) != first) return false;
  }
  return true;
}

// Whether devices have values of their own, which are no tiles of one value.
bool HasRegions(const Program& program) {
  return std::any_of(program.values.begin(), program.values.end(),
                     [](const program::Value& v) { return !v.sharding.manual.empty(); });
}

absl::Status CheckDevices(const Program& program, const Backend& backend) {
  if (backend.elastic()) return absl::OkStatus();
  for (const GridPtr& grid : program.grids) {
    for (int64_t id : grid->device_ids()) {
      if (id < backend.num_devices()) continue;
      return absl::InvalidArgumentError(absl::StrCat("the program's mesh ", grid->ToString(),
                                                     " names device ", id, "; ", backend.name(),
                                                     " has ", backend.num_devices()));
    }
  }
  return absl::OkStatus();
}

std::string OpOf(const Instruction& instruction) {
  return instruction.code == OpCode::kCall ? instruction.op
                                           : std::string(program::OpCodeName(instruction.code));
}

// " at train.py:12", or nothing if the line is not known.
std::string LineOf(const Program& program, const Instruction& instruction) {
  const int32_t source = instruction.source;
  if (source < 0 || source >= static_cast<int32_t>(program.sources.size())) return "";
  return absl::StrCat(" at ", program.sources[source]);
}

Holding HoldingOf(const Program& program, const Backend& backend,
                  const LoadedProgram::Options& options) {
  Holding held;
  if (backend.planning()) return held;
  const auto has_several_places = [&](const GridPtr& grid) {
    return NeedsPositions(*grid, backend);
  };
  held.per_position = !options.deduplicate ||
                      std::any_of(program.grids.begin(), program.grids.end(), has_several_places);
  held.devices_per_process = backend.homes().devices_per_process;
  held.shares_cpu = options.one_place && AtOnePlace(program, backend) &&
                    backend.place(program.grids[0]->device_ids()[0]).device.is_cpu();
  return held;
}

}  // namespace

std::string DescribeInstruction(const Program& program, int index) {
  const Instruction& instruction = program.instructions[index];
  const auto type = [&](ValueId id) {
    return id == kNoValue ? std::string("_") : program.values[id].type.ToString();
  };
  return absl::StrCat(OpOf(instruction), "(",
                      absl::StrJoin(instruction.operands, ", ",
                                    [&](std::string* out, ValueId id) { out->append(type(id)); }),
                      ")", LineOf(program, instruction));
}

std::vector<std::string> NameInstructions(const Program& program) {
  std::vector<std::string> names;
  std::vector<const std::string*> made_by(program.values.size(), nullptr);  // the call's name
  names.reserve(program.instructions.size());  // `made_by` points into it
  for (const Instruction& instruction : program.instructions) {
    const bool moves = instruction.code != OpCode::kCall && !instruction.operands.empty();
    const std::string* const moved = moves ? made_by[instruction.operands[0]] : nullptr;
    std::string& name = names.emplace_back(OpOf(instruction));
    if (moves) {
      absl::StrAppend(&name, " of ", moved != nullptr ? *moved : "an input");
    } else {
      absl::StrAppend(&name, LineOf(program, instruction));
    }
    for (const ValueId result : instruction.results) made_by[result] = moves ? moved : &name;
  }
  return names;
}

absl::Status LoadedProgram::Impl::Load() {
  RegisterKernels();
  SPMD_RETURN_IF_ERROR(CheckMemory(written, backend, options.memory_limit));
  SPMD_RETURN_IF_ERROR(CheckDevices(written, backend));
  PlacementCache cache(program, held.per_position, held.devices_per_process);
  for (size_t id = 0; id < program.values.size(); ++id) {
    placements.push_back(cache.Of(static_cast<ValueId>(id)));
  }
  if (backend.planning()) {
    // The placements give the shapes, so it only remains to check that the ops exist.
    for (const Instruction& instruction : program.instructions) {
      if (instruction.code == OpCode::kCall) SPMD_RETURN_IF_ERROR(Bind(instruction).status());
    }
    return absl::OkStatus();
  }
  const bool in_job = backend.peers() != nullptr && backend.here().device.is_cpu();
  const bool on_cpu = held.shares_cpu || in_job;
  if (on_cpu && options.keep_memory) TileMemory::Install();
  identity.resize(program.values.size());
  const std::vector<Sharers> sharers =
      options.one_place ? FindSharers(program) : std::vector<Sharers>(program.instructions.size());
  const CallStep::Context context{program, backend, placements, sharers};
  const program::DefUse facts(program);
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
      if (held.shares_cpu) SPMD_RETURN_IF_ERROR(SumProducts(context, facts, step));
      steps.push_back(std::move(step));
    }
  }
  MakeSchedule();
  FindCommit();
  if (backend.peers() != nullptr) {
    FindVotes();
    FindOverlaps();
    fingerprint = written.ComputeFingerprint().hi;
  }
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
    const bool one_by_one =
        backend.peers() != nullptr &&
        RoundsOnce(program.values[from].sharding.reduce_kind, program.values[from].type.dtype);
    MovePlanPtr& plan = plans[{placements[from].get(), placements[to].get(), one_by_one}];
    if (plan == nullptr) {
      plan = std::make_shared<const MovePlan>(
          MovePlan::Make(*placements[from], *placements[to], backend, one_by_one));
    }
    step.parts.push_back({from, to, plan, identity[from]});
    step.exchanges = step.exchanges || plan->transfer.exchanges;
    for (size_t i = 0; i < plan->tiles.size(); ++i) {
      if (plan->tiles[i].action != TileMove::Action::kIdentity) continue;
      identity[to].resize(plan->tiles.size());
      identity[to][i] = 1;
    }
  }
  return step;
}

absl::Status LoadedProgram::Impl::SumProducts(const CallStep::Context& context,
                                              const program::DefUse& facts, MoveStep& move) {
  const int64_t least_blocks =
      options.turns == Options::Turns::kAlways ? 1 : std::max(at::get_num_threads(), 2);
  for (MoveStep::Part& part : move.parts) {
    const std::vector<int> products = program::ProductsOf(program, facts, part.from);
    if (products.empty()) continue;
    SPMD_ASSIGN_OR_RETURN(part.products, SumOfProducts::Make(context, products, *part.plan,
                                                             part.from, part.to, least_blocks));
    if (part.products == nullptr) continue;
    for (const int product : products) steps[product] = std::monostate();
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<LoadedProgram>> LoadedProgram::Load(Program program,
                                                                   std::shared_ptr<Backend> backend,
                                                                   Options options) {
  std::shared_ptr<LoadedProgram> loaded(new LoadedProgram(std::move(program), std::move(backend)));
  if (loaded->backend_->peers() != nullptr || HasRegions(loaded->program_)) {
    options.one_place = false;
  }
  // Taking turns saves memory for more, smaller calls. On a GPU each of them has to be launched.
  const bool on_cpu = loaded->backend_->planning() || loaded->backend_->here().device.is_cpu();
  if (!on_cpu && options.turns != Options::Turns::kAlways) options.turns = Options::Turns::kNever;
  if (!options.one_place) {
    options.coalesce = false;
    options.turns = Options::Turns::kNever;
  }
  Holding held = HoldingOf(loaded->program_, *loaded->backend_, options);
  if (options.coalesce && options.deduplicate && AtOnePlace(loaded->program_, *loaded->backend_)) {
    held.coalesced = true;
    held.kept = AxesForTurns(loaded->program_, options.turns);
    if (held.kept != 0) {
      loaded->rewritten_ = program::CoalesceKeeping(loaded->program_, held.kept);
      if (!program::Verify(*loaded->rewritten_).ok()) held.kept = 0;
    }
    if (held.kept == 0) loaded->rewritten_ = program::Coalesce(loaded->program_);
  }
  if (options.one_place && !loaded->backend_->planning()) {
    const Program& runs = loaded->rewritten_ ? *loaded->rewritten_ : loaded->program_;
    std::optional<Program> fused = program::FuseSums(runs);
    if (fused) loaded->rewritten_ = std::move(fused);
  }
  loaded->impl_ =
      std::make_unique<Impl>(loaded->rewritten_ ? *loaded->rewritten_ : loaded->program_,
                             loaded->program_, held, *loaded->backend_, options);
  SPMD_RETURN_IF_ERROR(loaded->impl_->Load());
  return loaded;
}

LoadedProgram::LoadedProgram(Program program, std::shared_ptr<Backend> backend)
    : program_(std::move(program)), backend_(std::move(backend)) {}

LoadedProgram::~LoadedProgram() = default;

}  // namespace spmd::runtime
