// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/PythonTorchFunctionTLS.h>

namespace spmd::trace {

// While it lives, torch functions written in Python do not see the user's modes (`with
// torch.device("spmd")`).
class NoTorchFunction {
 public:
  NoTorchFunction() : before_(at::impl::PythonTorchFunctionTLS::get_disabled_state()) {
    at::impl::PythonTorchFunctionTLS::set_disabled_state(
        at::impl::TorchFunctionDisabledState::ALL_DISABLED);
  }
  ~NoTorchFunction() { at::impl::PythonTorchFunctionTLS::set_disabled_state(before_); }

 private:
  at::impl::TorchFunctionDisabledState before_;
};

}  // namespace spmd::trace
