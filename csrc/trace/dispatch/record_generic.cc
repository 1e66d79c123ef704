// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/dispatch/record_generic.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <tuple>

#include "csrc/trace/device/device_type.h"
#include "csrc/trace/device/overlap.h"
#include "csrc/trace/dispatch/run_on_host.h"
#include "csrc/trace/op/op_traits.h"
#include "csrc/trace/recorder/arguments.h"
#include "csrc/trace/recorder/recorder.h"
#include "csrc/trace/recorder/tensor.h"
#include "csrc/trace/session/session_state.h"
#include "csrc/trace/shape/out_types.h"

namespace spmd::trace {

namespace {

// The tensors of a written argument: a single one, or those of a list.
std::vector<at::Tensor> TensorsOf(const c10::IValue& arg) {
  if (arg.isTensor()) return {arg.toTensor()};
  if (arg.isTensorList()) return arg.toTensorVector();
  return {};
}

bool HasOurs(const std::vector<c10::IValue>& args) {
  for (const c10::IValue& arg : args) {
    if (arg.isTensor() && Buffer::IsOurs(arg.toTensor())) return true;
    if (arg.isList()) {
      for (const c10::IValue& item : arg.toListRef()) {
        if (item.isTensor() && Buffer::IsOurs(item.toTensor())) return true;
      }
    }
  }
  return false;
}

// True for zeros(…, out=t) and the like, which take the type of t; the functional twin does not
// know it.
bool IsFactoryWithOut(const OpInfo& op) {
  if (!op.is_out) return false;
  if (IsFactoryOfTensors(op.handle.operator_name().name)) return true;
  return std::all_of(op.args.begin(), op.args.end(), [](const ArgInfo& arg) {
    return arg.written || (arg.kind != ArgKind::kTensor && arg.kind != ArgKind::kTensorList);
  });
}

void CheckWrite(const OpInfo& op, const at::Tensor& target, const TensorMeta& result) {
  at::assert_no_internal_overlap(target);
  TORCH_CHECK(c10::canCast(result.dtype, target.scalar_type()), "result type ", result.dtype,
              " can't be cast to the desired output type ", target.scalar_type());
  const at::IntArrayRef sizes(result.sizes.data(), result.sizes.size());
  TORCH_CHECK(op.is_out || target.sizes() == sizes, "output with shape ", target.sizes(),
              " doesn't match the broadcast shape ", sizes);
}

// Checks for overlap, since element-wise kernels read while they write.
void CheckSources(const at::Tensor& target, const std::vector<c10::IValue>& args) {
  for (const c10::IValue& arg : args) {
    if (arg.isTensor()) CheckNoPartialOverlap(target, arg.toTensor());
  }
}

// Resizes an out= argument to the result's size.
void ResizeOut(SessionState& state, const at::Tensor& target, const TensorMeta& result) {
  const at::IntArrayRef sizes(result.sizes.data(), result.sizes.size());
  if (target.sizes() == sizes) return;
  if (target.numel() != 0) {
    TORCH_WARN(
        "An output with one or more elements was resized since it had shape ", target.sizes(),
        ", which does not match the required output shape ", sizes,
        ". This behavior is deprecated, and in a future PyTorch release outputs will not be "
        "resized unless they have zero elements. You can explicitly reuse an out tensor t by "
        "resizing it, inplace, to zero elements with t.resize_(0).");
  }
  ResizeTensor(state, target, sizes);
  // The dimensions have the order that the kernel gives to a result that it allocates.
  c10::TensorImpl* const impl = target.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(sizes, at::IntArrayRef(result.strides.data(), result.strides.size()));
  if (!target.is_non_overlapping_and_dense()) impl->set_sizes_contiguous(sizes);
}

// True if an op on lists writes, for one element, memory that it reads or writes for another. The
// elements are then processed one after the other.
bool ElementsMeet(const OpInfo& op, const std::vector<c10::IValue>& args) {
  struct Extent {
    const Buffer* buffer;
    int64_t begin, end;  // bytes
    size_t element;
    bool written;
  };
  std::vector<Extent> extents;
  for (size_t i = 0; i < args.size(); ++i) {
    if (op.args[i].kind != ArgKind::kTensorList || !args[i].isList()) continue;
    const bool written =
        std::find(op.written.begin(), op.written.end(), static_cast<int>(i)) != op.written.end();
    const auto items = args[i].toListRef();
    for (size_t k = 0; k < items.size(); ++k) {
      const at::Tensor t = items[k].isTensor() ? items[k].toTensor() : at::Tensor();
      if (!Buffer::IsOurs(t) || t.numel() == 0) continue;
      int64_t last = 0;
      for (int64_t d = 0; d < t.dim(); ++d) last += (t.size(d) - 1) * t.stride(d);
      const auto bytes = static_cast<int64_t>(t.itemsize());
      extents.push_back({Buffer::Of(t.storage()), t.storage_offset() * bytes,
                         (t.storage_offset() + last + 1) * bytes, k, written});
    }
  }
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return std::tie(a.buffer, a.begin) < std::tie(b.buffer, b.begin);
  });
  for (size_t i = 0; i < extents.size(); ++i) {
    const Extent& a = extents[i];
    for (size_t j = i + 1; j < extents.size(); ++j) {
      const Extent& b = extents[j];
      if (b.buffer != a.buffer || b.begin >= a.end) break;
      if (a.element != b.element && (a.written || b.written)) return true;
    }
  }
  return false;
}

// True if the first list of an op on lists has a tensor that is not on the device. PyTorch then
// calls the op of each element, which has a device of its own.
bool HasElementElsewhere(const OpInfo& op, const std::vector<c10::IValue>& args) {
  for (size_t i = 0; i < args.size(); ++i) {
    if (op.args[i].kind != ArgKind::kTensorList || !args[i].isList()) continue;
    const auto items = args[i].toListRef();
    return std::any_of(items.begin(), items.end(), [](const c10::IValue& item) {
      return item.isTensor() && item.toTensor().defined() && !Buffer::IsOurs(item.toTensor());
    });
  }
  return false;
}

}  // namespace

void RunGeneric(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const OpInfo* twin = op.functional();
  // An op that neither returns nor writes a tensor is called for its other effects.
  const bool acts = op.result_alias.empty() && op.written.empty();
  if (op.must_run_on_host || acts || twin == nullptr || !op.only_tensors_result || op.is_view) {
    RunOnHost(state, op, stack);
    return;
  }
  const std::vector<c10::IValue> args = PeekArguments(op, stack);
  if (!HasOurs(args) || IsFactoryWithOut(op)) {
    RunOnHost(state, op, stack);
    return;
  }
  if (op.is_foreach && !op.is_out &&
      (HasElementElsewhere(op, args) || (!op.written.empty() && ElementsMeet(op, args)))) {
    const at::AutoDispatchBelowADInplaceOrView below;
    op.handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CompositeExplicitAutograd),
                              stack);
    return;
  }
  for (const int w : op.written) {
    for (const at::Tensor& t : TensorsOf(args[w])) {
      TORCH_CHECK(!t.defined() || Buffer::IsOurs(t),
                  "Expected all tensors to be on the same device, but found at least two devices, ",
                  TheDevice(), " and ", t.device(), "!");
    }
  }
  std::vector<c10::IValue> twin_args = twin == &op ? args : Rearrange(op, args, *twin);
  const Inference& inferred = state.shapes.Infer(*twin, twin_args);
  if (!inferred.ok) {
    RunOnHost(state, op, stack);
    return;
  }
  const std::vector<TensorMeta> metas = inferred.tensors;
  const std::vector<int> counts = inferred.counts;

  // The target of each flattened result: a written tensor, or undefined for a fresh result.
  std::vector<at::Tensor> targets;
  size_t flat = 0;
  const size_t fresh = counts.size() - op.written.size();
  for (size_t r = 0; r < counts.size(); ++r) {
    std::vector<at::Tensor> tensors(counts[r]);
    if (r >= fresh) {
      tensors = TensorsOf(args[op.written[r - fresh]]);
      if (tensors.size() != static_cast<size_t>(counts[r])) {
        RunOnHost(state, op, stack);
        return;
      }
    }
    for (const at::Tensor& t : tensors) {
      if (t.defined() && metas[flat].defined) {
        if (op.is_out && t.scalar_type() != metas[flat].dtype && !TakesOutTypes(op, args, metas)) {
          RunOnHost(state, op, stack);  // raises the error
          return;
        }
        CheckWrite(op, t, metas[flat]);
        if (twin->elementwise) CheckSources(t, args);
      }
      targets.push_back(t);
      ++flat;
    }
  }

  Arguments call = ReadArguments(state, *twin, std::move(twin_args));
  std::vector<TensorType> types;
  for (const TensorMeta& meta : metas) types.push_back(TypeOf(meta));
  const bool in_place = !op.written.empty() && !op.is_out && fresh == 0;
  const TapeId first = Emit(state, *call.op, std::move(call.args), std::move(call.operands), types,
                            std::move(call.groups), in_place);

  stack->erase(stack->end() - static_cast<int64_t>(op.args.size()), stack->end());
  std::vector<at::Tensor> results(metas.size());
  for (size_t k = 0; k < metas.size(); ++k) {
    const TapeId id = first + static_cast<TapeId>(k);
    if (!targets[k].defined()) {
      results[k] = NewTensor(state, metas[k], id);
      continue;
    }
    results[k] = targets[k];
    if (!metas[k].defined) continue;
    if (op.is_out) ResizeOut(state, targets[k], metas[k]);
    Write(state, targets[k],
          EmitCast(state, id, runtime::FromScalarType(targets[k].scalar_type())));
  }
  size_t next = 0;
  for (size_t r = 0; r < op.result_alias.size(); ++r) {
    if (op.result_alias[r] >= 0) {
      stack->push_back(args[op.result_alias[r]]);
      continue;
    }
    if (op.result_is_list[r]) {
      stack->push_back(c10::IValue(
          std::vector<at::Tensor>(results.begin() + static_cast<int64_t>(next),
                                  results.begin() + static_cast<int64_t>(next) + counts[r])));
      next += counts[r];
    } else {
      stack->push_back(c10::IValue(results[next++]));
    }
  }
}

}  // namespace spmd::trace
