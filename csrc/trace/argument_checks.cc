// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/argument_checks.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/index.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <optional>
#include <string_view>

#include "csrc/runtime/dispatch_guard.h"
#include "csrc/trace/meta_kernels.h"
#include "csrc/trace/no_torch_function.h"
#include "csrc/util/sorted.h"

namespace spmd::trace {

namespace {

using Args = std::vector<c10::IValue>;

at::Tensor MetaLike(const at::Tensor& t) {
  return at::detail::empty_strided_meta(t.sizes(), t.strides(), t.scalar_type());
}

// True if the values of an indexed write fit. If an index is a mask, the number of elements depends
// on data, and the kernel checks.
bool TakesIndexedWrite(const OpInfo& op, const Args& args) {
  const at::Tensor self = args[0].toTensor(), values = args[2].toTensor();
  if (self.scalar_type() != values.scalar_type()) return false;
  c10::List<std::optional<at::Tensor>> indices;
  for (const c10::IValue& index : args[1].toListRef()) {
    const at::Tensor t = index.isTensor() ? index.toTensor() : at::Tensor();
    const bool is_mask =
        t.defined() && (t.scalar_type() == at::kBool || t.scalar_type() == at::kByte);
    if (is_mask) return true;
    indices.push_back(t.defined() ? std::optional<at::Tensor>(MetaLike(t)) : std::nullopt);
  }
  try {
    const runtime::DispatchGuard guard;
    const NoTorchFunction no_torch_function;
    const MetaInCpp without_python;
    return at::is_expandable_to(values.sizes(), at::index(MetaLike(self), indices).sizes());
  } catch (const std::exception&) {
    return false;
  }
}

// True if there are as many pivots as a matrix has. The CPU does not check this.
bool FitsPivots(const OpInfo& op, const Args& args) {
  const at::Tensor matrix = args[0].toTensor(), pivots = args[1].toTensor();
  if (matrix.dim() < 2 || pivots.dim() < 1) return false;
  return pivots.size(-1) == std::min(matrix.size(-2), matrix.size(-1));
}

// True if the operands that the op writes keep their sizes. An observer of rows that has seen none
// yet takes as many as there are, which its kernel decides and Meta does not know.
bool KeepsSizes(const OpInfo& op, const Args& args) {
  const bool of_rows = args[op.FindArg("per_row_fake_quant")].toBool();
  return !of_rows || args[op.FindArg("running_min")].toTensor().numel() > 0;
}

struct Row {
  std::string_view op;  // without its overload
  bool (*takes)(const OpInfo&, const Args&);
};

constexpr Row kRows[] = {
    {"aten::_fused_moving_avg_obs_fq_helper", KeepsSizes},
    {"aten::_fused_moving_avg_obs_fq_helper_functional", KeepsSizes},
    {"aten::_index_put_impl", TakesIndexedWrite},
    {"aten::_unsafe_index_put", TakesIndexedWrite},
    {"aten::index_put", TakesIndexedWrite},
    {"aten::lu_unpack", FitsPivots},
};

static_assert(IsSortedAndUnique(kRows, &Row::op));

}  // namespace

bool TakesArguments(const OpInfo& op, const Args& args) {
  const std::string_view base = op.handle.operator_name().name;
  const Row* const row =
      std::lower_bound(std::begin(kRows), std::end(kRows), base,
                       [](const Row& r, std::string_view name) { return r.op < name; });
  return row == std::end(kRows) || row->op != base || row->takes(op, args);
}

}  // namespace spmd::trace
