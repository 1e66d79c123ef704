// SPDX-License-Identifier: Apache-2.0
// The clauses of Verify (see program.h). Checks of one instruction are in call_verifier.cc and
// move_verifier.cc.
#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "csrc/program/call_verifier.h"
#include "csrc/program/move_verifier.h"
#include "csrc/program/program.h"
#include "csrc/util/status.h"

namespace spmd::program {
namespace {

class Verifier {
 public:
  explicit Verifier(const Program& program)
      : program_(program), state_(program.values.size(), State::kUndefined) {}

  absl::Status Verify() {
    SPMD_RETURN_IF_ERROR(Grids());
    for (size_t id = 0; id < program_.values.size(); ++id) {
      SPMD_RETURN_IF_ERROR(CheckValue(static_cast<ValueId>(id)));
    }
    for (const Input& input : program_.inputs) {
      SPMD_RETURN_IF_ERROR(InRange(input.value, "the list of inputs"));
      SPMD_RETURN_IF_ERROR(Define(input.value));
      if (!program_.values[input.value].windows.empty()) {
        return Error(absl::StrCat("input ", Name(input.value), " has windows"));
      }
    }
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      absl::Status status = CheckInstruction(i);
      if (!status.ok()) {
        return absl::Status(status.code(), absl::StrCat(Describe(i), ": ", status.message()));
      }
    }
    return Outputs();
  }

 private:
  enum class State : uint8_t { kUndefined, kAlive, kOverwritten, kFreed };

  static absl::Status Error(std::string message) {
    return absl::InvalidArgumentError(std::move(message));
  }
  std::string Name(ValueId id) const { return absl::StrCat("%", program_.values[id].name); }

  // "instruction 3 (all_gather, %5)".
  std::string Describe(size_t i) const {
    const Instruction& instruction = program_.instructions[i];
    std::string out = absl::StrCat("instruction ", i, " (", OpCodeName(instruction.code));
    if (!instruction.op.empty()) absl::StrAppend(&out, " ", instruction.op);
    for (ValueId id : instruction.results) {
      if (IsId(id)) absl::StrAppend(&out, ", ", Name(id));
    }
    return out + ")";
  }

  bool IsId(ValueId id) const {
    return id >= 0 && id < static_cast<ValueId>(program_.values.size());
  }
  absl::Status InRange(ValueId id, absl::string_view where) const {
    if (IsId(id)) return absl::OkStatus();
    return Error(absl::StrCat(where, " names value ", id, ", which does not exist"));
  }

  absl::Status Grids() const {
    if (program_.grids.size() != program_.grid_names.size()) {
      return Error(absl::StrCat("there are ", program_.grids.size(), " grids but ",
                                program_.grid_names.size(), " names"));
    }
    return absl::OkStatus();
  }

  // Clause 2.
  absl::Status CheckValue(ValueId id) {
    const Value& value = program_.values[id];
    if (!names_.insert(value.name).second) {
      return Error(absl::StrCat("two values are called ", Name(id)));
    }
    if (value.grid < 0 || value.grid >= static_cast<int>(program_.grids.size())) {
      return Error(absl::StrCat("value ", Name(id), ": there is no grid ", value.grid));
    }
    const Grid& grid = *program_.grids[value.grid];
    const absl::Status layout = CheckLayout(grid, value.sharding, value.type.dims);
    if (!layout.ok()) {
      return Error(absl::StrCat("value ", Name(id), ": ", layout.message()));
    }
    int last = -1;
    for (const WindowDim& window : value.windows) {
      const absl::Status status = CheckWindow(value, window, grid, last);
      if (!status.ok()) return Error(absl::StrCat("value ", Name(id), ": ", status.message()));
      last = window.dim;
    }
    return absl::OkStatus();
  }

  static absl::Status CheckWindow(const Value& value, const WindowDim& window, const Grid& grid,
                                  int last) {
    if (window.dim <= last || window.dim >= value.type.rank()) {
      return Error(absl::StrCat("window of dimension ", window.dim,
                                "; windows name the value's dimensions, ascending"));
    }
    const AxisList& axes = value.sharding.dims[window.dim].axes;
    const int64_t least = CeilDiv(std::max<int64_t>(window.extent, 0), grid.size(axes) + 1);
    if (window.extent < 0 || (window.chunk != 0 && window.chunk < least)) {
      return Error(absl::StrCat("window of dimension ", window.dim, " over ", window.extent,
                                " indices with chunk ", window.chunk,
                                "; the chunk must be at least ", least));
    }
    int64_t ordered = 0;
    for (const Interval& part : window.order) {
      if (!part.HasPositions()) {
        return Error(absl::StrCat("the order of dimension ", window.dim, " has the indices [",
                                  part.begin, ",", part.end, "), which no tensor has"));
      }
      ordered += part.size();
    }
    if (!window.order.empty() && ordered != window.extent) {
      return Error(absl::StrCat("the order of dimension ", window.dim, " has ", ordered,
                                " indices, not ", window.extent));
    }
    absl::Status status;
    auto check = [&](const Expr& variable) {
      const bool fits = variable.op() == Expr::Op::kCoord
                            ? std::count(axes.begin(), axes.end(), variable.dim()) > 0
                            : variable.tensor() == Result(0) && variable.dim() == 0;
      if (!fits) {
        status = Error(absl::StrCat("the window of dimension ", window.dim, " refers to ",
                                    variable.ToString(),
                                    "; it may use start(r0,0), size(r0,0), extent(r0,0) and "
                                    "coordinates along the dimension's axes"));
      }
    };
    window.begin.ForEachVariable(check);
    window.end.ForEachVariable(check);
    return status;
  }

  absl::Status Define(ValueId id) {
    if (state_[id] != State::kUndefined) {
      return Error(absl::StrCat("value ", Name(id), " is defined twice"));
    }
    state_[id] = State::kAlive;
    return absl::OkStatus();
  }

  absl::Status Use(ValueId id) const {
    switch (state_[id]) {
      case State::kAlive:
        return absl::OkStatus();
      case State::kUndefined:
        return Error(absl::StrCat("value ", Name(id), " is used before it is defined"));
      case State::kOverwritten:
        return Error(absl::StrCat("value ", Name(id), " is used after it was overwritten"));
      case State::kFreed:
        return Error(absl::StrCat("value ", Name(id), " is used after its free"));
    }
    return absl::OkStatus();
  }

  absl::Status CheckInstruction(size_t index) {
    const Instruction& i = program_.instructions[index];
    for (ValueId id : i.operands) {
      if (id == kNoValue && i.code == OpCode::kCall) continue;
      SPMD_RETURN_IF_ERROR(InRange(id, "an operand"));
      if (i.code == OpCode::kFree && state_[id] == State::kOverwritten) continue;
      SPMD_RETURN_IF_ERROR(Use(id));
    }
    for (ValueId id : i.results) SPMD_RETURN_IF_ERROR(InRange(id, "a result"));
    if (i.source < -1 || i.source >= static_cast<int32_t>(program_.sources.size())) {
      return Error(absl::StrCat("there is no source ", i.source));
    }
    if (i.code == OpCode::kFree) {
      SPMD_RETURN_IF_ERROR(CheckFree(i));
    } else if (i.code == OpCode::kCall) {
      SPMD_RETURN_IF_ERROR(VerifyCall(program_, i));
      SPMD_RETURN_IF_ERROR(CheckUpdates(i));
    } else {
      SPMD_RETURN_IF_ERROR(VerifyMove(program_, i));
    }
    for (ValueId id : i.results) SPMD_RETURN_IF_ERROR(Define(id));
    return absl::OkStatus();
  }

  absl::Status CheckFree(const Instruction& i) {
    if (!i.results.empty()) return Error("free has no results");
    for (ValueId id : i.operands) {
      if (state_[id] == State::kFreed) return Error(absl::StrCat(Name(id), " is freed twice"));
      for (const Input& input : program_.inputs) {
        if (input.value == id && !input.donated) {
          return Error(absl::StrCat(Name(id), " is an input that the caller keeps"));
        }
      }
      state_[id] = State::kFreed;
    }
    return absl::OkStatus();
  }

  absl::Status CheckUpdates(const Instruction& i) {
    if (i.updates == -1) return absl::OkStatus();
    SPMD_RETURN_IF_ERROR(VerifyUpdates(program_, i));
    state_[i.operands[i.updates]] = State::kOverwritten;
    return absl::OkStatus();
  }

  // Clause 5.
  absl::Status Outputs() const {
    std::vector<bool> taken(program_.inputs.size(), false);
    for (const Output& output : program_.outputs) {
      SPMD_RETURN_IF_ERROR(InRange(output.value, "the list of outputs"));
      const absl::Status use = Use(output.value);
      if (!use.ok()) return Error(absl::StrCat("return: ", use.message()));
      if (output.becomes == -1) continue;
      if (output.becomes < 0 || output.becomes >= static_cast<int>(program_.inputs.size())) {
        return Error(absl::StrCat("return: output ", Name(output.value), " becomes input ",
                                  output.becomes, ", which does not exist"));
      }
      const ValueId input = program_.inputs[output.becomes].value;
      if (taken[output.becomes]) {
        return Error(absl::StrCat("return: two outputs become ", Name(input)));
      }
      taken[output.becomes] = true;
      if (program_.values[input].type != program_.values[output.value].type) {
        return Error(absl::StrCat("return: ", Name(output.value), " of type ",
                                  program_.values[output.value].type.ToString(), " cannot become ",
                                  Name(input), " of type ",
                                  program_.values[input].type.ToString()));
      }
    }
    return absl::OkStatus();
  }

  const Program& program_;
  std::vector<State> state_;
  absl::flat_hash_set<absl::string_view> names_;
};

}  // namespace

absl::Status Verify(const Program& program) { return Verifier(program).Verify(); }

}  // namespace spmd::program
