// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/peers_local.h"

#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace spmd::runtime {

class LocalPeers : public Peers {
 public:
  LocalPeers(LocalJob& job, int rank) : Peers(rank, job.size()), job_(job) {}
  void Fail(const absl::Status& why) override { job_.Fail(why); }
  absl::Status failure() const override { return job_.failure(); }

 protected:
  absl::Status DoExchange(const at::Tensor& send, absl::Span<const int64_t> send_bytes,
                          const at::Tensor& receive,
                          absl::Span<const int64_t> receive_bytes) override {
    if (Interrupted()) {
      Fail(absl::CancelledError(absl::StrCat(ProcessName(rank()), " was interrupted")));
    }
    return job_.Deliver(rank(), next_++, send, send_bytes, receive, receive_bytes);
  }

 private:
  LocalJob& job_;
  int64_t next_ = 0;
};

std::unique_ptr<Peers> LocalJob::MakePeers(int rank) {
  return std::make_unique<LocalPeers>(*this, rank);
}

void LocalJob::SetFault(int rank, int64_t exchange, Fault fault) {
  const absl::MutexLock lock(&mutex_);
  faults_[{rank, exchange}] = fault;
}

int64_t LocalJob::bytes() const {
  const absl::MutexLock lock(&mutex_);
  return bytes_;
}

int64_t LocalJob::exchanges() const {
  const absl::MutexLock lock(&mutex_);
  return exchanges_;
}

void LocalJob::Fail(const absl::Status& why) {
  const absl::MutexLock lock(&mutex_);
  failure_.Update(why);
}

absl::Status LocalJob::failure() const {
  const absl::MutexLock lock(&mutex_);
  return failure_;
}

absl::Status LocalJob::Deliver(int rank, int64_t number, const at::Tensor& send,
                               absl::Span<const int64_t> send_bytes, const at::Tensor& receive,
                               absl::Span<const int64_t> receive_bytes) {
  const absl::MutexLock lock(&mutex_);
  const auto failed = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !failure_.ok(); };
  if (const auto fault = faults_.find({rank, number}); fault != faults_.end()) {
    switch (fault->second) {
      case Fault::kGone:
        failure_.Update(absl::UnavailableError(absl::StrCat(ProcessName(rank), " is gone")));
        return failure_;
      case Fault::kStopped:
        mutex_.Await(absl::Condition(&failed));
        return failure_;
      case Fault::kInterrupted:
        failure_.Update(absl::CancelledError(absl::StrCat(ProcessName(rank), " was interrupted")));
        return failure_;
      case Fault::kLate:
        mutex_.Unlock();
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        mutex_.Lock();
        break;
    }
  }
  const auto* from = static_cast<const char*>(send.data_ptr());
  for (int q = 0; q < size_; ++q) {
    sent_[{number, rank, q}] = std::string(from, send_bytes[q]);
    from += send_bytes[q];
    bytes_ += send_bytes[q];
  }
  if (number > last_counted_) {
    ++exchanges_;
    last_counted_ = number;
  }
  auto* to = static_cast<char*>(receive.data_ptr());
  for (int q = 0; q < size_; ++q) {
    if (q == rank) continue;
    const auto key = std::make_tuple(number, q, rank);
    const auto is_here = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return !failure_.ok() || sent_.contains(key);
    };
    const bool came =
        mutex_.AwaitWithTimeout(absl::Condition(&is_here), absl::FromChrono(timeout_));
    if (!came) {
      failure_.Update(absl::DeadlineExceededError(absl::StrCat(
          ProcessName(rank), " waited ", timeout_.count(), " ms for ", ProcessName(q))));
    }
    if (!failure_.ok()) return failure_;
    const std::string bytes = std::move(sent_.extract(key).mapped());
    if (static_cast<int64_t>(bytes.size()) != receive_bytes[q]) {
      failure_.Update(
          absl::InternalError(absl::StrCat(ProcessName(q), " sends ", bytes.size(), " bytes where ",
                                           ProcessName(rank), " expects ", receive_bytes[q])));
      return failure_;
    }
    if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
    to += receive_bytes[q];
  }
  return absl::OkStatus();
}

}  // namespace spmd::runtime
