// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/arguments.h"

#include <c10/core/DefaultDtype.h>

#include "csrc/trace/device.h"
#include "csrc/trace/op_traits.h"
#include "csrc/trace/tensor.h"

namespace spmd::trace {

namespace {

c10::Scalar ValueOf(const at::Tensor& cpu) {
  const at::Tensor plain = cpu.resolve_conj().resolve_neg();
  return plain.item();
}

bool IsWrapped(const c10::IValue& v) {
  return v.isTensor() && v.toTensor().defined() &&
         v.toTensor().unsafeGetTensorImpl()->is_wrapped_number();
}

// The type that a wrapped number takes beside the tensors of the call: their type, if it is of the
// number's kind or above.
at::ScalarType TypeOfWrapped(const at::Tensor& number, const std::vector<c10::IValue>& args) {
  std::optional<at::ScalarType> common;
  for (const c10::IValue& arg : args) {
    if (!arg.isTensor() || !arg.toTensor().defined() || IsWrapped(arg)) continue;
    const at::ScalarType t = arg.toTensor().scalar_type();
    common = common.has_value() ? c10::promoteTypes(*common, t) : t;
  }
  const at::ScalarType own = number.scalar_type();
  if (!common.has_value()) return own;
  if (c10::isComplexType(own)) {
    return c10::isComplexType(*common) ? *common : c10::toComplexType(*common);
  }
  if (c10::isFloatingType(own)) {
    return c10::isFloatingType(*common) || c10::isComplexType(*common)
               ? *common
               : c10::typeMetaToScalarType(c10::get_default_dtype());
  }
  if (own != at::kBool && *common == at::kBool) return at::kLong;
  return *common;
}

}  // namespace

TapeId ReadOperand(Session::State& state, const at::Tensor& tensor,
                   std::optional<at::ScalarType> like) {
  if (!tensor.defined()) return kNoId;
  if (Buffer::IsOurs(tensor)) return Read(state, tensor);
  if (tensor.device().is_cpu() && tensor.dim() == 0) {
    const at::ScalarType dtype = like.value_or(tensor.scalar_type());
    return EmitFull(state, {runtime::FromScalarType(dtype), {}}, ValueOf(tensor));
  }
  TORCH_CHECK(false,
              "Expected all tensors to be on the same device, but found at least two devices, ",
              TheDevice(), " and ", tensor.device(), "!");
}

Arguments ReadArguments(Session::State& state, const OpInfo& op, std::vector<c10::IValue> args) {
  Arguments out;
  out.op = &op;
  // A Python number in the place of a tensor calls for the overload that takes a Scalar, if there
  // is one.
  for (size_t i = 0; i < args.size(); ++i) {
    if (op.args[i].kind != ArgKind::kTensor || !IsWrapped(args[i])) continue;
    const OpInfo* scalar = out.op == &op ? op.WithScalar(static_cast<int>(i)) : nullptr;
    if (scalar != nullptr) {
      out.op = scalar;
      args[i] = c10::IValue(ValueOf(args[i].toTensor()));
    }
  }
  const bool host_indices = TakesHostIndices(op.handle.operator_name().name);
  const auto read = [&](const c10::IValue& v) -> TapeId {
    if (!v.isTensor() || !v.toTensor().defined()) return kNoId;
    const at::Tensor& t = v.toTensor();
    if (host_indices && t.device().is_cpu() && t.dim() > 0) {
      return state.tape->Use(HostValue(t, /*steal=*/false), nullptr);
    }
    if (IsWrapped(v)) return ReadOperand(state, t, TypeOfWrapped(t, args));
    return ReadOperand(state, t);
  };
  std::vector<size_t> tensors;
  for (size_t i = 0; i < args.size(); ++i) {
    const ArgKind kind = out.op->args[i].kind;
    if (kind == ArgKind::kTensor) {
      out.operands.push_back(read(args[i]));
      tensors.push_back(i);
    } else if (kind == ArgKind::kTensorList) {
      const int begin = static_cast<int>(out.operands.size());
      if (args[i].isList()) {
        for (const c10::IValue& item : args[i].toListRef()) out.operands.push_back(read(item));
      }
      out.groups.push_back({begin, static_cast<int>(out.operands.size()) - begin});
      tensors.push_back(i);
    } else if (kind == ArgKind::kGenerator || kind == ArgKind::kDropped) {
      args[i] = c10::IValue();
    }
  }
  for (const size_t i : tensors) args[i] = c10::IValue();
  out.args = std::move(args);
  return out;
}

std::vector<c10::IValue> Rearrange(const OpInfo& from, const std::vector<c10::IValue>& args,
                                   const OpInfo& to) {
  const auto& schema = to.handle.schema().arguments();
  std::vector<c10::IValue> out(to.args.size());
  for (size_t k = 0; k < out.size(); ++k) {
    const int i = from.FindArg(to.args[k].name);
    if (i >= 0 && !(from.is_out && from.args[i].written)) {
      out[k] = args[i];
    } else if (schema[k].default_value().has_value()) {
      out[k] = *schema[k].default_value();
    }
  }
  return out;
}

}  // namespace spmd::trace
