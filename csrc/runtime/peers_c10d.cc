// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/peers_c10d.h"

#include <exception>
#include <optional>
#include <thread>
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
            std::string channel, std::chrono::milliseconds timeout, c10::Device device)
      : WatchedPeers(group->getRank(), group->getSize(), std::move(watch), std::move(channel),
                     timeout),
        group_(std::move(group)),
        backend_(group_->getBackend(device.type())),
        device_(device) {}

  c10::Device device() const override { return device_; }

 protected:
  absl::Status DoExchange(const at::Tensor& send, absl::Span<const int64_t> send_bytes,
                          const at::Tensor& receive,
                          absl::Span<const int64_t> receive_bytes) override {
    BeginStep();
    try {
      at::Tensor from = send, to = receive;
      std::vector<int64_t> in(send_bytes.begin(), send_bytes.end());
      std::vector<int64_t> out(receive_bytes.begin(), receive_bytes.end());
      const c10::intrusive_ptr<c10d::Work> work = backend_->alltoall_base(to, from, out, in);
      if (device_.is_cpu()) return WaitFor(*work);
      const absl::Status status = WaitForGpu(*work);
      if (!status.ok()) backend_->abort();
      return status;
    } catch (const std::exception& e) {
      if (!device_.is_cpu()) backend_->abort();
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

  // A wait with a time limit would give up the work when the first slice has passed, so it is asked
  // again and again whether it is done.
  absl::Status WaitForGpu(c10d::Work& work) {
    constexpr std::chrono::microseconds kBusy(200), kPause(50);
    std::optional<Wait> wait;  // most exchanges end within the first slice
    const Clock::time_point begin = Clock::now();
    Clock::time_point slice = begin;
    while (!work.isCompleted()) {
      const Clock::time_point now = Clock::now();
      if (now - slice >= kSlice) {
        if (!wait.has_value()) wait.emplace(*this);
        SPMD_RETURN_IF_ERROR(wait->GoesOn());
        slice = now;
      }
      if (now - begin < kBusy) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(kPause);
      }
    }
    if (work.exception() != nullptr) std::rethrow_exception(work.exception());
    work.synchronize();
    return absl::OkStatus();
  }

  absl::Status ConnectionHasClosed(const std::string& text) {
    return SomeoneIsGone(
        -1, absl::StrCat("the connection has closed (", text.substr(0, text.find('\n')), ")"));
  }

  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  const c10::intrusive_ptr<c10d::Backend> backend_;
  const c10::Device device_;
};

}  // namespace

std::unique_ptr<Peers> MakeC10dPeers(c10::intrusive_ptr<c10d::ProcessGroup> group,
                                     std::shared_ptr<JobWatch> watch, std::string channel,
                                     std::chrono::milliseconds timeout, c10::Device device) {
  return std::make_unique<C10dPeers>(std::move(group), std::move(watch), std::move(channel),
                                     timeout, device);
}

}  // namespace spmd::runtime
