// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/in_place.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "csrc/runtime/dispatch_guard.h"
#include "csrc/util/status.h"

namespace spmd::runtime {
namespace {

at::Tensor BytesAt(c10::Device device, int64_t size) {
  return at::empty({size}, at::TensorOptions().dtype(at::kByte).device(device));
}

// The bytes for process 0, then those for process 1, and so on.
at::Tensor OneAfterAnother(const at::Tensor& send, absl::Span<const SentRange> ranges) {
  int64_t at = 0;
  bool are = true;
  std::vector<at::Tensor> parts;
  for (const SentRange& range : ranges) {
    if (range.bytes == 0) continue;
    are = are && range.begin == at;
    at += range.bytes;
    parts.push_back(send.narrow(0, range.begin, range.bytes));
  }
  if (are && at == send.numel()) return send;
  return parts.empty() ? send.narrow(0, 0, 0) : at::cat(parts);
}

}  // namespace

InPlacePeers* InPlace(Peers& peers) { return dynamic_cast<InPlacePeers*>(&peers); }

absl::StatusOr<at::Tensor> BufferToSend(Peers& peers, int64_t bytes) {
  if (InPlacePeers* const in_place = InPlace(peers)) {
    SPMD_RETURN_IF_ERROR(peers.failure());
    return in_place->BufferToSend(bytes);
  }
  return BytesAt(peers.device(), bytes);
}

absl::Status ExchangeInPlace(Peers& peers, const at::Tensor& send,
                             absl::Span<const SentRange> ranges,
                             absl::Span<const int64_t> received_bytes, TakeReceived take) {
  const int size = peers.size();
  SPMD_CHECK(std::ssize(ranges) == size && std::ssize(received_bytes) == size &&
                 ranges[peers.rank()].bytes == 0 && received_bytes[peers.rank()] == 0,
             "the sizes of an exchange do not fit its processes");
  for (const SentRange& range : ranges) {
    SPMD_CHECK(range.begin >= 0 && range.bytes >= 0 && range.begin + range.bytes <= send.numel(),
               "an exchange sends more than there is");
  }
  if (InPlacePeers* const in_place = InPlace(peers)) {
    SPMD_RETURN_IF_ERROR(peers.failure());
    return in_place->ExchangeInPlace(send, ranges, received_bytes, take);
  }
  std::vector<int64_t> sent_bytes;
  for (const SentRange& range : ranges) sent_bytes.push_back(range.bytes);
  const int64_t total = std::accumulate(received_bytes.begin(), received_bytes.end(), int64_t{0});
  at::Tensor from, to;
  try {
    from = OneAfterAnother(send, ranges);
    to = BytesAt(peers.device(), total);
  } catch (const std::exception& e) {
    const absl::Status status =
        StatusFromException(e, absl::StrCat("an exchange, in ", ProcessName(peers.rank())));
    peers.Fail(status);
    return status;
  }
  SPMD_RETURN_IF_ERROR(peers.Exchange(from, sent_bytes, to, received_bytes));
  std::vector<at::Tensor> received(size);
  int64_t at = 0;
  for (int q = 0; q < size; ++q) {
    if (received_bytes[q] > 0) received[q] = to.narrow(0, at, received_bytes[q]);
    at += received_bytes[q];
  }
  take(received, false);
  return absl::OkStatus();
}

}  // namespace spmd::runtime
