// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "csrc/partition/passes.h"
#include "csrc/rules/registry.h"

namespace spmd::partition {
namespace {

using program::Instruction;
using program::OpCode;
using program::ValueId;

std::string SpecText(const Sharding& sharding, const Grid& grid) {
  std::vector<std::string> dims;
  for (const DimSharding& d : sharding.dims) {
    const std::string axes = grid.AxesToString(d.axes);
    if (d.axes.empty()) {
      dims.push_back("None");
    } else if (axes.find(',') == std::string::npos) {
      dims.push_back(absl::StrCat("'", axes, "'"));
    } else {
      dims.push_back(absl::StrCat("(",
                                  absl::StrJoin(absl::StrSplit(axes, ','), ", ",
                                                [](std::string* out, absl::string_view axis) {
                                                  absl::StrAppend(out, "'", axis, "'");
                                                }),
                                  ")"));
    }
  }
  return absl::StrCat("P(", absl::StrJoin(dims, ", "), ")");
}

bool IsWhole(const rules::OpFactors& factors, const rules::DimFactors& dim) {
  return dim.empty() ||
         std::any_of(dim.begin(), dim.end(), [&](int f) { return factors.factors[f].whole; });
}

// The advice to shard another dimension of the operand by the gathered axes, along which the op can
// work in parts; or that there is no such dimension.
std::string Advice(const rules::OpFactors* factors, int operand, const TensorType& type,
                   const Sharding& from, const Instruction& gather, const Grid& grid) {
  if (factors != nullptr) {
    for (int d = 0; d < type.rank(); ++d) {
      if (d == gather.dim || IsWhole(*factors, factors->operands[operand][d])) continue;
      if (!from.dims[d].axes.empty() || type.dims[d] < grid.size(gather.axes)) continue;
      Sharding moved = from.Reduced();
      moved.dims[d] = from.dims[gather.dim];
      moved.dims[gather.dim] = DimSharding{};
      return absl::StrCat("Mark it ", SpecText(moved, grid), " to avoid that.");
    }
  }
  return "None of its dimensions can stay sharded here.";
}

// True if no dimension of a call can be sharded for want of a rule, and a row that takes all
// operands whole says no more than none.
bool HasNoRule(const propagate::NodeFactors& factors, const Instruction& call) {
  if (factors.rule == nullptr) return true;
  return factors->factors.empty() && absl::StartsWith(call.op, "aten::");
}

// The greatest tensor of a call, in bytes of a device.
int64_t GreatestTile(const program::Program& program, const Instruction& call) {
  int64_t greatest = 0;
  for (const ValueId v : call.operands) {
    if (v >= 0) greatest = std::max(greatest, program.TileBytes(v));
  }
  for (const ValueId v : call.results) greatest = std::max(greatest, program.TileBytes(v));
  return greatest;
}

// Warnings of ops without a rule whose operands were sharded: of users' ops, and of PyTorch's if
// they have more than a few elements.
// A gather above `bound_bytes` has a warning of its own.
std::vector<Warning> UnknownOps(const Lowering& lowering, int64_t bound_bytes) {
  constexpr int64_t kFewBytes = 4096;
  const program::Program& program = lowering.program;
  absl::flat_hash_set<ValueId> gathered;
  std::vector<Warning> warnings;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    if (instruction.code == OpCode::kAllGather) gathered.insert(instruction.results[0]);
    const ir::NodeId id = lowering.node_of[i];
    if (id == ir::kNoNode || !HasNoRule((*lowering.factors)[id], instruction)) continue;
    const bool users = !absl::StartsWith(instruction.op, "aten::");
    if (!users && GreatestTile(program, instruction) <= kFewBytes) continue;
    const bool any =
        std::any_of(instruction.operands.begin(), instruction.operands.end(), [&](ValueId v) {
          return gathered.contains(v) && (users || program.TileBytes(v) <= bound_bytes);
        });
    if (!any) continue;
    const std::string line =
        instruction.source >= 0
            ? absl::StrCat(" at ", lowering.graph->sources()[instruction.source])
            : "";
    warnings.push_back(
        {absl::StrCat("no rule ", instruction.op),
         absl::StrCat(instruction.op, line,
                      " has no sharding rule, so it runs unsharded on gathered operands",
                      users ? absl::StrCat(". torch_spmd.register_rule(\"", instruction.op,
                                           "\", …) says how it may be sharded")
                            : "")});
  }
  return warnings;
}

// The warning of a program in which devices send rows that lists take out of a sharded dimension,
// and that others write back, as experts do that take their tokens out of the batch.
std::optional<Warning> RowsOfExperts(const Lowering& lowering, int64_t bound_bytes) {
  const program::Program& program = lowering.program;
  const ir::Graph& graph = *lowering.graph;
  const auto uses = [&](size_t instruction) {
    const ir::NodeId id = lowering.node_of[instruction];
    return id == ir::kNoNode ? rules::RowsByList::kNone : rules::FactsOf(graph.node(id).op).rows;
  };
  bool writes = false;
  int64_t bytes = 0;
  std::optional<size_t> first;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    writes = writes || uses(i) == rules::RowsByList::kWrites;
    if (uses(i) != rules::RowsByList::kTakes) continue;
    // Each device has its own rows and zeros for the others: sooner or later they are summed.
    const ValueId rows = instruction.results[0];
    if (!program.values[rows].sharding.IsUnreduced()) continue;
    bytes += program.TileBytes(rows);
    if (!first.has_value()) first = i;
  }
  if (!writes || bytes <= bound_bytes) return std::nullopt;
  const int source = program.instructions[*first].source;
  const std::string line = source < 0 ? "" : absl::StrCat(" at ", graph.sources()[source]);
  return Warning{
      absl::StrCat("rows by list ", line),
      absl::StrFormat("rows that lists take out of a sharded dimension%s are sent to all devices, "
                      "%.1f MiB in this program, and every device works on all of them. Experts "
                      "of torch_spmd.nn.MoE, or of torch.nn.functional.grouped_mm, are sharded",
                      line, bytes / 1048576.0)};
}

}  // namespace

std::vector<Warning> GatherWarnings(const Lowering& lowering, int64_t bound_bytes) {
  const program::Program& program = lowering.program;
  const ir::Graph& graph = *lowering.graph;
  std::vector<Warning> warnings = UnknownOps(lowering, bound_bytes);
  if (std::optional<Warning> rows = RowsOfExperts(lowering, bound_bytes / 16)) {
    warnings.push_back(*std::move(rows));
  }
  for (const Instruction& gather : program.instructions) {
    if (gather.code != OpCode::kAllGather) continue;
    const ValueId gathered = gather.results[0];
    if (program.TileBytes(gathered) <= bound_bytes) continue;
    for (size_t i = 0; i < program.instructions.size(); ++i) {
      const ir::NodeId id = lowering.node_of[i];
      const Instruction& call = program.instructions[i];
      const auto at = std::find(call.operands.begin(), call.operands.end(), gathered);
      if (id == ir::kNoNode || at == call.operands.end()) continue;
      // An op that these axes shard elsewhere does no work twice: the weights of a layer are
      // gathered on purpose if the axes shard its batch.
      const NodePlan& plan = lowering.plans[id];
      AxisMask used = 0;
      for (const auto& shard : plan.choice.cut) used |= MaskOf(shard.axes);
      if (used & MaskOf(gather.axes)) continue;
      const propagate::NodeFactors& nf = (*lowering.factors)[id];
      const Grid& grid = *program.grids[program.values[gathered].grid];
      const Sharding& from = program.values[gather.operands[0]].sharding;
      const TensorType& type = program.values[gathered].type;
      const int k = static_cast<int>(at - call.operands.begin());
      std::string why = "because that is the cheapest plan found";
      if (nf.rule == nullptr) {
        why = "because it has no sharding rule and runs unsharded";
      } else if (IsWhole(*nf, nf->operands[k][gather.dim])) {
        why = absl::StrCat("because it needs dimension ", gather.dim, " whole");
      }
      const std::string line = call.source >= 0 ? graph.sources()[call.source] : "";
      warnings.push_back(
          {absl::StrCat("gather ", call.op, " ", line),
           absl::StrCat(call.op, line.empty() ? "" : absl::StrCat(" at ", line), " gathers ",
                        type.ToString(), " from ", SpecText(from, grid), " to ",
                        SpecText(program.values[gathered].sharding, grid), ": ",
                        absl::StrFormat("%.1f MiB", program.TileBytes(gathered) / 1048576.0),
                        " on every device, ", why, ". ",
                        Advice(nf.rule == nullptr ? nullptr : &*nf, k, type, from, gather, grid))});
      break;
    }
  }
  return warnings;
}

}  // namespace spmd::partition
