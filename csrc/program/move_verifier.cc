// SPDX-License-Identifier: Apache-2.0
#include "csrc/program/move_verifier.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "csrc/util/status.h"

namespace spmd::program {
namespace {

absl::Status MoveError(std::string message) {
  return absl::InvalidArgumentError(std::move(message));
}

// One operand and its result. Shards are compared by (axes, chunk), so that the work does not grow
// with the number of devices; only windows are checked shard by shard.
class MovePair {
 public:
  MovePair(const Program& program, const Instruction& move, size_t k)
      : move_(move),
        from_(program.values[move.operands[k]]),
        to_(program.values[move.results[k]]),
        grid_(*program.grids[to_.grid]),
        old_(program.LayoutOf(move.operands[k])),
        new_(program.LayoutOf(move.results[k])),
        expected_axes_(from_.sharding.Closed()) {}

  absl::Status Verify() {
    SPMD_RETURN_IF_ERROR(Common());
    switch (move_.code) {
      case OpCode::kSlice:
        return Slice();
      case OpCode::kAllGather:
        return AllGather();
      case OpCode::kAllToAll:
        return AllToAll();
      case OpCode::kPermute:
        return Permute();
      case OpCode::kExchange:
        return Exchange();
      case OpCode::kAllReduce:
        return AllReduce();
      case OpCode::kReduceScatter:
        return ReduceScatter();
      case OpCode::kTerm:
        return Term();
      case OpCode::kCall:
      case OpCode::kFree:
        break;
    }
    return absl::OkStatus();
  }

 private:
  std::string Shown(const Value& value) const {
    return absl::StrCat("%", value.name, " ", value.sharding.ToString(grid_));
  }

  absl::Status Common() const {
    if (from_.type != to_.type) {
      return MoveError(absl::StrCat("%", from_.name, " is ", from_.type.ToString(), ", %", to_.name,
                                    " is ", to_.type.ToString(), "; a move keeps the type"));
    }
    if (from_.grid != to_.grid && move_.code != OpCode::kExchange) {
      return MoveError(absl::StrCat("%", from_.name, " and %", to_.name,
                                    " live on different meshes; only an exchange goes across"));
    }
    if (!from_.windows.empty()) {
      return MoveError(absl::StrCat("%", from_.name, " has windows; moves start from plain tiles"));
    }
    const bool may_have_windows = move_.code == OpCode::kExchange || move_.code == OpCode::kSlice;
    if (!to_.windows.empty() && !may_have_windows) {
      return MoveError(
          absl::StrCat("%", to_.name, " has windows; only exchange and slice produce them"));
    }
    if ((move_.dim != -1 && !HasDim(move_.code)) ||
        (move_.to_dim != -1 && move_.code != OpCode::kAllToAll)) {
      return MoveError(absl::StrCat(OpCodeName(move_.code), " takes no ",
                                    move_.to_dim != -1 ? "second " : "", "dimension"));
    }
    for (AxisId axis : move_.axes) {
      if (axis < 0 || axis >= grid_.num_axes()) {
        return MoveError(absl::StrCat("there is no axis ", static_cast<int>(axis)));
      }
    }
    return absl::OkStatus();
  }

  static bool HasDim(OpCode code) {
    return code == OpCode::kSlice || code == OpCode::kAllGather || code == OpCode::kAllToAll ||
           code == OpCode::kReduceScatter;
  }

  absl::Status NeedsDim(int dim, absl::string_view name) const {
    if (dim >= 0 && dim < to_.type.rank()) return absl::OkStatus();
    return MoveError(absl::StrCat(name, "(", dim, ") is no dimension of ", to_.type.ToString()));
  }

  // Removes move_.axes, which must be the last axes of dimension `dim`.
  absl::Status TakeMinor(int dim) {
    SPMD_RETURN_IF_ERROR(NeedsDim(dim, "dim"));
    AxisList& have = expected_axes_.dims[dim].axes;
    const AxisList& leaving = move_.axes;
    if (leaving.empty() || leaving.size() > have.size() ||
        !std::equal(leaving.begin(), leaving.end(), have.end() - leaving.size())) {
      return MoveError(absl::StrCat("{", grid_.AxesToString(leaving), "} are not the last axes of ",
                                    "dimension ", dim, " of ", Shown(from_)));
    }
    have.erase(have.end() - leaving.size(), have.end());
    // Shards that merge must be neighbours with one chunk.
    if (!have.empty() && new_.chunk(dim) != old_.chunk(dim) * grid_.size(leaving)) {
      return MoveError(absl::StrCat("dimension ", dim, " of ", Shown(to_), " has chunk ",
                                    new_.chunk(dim), "; gathering gives ",
                                    old_.chunk(dim) * grid_.size(leaving)));
    }
    return absl::OkStatus();
  }

  // Appends move_.axes to the axes of dimension `dim`.
  absl::Status AppendMinor(int dim, absl::string_view name) {
    SPMD_RETURN_IF_ERROR(NeedsDim(dim, name));
    AxisList& have = expected_axes_.dims[dim].axes;
    const bool was_cut = !have.empty();
    have.insert(have.end(), move_.axes.begin(), move_.axes.end());
    // Each old shard must split into whole new shards.
    if (was_cut && old_.chunk(dim) != new_.chunk(dim) * grid_.size(move_.axes)) {
      return MoveError(absl::StrCat(
          "dimension ", dim, " of ", Shown(to_), " has chunk ", new_.chunk(dim), ", of which ",
          grid_.size(move_.axes), " do not add up to the ", old_.chunk(dim), " of ", Shown(from_)));
    }
    return absl::OkStatus();
  }

  absl::Status TakeUnreduced() {
    AxisList& have = expected_axes_.unreduced;
    for (AxisId axis : move_.axes) {
      const auto it = std::find(have.begin(), have.end(), axis);
      if (it == have.end()) {
        return MoveError(absl::StrCat("axis '", grid_.AxesToString({axis}),
                                      "' is not unreduced in ", Shown(from_)));
      }
      have.erase(it);
    }
    if (have.empty()) expected_axes_.reduce_kind = ReduceKind::kSum;
    return absl::OkStatus();
  }

  // Checks that axes, unreduced axes and kind are as expected, and that chunks of dimensions that
  // the move does not name are unchanged.
  absl::Status Expect() const {
    bool same = expected_axes_.unreduced == to_.sharding.unreduced &&
                expected_axes_.reduce_kind == to_.sharding.reduce_kind &&
                expected_axes_.manual == to_.sharding.manual;
    for (int d = 0; d < to_.type.rank(); ++d) {
      same = same && expected_axes_.dims[d].axes == to_.sharding.dims[d].axes;
      if (d != move_.dim && d != move_.to_dim) same = same && old_.chunk(d) == new_.chunk(d);
    }
    if (same) return absl::OkStatus();
    return MoveError(absl::StrCat("it does not turn ", Shown(from_), " into ", Shown(to_)));
  }

  absl::Status Slice() {
    if (!to_.windows.empty()) return SliceToWindows();
    SPMD_RETURN_IF_ERROR(AppendMinor(move_.dim, "dim"));
    return Expect();
  }

  // Checks that each device already holds its window.
  absl::Status SliceToWindows() {
    if (!expected_axes_.SamePlacement(to_.sharding) && move_.dim != -1) {
      SPMD_RETURN_IF_ERROR(AppendMinor(move_.dim, "dim"));
    }
    SPMD_RETURN_IF_ERROR(Expect());
    for (const WindowDim& window : to_.windows) {
      const AxisList& axes = to_.sharding.dims[window.dim].axes;
      const int64_t per_old_shard = new_.num_shards(window.dim) / old_.num_shards(window.dim);
      for (int64_t shard = 0; shard < new_.num_shards(window.dim); ++shard) {
        const Interval needed = window.At(grid_, axes, shard);
        const Interval held = old_.ShardInterval(window.dim, shard / per_old_shard);
        if (!held.Contains(needed)) {
          return MoveError(absl::StrCat("shard ", shard, " of dimension ", window.dim, " needs ",
                                        BoxToString({needed}), " but holds ", BoxToString({held}),
                                        "; that takes an exchange"));
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status AllGather() {
    SPMD_RETURN_IF_ERROR(TakeMinor(move_.dim));
    return Expect();
  }

  absl::Status AllToAll() {
    SPMD_RETURN_IF_ERROR(TakeMinor(move_.dim));
    if (move_.to_dim == move_.dim)
      return MoveError("all_to_all goes from one dimension to another");
    SPMD_RETURN_IF_ERROR(AppendMinor(move_.to_dim, "to"));
    return Expect();
  }

  absl::Status Permute() const {
    bool same = grid_.size(from_.sharding.unreduced) == grid_.size(to_.sharding.unreduced) &&
                from_.sharding.reduce_kind == to_.sharding.reduce_kind &&
                from_.sharding.manual == to_.sharding.manual;
    for (int d = 0; d < to_.type.rank(); ++d) {
      same = same && old_.num_shards(d) == new_.num_shards(d) && old_.chunk(d) == new_.chunk(d);
    }
    if (same) return absl::OkStatus();
    return MoveError(absl::StrCat(Shown(from_), " and ", Shown(to_),
                                  " do not have the same tiles; that takes an exchange"));
  }

  absl::Status Exchange() const {
    if (from_.grid != to_.grid) {
      if (!from_.sharding.manual.empty() || !to_.sharding.manual.empty()) {
        return MoveError("what is each device's own does not go from one mesh to another");
      }
      if (!from_.sharding.IsUnreduced() && !to_.sharding.IsUnreduced()) return absl::OkStatus();
      return MoveError("only reduced values go from one mesh to another");
    }
    if (from_.sharding.unreduced == to_.sharding.unreduced &&
        from_.sharding.reduce_kind == to_.sharding.reduce_kind &&
        from_.sharding.manual == to_.sharding.manual) {
      return absl::OkStatus();
    }
    return MoveError(absl::StrCat("exchange changes the unreduced axes of ", Shown(from_),
                                  " to those of ", Shown(to_)));
  }

  absl::Status AllReduce() {
    if (move_.axes.empty()) return MoveError("all_reduce names the axes that it reduces");
    SPMD_RETURN_IF_ERROR(TakeUnreduced());
    return Expect();
  }

  absl::Status ReduceScatter() {
    if (move_.axes.empty()) return MoveError("reduce_scatter names the axes that it reduces");
    SPMD_RETURN_IF_ERROR(TakeUnreduced());
    SPMD_RETURN_IF_ERROR(AppendMinor(move_.dim, "dim"));
    return Expect();
  }

  absl::Status Term() {
    if (move_.axes.empty())
      return MoveError("term names the axes along which the value becomes unreduced");
    if (MaskOf(move_.axes) & from_.sharding.UsedAxes()) {
      return MoveError(
          absl::StrCat("{", grid_.AxesToString(move_.axes), "} are used by ", Shown(from_)));
    }
    AxisList& unreduced = expected_axes_.unreduced;
    if (unreduced.empty()) expected_axes_.reduce_kind = to_.sharding.reduce_kind;
    unreduced.insert(unreduced.end(), move_.axes.begin(), move_.axes.end());
    std::sort(unreduced.begin(), unreduced.end());
    return Expect();
  }

  const Instruction& move_;
  const Value& from_;
  const Value& to_;
  const Grid& grid_;  // the result's
  const Layout old_;
  const Layout new_;
  Sharding expected_axes_;  // the result's sharding as it should be, chunks aside
};

}  // namespace

absl::Status VerifyMove(const Program& program, const Instruction& move) {
  if (move.results.size() != move.operands.size() || move.results.empty()) {
    return MoveError(absl::StrCat("a move has as many results as operands, at least one; this has ",
                                  move.operands.size(), " operands and ", move.results.size(),
                                  " results"));
  }
  if (!move.groups.empty() || !move.attributes.empty() || !move.added_once.empty() ||
      move.updates != -1) {
    return MoveError("groups, attributes, added_once and updates belong to calls");
  }
  for (size_t k = 0; k < move.results.size(); ++k) {
    const int first = program.values[move.results[0]].grid;
    if (program.values[move.results[k]].grid != first) {
      return MoveError("merged moves live on one mesh");
    }
    SPMD_RETURN_IF_ERROR(MovePair(program, move, k).Verify());
  }
  return absl::OkStatus();
}

}  // namespace spmd::program
