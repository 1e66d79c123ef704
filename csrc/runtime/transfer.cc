// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/transfer.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "csrc/runtime/accumulate.h"
#include "csrc/runtime/dispatch_guard.h"
#include "csrc/runtime/in_place.h"
#include "csrc/runtime/moves.h"
#include "csrc/runtime/peers.h"
#include "csrc/runtime/sums_in_portions.h"
#include "csrc/util/status.h"

namespace spmd::runtime {
namespace {

// Boxes begin at multiples of the largest element, so that each is a tensor in the buffer.
constexpr int64_t kAlignment = 16;

int64_t PaddedBytes(int64_t elements, at::ScalarType type) {
  return CeilDiv(elements * static_cast<int64_t>(c10::elementSize(type)), kAlignment) * kAlignment;
}

at::Tensor EmptyAt(c10::Device device, const Dims& size, at::ScalarType type) {
  return at::empty(at::IntArrayRef(size.data(), size.size()),
                   at::TensorOptions().dtype(type).device(device));
}

// The elements that begin at byte `at` of the buffer.
at::Tensor InBuffer(const at::Tensor& buffer, int64_t at, const Dims& size, at::ScalarType type) {
  const auto bytes = NumElements(size) * static_cast<int64_t>(c10::elementSize(type));
  if (bytes == 0) return EmptyAt(buffer.device(), size, type);
  return buffer.narrow(0, at, bytes).view(type).view(at::IntArrayRef(size.data(), size.size()));
}

// The sum of the boxes, or the box itself. The boxes are at one place; `target` may be elsewhere.
at::Tensor SumOfBoxes(const TransferPart& part, const Transfer::Sources& sources,
                      const Dims& offset, const Dims& size, at::Tensor target = {}) {
  std::vector<at::Tensor> boxes;
  for (const int32_t source : sources) {
    SPMD_CHECK(source < std::ssize(part.sources) && part.sources[source].defined() &&
                   part.sources[source].scalar_type() == part.type,
               "a process does not hold the tile ", source, " that it sends");
    boxes.push_back(PartOfTile(part.sources[source], offset, size));
  }
  if (boxes.size() == 1) {
    if (!target.defined()) return boxes[0];
    target.copy_(boxes[0]);
    return target;
  }
  const c10::Device device = boxes[0].device();
  at::Tensor sum =
      target.defined() && target.device() == device ? target : EmptyAt(device, size, part.type);
  AccumulateTerms(part.plan->kind, boxes, sum);
  if (!target.defined()) return sum;
  if (!sum.is_same(target)) target.copy_(sum);
  return target;
}

// What is exchanged for all parts of a move, seen from one process.
class Exchanges {
 public:
  Exchanges(Peers& peers, absl::Span<const TransferPart> parts, bool failed)
      : peers_(peers),
        parts_(parts),
        failed_(failed),
        size_(peers.size()),
        here_(peers.rank()),
        device_(parts[0].plan->backend->here().device),
        memory_(device_.is_cpu() ? InPlace(peers) : nullptr),
        slots_(parts.size()),
        sums_(parts.size()) {
    for (const TransferPart& part : parts) {
      has_sums_ = has_sums_ || !part.plan->transfer.sums.empty();
    }
  }

  absl::Status Run(TakeSlots take) {
    SPMD_RETURN_IF_ERROR(
        Send([&](int a, int b) { return SendsTheSame(a, b); },
             [&](int q, int64_t at, at::Tensor* buffer) { return PackFor(q, at, buffer); },
             [&](int q) { return PackBy(q); },
             [&](absl::Span<const at::Tensor> received, bool borrowed) {
               FillSlots(received, borrowed);
               if (!has_sums_) Give(take, borrowed);
             }));
    if (!has_sums_) return Taken();
    if (memory_ != nullptr) {
      SPMD_RETURN_IF_ERROR(AddInPortions(peers_, *memory_, parts_, failed_, sums_));
    } else {
      SPMD_RETURN_IF_ERROR(ShareParts());
    }
    if (failed_) return absl::OkStatus();
    AppendSums();
    Give(take, /*borrowed=*/false);
    return Taken();
  }

 private:
  absl::Status ShareParts() {
    return Send([&](int a, int b) { return SharesTheSame(a, b); },
                [&](int q, int64_t at, at::Tensor* buffer) { return ShareWith(q, at, buffer); },
                [&](int q) { return SharedBy(q, {}); },
                [&](absl::Span<const at::Tensor> received, bool) {
                  for (int q = 0; q < size_; ++q) {
                    if (received[q].defined()) SharedBy(q, received[q]);
                  }
                });
  }
  // What the caller throws is thrown again when all exchanges have taken place: the others do not
  // fail with it.
  void Give(TakeSlots take, bool borrowed) {
    try {
      take(std::move(slots_), borrowed);
    } catch (...) {
      thrown_ = std::current_exception();
    }
  }
  absl::Status Taken() {
    if (thrown_ != nullptr) std::rethrow_exception(thrown_);
    return absl::OkStatus();
  }

  void AppendSums() {
    for (size_t p = 0; p < parts_.size(); ++p) {
      const std::vector<Transfer::Sum>& sums = parts_[p].plan->transfer.sums;
      for (size_t s = 0; s < sums.size(); ++s) {
        if (!sums_[p][s].defined()) continue;
        const Dims& size = sums[s].size;
        slots_[p].push_back(sums_[p][s].view(at::IntArrayRef(size.data(), size.size())));
      }
    }
  }

  // Both write what process q gets, from byte `at` of the buffer on, and return where it ends.
  // Without a buffer, nothing is written.
  using Write = absl::FunctionRef<int64_t(int q, int64_t at, at::Tensor* buffer)>;

  absl::Status Send(absl::FunctionRef<bool(int, int)> same, Write write,
                    absl::FunctionRef<int64_t(int)> bytes_from, TakeReceived take) {
    std::vector<SentRange> ranges(size_);
    std::vector<int64_t> received_bytes(size_, 0);
    std::vector<int> written;  // processes; the others get the same as one of these
    int64_t total = 0;
    for (int q = 0; q < size_; ++q) {
      if (q == here_) continue;
      received_bytes[q] = bytes_from(q);
      const auto like =
          std::find_if(written.begin(), written.end(), [&](int other) { return same(other, q); });
      if (like != written.end()) {
        ranges[q] = ranges[*like];
        continue;
      }
      const int64_t end = write(q, total, nullptr);
      ranges[q] = {total, end - total};
      total = end;
      written.push_back(q);
    }
    const bool elsewhere = peers_.device() != device_;
    at::Tensor buffer;
    try {
      SPMD_ASSIGN_OR_RETURN(buffer, BufferToSend(peers_, total));
      at::Tensor packed = elsewhere && !failed_ ? EmptyAt(device_, {total}, at::kByte) : buffer;
      if (failed_) buffer.zero_();
      for (const int q : written) {
        if (!failed_) write(q, ranges[q].begin, &packed);
      }
      if (!packed.is_same(buffer)) buffer.copy_(packed);
    } catch (const std::exception& e) {
      return Failed(e);
    }
    absl::Status status;
    SPMD_RETURN_IF_ERROR(ExchangeInPlace(peers_, buffer, ranges, received_bytes,
                                         [&](absl::Span<const at::Tensor> received, bool borrowed) {
                                           if (failed_) return;
                                           try {
                                             if (elsewhere) {
                                               take(BroughtHere(received), /*borrowed=*/false);
                                             } else {
                                               take(received, borrowed);
                                             }
                                           } catch (const std::exception& e) {
                                             status = Failed(e);
                                           }
                                         }));
    return status;
  }

  std::vector<at::Tensor> BroughtHere(absl::Span<const at::Tensor> received) const {
    std::vector<at::Tensor> here(received.begin(), received.end());
    for (at::Tensor& bytes : here) {
      if (bytes.defined()) bytes = bytes.to(device_);
    }
    return here;
  }

  absl::Status Failed(const std::exception& e) {
    const absl::Status status =
        StatusFromException(e, absl::StrCat("an exchange, in ", ProcessName(here_)));
    peers_.Fail(status);
    return status;
  }

  // The first exchange: packets, and what others add to their parts of sums, unless they are added
  // in portions.

  bool SendsTheSame(int a, int b) const {
    return std::all_of(parts_.begin(), parts_.end(), [&](const TransferPart& part) {
      const Transfer& transfer = part.plan->transfer;
      return (memory_ != nullptr || transfer.sums.empty()) && transfer.send[a] == transfer.send[b];
    });
  }

  // Calls f(part, number, sum, term) for each sum to whose part of process `owner` a process adds.
  template <typename F>
  void ForEachTerm(int process, int owner, F f) const {
    if (memory_ != nullptr) return;
    for (size_t p = 0; p < parts_.size(); ++p) {
      const std::vector<Transfer::Sum>& sums = parts_[p].plan->transfer.sums;
      for (size_t s = 0; s < sums.size(); ++s) {
        if (sums[s].PartOf(owner) < 0) continue;
        for (const Transfer::Sum::Term& term : sums[s].terms) {
          if (term.process == process) f(p, s, sums[s], term);
        }
      }
    }
  }

  int64_t PackFor(int q, int64_t at, at::Tensor* buffer) {
    for (const TransferPart& part : parts_) {
      for (const Transfer::Packet& packet : part.plan->transfer.send[q]) {
        if (buffer != nullptr) {
          SumOfBoxes(part, packet.sources, packet.offset, packet.size,
                     InBuffer(*buffer, at, packet.size, part.type));
        }
        at += PaddedBytes(NumElements(packet.size), part.type);
      }
    }
    ForEachTerm(here_, q, [&](size_t p, size_t s, const auto& sum, const auto& term) {
      const auto [begin, end] = PartFor(sum, q);
      if (buffer != nullptr) {
        InBuffer(*buffer, at, {end - begin}, parts_[p].type)
            .copy_(RowOf(p, s, sum, term).narrow(0, begin, end - begin));
      }
      at += PaddedBytes(end - begin, parts_[p].type);
    });
    return at;
  }

  // The bytes that process q sends to this one.
  int64_t PackBy(int q) const {
    int64_t bytes = 0;
    for (const TransferPart& part : parts_) {
      for (const Transfer::Packet& packet : part.plan->transfer.receive[q]) {
        bytes += PaddedBytes(NumElements(packet.size), part.type);
      }
    }
    ForEachTerm(q, here_, [&](size_t p, size_t, const auto& sum, const auto&) {
      const auto [begin, end] = PartFor(sum, here_);
      bytes += PaddedBytes(end - begin, parts_[p].type);
    });
    return bytes;
  }

  void FillSlots(absl::Span<const at::Tensor> received, bool borrowed) {
    std::vector<int64_t> at(size_, 0);  // by process
    for (int q = 0; q < size_; ++q) {
      for (size_t p = 0; p < parts_.size(); ++p) {
        const TransferPart& part = parts_[p];
        for (const Transfer::Packet& packet : part.plan->transfer.receive[q]) {
          if (q == here_) {
            slots_[p].push_back(SumOfBoxes(part, packet.sources, packet.offset, packet.size,
                                           EmptyAt(device_, packet.size, part.type)));
            continue;
          }
          at::Tensor slot = InBuffer(received[q], at[q], packet.size, part.type);
          // What is borrowed goes back before the second exchange.
          slots_[p].push_back(has_sums_ && borrowed ? slot.clone() : slot);
          at[q] += PaddedBytes(NumElements(packet.size), part.type);
        }
      }
    }
    if (memory_ == nullptr) AddParts(received, at);
  }

  // This process's parts of the sums. `at` is where the parts of others begin in what has come.
  void AddParts(absl::Span<const at::Tensor> received, std::vector<int64_t>& at) {
    for (size_t p = 0; p < parts_.size(); ++p) {
      const TransferPart& part = parts_[p];
      const std::vector<Transfer::Sum>& sums = part.plan->transfer.sums;
      sums_[p].resize(sums.size());
      for (size_t s = 0; s < sums.size(); ++s) {
        const Transfer::Sum& sum = sums[s];
        if (sum.PartOf(here_) < 0) continue;
        const auto [begin, end] = PartFor(sum, here_);
        std::vector<at::Tensor> terms;
        for (const Transfer::Sum::Term& term : sum.terms) {
          if (term.process == here_) {
            terms.push_back(RowOf(p, s, sum, term).narrow(0, begin, end - begin));
            continue;
          }
          terms.push_back(
              InBuffer(received[term.process], at[term.process], {end - begin}, part.type));
          at[term.process] += PaddedBytes(end - begin, part.type);
        }
        sums_[p][s] = EmptyAt(device_, {NumElements(sum.size)}, part.type);
        at::Tensor target = sums_[p][s].narrow(0, begin, end - begin);
        AccumulateTerms(part.plan->kind, terms, target);
      }
    }
    rows_.clear();
  }

  // The partial sum of this process as one row.
  const at::Tensor& RowOf(size_t p, size_t s, const Transfer::Sum& sum,
                          const Transfer::Sum::Term& term) {
    at::Tensor& row = rows_[{p, s}];
    if (!row.defined()) {
      row = SumOfBoxes(parts_[p], term.sources, term.offset, sum.size).contiguous().view(-1);
    }
    return row;
  }

  // The second exchange: parts of sums, to all who want the sum.

  // Calls f(part, number, sum) for each sum of which `owner` has a part and `other` wants it.
  template <typename F>
  void ForEachShared(int owner, int other, F f) const {
    for (size_t p = 0; p < parts_.size(); ++p) {
      const std::vector<Transfer::Sum>& sums = parts_[p].plan->transfer.sums;
      for (size_t s = 0; s < sums.size(); ++s) {
        if (sums[s].PartOf(owner) >= 0 && sums[s].PartOf(other) >= 0) f(p, s, sums[s]);
      }
    }
  }

  bool SharesTheSame(int a, int b) const {
    return std::all_of(parts_.begin(), parts_.end(), [&](const TransferPart& part) {
      const std::vector<Transfer::Sum>& sums = part.plan->transfer.sums;
      return std::all_of(sums.begin(), sums.end(), [&](const Transfer::Sum& sum) {
        return (sum.PartOf(a) < 0) == (sum.PartOf(b) < 0);
      });
    });
  }

  int64_t ShareWith(int q, int64_t at, at::Tensor* buffer) {
    ForEachShared(here_, q, [&](size_t p, size_t s, const Transfer::Sum& sum) {
      const auto [begin, end] = PartFor(sum, here_);
      if (buffer != nullptr) {
        InBuffer(*buffer, at, {end - begin}, parts_[p].type)
            .copy_(sums_[p][s].narrow(0, begin, end - begin));
      }
      at += PaddedBytes(end - begin, parts_[p].type);
    });
    return at;
  }

  // Returns the bytes that process q shares with this one, and takes them if there are any.
  int64_t SharedBy(int q, const at::Tensor& received) {
    int64_t at = 0;
    ForEachShared(q, here_, [&](size_t p, size_t s, const Transfer::Sum& sum) {
      const auto [begin, end] = PartFor(sum, q);
      if (received.defined()) {
        sums_[p][s]
            .narrow(0, begin, end - begin)
            .copy_(InBuffer(received, at, {end - begin}, parts_[p].type));
      }
      at += PaddedBytes(end - begin, parts_[p].type);
    });
    return at;
  }

  static std::pair<int64_t, int64_t> PartFor(const Transfer::Sum& sum, int owner) {
    const auto part = static_cast<size_t>(sum.PartOf(owner));
    return {sum.BeginOf(part), sum.BeginOf(part + 1)};
  }

  Peers& peers_;
  const absl::Span<const TransferPart> parts_;
  const bool failed_;
  const int size_;
  const int here_;
  const c10::Device device_;    // of tiles and slots
  InPlacePeers* const memory_;  // null: sums take a second exchange
  bool has_sums_ = false;
  std::exception_ptr thrown_;
  std::vector<std::vector<at::Tensor>> slots_;  // by part
  std::vector<std::vector<at::Tensor>>
      sums_;  // by part: each sum as a row, where it is wanted here
  absl::flat_hash_map<std::pair<size_t, size_t>, at::Tensor> rows_;
};

}  // namespace

int64_t Transfer::Sum::BeginOf(size_t k) const {
  // Parts begin at multiples of this many elements, so that each is aligned.
  constexpr int64_t kElements = 64;
  const int64_t all = NumElements(size);
  if (k == owners.size()) return all;
  return all * static_cast<int64_t>(k) / std::ssize(owners) / kElements * kElements;
}

int Transfer::Sum::PartOf(int process) const {
  const auto found = std::find(owners.begin(), owners.end(), process);
  return found == owners.end() ? -1 : static_cast<int>(found - owners.begin());
}

int64_t Transfer::num_sent(int process) const {
  int64_t elements = 0;
  for (const std::vector<Packet>& packets : send) {
    for (const Packet& packet : packets) elements += NumElements(packet.size);
  }
  for (const Sum& sum : sums) {
    const int part = sum.PartOf(process);
    const int64_t own = part < 0 ? 0 : sum.BeginOf(part + 1) - sum.BeginOf(part);
    for (const Sum::Term& term : sum.terms) {
      if (term.process == process) elements += NumElements(sum.size) - own;
    }
    elements += own * (std::ssize(sum.owners) - 1);
  }
  return elements;
}

absl::Status RunTransfer(Peers& peers, absl::Span<const TransferPart> parts, bool failed,
                         TakeSlots take) {
  return Exchanges(peers, parts, failed).Run(take);
}

bool SharesASlot(const MovePlan& plan, int64_t index) {
  const TileMove& move = plan.tiles[index];
  return move.action == TileMove::Action::kShare && move.terms[0][0].source >= plan.num_sources;
}

absl::StatusOr<std::vector<at::Tensor>> RunMovePlan(const MovePlan& plan,
                                                    std::vector<at::Tensor> sources,
                                                    at::ScalarType source_type, DType dtype,
                                                    Peers* peers) {
  std::vector<at::Tensor> tiles(plan.tiles.size());
  const auto make_tiles = [&](bool borrowed) {
    for (size_t i = 0; i < plan.tiles.size(); ++i) {
      if (plan.tiles[i].action == TileMove::Action::kElsewhere) continue;
      tiles[i] = RunTileMove(plan, static_cast<int64_t>(i), {absl::MakeSpan(sources), {}, dtype});
      if (borrowed && SharesASlot(plan, static_cast<int64_t>(i))) tiles[i] = tiles[i].clone();
    }
  };
  if (!plan.transfer.exchanges) {
    make_tiles(false);
    return tiles;
  }
  SPMD_CHECK(peers != nullptr, "a move between processes without a connection");
  // The slots stand behind the sources.
  std::vector<at::Tensor> held = sources;
  sources.resize(plan.num_sources);
  const TransferPart part{&plan, held, source_type};
  SPMD_RETURN_IF_ERROR(RunTransfer(*peers, {&part, 1}, false,
                                   [&](std::vector<std::vector<at::Tensor>> slots, bool borrowed) {
                                     for (at::Tensor& slot : slots[0])
                                       sources.push_back(std::move(slot));
                                     make_tiles(borrowed);
                                   }));
  return tiles;
}

}  // namespace spmd::runtime
