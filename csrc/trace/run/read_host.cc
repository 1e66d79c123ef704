// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/run/read_host.h"

#include <ATen/ops/zeros.h>

#include "csrc/runtime/tiled_tensor.h"
#include "csrc/trace/device/status_to_exception.h"
#include "csrc/trace/recorder/recorder.h"
#include "csrc/trace/run/cut.h"
#include "csrc/trace/run/known_values.h"
#include "csrc/trace/run/resolve.h"

namespace spmd::trace {

at::Tensor ReadHost(SessionState& state, const at::Tensor& tensor, const char* why) {
  state.call.looked_at_values = true;
  Buffer* buffer = BufferOf(tensor);
  if (buffer->holds_nothing()) {
    return at::zeros(tensor.sizes(), at::TensorOptions(tensor.scalar_type()).device(at::kCPU));
  }
  if (buffer->pending()) ThrowIfError(Cut(state, why));
  // The value is held here, since a signal's handler may write the tensor during the wait.
  const ValuePtr value = buffer->value();
  ThrowIfError(Resolve(state, *value));
  at::Tensor host = value->host;
  if (!host.defined()) {
    host = runtime::IsPlanned(*value->tiles) ? ValueOrThrow(ReadPlanned(state, *value, why))
                                             : ValueOrThrow(runtime::Download(*value->tiles));
  }
  for (const Recipe* step : Chain(RecipeOf(buffer, tensor))) host = ApplyOnHost(*step, host);
  return host.clone(at::MemoryFormat::Contiguous);
}

}  // namespace spmd::trace
