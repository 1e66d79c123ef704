// SPDX-License-Identifier: Apache-2.0
// Ops that the generic path would record wrongly: views, copies, factories, random numbers, … Each
// source of this folder has a list of them; csrc/trace/api/register_kernels.cc joins the lists.
#pragma once

#include <ATen/core/stack.h>

#include <string_view>

#include "absl/types/span.h"
#include "csrc/trace/op/op_info.h"
#include "csrc/util/sorted.h"

namespace spmd::trace {

struct SessionState;

// kReplayable means that everything that the handler does follows from its arguments
// (csrc/trace/recorder/replay.h).
inline constexpr bool kReplayable = true;
struct HandlerRow {
  std::string_view op;
  Handler handler;
  bool replayable = false;
};
absl::Span<const HandlerRow> ViewHandlers();
absl::Span<const HandlerRow> CopyHandlers();
absl::Span<const HandlerRow> CreationHandlers();
absl::Span<const HandlerRow> RandomHandlers();
absl::Span<const HandlerRow> StorageHandlers();
absl::Span<const HandlerRow> LayerHandlers();
absl::Span<const HandlerRow> BatchNormHandlers();
absl::Span<const HandlerRow> ComposedHandlers();
absl::Span<const HandlerRow> EmbeddingBagHandlers();
absl::Span<const HandlerRow> HistogramHandlers();
absl::Span<const HandlerRow> OptimizerHandlers();
absl::Span<const HandlerRow> QuantizationHandlers();
absl::Span<const HandlerRow> SelectionHandlers();
absl::Span<const HandlerRow> SamplingHandlers();
absl::Span<const HandlerRow> CtcHandlers();
absl::Span<const HandlerRow> LeastSquaresHandlers();
absl::Span<const HandlerRow> TransformerHandlers();
absl::Span<const HandlerRow> SparseHandlers();

// Runs an overload with out= by the overload without it, and copies the results. A factory makes a
// tensor of the type that `out` has.
void RunIntoOut(SessionState& state, const OpInfo& op, torch::jit::Stack* stack);

// Fills elements that nothing has written, with NaN or the largest integer, where
// torch.use_deterministic_algorithms asks for it.
void FillIfDeterministic(at::Tensor& unwritten);

}  // namespace spmd::trace
