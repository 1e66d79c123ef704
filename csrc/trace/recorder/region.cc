// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/recorder/region.h"

#include <ATen/SavedTensorHooks.h>
#include <c10/util/Exception.h>

#include <string_view>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "csrc/trace/compat/autograd.h"
#include "csrc/trace/recorder/marks.h"
#include "csrc/trace/value/buffer.h"
#include "csrc/trace/value/mark_notes.h"

namespace spmd::trace {

namespace {

struct EnteredRegion {
  int64_t first_level;
  const std::vector<std::string>* checked_axes;
};
thread_local std::vector<EnteredRegion> entered_regions;

// True if `name` is the axis, or a part of it: "x", "x:0".
bool IsOfAxis(std::string_view name, std::string_view axis) {
  return name.starts_with(axis) && (name.size() == axis.size() || name[axis.size()] == ':');
}

// The manual axis over which the spec shards, or null.
const std::string* ManualAxisIn(const PartitionSpec& spec) {
  for (const SpecEntry& entry : spec) {
    for (const SpecAxis& part : entry.axes) {
      const auto* const name = std::get_if<std::string>(&part);
      if (name == nullptr) continue;
      for (const EnteredRegion& region : entered_regions) {
        for (const std::string& axis : *region.checked_axes) {
          if (IsOfAxis(*name, axis)) return &axis;
        }
      }
    }
  }
  return nullptr;
}

void CheckOperand(const at::Tensor& t) {
  if (!t.defined() || !Buffer::IsOurs(t)) return;
  const Buffer& buffer = *BufferOf(t);
  if (buffer.mark == nullptr && NotesOf(buffer) == nullptr) return;
  const MarkPtr mark = MarkOf(t);
  const std::string* const axis = mark == nullptr ? nullptr : ManualAxisIn(mark->spec);
  if (axis == nullptr) return;
  TORCH_CHECK_VALUE(false, "a tensor of shape (", absl::StrJoin(t.sizes(), ", "),
                    t.dim() == 1 ? ",)" : ")",
                    " from outside that is sharded over the manual axis '", *axis, "'");
}

}  // namespace

void EnterRegion(int64_t first_level, const std::vector<std::string>* axes) {
  ++regions_entered;
  if (!axes->empty()) ++regions_checked;
  entered_regions.push_back({first_level, axes});
}

void LeaveRegions(int64_t first_level) {
  while (!entered_regions.empty() && entered_regions.back().first_level >= first_level) {
    if (!entered_regions.back().checked_axes->empty()) --regions_checked;
    --regions_entered;
    entered_regions.pop_back();
  }
}

bool NodesAreSeen() {
  return compat::HooksSeeNodes() || !at::SavedTensorDefaultHooks::get_tls_state().stack.empty();
}

void WatchRegion(const OpInfo& op, const CallArguments& args) {
  if (!op.written.empty() || op.must_run_on_host) ++ops_with_effects;
  if (NodesAreSeen()) ++ops_under_hooks;
  if (regions_checked == 0) return;
  for (size_t i = 0; i < args.values.size(); ++i) {
    const c10::IValue& value = args.values[i];
    if (value.isTensor()) {
      CheckOperand(value.toTensor());
    } else if (const at::TensorList* const list = args.tensors(i)) {
      for (const at::Tensor& t : *list) CheckOperand(t);
    } else if (value.isList()) {
      for (const c10::IValue& item : value.toListRef()) {
        if (item.isTensor()) CheckOperand(item.toTensor());
      }
    }
  }
}

}  // namespace spmd::trace
