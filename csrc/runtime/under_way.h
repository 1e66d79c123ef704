// SPDX-License-Identifier: Apache-2.0
// Work that goes on while the caller does something else: an exchange during computation.
#pragma once

#include <exception>
#include <functional>
#include <thread>

#include "absl/status/status.h"

namespace spmd::runtime {

// On a thread of its own, which asks for no workers. If the system gives no thread, the work is
// done by the constructor.
class UnderWay {
 public:
  explicit UnderWay(std::function<absl::Status()> work);
  // Waits for the work, whose result is lost.
  ~UnderWay();
  UnderWay(const UnderWay&) = delete;
  UnderWay& operator=(const UnderWay&) = delete;

  // Waits. Returns what the work has returned, or throws what it has thrown. Called once.
  absl::Status End();

 private:
  void Do();

  const std::function<absl::Status()> work_;
  absl::Status status_;
  std::exception_ptr thrown_;
  std::thread thread_;
};

}  // namespace spmd::runtime
