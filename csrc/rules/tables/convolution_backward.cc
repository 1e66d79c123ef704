// SPDX-License-Identifier: Apache-2.0
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "csrc/rules/builder.h"
#include "csrc/rules/tables/convolving.h"
#include "csrc/util/status.h"

namespace spmd::rules {
namespace {

using ir::ValueId;

class BackwardWriter {
 public:
  BackwardWriter(Builder& b, const ir::Node& node, Operands operands)
      : b_(b),
        attrs_(node.attributes),
        grad_(operands[0]),
        input_(operands[1]),
        weight_(operands[2]),
        spatial_(b.rank(operands[0]) - 2),
        transposed_(attrs_.GetBoolOr("transposed", false)) {}

  ValueId DInput() {
    if (transposed_) return Untransposed();
    Attributes a = {{"input_size", ToVector(b_.type(input_).dims)}};
    Share(&a);
    a.Set("crop_start", std::vector<int64_t>(spatial_, 0));
    return b_.Call("spmd::conv_dinput", {grad_, weight_}, std::move(a));
  }

  // A transposed convolution is the input gradient of a convolution, so the roles of input and
  // gradient are exchanged.
  ValueId DWeight() {
    Attributes a = {{"weight_size", ToVector(b_.type(weight_).dims)}};
    Share(&a);
    return b_.Call(
        "spmd::conv_dweight",
        transposed_ ? std::vector<ValueId>{input_, grad_} : std::vector<ValueId>{grad_, input_},
        std::move(a));
  }

  ValueId DBias() {
    std::vector<int64_t> dims(spatial_ + 1);
    std::iota(dims.begin() + 1, dims.end(), 2);
    return b_.Sum(grad_, std::move(dims), /*keepdim=*/false);
  }

 private:
  void Share(Attributes* a) const {
    for (absl::string_view name : {"stride", "padding", "dilation"}) {
      a->Set(name, attrs_.GetInts(name));
    }
    a->Set("groups", attrs_.GetIntOr("groups", 1));
  }

  // The input gradient of a transposed convolution is a convolution. Output padding may make room
  // for positions that no input has; these are cut off.
  ValueId Untransposed() {
    Attributes a;
    Share(&a);
    a.Set("transposed", false);
    a.Set("output_padding", std::vector<int64_t>(spatial_, 0));
    ValueId dx = b_.Call("aten::convolution", {grad_, weight_, ir::kNoValue}, std::move(a));
    const Dims wanted = b_.type(input_).dims;
    for (int64_t d = 0; d < static_cast<int64_t>(wanted.size()); ++d) {
      if (b_.type(dx).dims[d] == wanted[d]) continue;
      dx = b_.Slice(dx, d, 0, wanted[d]);
    }
    return dx;
  }

  Builder& b_;
  const Attributes& attrs_;
  ValueId grad_, input_, weight_;
  int spatial_;
  bool transposed_;
};

}  // namespace

absl::StatusOr<std::vector<ValueId>> TransposedAsDInput(Builder& b, const ir::Graph& from,
                                                        const ir::Node& node, Operands operands) {
  const Attributes& attrs = node.attributes;
  // Integers can be convolved but have no gradients, so conv_dinput does not support them.
  const DType dtype = b.type(operands[0]).dtype;
  const bool has_gradient = IsFloating(dtype) || IsComplex(dtype);
  if (!has_gradient || !attrs.GetBoolOr("transposed", false)) return std::vector<ValueId>{};
  const Dims dims = from.type(node.first_result).dims;
  Attributes a = {{"input_size", ToVector(dims)}};
  for (absl::string_view name : {"stride", "padding", "dilation"}) a.Set(name, attrs.GetInts(name));
  a.Set("groups", attrs.GetIntOr("groups", 1));
  a.Set("crop_start", std::vector<int64_t>(dims.size() - 2, 0));
  ValueId result = b.Call("spmd::conv_dinput", {operands[0], operands[1]}, std::move(a));
  if (operands.size() > 2 && operands[2] != ir::kNoValue) {
    std::vector<int64_t> per_channel(dims.size(), 1);
    per_channel[1] = dims[1];
    result = b.Add(result, b.View(operands[2], per_channel));
  }
  return std::vector<ValueId>{result};
}

absl::StatusOr<std::vector<ValueId>> ConvolutionBackward(Builder& b, const ir::Graph& from,
                                                         const ir::Node& node, Operands operands) {
  const Attr* mask = node.attributes.Find("output_mask");
  const auto* wanted = mask == nullptr ? nullptr : std::get_if<std::vector<bool>>(mask);
  if (wanted == nullptr || wanted->size() != 3) {
    return absl::InvalidArgumentError(
        absl::StrCat(node.op, ": output_mask must be a list of three booleans"));
  }
  // A node has either a result for each wanted gradient, or one for each of the three.
  const bool all = node.num_results == 3;
  BackwardWriter backward(b, node, operands);
  std::vector<ValueId> results;
  auto add = [&](int k, auto make) {
    if ((*wanted)[k]) {
      results.push_back(make());
    } else if (all) {
      results.push_back(ir::kNoValue);
    }
  };
  add(0, [&] { return backward.DInput(); });
  add(1, [&] { return backward.DWeight(); });
  add(2, [&] { return backward.DBias(); });
  return results;
}

}  // namespace spmd::rules
