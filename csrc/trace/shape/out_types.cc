// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/shape/out_types.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <exception>

#include "csrc/runtime/dispatch_guard.h"
#include "csrc/runtime/one_place/workers.h"
#include "csrc/trace/shape/cpu_dtype_probe.h"

namespace spmd::trace {

namespace {

// False for ops that draw numbers, which would take them from the CPU's generator, too.
bool CanBeTried(const OpInfo& op) {
  return !op.handle.hasTag(at::Tag::nondeterministic_seeded) && IsDefinedOnZeros(op);
}

// The number of the out= tensor `t` among them; -1 if it is none.
int OutNumber(const OpInfo& op, const std::vector<c10::IValue>& args, const at::Tensor& t) {
  int number = 0;
  for (const int w : op.written) {
    if (args[w].isTensor()) {
      if (args[w].toTensor().is_same(t)) return number;
      ++number;
      continue;
    }
    for (const c10::IValue& item : args[w].toListRef()) {
      if (item.isTensor() && item.toTensor().is_same(t)) return number;
      ++number;
    }
  }
  return -1;
}

// Whether the CPU accepts the call if the out= tensors have the results' own types, or those given.
bool Accepts(const OpInfo& op, const std::vector<c10::IValue>& args,
             const std::vector<TensorMeta>& results, bool own_types) {
  constexpr int64_t kShort = 4;
  try {
    const runtime::DispatchGuard guard;
    const runtime::NoWorkers alone;
    torch::jit::Stack stack = WithTensors(op, args, c10::kCPU, [&](const at::Tensor& t) {
      if (const int k = OutNumber(op, args, t); k >= 0) {
        const bool own = own_types && k < static_cast<int>(results.size());
        return at::empty({0}, own ? results[k].dtype : t.scalar_type());
      }
      if (t.device().is_cpu() && t.dim() == 0) return t;
      std::vector<int64_t> sizes = t.sizes().vec();
      for (int64_t& size : sizes) size = std::min(size, kShort);
      return at::zeros(sizes, t.scalar_type());
    });
    op.handle.callBoxed(&stack);
  } catch (const std::exception&) {
    return false;
  }
  return true;
}

}  // namespace

bool TakesOutTypes(const OpInfo& op, const std::vector<c10::IValue>& args,
                   const std::vector<TensorMeta>& results) {
  if (!CanBeTried(op)) return true;
  return Accepts(op, args, results, /*own_types=*/false) ||
         !Accepts(op, args, results, /*own_types=*/true);
}

}  // namespace spmd::trace
