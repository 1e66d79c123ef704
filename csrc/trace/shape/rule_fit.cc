// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/shape/rule_fit.h"

#include "absl/strings/match.h"
#include "csrc/rules/registry.h"
#include "csrc/rules/rule.h"
#include "csrc/runtime/tiled_tensor.h"
#include "csrc/trace/op/attribute.h"

namespace spmd::trace {

namespace {

TensorType TypeOf(at::ScalarType dtype, at::IntArrayRef sizes) {
  return {runtime::FromScalarType(dtype), Dims(sizes.begin(), sizes.end())};
}

// The call as it will be in the graph, but for the slots of run-time numbers.
struct CallOfTypes {
  CallOfTypes(const OpInfo& op, const std::vector<c10::IValue>& args, const Inference& inferred) {
    call.op = op.ir_name;
    for (size_t i = 0; i < args.size(); ++i) {
      const ArgInfo& info = op.args[i];
      if (info.kind == ArgKind::kTensor) {
        Add(args[i]);
      } else if (info.kind == ArgKind::kTensorList) {
        const int begin = static_cast<int>(types.size());
        if (args[i].isList()) {
          for (const c10::IValue& item : args[i].toListRef()) Add(item);
        }
        call.groups.push_back({begin, static_cast<int>(types.size()) - begin});
      } else if (info.kind == ArgKind::kOther) {
        attributes.Set(info.name, IsRuntimeValue(info, args[i]) ? Attr(RuntimeScalar{})
                                                                : AttrOf(info, args[i]));
      }
    }
    for (const std::optional<TensorType>& type : types) {
      call.operands.push_back(type.has_value() ? &*type : nullptr);
    }
    call.attributes = &attributes;
    for (const TensorMeta& meta : inferred.tensors) {
      const at::IntArrayRef sizes(meta.sizes.data(), meta.sizes.size());
      // A result that the call leaves out has no elements in graphs.
      call.results.push_back(meta.defined ? TypeOf(meta.dtype, sizes) : TypeOf(at::kFloat, {0}));
    }
  }
  CallOfTypes(const CallOfTypes&) = delete;

  void Add(const c10::IValue& v) {
    const at::Tensor t = v.isTensor() ? v.toTensor() : at::Tensor();
    types.push_back(t.defined() ? std::optional<TensorType>(TypeOf(t.scalar_type(), t.sizes()))
                                : std::nullopt);
  }

  std::vector<std::optional<TensorType>> types;
  Attributes attributes;
  rules::OpCall call;
};

}  // namespace

bool FitsRule(const OpInfo& op, const std::vector<c10::IValue>& args, const Inference& inferred) {
  if (op.is_view || !absl::StartsWith(op.name, "aten::")) return true;
  const rules::Rule* const rule = rules::Find(op.ir_name);
  if (rule == nullptr || rule->decompose_always) return true;
  const CallOfTypes of_types(op, args, inferred);
  return rules::FactorsOf(*rule, of_types.call).ok();
}

}  // namespace spmd::trace
