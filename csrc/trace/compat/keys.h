// SPDX-License-Identifier: Apache-2.0
// The door to what PyTorch keeps private: the folder csrc/trace/compat is the one place in csrc
// that names it. It includes nothing else of csrc, and runtime and python may include it, too
// (tools/check_layers.py). Each use has a line: what for, what would replace it, what is lost
// without it. A symbol that is missing stops the build here. tools/check_private.py fails on a
// private symbol elsewhere, and on one without its line here.
//
// This header: the keys by which the dispatcher finds kernels.
#pragma once

#include <ATen/TracerMode.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/DispatchKeyExtractor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace spmd::compat {

// Ops of programs, below everything that a thread does. Instead: at::AutoDispatchBelowAutograd,
// which leaves modes and transforms. Without: these see the ops of programs.
using c10::impl::ForceDispatchKeyGuard;

// Ops below some kernels only. Instead: at::AutoDispatchBelowAutograd, for autograd alone. Without:
// sums over an axis of a region are as slow as other collectives.
using c10::impl::ExcludeDispatchKeyGuard;

// The key of ops in the function of a manual region, which PyTorch reserves and does not use, above
// the levels of torch.func. Instead: none above autograd. Without: shard_map raises.
inline constexpr c10::DispatchKey kRegionKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;
inline void IncludeKey(c10::DispatchKey key, bool included) {
  c10::impl::tls_set_dispatch_key_included(key, included);
}

// The keys of a thread, for steps of a region that run later. Instead: at::ThreadLocalState, which
// has more. Without: functions of regions do not run on shards.
using LocalDispatchKeySet = c10::impl::LocalDispatchKeySet;
inline LocalDispatchKeySet KeysOfThread() { return c10::impl::tls_local_dispatch_key_set(); }

// Whether a mode of Python sees ops. Instead: none. Without: functions of regions do not run on
// shards.
inline bool PythonSeesOps() {
  return c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Python);
}

// The keys of an op on `t`. Instead: none. Without: our gradients in place of PyTorch's go.
inline c10::DispatchKeySet KeysOf(const at::Tensor& t) {
  return c10::impl::computeDispatchKeySet(t.key_set(),
                                          c10::DispatchKeySet(c10::DispatchKeySet::FULL));
}

// Whether torch.jit.trace records the next op. Instead: none. Without: traces lack ops.
inline bool TracerSeesOps() { return at::tracer::impl::is_dispatch_enabled(); }

}  // namespace spmd::compat
