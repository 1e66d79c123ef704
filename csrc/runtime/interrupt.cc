// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/interrupt.h"

namespace spmd::runtime {
namespace {

std::atomic<const std::atomic<bool>*> interrupt_flag{nullptr};

}  // namespace

void SetInterruptCheck(const std::atomic<bool>* flag) { interrupt_flag.store(flag); }

bool Interrupted() {
  const std::atomic<bool>* flag = interrupt_flag.load(std::memory_order_acquire);
  return flag != nullptr && flag->load(std::memory_order_relaxed);
}

}  // namespace spmd::runtime
