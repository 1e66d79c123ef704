// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/peers_shared.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "csrc/runtime/in_place.h"
#include "csrc/runtime/shared_segment.h"
#include "csrc/runtime/watched_peers.h"
#include "csrc/util/dims.h"
#include "csrc/util/status.h"

namespace spmd::runtime {
namespace {

constexpr int64_t kPage = 4096;

// What a process sends in one exchange lies in one of three regions of its segment. Small ones
// alternate, so that one can be filled while the other is still read.
constexpr int64_t kSmall = 64 << 10;
constexpr int kNumSmall = 2;

// The portions of sums (in_place.h) have places of their own, behind the small regions: those of
// several portions, so that no process has to wait for the others after each. All lie in a cache.
constexpr int kPortionsAtOnce = 4;
constexpr int64_t kMostOfPortion = 128 << 10;
constexpr int64_t kMostOfAllPortions = 4 << 20;

// The beginning of a segment. The regions follow.
struct Header {
  uint64_t token;
  alignas(64) SharedCounter written;  // exchanges whose bytes are in the segment
  alignas(64) SharedCounter ended;    // exchanges that the process has ended: it has read its bytes
  // Portions to which the process has given its terms, which it has added, and which it has taken.
  alignas(64) SharedCounter given;
  alignas(64) SharedCounter added;
  alignas(64) SharedCounter taken;
};
// Where the bytes for one process are in an exchange.
struct Entry {
  int64_t begin = 0;
  int64_t bytes = 0;
};

class SharedPeers : public WatchedPeers, public InPlacePeers {
 public:
  SharedPeers(int rank, std::vector<std::unique_ptr<SharedSegment>> segments,
              std::shared_ptr<JobWatch> watch, std::string channel,
              std::chrono::milliseconds timeout)
      : WatchedPeers(rank, static_cast<int>(segments.size()), std::move(watch), std::move(channel),
                     timeout),
        segments_(std::move(segments)),
        last_(segments_.size()) {}

  static int64_t HeaderBytes(int size) {
    const auto bytes = static_cast<int64_t>(sizeof(Header)) +
                       int64_t{kNumSmall} * size * static_cast<int64_t>(sizeof(Entry));
    return CeilDiv(bytes, kPage) * kPage;
  }
  static int64_t LeastBytes(int size) { return HeaderBytes(size) + kNumSmall * kSmall; }

  absl::StatusOr<at::Tensor> BufferToSend(int64_t bytes) override {
    SPMD_ASSIGN_OR_RETURN(char* const to, RegionFor(bytes, step() + 1));
    return at::from_blob(to, {bytes}, at::kByte);
  }

  absl::Status ExchangeInPlace(const at::Tensor& send, absl::Span<const SentRange> ranges,
                               absl::Span<const int64_t> received_bytes,
                               TakeReceived take) override {
    const int64_t total = send.numel();
    SPMD_ASSIGN_OR_RETURN(char* const mine, RegionFor(total, step() + 1));
    BeginStep();
    if (total > 0 && send.const_data_ptr() != mine) {
      std::memcpy(mine, send.const_data_ptr(), static_cast<size_t>(total));
    }
    const int64_t begin = mine - segments_[rank()]->data();
    for (int q = 0; q < size(); ++q) {
      EntryOf(rank(), q) = {begin + ranges[q].begin, ranges[q].bytes};
      if (ranges[q].bytes > 0) last_[q][RegionNumber(total, step())] = step();
    }
    HeaderOf(rank()).written.Set(Number(step()));
    std::vector<at::Tensor> received(size());
    for (int q = 0; q < size(); ++q) {
      if (received_bytes[q] == 0) continue;
      SPMD_ASSIGN_OR_RETURN(received[q], SentBy(q, received_bytes[q]));
    }
    take(received, true);
    HeaderOf(rank()).ended.Set(Number(step()));
    return absl::OkStatus();
  }

  int64_t portion_bytes() const override {
    const int64_t bytes = kMostOfAllPortions / (int64_t{kPortionsAtOnce} * size());
    return std::clamp(bytes / kPage * kPage, kPage, kMostOfPortion);
  }

  absl::Status RunPortions(int64_t count, const PortionWork& work) override {
    SPMD_RETURN_IF_ERROR(Grow(rank(), PortionsEnd()));
    std::vector<char*> to(size());
    std::vector<const char*> from(size());
    // What has been given is added, and what has been added is taken, while it is in a cache; until
    // then the others have the time of another portion.
    for (int64_t step = 0; step < count + 2; ++step) {
      if (int64_t n = step; n < count) {
        const int64_t number = portions_ + n;
        SPMD_RETURN_IF_ERROR(AwaitAll(&Header::taken, number + 1 - kPortionsAtOnce));
        for (int q = 0; q < size(); ++q) to[q] = PlaceOf(number, rank(), q);
        SPMD_RETURN_IF_ERROR(work.give(n, to));
        HeaderOf(rank()).given.Set(Number(number + 1));
      }
      if (int64_t n = step - 1; n >= 0 && n < count) {
        const int64_t number = portions_ + n;
        SPMD_RETURN_IF_ERROR(AwaitAll(&Header::given, number + 1));
        for (int q = 0; q < size(); ++q) from[q] = PlaceOf(number, q, rank());
        SPMD_RETURN_IF_ERROR(work.add(n, from, PlaceOf(number, rank(), rank())));
        HeaderOf(rank()).added.Set(Number(number + 1));
      }
      if (int64_t n = step - 2; n >= 0) {
        const int64_t number = portions_ + n;
        SPMD_RETURN_IF_ERROR(AwaitAll(&Header::added, number + 1));
        for (int q = 0; q < size(); ++q) from[q] = PlaceOf(number, q, q);
        work.take(n, from);
        HeaderOf(rank()).taken.Set(Number(number + 1));
      }
    }
    portions_ += count;
    return absl::OkStatus();
  }

 protected:
  absl::Status DoExchange(const at::Tensor& send, absl::Span<const int64_t> send_bytes,
                          const at::Tensor& receive,
                          absl::Span<const int64_t> receive_bytes) override {
    std::vector<SentRange> ranges;
    int64_t at = 0;
    for (const int64_t bytes : send_bytes) {
      ranges.push_back({at, bytes});
      at += bytes;
    }
    auto* to = static_cast<char*>(receive.mutable_data_ptr());
    return ExchangeInPlace(send, ranges, receive_bytes, [&](auto received, bool) {
      for (const at::Tensor& bytes : received) {
        if (!bytes.defined()) continue;
        std::memcpy(to, bytes.const_data_ptr(), bytes.nbytes());
        to += bytes.nbytes();
      }
    });
  }

 private:
  static uint32_t Number(int64_t step) { return static_cast<uint32_t>(step); }
  static int RegionNumber(int64_t bytes, int64_t step) {
    return bytes <= kSmall ? static_cast<int>(step % kNumSmall) : kNumSmall;
  }
  Header& HeaderOf(int process) const {
    return *reinterpret_cast<Header*>(segments_[process]->data());
  }
  // Of this exchange.
  Entry& EntryOf(int from, int to) const {
    auto* const entries = reinterpret_cast<Entry*>(segments_[from]->data() + sizeof(Header));
    return entries[step() % kNumSmall * size() + to];
  }

  // The memory for what is sent in exchange `step`, when nobody reads from it any more.
  absl::StatusOr<char*> RegionFor(int64_t bytes, int64_t step) {
    const int region = RegionNumber(bytes, step);
    for (int q = 0; q < size(); ++q) {
      int64_t last = last_[q][region];
      // Exchanges whose numbers are both even or both odd use the same entries.
      for (const int64_t other : last_[q]) {
        if (other % kNumSmall == step % kNumSmall) last = std::max(last, other);
      }
      if (last > 0) SPMD_RETURN_IF_ERROR(Await(q, HeaderOf(q).ended, last));
    }
    const int64_t begin =
        region < kNumSmall ? HeaderBytes(size()) + region * kSmall : PortionsEnd();
    SPMD_RETURN_IF_ERROR(Grow(rank(), begin + bytes));
    return segments_[rank()]->data() + begin;
  }

  // Lets the segment of a process have `bytes` at least, as it is seen here.
  absl::Status Grow(int process, int64_t bytes) {
    const absl::Status status = segments_[process]->Grow(bytes);
    if (status.ok()) return status;
    Fail(absl::Status(status.code(), absl::StrCat("an exchange through memory: ", status.message(),
                                                  " (in ", ProcessName(rank()), ")")));
    return failure();
  }

  int64_t PortionsEnd() const {
    return LeastBytes(size()) + int64_t{kPortionsAtOnce} * size() * portion_bytes();
  }
  // Where process `from` puts its terms of a portion for process `to`; with from == to, its sums
  // for all others. Requires: the process has said that it has a portion, if it is not this one.
  char* PlaceOf(int64_t number, int from, int to) const {
    const int64_t place = number % kPortionsAtOnce * size() + to;
    return segments_[from]->data() + LeastBytes(size()) + place * portion_bytes();
  }

  // Until the counters of all other processes have reached `wanted`.
  absl::Status AwaitAll(SharedCounter Header::* counter, int64_t wanted) {
    if (wanted <= 0) return absl::OkStatus();
    for (int q = 0; q < size(); ++q) {
      if (q == rank()) continue;
      SPMD_RETURN_IF_ERROR(Await(q, HeaderOf(q).*counter, wanted));
      // It has made room for its portions before it has said so.
      SPMD_RETURN_IF_ERROR(Grow(q, PortionsEnd()));
    }
    return absl::OkStatus();
  }

  absl::Status Await(int process, SharedCounter& counter, int64_t step) {
    if (counter.Await(Number(step), kSlice)) return absl::OkStatus();
    Wait wait(*this);
    while (!counter.Await(Number(step), kSlice)) {
      SPMD_RETURN_IF_ERROR(wait.GoesOn());
      // It may have done its part before it ended.
      if (segments_[process]->OwnerIsGone() && !counter.reaches(Number(step))) {
        return SomeoneIsGone(process, "it has ended");
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<at::Tensor> SentBy(int process, int64_t bytes) {
    SPMD_RETURN_IF_ERROR(Await(process, HeaderOf(process).written, step()));
    const Entry entry = EntryOf(process, rank());
    if (entry.bytes != bytes) {
      Fail(absl::InternalError(absl::StrCat(ProcessName(process), " sends ", entry.bytes,
                                            " bytes where ", ProcessName(rank()), " expects ",
                                            bytes)));
      return failure();
    }
    SPMD_RETURN_IF_ERROR(Grow(process, entry.begin + bytes));
    return at::from_blob(segments_[process]->data() + entry.begin, {bytes}, at::kByte);
  }

  const std::vector<std::unique_ptr<SharedSegment>> segments_;  // by process
  // By process and region: the last exchange in which something was sent to it from there.
  std::vector<std::array<int64_t, kNumSmall + 1>> last_;
  int64_t portions_ = 0;  // of all sums so far
};

}  // namespace

absl::StatusOr<std::unique_ptr<Peers>> ShareMemory(Peers& remote, bool wanted,
                                                   std::shared_ptr<JobWatch> watch,
                                                   std::string channel,
                                                   std::chrono::milliseconds timeout) {
  const int size = remote.size(), rank = remote.rank();
  std::vector<std::unique_ptr<SharedSegment>> segments(size);
  std::string description;
  if (wanted) {
    if (auto mine = SharedSegment::Make(SharedPeers::LeastBytes(size)); mine.ok()) {
      description = (*mine)->Describe();
      segments[rank] = *std::move(mine);
    }
  }
  SPMD_ASSIGN_OR_RETURN(const std::vector<std::string> all, remote.Tell(description));
  bool can = segments[rank] != nullptr;
  for (int q = 0; q < size && can; ++q) {
    if (q == rank) continue;
    auto theirs = SharedSegment::Open(all[q]);
    can = theirs.ok();
    if (can) segments[q] = *std::move(theirs);
  }
  SPMD_ASSIGN_OR_RETURN(const std::vector<Peers::Words> votes, remote.Agree({can ? 1u : 0u}));
  if (!std::all_of(votes.begin(), votes.end(), [](const auto& words) { return words[0] == 1; })) {
    return nullptr;
  }
  return std::make_unique<SharedPeers>(rank, std::move(segments), std::move(watch),
                                       std::move(channel), timeout);
}

}  // namespace spmd::runtime
