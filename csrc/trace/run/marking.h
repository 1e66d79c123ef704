// SPDX-License-Identifier: Apache-2.0
// Whether marks can be set: many at once are looked at before the first of them is.
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
  std::string caller;  // what messages begin with
};

// Each beside those before it: what Session::MarkSharding would say if they were set in order. Sets
// nothing; a storage may take another form of the same bytes.
// Errors: InvalidArgument, OutOfRange beginning with the caller of the one that is wrong.
absl::Status CheckMarks(absl::Span<const Marking> markings);

// In csrc/trace/api/session_sharding.cc.
// Errors: InvalidArgument for a tensor that is not on the device.
absl::Status CheckOurs(const char* caller, const at::Tensor& tensor);
// Errors: what is wrong with a spec of a tensor of that rank.
absl::Status CheckSpec(SessionState& state, const char* caller, const Mesh& mesh,
                       const PartitionSpec& spec, size_t rank);
// The error for another mark than the one that there is.
absl::Status MarkedAlready(const Mark& mark, const Mark& given,
                           absl::string_view caller = "mark_sharding");

}  // namespace spmd::trace
