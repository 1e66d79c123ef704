// SPDX-License-Identifier: Apache-2.0
// Threads of one process in the roles of processes, for tests, with faults on demand.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "csrc/runtime/peers.h"

namespace spmd::runtime {

// Thread safety: all functions may be called from any thread. Outlives its peers.
class LocalJob {
 public:
  explicit LocalJob(int size, std::chrono::milliseconds timeout = std::chrono::seconds(20))
      : size_(size), timeout_(timeout) {}

  int size() const { return size_; }
  std::unique_ptr<Peers> MakePeers(int rank);

  // What process `rank` does instead of exchange number `exchange` (from 0): it is gone, as after
  // kill -9; it never comes, as after SIGSTOP; it comes late; or it is interrupted.
  enum class Fault : uint8_t { kGone, kStopped, kLate, kInterrupted };
  void SetFault(int rank, int64_t exchange, Fault fault);

  // The bytes that all processes have sent, and the exchanges in which any were.
  int64_t bytes() const;
  int64_t exchanges() const;

 private:
  friend class LocalPeers;
  absl::Status Deliver(int rank, int64_t number, const at::Tensor& send,
                       absl::Span<const int64_t> send_bytes, const at::Tensor& receive,
                       absl::Span<const int64_t> receive_bytes);
  void Fail(const absl::Status& why);
  absl::Status failure() const;

  const int size_;
  const std::chrono::milliseconds timeout_;
  mutable absl::Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  // By exchange, from, to.
  std::map<std::tuple<int64_t, int, int>, std::string> sent_ ABSL_GUARDED_BY(mutex_);
  std::map<std::pair<int, int64_t>, Fault> faults_ ABSL_GUARDED_BY(mutex_);
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t exchanges_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t last_counted_ ABSL_GUARDED_BY(mutex_) = -1;
};

}  // namespace spmd::runtime
