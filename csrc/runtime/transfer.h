// SPDX-License-Identifier: Apache-2.0
// What a move sends from process to process.
//
// A move's plan says which box of which source tile each target tile needs. Where the process of
// the target does not hold the source, the box travels: once for each process that receives it,
// however many of its devices want it. All processes derive the same lists in the same order from
// the two placements, so only the elements are sent. A received box is one more source of the plan,
// a *slot*.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "csrc/ir/type.h"
#include "csrc/util/dims.h"

namespace spmd::runtime {

class Peers;
struct MovePlan;

struct Transfer {
  // A box of a source tile, or the sum of the same box of several, which are partial sums.
  using Sources = absl::InlinedVector<int32_t, 2>;
  struct Packet {
    Sources sources;
    Dims offset;
    Dims size;
  };
  // By process; empty if one process runs all devices. What this process receives from itself are
  // sums of its own.
  std::vector<std::vector<Packet>> send;
  std::vector<std::vector<Packet>> receive;
  bool exchanges = false;  // some process sends something: all of them take part

  // The elements that this process sends.
  int64_t num_sent() const;
};

// A move that takes part in an exchange.
struct TransferPart {
  const MovePlan* plan;
  absl::Span<const at::Tensor> sources;
  at::ScalarType type;  // of the source tiles
};

// Collective: one exchange for all parts. Returns for each part its slots, process by process, in
// the order of the packets. With `failed` this process has no values to send, and sends zeros.
// Errors: those of the exchange. If this process cannot send, that ends the job.
absl::StatusOr<std::vector<std::vector<at::Tensor>>> RunTransfer(
    Peers& peers, absl::Span<const TransferPart> parts, bool failed = false);

// Collective, unless nothing is exchanged. All tiles of a move that this process holds; the others
// are undefined.
absl::StatusOr<std::vector<at::Tensor>> RunMovePlan(const MovePlan& plan,
                                                    std::vector<at::Tensor> sources,
                                                    at::ScalarType source_type, DType dtype,
                                                    Peers* peers);

}  // namespace spmd::runtime
