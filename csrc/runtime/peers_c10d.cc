// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/peers_c10d.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "csrc/runtime/watched_peers.h"
#include "csrc/util/status.h"

namespace spmd::runtime {
namespace {

// The bytes for process 0, then those for process 1, and so on.
at::Tensor OneAfterAnother(const at::Tensor& send, absl::Span<const Peers::Range> ranges) {
  int64_t at = 0;
  bool are = true;
  std::vector<at::Tensor> parts;
  for (const Peers::Range& range : ranges) {
    if (range.bytes == 0) continue;
    are = are && range.begin == at;
    at += range.bytes;
    parts.push_back(send.narrow(0, range.begin, range.bytes));
  }
  if (are && at == send.numel()) return send;
  return parts.empty() ? send.narrow(0, 0, 0) : at::cat(parts);
}

class C10dPeers : public WatchedPeers {
 public:
  C10dPeers(c10::intrusive_ptr<c10d::ProcessGroup> group, std::shared_ptr<JobWatch> watch,
            std::string channel, std::chrono::milliseconds timeout)
      : WatchedPeers(group->getRank(), group->getSize(), std::move(watch), std::move(channel),
                     timeout),
        group_(std::move(group)),
        backend_(group_->getBackend(c10::kCPU)) {}

  std::string Medium() const override { return group_->getBackendName(); }

 protected:
  absl::Status DoExchange(const at::Tensor& send, absl::Span<const Range> ranges,
                          absl::Span<const int64_t> received_bytes, Take take) override {
    BeginStep();
    at::Tensor to;
    try {
      at::Tensor from = OneAfterAnother(send, ranges);
      to = at::empty({std::accumulate(received_bytes.begin(), received_bytes.end(), int64_t{0})},
                     at::kByte);
      std::vector<int64_t> in, out(received_bytes.begin(), received_bytes.end());
      for (const Range& range : ranges) in.push_back(range.bytes);
      SPMD_RETURN_IF_ERROR(WaitFor(*backend_->alltoall_base(to, from, out, in)));
    } catch (const std::exception& e) {
      return ConnectionHasClosed(e.what());
    }
    std::vector<at::Tensor> received(size());
    int64_t at = 0;
    for (int q = 0; q < size(); ++q) {
      if (received_bytes[q] > 0) received[q] = to.narrow(0, at, received_bytes[q]);
      at += received_bytes[q];
    }
    take(received);
    return absl::OkStatus();
  }

 private:
  absl::Status WaitFor(c10d::Work& work) {
    std::optional<Wait> wait;  // most exchanges end within the first slice
    while (true) {
      try {
        work.wait(kSlice);
        return absl::OkStatus();
      } catch (const std::exception& e) {
        // A slice that has passed leaves the work as it is.
        if (work.isCompleted()) {
          if (work.isSuccess()) return absl::OkStatus();
          return ConnectionHasClosed(e.what());
        }
      }
      if (!wait.has_value()) wait.emplace(*this);
      SPMD_RETURN_IF_ERROR(wait->GoesOn());
    }
  }

  absl::Status ConnectionHasClosed(const std::string& text) {
    return SomeoneIsGone(
        -1, absl::StrCat("the connection has closed (", text.substr(0, text.find('\n')), ")"));
  }

  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  const c10::intrusive_ptr<c10d::Backend> backend_;
};

}  // namespace

std::unique_ptr<Peers> MakeC10dPeers(c10::intrusive_ptr<c10d::ProcessGroup> group,
                                     std::shared_ptr<JobWatch> watch, std::string channel,
                                     std::chrono::milliseconds timeout) {
  return std::make_unique<C10dPeers>(std::move(group), std::move(watch), std::move(channel),
                                     timeout);
}

}  // namespace spmd::runtime
