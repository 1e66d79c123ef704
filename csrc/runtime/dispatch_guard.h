// SPDX-License-Identifier: Apache-2.0
// Runs ATen ops as plain functions and turns their exceptions into statuses.
#pragma once

#include <c10/core/AutogradState.h>
#include <c10/core/DispatchKeySet.h>

#include <exception>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "csrc/trace/compat/keys.h"

namespace spmd::runtime {

// While a guard lives, ops of this thread run below autograd, autocast, function transforms and
// Python modes, whatever the caller's thread was doing. Each thread that runs ops needs a guard of
// its own, because thread-local state does not reach OpenMP workers.
class DispatchGuard {
 public:
  DispatchGuard()
      : keys_(c10::DispatchKeySet({c10::DispatchKey::BackendSelect}),
              c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset),
        state_(c10::AutogradState::get_tls_state()) {
    c10::AutogradState::set_tls_state(c10::AutogradState(
        /*grad_mode=*/false, /*inference_mode=*/false, /*fw_grad_mode=*/false,
        /*multithreading_enabled=*/true));
  }
  ~DispatchGuard() { c10::AutogradState::set_tls_state(state_); }
  DispatchGuard(const DispatchGuard&) = delete;
  DispatchGuard& operator=(const DispatchGuard&) = delete;

 private:
  compat::ForceDispatchKeyGuard keys_;
  c10::AutogradState state_;
};

// The message of `e` as a status, without its backtrace and with `context` in front. Out of memory
// → ResourceExhausted, IndexError → OutOfRange, ValueError and TypeError → InvalidArgument,
// NotImplementedError → Unimplemented, others → Internal.
absl::Status StatusFromException(const std::exception& e, absl::string_view context);

}  // namespace spmd::runtime
