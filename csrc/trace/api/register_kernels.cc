// SPDX-License-Identifier: Apache-2.0
// The walk over the dispatcher: one boxed kernel object per op.
#include "csrc/trace/api/register_kernels.h"

#include <ATen/Context.h>
#include <ATen/SDPBackend.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/alias_native.h>
#include <ATen/ops/detach_native.h>
#include <c10/core/AutogradState.h>
#include <c10/core/SymBool.h>
#include <torch/library.h>

#include "csrc/rules/registry.h"
#include "csrc/trace/compat/device.h"
#include "csrc/trace/device/device_type.h"
#include "csrc/trace/device/status_to_exception.h"
#include "csrc/trace/dispatch/kernel.h"
#include "csrc/trace/dispatch/unboxed_kernels.h"
#include "csrc/trace/op/op_traits.h"
#include "csrc/trace/ops/handlers.h"
#include "csrc/trace/ops/sparse.h"
#include "csrc/trace/program/lower.h"
#include "csrc/trace/program/lower_foreach.h"
#include "csrc/trace/pytorch/autograd_kernels.h"
#include "csrc/trace/recorder/arguments.h"
#include "csrc/trace/recorder/graph_task.h"
#include "csrc/trace/recorder/marks.h"
#include "csrc/trace/recorder/region.h"
#include "csrc/trace/recorder/tensor.h"
#include "csrc/trace/run/end_of_step.h"
#include "csrc/trace/session/session_lock.h"
#include "csrc/trace/tape/filled_leaf.h"

namespace spmd::trace {

namespace {

constexpr auto kCompositeImplicit = c10::DispatchKey::CompositeImplicitAutograd;

class BoxedKernel final : public c10::OperatorKernel {
 public:
  explicit BoxedKernel(const OpInfo* op) : op_(op) {}
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) {
    RunKernel(*op_, stack);
  }

 private:
  const OpInfo* op_;
};

// Ops of other namespaces, on their first arrival.
void Fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  RunKernel(OpInfoFor(op), stack);
}

// Tensors of other layouts than ours, which PyTorch's generic code makes on any device that it is
// asked to.
template <const char* kKind>
void RefuseLayout(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "torch_spmd: ", op.operator_name().name, ": ", kKind,
                              " tensors are not supported on '", TheDevice(),
                              "'; keep them on the CPU");
}
constexpr char kNested[] = "nested", kQuantized[] = "quantized";

// Between the CPU and us, `.data =` and module.to may exchange the TensorImpl's contents, so that
// parameters keep their identity and their ties. PyTorch asks this just before `from` takes the
// place of `self`, and here only: the mark goes over.
bool HasCompatibleShallowCopyType(const at::Tensor& self, const at::Tensor& from) {
  {
    SessionLock lock;
    ThrowIfError(RunWaitingStep(*lock));
    KeepMark(*lock, self, from, ".data =");
  }
  const auto ours_or_cpu = [](const at::Tensor& t) {
    return (t.device().type() == kDeviceType || t.device().is_cpu()) && t.layout() == at::kStrided;
  };
  if (self.layout() != at::kStrided && self.layout() == from.layout()) {
    return self.device() == from.device();
  }
  return ours_or_cpu(self) && ours_or_cpu(from);
}

// These are PyTorch's own, but for the shards of a region, which have no memory.
template <at::Tensor (*kOwn)(const at::Tensor&)>
at::Tensor SameMemory(const OpInfo& op, const at::Tensor& self) {
  if (shard_ops != nullptr) {
    const c10::IValue argument(self);
    at::Tensor result;
    if (shard_ops->Call(op, {absl::MakeConstSpan(&argument, 1)},
                        {.each = absl::MakeSpan(&result, 1)})) {
      return result;
    }
  }
  return kOwn(self);
}
// A pass that makes a leaf's first gradient detaches what it has computed.
at::Tensor DetachOrShard(const at::Tensor& self) {
  static const OpInfo& op = GetOp("aten::detach");
  if (GraphTask() >= 0 && Buffer::IsOurs(self)) {
    const SessionLock lock;
    NoteGradient(*BufferOf(self));
  }
  return SameMemory<&at::native::detach>(op, self);
}
at::Tensor AliasOrShard(const at::Tensor& self) {
  static const OpInfo& op = GetOp("aten::alias");
  return SameMemory<&at::native::alias>(op, self);
}

int64_t ChooseAttention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                        const std::optional<at::Tensor>& mask, double dropout, bool causal,
                        std::optional<double> scale, bool gqa) {
  const auto math = static_cast<int64_t>(at::SDPBackend::math);
  const auto fused = static_cast<int64_t>(at::SDPBackend::overrideable);
  const bool allowed = at::globalContext().userEnabledOverrideableSDP() &&
                       (at::globalContext().userEnabledFlashSDP() ||
                        at::globalContext().userEnabledMemEfficientSDP());
  if (!allowed || query.dim() != 4 || key.dim() != 4 || value.dim() != 4 || dropout != 0)
    return math;
  if (!at::isFloatingType(query.scalar_type())) return math;
  if (query.scalar_type() != key.scalar_type() || key.scalar_type() != value.scalar_type())
    return math;
  // FakeTensors come here, too, whose sizes may be symbols.
  for (const at::Tensor& t : {query, key, value}) {
    if (TORCH_GUARD_OR_FALSE(t.sym_numel().sym_eq(0))) return math;
  }
  if (mask.has_value() && mask->defined() && mask->requires_grad()) return math;
  for (const at::Tensor& t : {query, key, value}) {
    if (HasTangent(t)) return math;  // no forward-mode formula
  }
  const auto size = [](const at::Tensor& t, int64_t d) { return t.sym_size(d); };
  if (size(query, 0) != size(key, 0) || size(key, 0) != size(value, 0)) return math;
  if (size(query, 3) != size(key, 3)) return math;  // whose error names the sizes
  if (size(key, 1) != size(value, 1) || size(query, 1) % size(key, 1) != 0) return math;
  if (size(query, 1) != size(key, 1) && !gqa) return math;
  return fused;
}

bool IsRegistered(const c10::OperatorHandle& handle) {
  const std::string& base = handle.operator_name().name;
  // Our own: Python calls them, too.
  if (base.rfind("spmd::", 0) == 0) return rules::Find(base) != nullptr;
  if (base.rfind("aten::", 0) != 0 || IsLeftToPyTorch(base)) return false;
  if (IsKeptWhole(base)) return true;
  if (handle.hasKernelForDispatchKey(kCompositeImplicit)) return false;
  // foreach ops that we cannot take apart: PyTorch's own loop does.
  if (const OpInfo& op = OpInfoFor(handle); op.is_foreach) {
    return op.is_out || (op.functional() != nullptr && ElementOp(*op.functional()) != nullptr);
  }
  return true;
}

}  // namespace

void TakeWhole(const c10::OperatorHandle& handle) {
  auto* handles = new std::vector<c10::RegistrationHandleRAII>;  // for the life of the process
  handles->push_back(c10::Dispatcher::singleton().registerImpl(
      handle.operator_name(), c10::DispatchKey::PrivateUse1,
      c10::KernelFunction::makeFromBoxedFunctor(
          std::make_unique<BoxedKernel>(&MutableOpInfo(handle))),
      std::nullopt, nullptr, "torch_spmd"));
}

void RegisterKernels() {
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  auto* handles = new std::vector<c10::RegistrationHandleRAII>;  // for the life of the process
  for (const auto rows :
       {ViewHandlers(), CopyHandlers(), CreationHandlers(), RandomHandlers(), StorageHandlers(),
        LayerHandlers(), BatchNormHandlers(), ComposedHandlers(), EmbeddingBagHandlers(),
        HistogramHandlers(), OptimizerHandlers(), QuantizationHandlers(), SelectionHandlers(),
        SamplingHandlers(), CtcHandlers(), LeastSquaresHandlers(), TransformerHandlers(),
        SparseHandlers()}) {
    for (const HandlerRow& row : rows) {
      const OpInfo* known = FindOp(std::string(row.op));
      TORCH_INTERNAL_ASSERT(known != nullptr, "no operator ", row.op);
      OpInfo& op = MutableOpInfo(known->handle);
      TORCH_INTERNAL_ASSERT(op.handler == nullptr, "two handlers of ", row.op);
      op.handler = row.handler;
      op.replayable = row.replayable;
    }
  }
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto handle = dispatcher.findSchema(name);
    if (!handle.has_value() || !IsRegistered(*handle)) continue;
    OpInfo& op = MutableOpInfo(*handle);
    std::optional<c10::KernelFunction> unboxed = UnboxedKernel(op);
    handles->push_back(dispatcher.registerImpl(
        name, c10::DispatchKey::PrivateUse1,
        unboxed ? *std::move(unboxed)
                : c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<BoxedKernel>(&op)),
        std::nullopt, nullptr, "torch_spmd"));
  }
  handles->push_back(dispatcher.registerFallback(
      c10::DispatchKey::PrivateUse1, c10::KernelFunction::makeFromBoxedFunction<&Fallback>(),
      "torch_spmd"));
  using c10::DispatchKey, c10::KernelFunction;
  const auto refuse = [&](DispatchKey key, KernelFunction kernel) {
    handles->push_back(dispatcher.registerFallback(key, std::move(kernel), "torch_spmd"));
  };
  for (c10::RegistrationHandleRAII& handle : RegisterSparseKernels()) {
    handles->push_back(std::move(handle));
  }
  refuse(DispatchKey::NestedTensorPrivateUse1,
         KernelFunction::makeFromBoxedFunction<&RefuseLayout<kNested>>());
  refuse(DispatchKey::QuantizedPrivateUse1,
         KernelFunction::makeFromBoxedFunction<&RefuseLayout<kQuantized>>());
  RegisterAutogradKernels();
  auto* library = new torch::Library(torch::Library::IMPL, "aten",
                                     c10::DispatchKey::AutogradPrivateUse1, __FILE__, __LINE__);
  library->impl("_has_compatible_shallow_copy_type", TORCH_FN(HasCompatibleShallowCopyType));
  auto* device = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1,
                                    __FILE__, __LINE__);
  device->impl("alias", TORCH_FN(AliasOrShard));
  device->impl("detach", TORCH_FN(DetachOrShard));
  compat::ChooseAttentionBy(&ChooseAttention);
}

}  // namespace spmd::trace
