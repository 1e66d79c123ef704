// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/shape/meta_kernels.h"

#include <torch/library.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "csrc/trace/compat/keys.h"
#include "csrc/trace/shape/meta_functions.h"

namespace spmd::trace {

namespace {

using Kernels = absl::flat_hash_map<std::string, c10::KernelFunction>;

const Kernels& All() {
  static const auto* const all = [] {
    auto* const kernels = new Kernels;
    const auto add = [&](std::string op, c10::KernelFunction kernel) {
      const auto [at, is_new] = kernels->emplace(std::move(op), std::move(kernel));
      TORCH_INTERNAL_ASSERT(is_new, "two Meta kernels of ", at->first);
    };
    for (auto& [op, kernel] : HiddenMetaKernels()) add(std::move(op), std::move(kernel));
    for (const auto rows : {ElementwiseMetaKernels(), LayerMetaKernels(), ReductionMetaKernels(),
                            ShapeMetaKernels()}) {
      for (const MetaKernelRow& row : rows) add(std::string(row.op), row.kernel());
    }
    return kernels;
  }();
  return *all;
}

// The noted ops; there are at most as many as ops.
struct NotedOps {
  absl::Mutex mutex;
  std::set<std::string> ops ABSL_GUARDED_BY(mutex);
};
NotedOps& OfDispatcher() {
  static auto* const noted = new NotedOps;
  return *noted;
}

bool HasKernel(const c10::OperatorHandle& op, c10::DispatchKey key) {
  return op.hasKernelForDispatchKey(key);
}

// True if the CPU runs the op as a composition of other ops, and Meta has another kernel.
bool IsComposedOnCpu(const c10::OperatorHandle& op) {
  return HasKernel(op, c10::DispatchKey::Meta) && !HasKernel(op, c10::DispatchKey::CPU) &&
         (HasKernel(op, c10::DispatchKey::CompositeExplicitAutograd) ||
          HasKernel(op, c10::DispatchKey::CompositeExplicitAutogradNonFunctional));
}

void Choose(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const std::string name = c10::toString(op.operator_name());
  if (const auto kernel = All().find(name); kernel != All().end()) {
    return kernel->second.callBoxed(op, keys, stack);
  }
  // If there is no backend's kernel, the composition is used.
  if (IsComposedOnCpu(op)) {
    return op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Undefined), stack);
  }
  const auto rest = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, MetaInCpp::kKey);
  if (!HasKernel(op, c10::DispatchKey::Meta)) return op.redispatchBoxed(rest, stack);
  NoteOfDispatcher(name);
  const compat::ExcludeDispatchKeyGuard as_it_is(MetaInCpp::kKey);
  op.redispatchBoxed(rest, stack);
}

// Never destroyed: the dispatcher may outlive static objects of this library.
[[maybe_unused]] const auto* const registered = [] {
  auto* const library =
      new torch::Library(torch::Library::IMPL, "_", MetaInCpp::kKey, __FILE__, __LINE__);
  library->fallback(torch::CppFunction::makeFromBoxedFunction<&Choose>());
  return library;
}();

}  // namespace

void NoteOfDispatcher(const std::string& op) {
  NotedOps& noted = OfDispatcher();
  const absl::MutexLock lock(&noted.mutex);
  noted.ops.insert(op);
}

std::vector<std::string> MetaKernelsInCpp() {
  std::vector<std::string> ops;
  for (const auto& [op, kernel] : All()) ops.push_back(op);
  std::sort(ops.begin(), ops.end());
  return ops;
}

std::vector<std::string> MetaKernelsOfDispatcher() {
  NotedOps& noted = OfDispatcher();
  const absl::MutexLock lock(&noted.mutex);
  return {noted.ops.begin(), noted.ops.end()};
}

}  // namespace spmd::trace
