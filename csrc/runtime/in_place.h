// SPDX-License-Identifier: Apache-2.0
// Exchanges whose bytes are not copied on the way, where peers can do that.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "csrc/runtime/peers.h"

namespace spmd::runtime {

// A part of the bytes that are sent.
struct SentRange {
  int64_t begin = 0;
  int64_t bytes = 0;
};
// Takes what has come from each process: bytes on the host; undefined if nothing has. With
// `borrowed` they are valid until it returns.
using TakeReceived = absl::FunctionRef<void(absl::Span<const at::Tensor> received, bool borrowed)>;

// Peers that send from memory that others read.
class InPlacePeers {
 public:
  virtual ~InPlacePeers() = default;
  // See the functions below.
  virtual absl::StatusOr<at::Tensor> BufferToSend(int64_t bytes) = 0;
  virtual absl::Status ExchangeInPlace(const at::Tensor& send, absl::Span<const SentRange> ranges,
                                       absl::Span<const int64_t> received_bytes,
                                       TakeReceived take) = 0;
};

// Memory on the host for what the next exchange sends. It is valid until then, and its contents are
// anything. Errors: those of Peers::Exchange.
absl::StatusOr<at::Tensor> BufferToSend(Peers& peers, int64_t bytes);

// Collective. Process q gets ranges[q] of `send`, the result of BufferToSend, and received_bytes[q]
// come from it; both are 0 for this process. Ranges may overlap. `take` is called once, when all
// has come, and throws nothing.
// Errors: those of Peers::Exchange.
absl::Status ExchangeInPlace(Peers& peers, const at::Tensor& send,
                             absl::Span<const SentRange> ranges,
                             absl::Span<const int64_t> received_bytes, TakeReceived take);

}  // namespace spmd::runtime
