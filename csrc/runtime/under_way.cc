// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/under_way.h"

#include <system_error>
#include <utility>

#include "csrc/runtime/dispatch_guard.h"
#include "csrc/runtime/one_place/tile_memory.h"
#include "csrc/runtime/one_place/workers.h"

namespace spmd::runtime {

UnderWay::UnderWay(std::function<absl::Status()> work) : work_(std::move(work)) {
  try {
    thread_ = std::thread([this] {
      const NoWorkers alone;
      Do();
    });
  } catch (const std::system_error&) {
    Do();
  }
}

UnderWay::~UnderWay() {
  if (thread_.joinable()) thread_.join();
}

absl::Status UnderWay::End() {
  if (thread_.joinable()) thread_.join();
  if (thrown_ != nullptr) std::rethrow_exception(std::exchange(thrown_, nullptr));
  return status_;
}

void UnderWay::Do() {
  const DispatchGuard guard;
  const TileMemory::Scope kept;
  try {
    status_ = work_();
  } catch (...) {
    thrown_ = std::current_exception();
  }
}

}  // namespace spmd::runtime
