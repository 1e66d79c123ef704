// SPDX-License-Identifier: Apache-2.0
// Calls come from texts, which hold any number. Whatever stands in the place of a size or a
// position, a rule answers or says that the call does not fit: nothing is thrown, nothing is
// divided by zero, and nothing overflows, which only a sanitizer sees.
#include <gtest/gtest.h>

#include <cctype>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "csrc/rules/builder.h"
#include "csrc/rules/graph_verifier.h"
#include "tests/cpp/rules/one_op.h"

namespace spmd::rules {
namespace {

constexpr const char* kWindow = "stride=[2,2], padding=[1,1], dilation=[1,1]";
constexpr const char* kPool = "kernel_size=[2,2], stride=[2,2], padding=[0,0]";
// Calls that fit: results, op and operands, then attributes.
const std::vector<std::pair<std::string, std::string>>& Lines() {
  static const auto* const lines = new std::vector<std::pair<std::string, std::string>>{
      {"f32[2,4,5,4] = aten::convolution(f32[2,3,9,8], f32[4,3,3,3], f32[4], ",
       absl::StrCat(kWindow, ", transposed=false, output_padding=[0,0], groups=1)")},
      {"f32[2,3,10,6] = aten::convolution(f32[2,4,5,3], f32[4,3,2,2], f32[3], ",
       "stride=[2,2], padding=[0,0], dilation=[1,1], transposed=true, output_padding=[0,0], "
       "groups=1)"},
      {"f32[2,3,9,8] = spmd::conv_dinput(f32[2,4,5,4], f32[4,3,3,3], ",
       absl::StrCat("input_size=[2,3,9,8], ", kWindow, ", groups=1, crop_start=[0,0])")},
      {"f32[4,3,3,3] = spmd::conv_dweight(f32[2,4,5,4], f32[2,3,9,8], ",
       absl::StrCat("weight_size=[4,3,3,3], ", kWindow, ", groups=1)")},
      {"f32[2,3,4,4] = aten::avg_pool2d(f32[2,3,8,8], ",
       absl::StrCat(kPool, ", ceil_mode=false, count_include_pad=true, divisor_override=4)")},
      {"f32[2,3,8,8] = aten::avg_pool2d_backward(f32[2,3,4,4], f32[2,3,8,8], ",
       absl::StrCat(kPool, ", ceil_mode=false, count_include_pad=false, divisor_override=none)")},
      {"f32[2,3,4,4], i64[2,3,4,4] = aten::max_pool2d_with_indices(f32[2,3,8,8], ",
       absl::StrCat(kPool, ", dilation=[1,1], ceil_mode=false)")},
      {"f32[2,3,4,4], i64[2,3,4,4] = spmd::max_pool(f32[2,3,8,8], ",
       absl::StrCat("output_size=[4,4], ", kPool, ", dilation=[1,1], offset=[0,0], plane=[8,8])")},
      {"f32[2,3,8,8] = spmd::max_pool_dinput(f32[2,3,4,4], i64[2,3,4,4], ",
       absl::StrCat("input_size=[8,8], ", kPool, ", dilation=[1,1], offset=[0,0], plane=[8,8])")},
      {"f32[2,12,16] = aten::im2col(f32[2,3,8,8], ", absl::StrCat(kPool, ", dilation=[1,1])")},
      {"f32[2,3,8,8] = aten::col2im(f32[2,12,16], ",
       absl::StrCat("output_size=[8,8], ", kPool, ", dilation=[1,1])")},
      {"f32[2,12,4,4] = spmd::im2col(f32[2,3,8,8], ",
       absl::StrCat("output_size=[4,4], ", kPool, ", dilation=[1,1])")},
      {"f32[2,3,8,8] = spmd::col2im(f32[2,12,4,4], ",
       absl::StrCat("size=[8,8], ", kPool, ", dilation=[1,1], crop_start=[0,0])")},
      {"f32[4,9] = aten::constant_pad_nd(f32[4,6], ", "pad=[1,2], value=0)"},
      {"f32[4,9] = aten::reflection_pad1d(f32[4,6], ", "padding=[1,2])"},
      {"f32[4,9] = aten::replication_pad1d(f32[4,6], ", "padding=[1,2])"},
      {"f32[4,2,3] = aten::unfold(f32[4,6], ", "dimension=1, size=3, step=2)"},
      {"f32[4,6] = aten::unfold_backward(f32[4,2,3], ",
       "input_sizes=[4,6], dim=1, size=3, step=2)"},
      {"f32[4] = aten::diagonal(f32[4,6], ", "offset=1, dim1=0, dim2=1)"},
      {"f32[4,6] = aten::diagonal_backward(f32[4], ",
       "input_sizes=[4,6], offset=1, dim1=0, dim2=1)"},
      {"f32[4,6] = aten::diagonal_scatter(f32[4,6], f32[4], ", "offset=1, dim1=0, dim2=1)"},
      {"f32[2,5,5] = aten::diag_embed(f32[2,4], ", "offset=1, dim1=1, dim2=2)"},
      {"f32[4,2] = aten::slice.Tensor(f32[4,6], ", "dim=1, start=1, end=5, step=2)"},
      {"f32[4,6] = aten::slice_scatter(f32[4,6], f32[4,2], ", "dim=1, start=1, end=5, step=2)"},
      {"f32[4,6] = aten::slice_backward(f32[4,2], ",
       "input_sizes=[4,6], dim=1, start=1, end=5, step=2)"},
      {"f32[4] = aten::select.int(f32[4,6], ", "dim=1, index=2)"},
      {"f32[4,6] = aten::select_scatter(f32[4,6], f32[4], ", "dim=1, index=2)"},
      {"f32[4,6] = aten::select_backward(f32[4], ", "input_sizes=[4,6], dim=1, index=2)"},
      {"f32[4,3] = aten::narrow_copy(f32[4,6], ", "dim=1, start=2, length=3)"},
      {"f32[4,3] = spmd::slice_start(f32[4,6], ", "dim=1, start=2, length=3)"},
      {"f32[4,6] = aten::roll(f32[4,6], ", "shifts=[1,2], dims=[0,1])"},
      {"f32[4,6] = aten::roll(f32[4,6], ", "shifts=[3], dims=[])"},
      {"f32[4,6] = aten::flip(f32[4,6], ", "dims=[0,1])"},
      {"f32[8,6] = aten::repeat(f32[4,6], ", "repeats=[2,1])"},
      {"f32[8,3] = aten::view(f32[4,6], ", "size=[8,3])"},
      {"f32[5,4,6] = aten::expand(f32[4,1], ", "size=[5,4,6])"},
      {"f32[4,6] = aten::permute(f32[6,4], ", "dims=[1,0])"},
      {"f32[4,6] = aten::squeeze.dims(f32[4,1,6], ", "dim=[1])"},
      {"f32[4,1,6] = aten::unsqueeze(f32[4,6], ", "dim=1)"},
      {"f32[2,6] = spmd::resample(f32[2,4], ",
       "dim=1, filter=\"linear\", step=4, start=-1, stop=5, unit=6, num_in=4, num_out=6, from=0, "
       "offset=0, size=6)"},
      {"f32[2,8] = spmd::resample(f32[2,4], ",
       "dim=1, filter=\"reflect\", step=1, start=-2, stop=-1, unit=1, num_in=4, num_out=8, from=0, "
       "offset=0, size=8)"},
      {"f32[2,4] = spmd::resample_dinput(f32[2,6], ",
       "dim=1, filter=\"linear\", step=4, start=-1, stop=5, unit=6, num_in=4, num_out=6, from=0, "
       "offset=0, size=4)"},
      {"f32[2,4] = spmd::resample_dinput(f32[2,8], ",
       "dim=1, filter=\"reflect\", step=1, start=-2, stop=-1, unit=1, num_in=4, num_out=8, from=0, "
       "offset=0, size=4)"},
      {"f32[2,3,8] = aten::upsample_nearest1d(f32[2,3,4], ", "output_size=[8], scales=none)"},
      {"f32[2,3,2,2] = aten::_adaptive_avg_pool2d(f32[2,3,4,6], ", "output_size=[2,2])"},
      {"f32[2,6,5] = aten::channel_shuffle(f32[2,6,5], ", "groups=3)"},
      {"f32[7,4] = aten::embedding_dense_backward(f32[3,4], i64[3], ",
       "num_weights=7, padding_idx=2, scale_grad_by_freq=false)"},
      {"f32[4,2], i64[4,2] = aten::topk(f32[4,6], ", "k=2, dim=1, largest=true, sorted=true)"},
      {"f32[4,6] = aten::tril(f32[4,6], ", "diagonal=1)"},
      {"f32[6,4] = aten::rot90(f32[4,6], ", "k=1, dims=[0,1])"},
      {"f32[4,6] = spmd::reorder(f32[4,6], ", "dim=0, index=[1,2,3,0])"},
      {"f32[2,6,5], f32[2,3], f32[2,3] = aten::native_group_norm(f32[2,6,5], _, _, ",
       "N=2, C=6, HxW=5, group=3, eps=0.1)"},
      {"f32[4,2], f32[4,4] = aten::split_with_sizes_copy(f32[4,6], ", "split_sizes=[2,4], dim=1)"},
      {"i64[6] = spmd::iota(", "size=6, start=0, step=1, offset=0, dtype=i64)"},
      {"f32[4] = aten::sum.dim_IntList(f32[4,6], ", "dim=[1], keepdim=false, dtype=none)"},
      {"f32[4,6] = aten::cumsum(f32[4,6], ", "dim=1, dtype=none)"},
      {"f32[4,6] = aten::_softmax(f32[4,6], ", "dim=1, half_to_float=false)"},
  };
  return *lines;
}

// The lines with each number of the attributes replaced by each of `numbers` in turn.
std::vector<std::string> Changed(const std::string& attributes,
                                 const std::vector<std::string>& numbers) {
  std::vector<std::string> lines;
  const auto is_digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
  for (size_t i = 1; i < attributes.size(); ++i) {
    const char before = attributes[i - 1] == '-' ? attributes[i - 2] : attributes[i - 1];
    if (!is_digit(attributes[i]) || (before != '=' && before != '[' && before != ',')) continue;
    size_t end = i;
    while (end < attributes.size() && is_digit(attributes[end])) ++end;
    const size_t begin = attributes[i - 1] == '-' ? i - 1 : i;
    if (attributes[end] == '.') continue;
    for (const std::string& number : numbers) {
      lines.push_back(absl::StrCat(attributes.substr(0, begin), number, attributes.substr(end)));
    }
  }
  return lines;
}

void AskEverything(const OneOp& op) {
  const OpCall call = op.call();
  if (!CheckCall(op.rule(), call).ok()) return;
  const absl::StatusOr<OpFactors> factors = FactorsOf(op.rule(), call);
  if (factors.ok() && op.rule().local != nullptr) {
    op.rule().local(call, *factors, CutFactors(factors->factors.size(), true));
  }
  const auto decompose = [&](DecomposeFn how) {
    if (how == nullptr) return;
    Rule rule = op.rule();
    rule.decompose = how;
    ir::Graph out;
    std::vector<ir::ValueId> operands;
    for (const ir::ValueId v : op.node().operands) {
      operands.push_back(v == ir::kNoValue ? v : out.AddInput(op.graph().type(v)));
    }
    Builder builder(&out, 0, -1);
    Decomposed(rule, builder, op.graph(), op.node(), operands).IgnoreError();
  };
  decompose(op.rule().decompose);
  decompose(op.rule().decompose_batch);
}

TEST(AnyNumber, OfACallIsTakenOrRefused) {
  for (const auto& [types, attributes] : Lines()) {
    const OneOp fits(types + attributes);
    EXPECT_TRUE(CheckCall(fits.rule(), fits.call()).ok())
        << CheckCall(fits.rule(), fits.call()).message();
    AskEverything(fits);
    for (const std::string& changed : Changed(
             attributes, {"0", "-1", "1", "4294967296", "281474976710656", "4611686018427387904",
                          "9223372036854775806", "9223372036854775807", "-9223372036854775808"})) {
      try {
        AskEverything(OneOp(types + changed));
      } catch (const std::exception& e) {
        ADD_FAILURE() << types << changed << ": " << e.what();
      }
    }
  }
}

}  // namespace
}  // namespace spmd::rules
