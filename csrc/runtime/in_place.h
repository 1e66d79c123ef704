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
// Takes what has come from each process: bytes at the peers' device(); undefined if nothing has.
// With `borrowed` they are valid until it returns.
using TakeReceived = absl::FunctionRef<void(absl::Span<const at::Tensor> received, bool borrowed)>;

// What a process does for sums that several processes add in portions (sums_in_portions.h). The
// memory of each is portion_bytes() long and valid until the function returns. An error ends the
// exchange here; the function has told the others of it.
struct PortionWork {
  // Writes to to[q] this process's terms of portion n of what process q adds.
  absl::FunctionRef<absl::Status(int64_t n, absl::Span<char* const> to)> give;
  // Adds portion n: from[q] has the terms of process q. Writes the sums for the others to `to`.
  absl::FunctionRef<absl::Status(int64_t n, absl::Span<const char* const> from, char* to)> add;
  // Takes portion n of what process q has added from from[q].
  absl::FunctionRef<void(int64_t n, absl::Span<const char* const> from)> take;
};

// Peers that send from memory that others read.
class InPlacePeers {
 public:
  virtual ~InPlacePeers() = default;
  // See the functions below.
  virtual absl::StatusOr<at::Tensor> BufferToSend(int64_t bytes) = 0;
  virtual absl::Status ExchangeInPlace(const at::Tensor& send, absl::Span<const SentRange> ranges,
                                       absl::Span<const int64_t> received_bytes,
                                       TakeReceived take) = 0;
  // The bytes of a portion of what one process adds.
  virtual int64_t portion_bytes() const = 0;
  // Collective. Portions 0 to `count` - 1, each in three steps. A process may be some portions
  // ahead of the others. Errors: those of Peers::Exchange and of `work`.
  virtual absl::Status RunPortions(int64_t count, const PortionWork& work) = 0;
};

// Null if the peers cannot do that.
InPlacePeers* InPlace(Peers& peers);

// Memory at peers.device() for what the next exchange sends. It is valid until then, and its
// contents are anything. Errors: those of Peers::Exchange.
absl::StatusOr<at::Tensor> BufferToSend(Peers& peers, int64_t bytes);

// Collective. Process q gets ranges[q] of `send`, the result of BufferToSend, and received_bytes[q]
// come from it; both are 0 for this process. Ranges may overlap. `take` is called once, when all
// has come, and throws nothing.
// Errors: those of Peers::Exchange.
absl::Status ExchangeInPlace(Peers& peers, const at::Tensor& send,
                             absl::Span<const SentRange> ranges,
                             absl::Span<const int64_t> received_bytes, TakeReceived take);

}  // namespace spmd::runtime
