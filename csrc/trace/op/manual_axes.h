// SPDX-License-Identifier: Apache-2.0
// What the trace knows of manual regions: along which axes each device has its own value, as a set
// of bits, and what an op at the border of a region does (csrc/ir/border.h).
//
//   spmd::to_local(x, size, "(None, 'x')", mesh)              each device along x gets its part
//   spmd::to_local(x, size, "(None, None) all('x',)", mesh)   each device along x gets all of it
//   spmd::to_global(x, size, "(None, 'x')", mesh)             the parts become one tensor
//   spmd::to_global(x, size, "(None, None) all('x',)", mesh)  the devices' values are added up
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "csrc/mesh/mesh.h"
#include "csrc/sharding/sharding.h"
#include "csrc/sharding/spec.h"
#include "csrc/trace/op/op_info.h"

namespace spmd::trace {

// A set of manual axes by name; regions over other meshes do not meet. Thread safety, for these:
// guarded by the session's lock.
using ManualAxes = uint64_t;
// Throws: c10::Error for more than 64 names in one process.
ManualAxes ManualAxesOf(absl::Span<const std::string> names);
std::vector<std::string> NamesOf(ManualAxes axes);

// A region that a thread is in: the text of its mesh, its axes, the number of devices along all of
// them, and whether tensors from outside that are sharded over one of the axes are refused.
struct EnteredManual {
  std::string mesh;
  std::vector<std::string> axes;
  int64_t devices = 1;
  bool check = true;
};
inline thread_local std::vector<EnteredManual> entered_manual;

// "('x',)".
std::string QuotedNames(absl::Span<const std::string> names);
// The border of a tensor of `rank` dimensions of which each device along the axes has all.
std::string AllBorder(int64_t rank, absl::Span<const std::string> names);
// The border of a tensor of which each device along the axes has an index of the first dimension.
std::string FirstBorder(int64_t rank, absl::Span<const std::string> names);

struct BorderCall {
  bool enters = false;
  Mesh mesh;
  PartitionSpec spec;
  std::vector<std::string> all;  // the axes behind "all"
  ManualAxes axes = 0;           // of the spec, and those behind "all"

  ManualAxes After(ManualAxes before) const { return enters ? before | axes : before & ~axes; }
  // The sharding of ir::Border in a grid that refines the mesh.
  absl::StatusOr<Sharding> ShardingIn(const Grid& grid, int rank) const;
};

// Null if the op is at no border. The result lives as long as the process.
// Throws: c10::Error with the offending text.
const BorderCall* BorderOf(const OpInfo& op, absl::Span<const c10::IValue> args);

}  // namespace spmd::trace
