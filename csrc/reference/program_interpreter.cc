// SPDX-License-Identifier: Apache-2.0
#include "csrc/reference/program_interpreter.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "csrc/ir/evaluate.h"
#include "csrc/reference/tile_set.h"
#include "csrc/util/status.h"

namespace spmd::reference {
namespace {

using program::Instruction;
using program::OpCode;
using program::Program;
using program::ValueId;

bool SameNumber(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

bool SameNumbers(const std::vector<double>& a, const std::vector<double>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), SameNumber);
}

// Limits the work: the tiles of all values are held at once.
absl::Status CheckSize(const Program& program) {
  double elements = 0;
  for (ValueId id = 0; id < static_cast<ValueId>(program.values.size()); ++id) {
    const Layout layout = program.LayoutOf(id);
    const double tile = program.TileBytes(id) / ByteSize(program.values[id].type.dtype);
    elements += static_cast<double>(layout.num_tiles()) * std::max(tile, 1.0);
    elements += static_cast<double>(program.values[id].type.NumElements());
  }
  for (const GridPtr& grid : program.grids) elements += static_cast<double>(grid->num_devices());
  if (elements <= kMaxLiteralElements) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("interpreter: the program has ", elements,
                   " elements on all devices, which is too large to interpret (more than 2^24)"));
}

class Player {
 public:
  Player(const Program& program, absl::Span<const double> scalars)
      : program_(program), scalars_(scalars) {
    for (ValueId id = 0; id < static_cast<ValueId>(program.values.size()); ++id) {
      values_.emplace_back(program, id);
    }
  }

  absl::StatusOr<std::vector<Literal>> Play(absl::Span<const Literal> inputs) {
    if (inputs.size() != program_.inputs.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "interpreter: the program has ", program_.inputs.size(), " inputs, got ", inputs.size()));
    }
    for (size_t k = 0; k < inputs.size(); ++k) {
      TileSet& tiles = values_[program_.inputs[k].value];
      if (!(tiles.type() == inputs[k].type)) {
        return absl::InvalidArgumentError(absl::StrCat("interpreter: input ", k, " is ",
                                                       tiles.type().ToString(), ", got a ",
                                                       inputs[k].type.ToString()));
      }
      tiles.CutFrom(TermsOf(inputs[k]), /*fill=*/0);
    }
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      const absl::Status status = Run(program_.instructions[i]);
      if (!status.ok()) {
        return absl::Status(status.code(),
                            absl::StrCat("instruction ", i, " (", Name(program_.instructions[i]),
                                         "): ", status.message()));
      }
    }
    std::vector<Literal> outputs;
    for (const program::Output& output : program_.outputs) {
      SPMD_ASSIGN_OR_RETURN(const Terms terms, values_[output.value].PutTogether());
      outputs.push_back(Reduced(terms));
    }
    return outputs;
  }

 private:
  static std::string Name(const Instruction& instruction) {
    return absl::StrCat(program::OpCodeName(instruction.code), instruction.op.empty() ? "" : " ",
                        instruction.op);
  }

  absl::Status Run(const Instruction& instruction) {
    if (instruction.code == OpCode::kFree) return absl::OkStatus();
    if (instruction.code == OpCode::kCall) return Call(instruction);
    for (size_t k = 0; k < instruction.results.size(); ++k) {
      const TileSet& from = values_[instruction.operands[k]];
      SPMD_ASSIGN_OR_RETURN(const Terms terms, from.PutTogether());
      values_[instruction.results[k]].CutFrom(terms, instruction.fill);
    }
    return absl::OkStatus();
  }

  // Runs the call on every device. The first device that holds a tile sets it, and replicas must
  // agree.
  absl::Status Call(const Instruction& instruction) {
    if (instruction.results.empty()) return absl::OkStatus();
    const GridPtr& grid = values_[instruction.results[0]].layout().grid();
    std::vector<std::vector<bool>> made;
    for (ValueId id : instruction.results) {
      made.emplace_back(values_[id].layout().num_tiles(), false);
    }
    for (int64_t position = 0; position < grid->num_devices(); ++position) {
      SPMD_ASSIGN_OR_RETURN(std::vector<Literal> results, CallAt(instruction, *grid, position));
      for (size_t k = 0; k < results.size(); ++k) {
        TileSet& tiles = values_[instruction.results[k]];
        const int64_t tile = tiles.layout().TileAt(position);
        if (!made[k][tile]) {
          tiles.Set(tile, std::move(results[k]));
          made[k][tile] = true;
        } else if (!SameNumbers(results[k].data, tiles.tile(tile).data) ||
                   !SameNumbers(results[k].imaginary, tiles.tile(tile).imaginary)) {
          return absl::InternalError(absl::StrCat(
              "device ", grid->device_ids()[position], " computes another tile ", tile, " of '%",
              program_.values[instruction.results[k]].name, "' than its replica"));
        }
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<Literal>> CallAt(const Instruction& instruction, const Grid& grid,
                                              int64_t position) {
    std::vector<TensorType> types;
    bool any = false;
    for (ValueId id : instruction.results) {
      types.push_back({values_[id].type().dtype, BoxDims(values_[id].BoxAt(position))});
      any = any || types.back().NumElements() > 0;
    }
    if (!any) {  // the runtime never calls an op whose results are all empty
      std::vector<Literal> empty;
      for (const TensorType& type : types) empty.push_back({type, {}});
      return empty;
    }
    std::vector<Literal> zeros;  // for operands added once, at the other coordinates
    zeros.reserve(instruction.added_once.size());
    std::vector<const Literal*> operands;
    for (ValueId id : instruction.operands) {
      operands.push_back(id == program::kNoValue ? nullptr : &values_[id].TileAt(position));
    }
    for (const program::AddedOnce& added : instruction.added_once) {
      const Literal*& operand = operands[added.operand];
      if (operand == nullptr || grid.Coordinate(position, added.axes) == 0) continue;
      zeros.push_back(*operand);
      std::fill(zeros.back().data.begin(), zeros.back().data.end(), 0);
      std::fill(zeros.back().imaginary.begin(), zeros.back().imaginary.end(), 0);
      operand = &zeros.back();
    }
    SPMD_ASSIGN_OR_RETURN(const Attributes given,
                          WithScalars(instruction.attributes, program_.scalars, scalars_));
    const Attributes local = Evaluated(given, EnvAt(instruction, grid, position));
    return InterpretOp(instruction.op, operands, instruction.groups, local, types);
  }

  Expr::Env EnvAt(const Instruction& instruction, const Grid& grid, int64_t position) const {
    const auto tiles_of = [this, &instruction](TensorRef ref) -> const TileSet& {
      return values_[ref.kind == TensorRef::Kind::kOperand ? instruction.operands[ref.index]
                                                           : instruction.results[ref.index]];
    };
    Expr::Env env;
    env.start = [=](TensorRef ref, int dim) { return tiles_of(ref).BoxAt(position)[dim].begin; };
    env.size = [=](TensorRef ref, int dim) { return tiles_of(ref).BoxAt(position)[dim].size(); };
    env.extent = [=](TensorRef ref, int dim) { return tiles_of(ref).type().dims[dim]; };
    env.coord = [&grid, position](int axis) {
      return grid.Coordinate(position, static_cast<AxisId>(axis));
    };
    return env;
  }

  const Program& program_;
  absl::Span<const double> scalars_;
  std::vector<TileSet> values_;
};

}  // namespace

absl::StatusOr<std::vector<Literal>> Interpret(const Program& program,
                                               absl::Span<const Literal> inputs,
                                               absl::Span<const double> scalars) {
  SPMD_RETURN_IF_ERROR(CheckSize(program));
  return Player(program, scalars).Play(inputs);
}

}  // namespace spmd::reference
