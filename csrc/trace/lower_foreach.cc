// SPDX-License-Identifier: Apache-2.0
// Lowers foreach ops to independent element-wise ops.
#include <algorithm>
#include <array>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "csrc/trace/lower.h"
#include "csrc/trace/op_traits.h"
#include "csrc/util/sorted.h"
#include "csrc/util/status.h"

namespace spmd::trace {

namespace {

struct Row {
  std::string_view foreach_op;  // after "aten::_foreach_"
  std::string_view element;     // after "aten::"
};

// The rows are sorted. Unary ops are listed by name, the others by overload.
constexpr std::array kRows = {
    Row{"abs", "abs"},
    Row{"acos", "acos"},
    Row{"add.List", "add.Tensor"},
    Row{"add.Scalar", "add.Scalar"},
    Row{"add.ScalarList", "add.Scalar"},
    Row{"add.Tensor", "add.Tensor"},
    Row{"addcdiv.Scalar", "addcdiv"},
    Row{"addcdiv.ScalarList", "addcdiv"},
    Row{"addcmul.Scalar", "addcmul"},
    Row{"addcmul.ScalarList", "addcmul"},
    Row{"asin", "asin"},
    Row{"atan", "atan"},
    Row{"ceil", "ceil"},
    Row{"clamp_max.List", "minimum"},
    Row{"clamp_max.Scalar", "clamp_max"},
    Row{"clamp_max.ScalarList", "clamp_max"},
    Row{"clamp_min.List", "maximum"},
    Row{"clamp_min.Scalar", "clamp_min"},
    Row{"clamp_min.ScalarList", "clamp_min"},
    Row{"cos", "cos"},
    Row{"cosh", "cosh"},
    Row{"div.List", "div.Tensor"},
    Row{"div.Scalar", "div.Scalar"},
    Row{"div.ScalarList", "div.Scalar"},
    Row{"div.Tensor", "div.Tensor"},
    Row{"erf", "erf"},
    Row{"erfc", "erfc"},
    Row{"exp", "exp"},
    Row{"expm1", "expm1"},
    Row{"floor", "floor"},
    Row{"frac", "frac"},
    Row{"lerp.List", "lerp.Tensor"},
    Row{"lerp.Scalar", "lerp.Scalar"},
    Row{"lgamma", "lgamma"},
    Row{"log", "log"},
    Row{"log10", "log10"},
    Row{"log1p", "log1p"},
    Row{"log2", "log2"},
    Row{"maximum.List", "maximum"},
    Row{"maximum.Scalar", "clamp_min"},
    Row{"maximum.ScalarList", "clamp_min"},
    Row{"minimum.List", "minimum"},
    Row{"minimum.Scalar", "clamp_max"},
    Row{"minimum.ScalarList", "clamp_max"},
    Row{"mul.List", "mul.Tensor"},
    Row{"mul.Scalar", "mul.Scalar"},
    Row{"mul.ScalarList", "mul.Scalar"},
    Row{"mul.Tensor", "mul.Tensor"},
    Row{"neg", "neg"},
    Row{"norm.Scalar", "linalg_vector_norm"},
    Row{"pow.List", "pow.Tensor_Tensor"},
    Row{"pow.Scalar", "pow.Tensor_Scalar"},
    Row{"pow.ScalarList", "pow.Tensor_Scalar"},
    Row{"reciprocal", "reciprocal"},
    Row{"round", "round"},
    Row{"rsqrt", "rsqrt"},
    Row{"sigmoid", "sigmoid"},
    Row{"sign", "sign"},
    Row{"sin", "sin"},
    Row{"sinh", "sinh"},
    Row{"sqrt", "sqrt"},
    Row{"sub.List", "sub.Tensor"},
    Row{"sub.Scalar", "sub.Scalar"},
    Row{"sub.ScalarList", "sub.Scalar"},
    Row{"tan", "tan"},
    Row{"tanh", "tanh"},
    Row{"trunc", "trunc"},
};

static_assert(IsSortedAndUnique(kRows, &Row::foreach_op));

const OpInfo* FindElementOp(const OpInfo& op) {
  if (!op.is_foreach) return nullptr;
  const std::string_view key = std::string_view(op.name).substr(kForeachPrefix.size());
  const auto it =
      std::lower_bound(kRows.begin(), kRows.end(), key,
                       [](const Row& r, std::string_view k) { return r.foreach_op < k; });
  if (it == kRows.end() || it->foreach_op != key) return nullptr;
  return FindOp("aten::" + std::string(it->element));
}

// The element op's name for an argument of a foreach op, which sometimes differs.
std::string ElementName(const std::string& name, const OpInfo& element) {
  if (name == "tensors1") return element.FindArg("end") >= 0 ? "end" : "tensor1";
  if (element.FindArg(name) >= 0) return name;
  for (const char* candidate : {"other", "value", "exponent", "weight", "min", "max", "ord"}) {
    if ((name == "scalar" || name == "scalars" || name == "other" || name == "exponent") &&
        element.FindArg(candidate) >= 0) {
      return candidate;
    }
  }
  return name;
}

// Item k of a list of numbers, or the argument itself if it is one number for all.
c10::IValue Item(const c10::IValue& arg, int k) {
  if (arg.isDoubleList()) return arg.toDoubleVector()[k];
  if (arg.isIntList()) return arg.toIntVector()[k];
  if (arg.isList()) return arg.toListRef()[k];
  return arg;
}

}  // namespace

const OpInfo* ElementOp(const OpInfo& op) {
  static auto* known = new absl::flat_hash_map<const OpInfo*, const OpInfo*>;
  const auto it = known->find(&op);
  if (it != known->end()) return it->second;
  return (*known)[&op] = FindElementOp(op);
}

ElementCall ElementOf(const Record& record, const OpInfo& element, int k, int count) {
  ElementCall call;
  size_t operand = 0, group = 0;
  int slot = record.first_scalar;
  Attributes given;
  for (size_t i = 0; i < record.args.size(); ++i) {
    const ArgInfo& info = record.op->args[i];
    if (info.kind == ArgKind::kTensorList) {
      const ir::OperandGroup g = record.groups[group++];
      call.operands.push_back(record.operands[g.begin + k]);
      operand += g.size;
    } else if (info.kind == ArgKind::kTensor) {
      call.operands.push_back(record.operands[operand++]);
    } else if (info.kind == ArgKind::kOther) {
      const std::string name = ElementName(info.name, element);
      if (IsRuntimeValue(info, record.args[i])) {
        const bool list = record.args[i].isList();
        given.Set(name, RuntimeScalar{list ? slot + k : slot});
        slot += list ? count : 1;
      } else {
        given.Set(name, AttrOf(info, Item(record.args[i], k)));
      }
    }
  }
  // The arguments are in the element op's schema order, with its defaults.
  const auto& schema = element.handle.schema().arguments();
  for (size_t i = 0; i < element.args.size(); ++i) {
    const ArgInfo& info = element.args[i];
    if (info.kind != ArgKind::kOther) continue;
    if (const Attr* attr = given.Find(info.name)) {
      call.attributes.Set(info.name, *attr);
    } else if (schema[i].default_value().has_value()) {
      call.attributes.Set(info.name, AttrOf(info, *schema[i].default_value()));
    } else {
      call.attributes.Set(info.name, NoneAttr{});
    }
  }
  return call;
}

}  // namespace spmd::trace
