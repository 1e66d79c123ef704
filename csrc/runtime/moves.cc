// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/moves.h"

#include <algorithm>
#include <limits>

#include "csrc/program/terms.h"
#include "csrc/runtime/accumulate.h"
#include "csrc/runtime/plan_transfer.h"
#include "csrc/runtime/tiled_tensor.h"
#include "csrc/util/status.h"

namespace spmd::runtime {
namespace {

// A part of an interval of the target that one shard of the source holds. If shard is -1, none
// holds it.
struct Segment {
  int64_t shard;
  Interval interval;
  int64_t first;  // the index of the value at the beginning of the interval
};

// The shard that covers index `at` and reaches furthest; -1 if none does. `end` becomes the index
// at which its cover, or the gap, ends.
int64_t FindShard(const Placement& from, int dim, int64_t at, int64_t& end) {
  if (!from.windowed(dim)) {
    const int64_t extent = from.layout().dims()[dim];
    if (at < 0) {
      end = std::min<int64_t>(end, 0);
      return -1;
    }
    if (at >= extent) return -1;
    const int64_t last = from.num_shards(dim) - 1;
    const int64_t shard = last == 0 ? 0 : std::min(at / from.layout().chunk(dim), last);
    end = std::min(end, from.ShardInterval(dim, shard).end);
    return shard;
  }
  int64_t best = -1, reach = at, next = end;
  for (int64_t i = 0; i < from.num_shards(dim); ++i) {
    const Interval& held = from.ShardInterval(dim, i);
    if (held.empty()) continue;
    if (held.begin <= at && held.end > reach) {
      best = i;
      reach = held.end;
    } else if (held.begin > at) {
      next = std::min(next, held.begin);
    }
  }
  end = std::min(end, best >= 0 ? reach : next);
  return best;
}

// `order` is that of the target.
std::vector<Segment> Cover(const Placement& from, int dim, const Interval& wanted,
                           absl::Span<const Interval> order) {
  std::vector<Segment> segments;
  int64_t target = wanted.begin;
  for (const Interval& part : program::InOrder(order, wanted)) {
    for (int64_t at = part.begin; at < part.end;) {
      int64_t end = part.end;
      const int64_t shard = FindShard(from, dim, at, end);
      segments.push_back({shard, {target, target + end - at}, at});
      target += end - at;
      at = end;
    }
  }
  return segments;
}

class PlanMaker {
 public:
  PlanMaker(const Placement& from, const Placement& to, const Backend& backend)
      : from_(from),
        to_(to),
        backend_(backend),
        cover_(from.rank()),
        same_grid_(from.layout().grid() == to.layout().grid() || from.grid() == to.grid()) {
    SPMD_CHECK(from.rank() == to.rank(), "a move between ", from.layout().ToString(), " and ",
               to.layout().ToString());
    for (int d = 0; d < from.rank(); ++d) {
      for (int64_t i = 0; i < to.num_shards(d); ++i) {
        cover_[d].push_back(Cover(from, d, to.ShardInterval(d, i), to.order(d)));
      }
    }
    const AxisMask after = same_grid_ ? to.sharding().UnreducedAxes() : 0;
    const AxisMask before = same_grid_ ? from.sharding().UnreducedAxes() : 0;
    for (AxisId axis : from.sharding().unreduced) {
      if ((after & MaskOf(axis)) == 0) reduced_.push_back(axis);
    }
    for (AxisId axis : to.sharding().unreduced) {
      if ((before & MaskOf(axis)) == 0) term_axes_.push_back(axis);
    }
  }

  // The tile as `process` makes it.
  TileMove Make(int64_t index, int process) const {
    TileMove move;
    const int64_t position = to_.PositionOf(index);
    move.dims = to_.DimsOf(index);
    move.place = backend_.place(to_.grid().device_ids()[position]);
    if (to_.grid().Coordinate(position, term_axes_) != 0) {
      move.action = TileMove::Action::kIdentity;
      return move;
    }
    const int64_t terms = from_.grid().size(reduced_);
    for (int64_t r = 0; r < terms; ++r) {
      const int64_t source_position =
          from_.grid().WithCoordinate(same_grid_ ? position : 0, reduced_, r);
      const int64_t tile = from_.TileAt(source_position);
      // The first tile of what the device has of its own along manual axes.
      const int64_t own = from_.grid().size(from_.sharding().manual);
      const int64_t of_each = from_.layout().num_tiles() / own;
      const int64_t term = tile / of_each * of_each + tile % from_.num_terms();
      move.terms.push_back(Pieces(index, term, move.place, process));
    }
    move.action = terms > 1 ? TileMove::Action::kReduce : ActionFor(move);
    return move;
  }

  TileMove::Action ActionFor(const TileMove& move) const {
    if (move.terms[0].size() != 1 || move.terms[0][0].source < 0) return TileMove::Action::kCopy;
    const Piece& piece = move.terms[0][0];
    if (piece.source >= from_.count()) {  // a slot, which is where the tile will be
      return piece.size == move.dims ? TileMove::Action::kShare : TileMove::Action::kCopy;
    }
    const int64_t position = from_.PositionOf(piece.source);
    if (backend_.place(from_.grid().device_ids()[position]) != move.place) {
      return TileMove::Action::kCopy;
    }
    return from_.DimsOf(piece.source) == move.dims ? TileMove::Action::kShare
                                                   : TileMove::Action::kView;
  }

 private:
  std::vector<Piece> Pieces(int64_t index, int64_t term, const Place& place, int process) const {
    const int rank = to_.rank();
    const int64_t tile = to_.TileOf(index);
    std::vector<Piece> pieces;
    if (to_.TileIsEmpty(tile)) return pieces;
    absl::InlinedVector<const std::vector<Segment>*, 5> segments;
    for (int d = 0; d < rank; ++d) segments.push_back(&cover_[d][to_.ShardOfTile(tile, d)]);
    absl::InlinedVector<size_t, 5> at(rank, 0);
    while (true) {
      Piece piece{/*source=*/0, {}, {}, {}};
      int64_t source_tile = term;
      for (int d = 0; d < rank; ++d) {
        const Segment& s = (*segments[d])[at[d]];
        piece.size.push_back(s.interval.size());
        piece.target_offset.push_back(s.interval.begin - to_.TileBegin(tile, d));
        if (s.shard < 0) {
          piece.source = -1;
          piece.source_offset.push_back(0);
        } else {
          source_tile += s.shard * from_.stride(d);
          piece.source_offset.push_back(s.first - from_.ShardInterval(d, s.shard).begin);
        }
      }
      if (piece.source == 0) {
        piece.source =
            static_cast<int32_t>(Choose(source_tile, to_.PositionOf(index), place, process));
      }
      pieces.push_back(std::move(piece));
      int d = rank - 1;
      while (d >= 0 && ++at[d] == segments[d]->size()) at[d--] = 0;
      if (d < 0) break;
    }
    return pieces;
  }

  // The tensor from which a device of `process` reads a tile: the device's own, else one at the
  // same place, else one of the process, else one of another process. Processes that ask for the
  // same tile ask different holders of it.
  int64_t Choose(int64_t tile, int64_t position, const Place& place, int process) const {
    if (from_.per_tile()) return tile;
    if (same_grid_ && from_.TileAt(position) == tile && IsHeldBy(position, process)) {
      return from_.IndexAt(position);
    }
    std::vector<int64_t> here, elsewhere;  // positions
    for (int64_t p = from_.FirstPosition(tile); p < from_.grid().num_devices(); ++p) {
      if (from_.TileAt(p) != tile) continue;
      const bool is_here = IsHeldBy(p, process);
      if (is_here && backend_.place(from_.grid().device_ids()[p]) == place) {
        return from_.IndexAt(p);
      }
      (is_here ? here : elsewhere).push_back(p);
    }
    return from_.IndexAt(!here.empty() ? here[0] : elsewhere[process % elsewhere.size()]);
  }

  bool IsHeldBy(int64_t position, int process) const {
    const int home = Homes::Of(from_.grid(), position, from_.devices_per_process());
    return home == Homes::kEverywhere || home == process;
  }

  const Placement& from_;
  const Placement& to_;
  const Backend& backend_;
  std::vector<std::vector<std::vector<Segment>>> cover_;  // by dimension and shard of `to`
  bool same_grid_;
  AxisList reduced_;
  AxisList term_axes_;
};

at::Tensor Part(const at::Tensor& t, const Dims& offset, const Dims& size) {
  return PartOfTile(t, offset, size);
}

at::Tensor Empty(const MovePlan& plan, const TileMove& move, at::ScalarType dtype) {
  return plan.backend->Allocate(move.place, at::IntArrayRef(move.dims.data(), move.dims.size()),
                                dtype);
}

// A tensor with the strides of a term, as if the term's own memory were used: what is computed from
// the sum has the same bits in either case.
at::Tensor EmptyAs(const at::Tensor& term, const MovePlan& plan, const TileMove& move) {
  if (!term.is_non_overlapping_and_dense()) return Empty(plan, move, term.scalar_type());
  return plan.backend->AllocateLike(move.place, term);
}

// TermType is the element type of a value's partial results, MadeType that of the tiles that a plan
// makes.
DType TermType(const MovePlan& plan, DType dtype) {
  const bool rounds = plan.kind == ReduceKind::kSum || plan.kind == ReduceKind::kProd;
  return rounds ? program::Widened(dtype) : dtype;
}
DType MadeType(const MovePlan& plan, DType dtype) {
  return plan.makes_terms ? TermType(plan, dtype) : dtype;
}

at::Tensor As(at::Tensor tile, DType dtype) {
  const at::ScalarType type = ToScalarType(dtype);
  return tile.scalar_type() == type ? std::move(tile) : tile.to(type);
}

// Sends a term, or a part of one, to the device where it is added, in the type in which it is held.
at::Tensor Sent(const at::Tensor& part, const MovePlan& plan, const TileMove& move) {
  return part.device() == move.place.device ? part : plan.backend->CopyTo(move.place, part);
}

void CopyPieces(const MovePlan& plan, const std::vector<Piece>& pieces, const MoveRequest& request,
                double fill, at::Tensor& target) {
  for (const Piece& piece : pieces) {
    at::Tensor part = Part(target, piece.target_offset, piece.size);
    if (piece.source < 0) {
      part.fill_(fill);
    } else {
      plan.backend->Copy(Part(request.sources[piece.source], piece.source_offset, piece.size),
                         part);
    }
  }
}

bool CoversWhole(const std::vector<Piece>& pieces, const Dims& dims) {
  return pieces.size() == 1 && pieces[0].source >= 0 && pieces[0].size == dims;
}

// One complete term of a tile, on the tile's device.
at::Tensor TermOf(const MovePlan& plan, const TileMove& move, const Piece& piece,
                  const MoveRequest& request) {
  const at::Tensor& source = request.sources[piece.source];
  const bool all = source.sizes() == at::IntArrayRef(move.dims.data(), move.dims.size());
  return Sent(all ? source : Part(source, piece.source_offset, piece.size), plan, move);
}

// Adds terms one after another, in device order.
void AddPieces(const MovePlan& plan, const TileMove& move,
               absl::Span<const std::vector<Piece>* const> terms, const MoveRequest& request,
               at::Tensor& sum) {
  if (!sum.defined()) {
    sum = Empty(plan, move, ToScalarType(TermType(plan, request.dtype)));
    CopyPieces(plan, *terms[0], request, 0, sum);
    terms.remove_prefix(1);
  }
  for (const std::vector<Piece>* pieces : terms) {
    for (const Piece& piece : *pieces) {
      at::Tensor part = Part(sum, piece.target_offset, piece.size);
      const at::Tensor term = Part(request.sources[piece.source], piece.source_offset, piece.size);
      AccumulateInto(plan.kind, Sent(term, plan, move), part);
    }
  }
}

}  // namespace

MovePlan MovePlan::Make(const Placement& from, const Placement& to, const Backend& backend,
                        bool one_by_one) {
  MovePlan plan;
  plan.kind =
      from.sharding().IsUnreduced() ? from.sharding().reduce_kind : to.sharding().reduce_kind;
  plan.makes_terms = to.sharding().IsUnreduced();
  plan.backend = &backend;
  plan.num_sources = from.count();
  const PlanMaker maker(from, to, backend);
  const Homes& homes = backend.homes();
  for (int64_t i = 0; i < to.count(); ++i) {
    if (homes.IsHere(to.HomeOf(i))) {
      plan.tiles.push_back(maker.Make(i, homes.here));
    } else {
      plan.tiles.push_back({.action = TileMove::Action::kElsewhere, .dims = to.DimsOf(i)});
    }
  }
  if (backend.peers() != nullptr) {
    PlanTransfer(
        from, to, *backend.peers(), one_by_one || backend.exact_sums(),
        [&](int64_t index, int process) { return maker.Make(index, process); }, plan);
    for (TileMove& move : plan.tiles) {
      if (move.terms.size() == 1) move.action = maker.ActionFor(move);
    }
  }
  std::vector<int32_t> uses(from.count(), 0);
  for (const TileMove& move : plan.tiles) {
    for (const auto& pieces : move.terms) {
      for (const Piece& piece : pieces) {
        if (piece.source >= 0 && piece.source < plan.num_sources) ++uses[piece.source];
      }
    }
  }
  for (TileMove& move : plan.tiles) {
    if (move.action != TileMove::Action::kReduce || !CoversWhole(move.terms[0], move.dims))
      continue;
    const int32_t first = move.terms[0][0].source;
    move.may_accumulate =
        first < plan.num_sources && uses[first] == 1 && from.DimsOf(first) == move.dims;
  }
  return plan;
}

namespace {

// Adds terms in the type of the partial results.
void AddWide(const MovePlan& plan, int64_t index, int64_t begin, int64_t end,
             const MoveRequest& request, at::Tensor& sum) {
  const TileMove& move = plan.tiles[index];
  absl::InlinedVector<const std::vector<Piece>*, 8> terms;
  bool whole = true;
  for (int64_t k = begin; k < end; ++k) {
    const std::vector<Piece>& pieces = move.terms[k];
    const bool covers = CoversWhole(pieces, move.dims);
    if (covers && pieces[0].source < std::ssize(request.identity) &&
        request.identity[pieces[0].source] != 0) {
      continue;
    }
    whole = whole && covers;
    terms.push_back(&pieces);
  }
  if (terms.empty()) {
    if (!sum.defined() && end == static_cast<int64_t>(move.terms.size())) {
      sum = IdentityTile(*plan.backend, move.place, plan.kind, MadeType(plan, request.dtype),
                         move.dims);
    }
    return;
  }
  if (!whole) return AddPieces(plan, move, terms, request, sum);
  std::vector<at::Tensor> parts;
  if (sum.defined()) parts.push_back(sum);
  for (const std::vector<Piece>* pieces : terms) {
    parts.push_back(TermOf(plan, move, (*pieces)[0], request));
  }
  if (!sum.defined()) {
    // The sum uses the first term's memory if nobody else holds it. (`parts` holds it a second
    // time.)
    at::Tensor& first = request.sources[(*terms[0])[0].source];
    if (request.may_take_first && move.may_accumulate && terms[0] == &move.terms[0] &&
        parts[0].is_same(first)) {
      first = at::Tensor();
      if (IsExclusive(parts[0])) sum = parts[0];
    }
    if (!sum.defined()) sum = EmptyAs(parts[0], plan, move);
  }
  AccumulateTerms(plan.kind, parts, sum);
}

}  // namespace

void AddTerms(const MovePlan& plan, int64_t index, int64_t begin, int64_t end,
              const MoveRequest& request, at::Tensor& sum) {
  AddWide(plan, index, begin, end, request, sum);
  const bool last = end == static_cast<int64_t>(plan.tiles[index].terms.size());
  if (last) sum = As(std::move(sum), MadeType(plan, request.dtype));
}

bool RoundsOnce(ReduceKind kind, DType dtype) {
  const at::ScalarType type = ToScalarType(dtype);
  return (kind == ReduceKind::kSum || kind == ReduceKind::kProd) && at::isFloatingType(type) &&
         c10::elementSize(type) < 4 && program::Widened(dtype) == dtype;
}

at::Tensor RunTileMove(const MovePlan& plan, int64_t index, const MoveRequest& request) {
  const TileMove& move = plan.tiles[index];
  const DType type = MadeType(plan, request.dtype);
  switch (move.action) {
    case TileMove::Action::kIdentity:
      return IdentityTile(*plan.backend, move.place, plan.kind, type, move.dims);
    case TileMove::Action::kShare:
      return As(request.sources[move.terms[0][0].source], type);
    case TileMove::Action::kView: {
      const Piece& piece = move.terms[0][0];
      return As(Part(request.sources[piece.source], piece.source_offset, piece.size), type);
    }
    case TileMove::Action::kCopy: {
      at::Tensor target = Empty(plan, move, ToScalarType(type));
      CopyPieces(plan, move.terms[0], request, request.fill, target);
      return target;
    }
    case TileMove::Action::kReduce: {
      at::Tensor sum;
      AddTerms(plan, index, 0, static_cast<int64_t>(move.terms.size()), request, sum);
      return sum;
    }
    case TileMove::Action::kElsewhere:
      break;
  }
  return at::Tensor();
}

at::Tensor PartOfTile(const at::Tensor& tile, const Dims& offset, const Dims& size) {
  int64_t start = tile.storage_offset();
  for (int64_t d = 0; d < tile.dim(); ++d) start += offset[d] * tile.stride(d);
  return tile.as_strided(at::IntArrayRef(size.data(), size.size()), tile.strides(), start);
}

bool IsExclusive(const at::Tensor& tensor) {
  return tensor.use_count() == 1 && tensor.has_storage() && tensor.storage().use_count() == 1 &&
         tensor.is_non_overlapping_and_dense();
}

}  // namespace spmd::runtime
