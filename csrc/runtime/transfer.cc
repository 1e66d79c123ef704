// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/transfer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "csrc/runtime/accumulate.h"
#include "csrc/runtime/dispatch_guard.h"
#include "csrc/runtime/moves.h"
#include "csrc/runtime/peers.h"
#include "csrc/util/status.h"

namespace spmd::runtime {
namespace {

// Boxes begin at multiples of the largest element, so that each is a tensor in the buffer.
constexpr int64_t kAlignment = 16;

int64_t BytesOf(const Transfer::Packet& packet, at::ScalarType type) {
  const auto bytes = NumElements(packet.size) * static_cast<int64_t>(c10::elementSize(type));
  return CeilDiv(bytes, kAlignment) * kAlignment;
}

// The part of the buffer from byte `offset` on that holds the packet.
at::Tensor InBuffer(const at::Tensor& buffer, int64_t offset, const Transfer::Packet& packet,
                    at::ScalarType type) {
  const auto bytes = NumElements(packet.size) * static_cast<int64_t>(c10::elementSize(type));
  return buffer.narrow(0, offset, bytes)
      .view(type)
      .view(at::IntArrayRef(packet.size.data(), packet.size.size()));
}

std::vector<int64_t> BytesByProcess(absl::Span<const TransferPart> parts, int size, int here,
                                    std::vector<std::vector<Transfer::Packet>> Transfer::* list) {
  std::vector<int64_t> bytes(size, 0);
  for (const TransferPart& part : parts) {
    for (int q = 0; q < size; ++q) {
      if (q == here) continue;
      for (const Transfer::Packet& packet : (part.plan->transfer.*list)[q]) {
        bytes[q] += BytesOf(packet, part.type);
      }
    }
  }
  return bytes;
}

int64_t Sum(absl::Span<const int64_t> values) {
  int64_t sum = 0;
  for (const int64_t value : values) sum += value;
  return sum;
}

// Writes the packet's box, or the sum of the boxes, to `target`.
void Fill(const TransferPart& part, const Transfer::Packet& packet, at::Tensor target) {
  std::vector<at::Tensor> boxes;
  for (const int32_t source : packet.sources) {
    SPMD_CHECK(source < std::ssize(part.sources) && part.sources[source].defined() &&
                   part.sources[source].scalar_type() == part.type,
               "a process does not hold the tile ", source, " that it sends");
    boxes.push_back(PartOfTile(part.sources[source], packet.offset, packet.size));
  }
  if (boxes.size() == 1) {
    target.copy_(boxes[0]);
  } else {
    AccumulateTerms(part.plan->kind, boxes, target);
  }
}

void Pack(absl::Span<const TransferPart> parts, int size, const at::Tensor& buffer) {
  int64_t offset = 0;
  for (int q = 0; q < size; ++q) {
    for (const TransferPart& part : parts) {
      for (const Transfer::Packet& packet : part.plan->transfer.send[q]) {
        Fill(part, packet, InBuffer(buffer, offset, packet, part.type));
        offset += BytesOf(packet, part.type);
      }
    }
  }
}

}  // namespace

int64_t Transfer::num_sent() const {
  int64_t elements = 0;
  for (const std::vector<Packet>& packets : send) {
    for (const Packet& packet : packets) elements += NumElements(packet.size);
  }
  return elements;
}

absl::StatusOr<std::vector<std::vector<at::Tensor>>> RunTransfer(
    Peers& peers, absl::Span<const TransferPart> parts, bool failed) {
  const int size = peers.size();
  const std::vector<int64_t> send_bytes =
      BytesByProcess(parts, size, peers.rank(), &Transfer::send);
  const std::vector<int64_t> receive_bytes =
      BytesByProcess(parts, size, peers.rank(), &Transfer::receive);
  at::Tensor send, receive;
  try {
    send = at::zeros({Sum(send_bytes)}, at::kByte);
    receive = at::empty({Sum(receive_bytes)}, at::kByte);
    if (!failed) Pack(parts, size, send);
  } catch (const std::exception& e) {
    const absl::Status status =
        StatusFromException(e, absl::StrCat("an exchange, in ", ProcessName(peers.rank())));
    peers.Fail(status);
    return status;
  }
  SPMD_RETURN_IF_ERROR(peers.Exchange(send, send_bytes, receive, receive_bytes));
  std::vector<std::vector<at::Tensor>> slots(parts.size());
  int64_t offset = 0;
  for (int q = 0; q < size; ++q) {
    for (size_t p = 0; p < parts.size(); ++p) {
      for (const Transfer::Packet& packet : parts[p].plan->transfer.receive[q]) {
        if (q == peers.rank()) {
          const at::IntArrayRef sizes(packet.size.data(), packet.size.size());
          slots[p].push_back(at::empty(sizes, parts[p].type));
          if (!failed) Fill(parts[p], packet, slots[p].back());
          continue;
        }
        slots[p].push_back(InBuffer(receive, offset, packet, parts[p].type));
        offset += BytesOf(packet, parts[p].type);
      }
    }
  }
  return slots;
}

absl::StatusOr<std::vector<at::Tensor>> RunMovePlan(const MovePlan& plan,
                                                    std::vector<at::Tensor> sources,
                                                    at::ScalarType source_type, DType dtype,
                                                    Peers* peers) {
  if (plan.transfer.exchanges) {
    SPMD_CHECK(peers != nullptr, "a move between processes without a connection");
    const TransferPart part{&plan, sources, source_type};
    SPMD_ASSIGN_OR_RETURN(std::vector<std::vector<at::Tensor>> slots,
                          RunTransfer(*peers, {&part, 1}));
    sources.resize(plan.num_sources);
    for (at::Tensor& slot : slots[0]) sources.push_back(std::move(slot));
  }
  std::vector<at::Tensor> tiles(plan.tiles.size());
  for (size_t i = 0; i < plan.tiles.size(); ++i) {
    if (plan.tiles[i].action == TileMove::Action::kElsewhere) continue;
    tiles[i] = RunTileMove(plan, static_cast<int64_t>(i), {absl::MakeSpan(sources), {}, dtype});
  }
  return tiles;
}

}  // namespace spmd::runtime
