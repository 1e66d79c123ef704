// SPDX-License-Identifier: Apache-2.0
// What a move sends from process to process.
//
// A move's plan says which box of which source tile each target tile needs. Where the process of
// the target does not hold the source, the box travels: once for each process that receives it,
// however many of its devices want it. All processes derive the same lists in the same order from
// the two placements, so only the elements are sent. A received box is one more source of the plan,
// a *slot*.
//
// A large sum that several processes want is added in parts, in a second exchange: each of them
// adds one part of it and sends that to the others. So an element travels twice, however many
// processes there are. Through shared memory that is done portion by portion (sums_in_portions.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
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
    friend bool operator==(const Packet& a, const Packet& b) {
      return a.sources == b.sources && a.offset == b.offset && a.size == b.size;
    }
  };
  struct Sum {
    // The partial sum of one process: a box of a source tile, or the sum of the same box of
    // several.
    struct Term {
      int process;
      Sources sources;
      Dims offset;
    };
    Dims size;
    std::vector<Term> terms;  // in the order in which they are added
    std::vector<int> owners;  // the processes that want the sum; owner k adds part k

    // The elements of part k, of the box as one row: from BeginOf(k) to BeginOf(k + 1).
    int64_t BeginOf(size_t k) const;
    // Which part a process adds; -1 if it does not want the sum.
    int PartOf(int process) const;
  };
  // By process; empty if one process runs all devices. What this process receives from itself are
  // sums of its own.
  std::vector<std::vector<Packet>> send;
  std::vector<std::vector<Packet>> receive;
  // All sums that are added in parts, those of other processes too. The slots of those that this
  // process wants follow the slots of its packets.
  std::vector<Sum> sums;
  bool exchanges = false;  // some process sends something: all of them take part

  // The elements that process `process` sends.
  int64_t num_sent(int process) const;
};

// A move that takes part in an exchange.
struct TransferPart {
  const MovePlan* plan;
  absl::Span<const at::Tensor> sources;
  at::ScalarType type;  // of the source tiles
};

// Takes for each part its slots, process by process, in the order of the packets. If they are
// `borrowed`, their memory is valid until it returns.
using TakeSlots =
    absl::FunctionRef<void(std::vector<std::vector<at::Tensor>> slots, bool borrowed)>;

// Collective: one exchange for all parts, or two if sums are added in parts. What is sent is packed
// where the backend of the plans holds tiles, and the slots are there; if the buffers of `peers`
// are elsewhere, as those of Gloo are for a GPU, it is copied as a whole. `take` is called when
// everything has come; what it throws comes out of here. With `failed` this process has no values
// to send: it sends zeros, and takes nothing. Errors: those of the exchange. If this process cannot
// send, that ends the job.
absl::Status RunTransfer(Peers& peers, absl::Span<const TransferPart> parts, bool failed,
                         TakeSlots take);

// True if the tile is a slot of the plan as it is.
bool SharesASlot(const MovePlan& plan, int64_t index);

// Collective, unless nothing is exchanged. All tiles of a move that this process holds; the others
// are undefined.
absl::StatusOr<std::vector<at::Tensor>> RunMovePlan(const MovePlan& plan,
                                                    std::vector<at::Tensor> sources,
                                                    at::ScalarType source_type, DType dtype,
                                                    Peers* peers);

}  // namespace spmd::runtime
