// SPDX-License-Identifier: Apache-2.0
#include "csrc/program/call_verifier.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "csrc/util/status.h"

namespace spmd::program {
namespace {

absl::Status CallError(std::string message) {
  return absl::InvalidArgumentError(std::move(message));
}

class CallVerifier {
 public:
  CallVerifier(const Program& program, const Instruction& call) : program_(program), call_(call) {}

  absl::Status Verify() const {
    if (call_.op.empty()) return CallError("a call names its op");
    if (!call_.axes.empty() || call_.dim != -1 || call_.to_dim != -1) {
      return CallError("axes and dimensions belong to moves");
    }
    SPMD_RETURN_IF_ERROR(OneGrid());
    SPMD_RETURN_IF_ERROR(Groups());
    for (const auto& [name, attr] : call_.attributes) SPMD_RETURN_IF_ERROR(CheckAttr(name, attr));
    for (const AddedOnce& once : call_.added_once) SPMD_RETURN_IF_ERROR(CheckAddedOnce(once));
    return absl::OkStatus();
  }

 private:
  absl::Status Groups() const {
    int end = 0;
    for (ir::OperandGroup group : call_.groups) {
      if (group.begin < end || group.size < 0 ||
          group.begin + group.size > static_cast<int>(call_.operands.size())) {
        return CallError(absl::StrCat("operand group [", group.begin, ", +", group.size,
                                      ") is out of range or out of order"));
      }
      end = group.begin + group.size;
    }
    return absl::OkStatus();
  }

  absl::Status OneGrid() const {
    int grid = -1;
    auto check = [&](ValueId id) {
      if (id == kNoValue) return absl::OkStatus();
      if (grid == -1) grid = program_.values[id].grid;
      if (program_.values[id].grid == grid) return absl::OkStatus();
      return CallError(absl::StrCat("%", program_.values[id].name, " lives on mesh @",
                                    program_.grid_names[program_.values[id].grid],
                                    ", other tensors of the call on @", program_.grid_names[grid],
                                    "; an exchange must bring them together"));
    };
    for (ValueId id : call_.results) SPMD_RETURN_IF_ERROR(check(id));
    for (ValueId id : call_.operands) SPMD_RETURN_IF_ERROR(check(id));
    return absl::OkStatus();
  }

  // Clause 6.
  absl::Status CheckAttr(absl::string_view name, const Attr& attr) const {
    if (const auto* scalar = std::get_if<RuntimeScalar>(&attr)) {
      if (scalar->slot >= 0 && scalar->slot < static_cast<int>(program_.scalars.size())) {
        return absl::OkStatus();
      }
      return CallError(
          absl::StrCat("attribute ", name, ": scalar $", scalar->slot, " is not declared"));
    }
    absl::Status status;
    auto check = [&](const Expr& v) {
      if (!VariableExists(v)) {
        status = CallError(absl::StrCat("attribute ", name, ": there is no ", v.ToString()));
      }
    };
    if (const auto* expr = std::get_if<Expr>(&attr)) expr->ForEachVariable(check);
    if (const auto* list = std::get_if<std::vector<Expr>>(&attr)) {
      for (const Expr& expr : *list) expr.ForEachVariable(check);
    }
    return status;
  }

  bool VariableExists(const Expr& variable) const {
    if (variable.op() == Expr::Op::kCoord) {
      const ValueId id = call_.results.empty() ? kNoValue : call_.results[0];
      return id != kNoValue &&
             variable.dim() < program_.grids[program_.values[id].grid]->num_axes();
    }
    const TensorRef tensor = variable.tensor();
    const size_t index = static_cast<size_t>(tensor.index);
    const bool is_operand = tensor.kind == TensorRef::Kind::kOperand;
    if (index >= (is_operand ? call_.operands.size() : call_.results.size())) return false;
    const ValueId id = is_operand ? call_.operands[index] : call_.results[index];
    return id != kNoValue && variable.dim() < program_.values[id].type.rank();
  }

  // Clause 7.
  absl::Status CheckAddedOnce(const AddedOnce& once) const {
    if (once.operand < 0 || once.operand >= static_cast<int>(call_.operands.size()) ||
        call_.operands[once.operand] == kNoValue) {
      return CallError(
          absl::StrCat("added_once names operand ", once.operand, ", which is not there"));
    }
    const Value& value = program_.values[call_.operands[once.operand]];
    for (const AxisId axis : once.axes) {
      if (axis < 0 || axis >= program_.grids[value.grid]->num_axes()) {
        return CallError(absl::StrCat("operand ", once.operand, " is added once over axis ", axis,
                                      ", which is not there"));
      }
    }
    const AxisMask axes = MaskOf(once.axes);
    if (axes & value.sharding.UsedAxes()) {
      return CallError(
          absl::StrCat("operand ", once.operand, " is added once over axes that shard it"));
    }
    if (call_.results.empty() ||
        (axes & program_.values[call_.results[0]].sharding.UnreducedAxes()) != axes) {
      return CallError(
          absl::StrCat("operand ", once.operand,
                       " is added once over axes along which the result is not unreduced"));
    }
    return absl::OkStatus();
  }

  const Program& program_;
  const Instruction& call_;
};

}  // namespace

absl::Status VerifyCall(const Program& program, const Instruction& call) {
  return CallVerifier(program, call).Verify();
}

absl::Status VerifyUpdates(const Program& program, const Instruction& call) {
  if (call.updates < 0 || call.updates >= static_cast<int>(call.operands.size()) ||
      call.operands[call.updates] == kNoValue || call.results.empty()) {
    return CallError(absl::StrCat("updates(", call.updates, ") names no operand"));
  }
  const ValueId id = call.operands[call.updates];
  const Value& old_value = program.values[id];
  const Value& new_value = program.values[call.results[0]];
  if (old_value.type != new_value.type || !old_value.sharding.SamePlacement(new_value.sharding)) {
    return CallError(absl::StrCat("updates(", call.updates, "): %", program.values[id].name,
                                  " and %", program.values[call.results[0]].name,
                                  " differ in type or sharding"));
  }
  for (const Input& input : program.inputs) {
    if (input.value == id && !input.donated) {
      return CallError(absl::StrCat("updates(", call.updates, "): %", program.values[id].name,
                                    " is an input that the caller keeps"));
    }
  }
  return absl::OkStatus();
}

}  // namespace spmd::program
