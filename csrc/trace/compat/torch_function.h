// SPDX-License-Identifier: Apache-2.0
// The modes by which Python sees functions of torch (see csrc/trace/compat/keys.h).
#pragma once

#include <ATen/PythonTorchFunctionTLS.h>

namespace spmd::compat {

// While it lives, torch functions written in Python do not see the user's modes (`with
// torch.device("spmd")`). Instead: torch._C.DisableTorchFunction, in Python. Without: such modes
// change what is inferred of shapes.
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

// Whether a mode sees functions. Instead: none. Without: functions of regions do not run on shards.
inline bool ModesSeeFunctions() { return at::impl::torch_function_mode_enabled(); }

}  // namespace spmd::compat
