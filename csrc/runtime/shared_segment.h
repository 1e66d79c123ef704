// SPDX-License-Identifier: Apache-2.0
// Memory of one process that other processes of the host read.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace spmd::runtime {

// A counter in shared memory on which other processes wait.
class SharedCounter {
 public:
  uint32_t value() const { return value_.load(std::memory_order_acquire); }
  bool reaches(uint32_t wanted) const { return static_cast<int32_t>(value() - wanted) >= 0; }
  // What was written before is seen by whoever sees the new value.
  void Set(uint32_t value);
  // True if the counter has reached `wanted`. Sleeps for `slice` at most.
  bool Await(uint32_t wanted, std::chrono::milliseconds slice);

 private:
  std::atomic<uint32_t> value_;
  std::atomic<uint32_t> sleepers_;
};

// Thread safety: none.
class SharedSegment {
 public:
  // A segment of this process. Errors: Unavailable if the system has no memory that can be shared
  // without a name; ResourceExhausted.
  static absl::StatusOr<std::unique_ptr<SharedSegment>> Make(int64_t bytes);
  // The segment that another process describes. Errors: Unavailable if it is on another host, or
  // does not let this one see its memory.
  static absl::StatusOr<std::unique_ptr<SharedSegment>> Open(absl::string_view description);
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  // For Open in other processes.
  std::string Describe() const;
  char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  // Lets the memory have `bytes` at least; `data` may move. In another process than the segment's
  // own, that one has done so before. Errors: ResourceExhausted.
  absl::Status Grow(int64_t bytes);
  // True if the process of the segment is known to have ended.
  bool OwnerIsGone() const;

 private:
  SharedSegment() = default;
  absl::Status Map(int64_t bytes);

  int file_ = -1;
  int owner_ = -1;  // a descriptor of the process; -1: this one, or the system has none
  int64_t owner_id_ = 0;
  uint64_t token_ = 0;
  char* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace spmd::runtime
