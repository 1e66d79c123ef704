// SPDX-License-Identifier: Apache-2.0
// The kernels of the dispatcher op `spmd::reshard(Tensor x, str mesh, str spec) -> Tensor`: on the
// device, and with its gradient. Python defines the op, its fake kernel and its batching rule.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/strings/string_view.h"
#include "csrc/trace/value/buffer.h"

namespace spmd::trace {

// Reads the texts of a mesh and a spec. Throws the op's error if one of them is wrong.
using ReadMark = std::function<MarkPtr(const std::string& mesh, const std::string& spec)>;

// Calls the op.
at::Tensor Reshard(const at::Tensor& x, std::string_view mesh, std::string_view spec);

struct KnownMark {
  MarkPtr mark;
  std::atomic<bool> fits{false};  // a tensor of the spec's rank was resharded
};
// The mark with these texts. A text is read once, and a spec checked once.
// Throws: what `read` throws. Requires: RegisterReshard was called.
std::shared_ptr<KnownMark> FindMark(absl::string_view mesh, absl::string_view spec);

// Called once per process. `read` is called without locks, and once for texts that repeat.
void RegisterReshard(ReadMark read);

}  // namespace spmd::trace
