// SPDX-License-Identifier: Apache-2.0
// Checks whether marks can be set. Many marks are all checked before the first one is set.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "csrc/mesh/mesh.h"
#include "csrc/sharding/spec.h"
#include "csrc/trace/value/buffer.h"

namespace spmd::trace {

struct SessionState;

struct Marking {
  at::Tensor tensor;
  Mesh mesh;
  PartitionSpec spec;
  std::string caller;  // the beginning of messages
};

// Returns the error of Session::MarkSharding if `markings` were set in order. Sets nothing, but a
// storage may take another form of the same bytes.
// Errors: InvalidArgument or OutOfRange; the message begins with the caller of the wrong one.
absl::Status CheckMarks(absl::Span<const Marking> markings);

// In csrc/trace/api/session_sharding.cc.
// Errors: InvalidArgument for a tensor that is not on the device.
absl::Status CheckOurs(const char* caller, const at::Tensor& tensor);
// Errors: those of ResolveSpec for a tensor of that rank.
absl::Status CheckSpec(SessionState& state, const char* caller, const Mesh& mesh,
                       const PartitionSpec& spec, size_t rank);
// The error for a tensor that has a different mark already.
absl::Status MarkedAlready(const Mark& mark, const Mark& given,
                           absl::string_view caller = "mark_sharding");

// True if the tensor is data that came from the host and that no op has used: no tape knows it.
bool IsUnused(const SessionState& state, const at::Tensor& tensor);

}  // namespace spmd::trace
