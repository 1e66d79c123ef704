// SPDX-License-Identifier: Apache-2.0
// The processes of a job: which one this is, and how they exchange bytes.
//
// Every process runs the same program, so all of them make the same calls in the same order, and
// each knows how many bytes the others send. Nothing is sent before the processes have agreed on
// what they run (docs/design/0037-processes.md): transports end the process on a size that does not
// fit.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace spmd::runtime {

// Thread safety: one caller at a time; Fail and failure() may be called from any thread.
class Peers {
 public:
  Peers(int rank, int size) : rank_(rank), size_(size) {}
  virtual ~Peers() = default;
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  // Where the buffers of an exchange are: on the host, or on the GPU of this process.
  virtual c10::Device device() const { return c10::Device(c10::kCPU); }

  // Collective. `send` has the bytes for process 0, then those for process 1, and so on;
  // `receive` gets those from process 0, then 1, and so on. Both are contiguous tensors of bytes at
  // device(). The entries of this process are 0.
  // Errors: Unavailable if a process is gone, DeadlineExceeded if one does not come within the
  // timeout, Cancelled if this process was interrupted, or what another process gave to Fail. The
  // processes then no longer work together: every later exchange fails at once.
  absl::Status Exchange(const at::Tensor& send, absl::Span<const int64_t> send_bytes,
                        const at::Tensor& receive, absl::Span<const int64_t> receive_bytes);
  // Ends the exchanges of all processes, present and future, with this error.
  virtual void Fail(const absl::Status& why) = 0;
  // The error by which the processes no longer work together; OK as long as they do.
  virtual absl::Status failure() const = 0;

  // Collective. What each process gives, by rank. Requires: device() is the host.
  using Words = std::array<uint64_t, 8>;
  absl::StatusOr<std::vector<Words>> Agree(const Words& mine);
  absl::StatusOr<std::vector<std::string>> Tell(const std::string& mine);

  // Asked now and then during waits; if it says true, this process fails as interrupted.
  void set_interrupted(std::function<bool()> interrupted) { interrupted_ = std::move(interrupted); }
  // What this process does, for the messages of others: "reads a value at train.py:12".
  void set_doing(std::string doing) { doing_ = std::move(doing); }

 protected:
  virtual absl::Status DoExchange(const at::Tensor& send, absl::Span<const int64_t> send_bytes,
                                  const at::Tensor& receive,
                                  absl::Span<const int64_t> receive_bytes) = 0;
  bool Interrupted() const { return interrupted_ != nullptr && interrupted_(); }
  const std::string& doing() const { return doing_; }

 private:
  const int rank_;
  const int size_;
  std::function<bool()> interrupted_;
  std::string doing_;
};

// "process 3", and the same as the beginning of a sentence about several.
std::string ProcessName(int rank);

// A status as text, so that another process can return it, and back.
std::string StatusToText(const absl::Status& status);
absl::Status StatusFromText(absl::string_view text);

}  // namespace spmd::runtime
