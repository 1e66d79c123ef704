// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/run/read_host.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/zeros.h>

#include <optional>

#include "csrc/runtime/make_tiles.h"
#include "csrc/trace/device/status_to_exception.h"
#include "csrc/trace/recorder/recorder.h"
#include "csrc/trace/run/agree.h"
#include "csrc/trace/run/cut.h"
#include "csrc/trace/run/known_values.h"
#include "csrc/trace/run/resolve.h"

namespace spmd::trace {

namespace {

at::Tensor Part(at::Tensor whole, const Box& box, const Box& within) {
  for (int64_t d = 0; d < whole.dim(); ++d) {
    whole = whole.narrow(d, box[d].begin - within[d].begin, box[d].size());
  }
  return whole;
}

// What `buffer`, which holds something, holds when all that computes it has run. It is the
// caller's, since a signal's handler may write the tensor during the wait.
ValuePtr Settled(SessionState& state, Buffer* buffer, const char* why) {
  ThrowIfError(CutFor(state, buffer, why));
  ValuePtr value = buffer->value();
  ThrowIfError(Resolve(state, *value));
  return value;
}

// Throws if each device has its own value.
void RefuseShards(const Buffer& buffer) {
  TORCH_CHECK(buffer.manual() == 0,
              "a shard's values cannot be read inside a manual region, since each device has its "
              "own; return the value, or use torch.where");
}

}  // namespace

at::Tensor ReadHost(SessionState& state, const at::Tensor& tensor, const char* why) {
  state.call.looked_at_values = true;
  Buffer* buffer = BufferOf(tensor);
  if (buffer->holds_nothing()) {
    return at::zeros(tensor.sizes(), at::TensorOptions(tensor.scalar_type()).device(at::kCPU));
  }
  RefuseShards(*buffer);
  const ValuePtr value = Settled(state, buffer, why);
  at::Tensor host = value->host;
  if (!host.defined()) {
    host = runtime::IsPlanned(*value->tiles) ? ValueOrThrow(ReadPlanned(state, *value, why))
                                             : ValueOrThrow(ReadValue(state, *value, why));
  }
  for (const Recipe* step : Chain(RecipeOf(buffer, tensor))) host = ApplyOnHost(*step, host);
  return host.clone(at::MemoryFormat::Contiguous);
}

at::Tensor ReadHostPart(SessionState& state, const at::Tensor& tensor, const Box& box,
                        const char* why) {
  Buffer* const buffer = BufferOf(tensor);
  if (!buffer->holds_nothing()) {
    const ValuePtr value = Settled(state, buffer, why);
    if (RecipeOf(buffer, tensor) == nullptr && !IsEmpty(box)) {
      const at::AutoDispatchBelowAutograd guard;
      std::optional<at::Tensor> part;
      if (value->host.defined()) {
        const Dims dims(tensor.sizes().begin(), tensor.sizes().end());
        part = Part(value->host.resolve_conj().resolve_neg(), box, WholeBox(dims));
      } else if (!runtime::IsPlanned(*value->tiles)) {
        part = runtime::PartHere(*value->tiles, box);
      }
      if (part.has_value() && part->is_cpu()) {
        state.call.looked_at_values = true;
        return part->clone(at::MemoryFormat::Contiguous);
      }
    }
  }
  const Box whole = WholeBox(Dims(tensor.sizes().begin(), tensor.sizes().end()));
  return Part(ReadHost(state, tensor, why), box, whole).clone(at::MemoryFormat::Contiguous);
}

bool ReadsAlone(SessionState& /*state*/, const at::Tensor& tensor) {
  Buffer* const buffer = BufferOf(tensor);
  if (buffer->pending() || RecipeOf(buffer, tensor) != nullptr) return false;
  if (buffer->holds_nothing()) return true;
  const ValuePtr& value = buffer->value();
  return value->layout == nullptr || !value->layout->sharding().IsUnreduced();
}

}  // namespace spmd::trace
