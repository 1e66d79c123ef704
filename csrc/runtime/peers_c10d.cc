// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/peers_c10d.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "csrc/runtime/watched_peers.h"
#include "csrc/util/status.h"

namespace spmd::runtime {
namespace {

class C10dPeers : public WatchedPeers {
 public:
  C10dPeers(c10::intrusive_ptr<c10d::ProcessGroup> group, std::shared_ptr<JobWatch> watch,
            std::string channel, std::chrono::milliseconds timeout)
      : WatchedPeers(group->getRank(), group->getSize(), std::move(watch), std::move(channel),
                     timeout),
        group_(std::move(group)),
        backend_(group_->getBackend(c10::kCPU)) {}

 protected:
  absl::Status DoExchange(const at::Tensor& send, absl::Span<const int64_t> send_bytes,
                          const at::Tensor& receive,
                          absl::Span<const int64_t> receive_bytes) override {
    BeginStep();
    try {
      at::Tensor from = send, to = receive;
      std::vector<int64_t> in(send_bytes.begin(), send_bytes.end());
      std::vector<int64_t> out(receive_bytes.begin(), receive_bytes.end());
      return WaitFor(*backend_->alltoall_base(to, from, out, in));
    } catch (const std::exception& e) {
      return ConnectionHasClosed(e.what());
    }
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
