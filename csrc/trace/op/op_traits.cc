// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/op/op_traits.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "csrc/util/sorted.h"

namespace spmd::trace {

namespace {

template <size_t N>
bool ContainsOp(const std::array<std::string_view, N>& table, const std::string& name) {
  return std::binary_search(table.begin(), table.end(), std::string_view(name));
}

constexpr std::array<std::string_view, 6> kDropped = {"device",       "layout",     "memory_format",
                                                      "non_blocking", "out_device", "pin_memory"};
static_assert(IsSortedAndUnique(kDropped));

constexpr std::array<std::string_view, 2> kHostOnly = {"aten::multinomial", "aten::nonzero_static"};
static_assert(IsSortedAndUnique(kHostOnly));

constexpr std::array<std::string_view, 14> kCopiesOfViews = {
    "aten::alias_copy",        "aten::diagonal_copy",  "aten::expand_copy",
    "aten::permute_copy",      "aten::select_copy",    "aten::slice_copy",
    "aten::squeeze_copy",      "aten::t_copy",         "aten::transpose_copy",
    "aten::unfold_copy",       "aten::unsqueeze_copy", "aten::view_as_complex_copy",
    "aten::view_as_real_copy", "aten::view_copy"};
static_assert(IsSortedAndUnique(kCopiesOfViews));

constexpr std::array<std::string_view, 2> kDynamicByMaskOnly = {"aten::_unsafe_index",
                                                                "aten::index"};
static_assert(IsSortedAndUnique(kDynamicByMaskOnly));

constexpr std::array<std::string_view, 7> kTakesHostIndices = {
    "aten::_index_put_impl", "aten::_index_put_impl_",
    "aten::_unsafe_index",   "aten::_unsafe_index_put",
    "aten::index",           "aten::index_put",
    "aten::index_put_"};
static_assert(IsSortedAndUnique(kTakesHostIndices));

constexpr std::array<std::string_view, 2> kFactoriesOfTensors = {"aten::linspace",
                                                                 "aten::logspace"};
static_assert(IsSortedAndUnique(kFactoriesOfTensors));

constexpr std::array<std::string_view, 2> kCopiesOfTensors = {"aten::_to_copy", "aten::clone"};
static_assert(IsSortedAndUnique(kCopiesOfTensors));

constexpr std::array<std::string_view, 1> kCasts = {"aten::_to_copy"};

constexpr std::array<std::string_view, 3> kKeptWhole = {"aten::linear", "aten::mish_backward",
                                                        "aten::silu_backward"};
static_assert(IsSortedAndUnique(kKeptWhole));

constexpr std::array<std::string_view, 9> kLeft = {"aten::_chunk_cat",
                                                   "aten::_has_same_storage_numel",
                                                   "aten::_new_zeros_with_same_feature_meta",
                                                   "aten::_pack_padded_sequence",
                                                   "aten::_unsafe_masked_index",
                                                   "aten::_unsafe_masked_index_put_accumulate",
                                                   "aten::alias",
                                                   "aten::detach",
                                                   "aten::detach_"};
static_assert(IsSortedAndUnique(kLeft));

}  // namespace

bool IsDroppedArgument(const std::string& name) { return ContainsOp(kDropped, name); }

bool IsForeach(const std::string& op) { return op.starts_with(kForeachPrefix); }

bool IsHostOnly(const std::string& op) { return ContainsOp(kHostOnly, op); }
bool IsCopyOfView(const std::string& op) { return ContainsOp(kCopiesOfViews, op); }
bool IsDynamicByMaskOnly(const std::string& op) { return ContainsOp(kDynamicByMaskOnly, op); }
bool TakesHostIndices(const std::string& op) { return ContainsOp(kTakesHostIndices, op); }
bool IsFactoryOfTensors(const std::string& op) { return ContainsOp(kFactoriesOfTensors, op); }
bool IsCopyOfTensor(const std::string& op) { return ContainsOp(kCopiesOfTensors, op); }
bool IsCast(const std::string& op) { return ContainsOp(kCasts, op); }
bool IsKeptWhole(const std::string& op) { return ContainsOp(kKeptWhole, op); }
bool IsLeftToPyTorch(const std::string& op) { return ContainsOp(kLeft, op); }

}  // namespace spmd::trace
