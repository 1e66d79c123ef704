// SPDX-License-Identifier: Apache-2.0
#include "csrc/cost/search.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <queue>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "csrc/util/dims.h"

namespace spmd::cost {
namespace {

constexpr int kMaxRank = 6;
constexpr int kMaxAtoms = 8;
constexpr int kSeparateAxes = 4;
// The most states that are expanded. More dimensions mean more steps; where their shards are uneven
// (images), the lower bound is weak, and a search that finds nothing would expand every state.
constexpr int kMaxExpanded = 128;
constexpr int kMaxExpandedOfMany = 16;
constexpr int kMaxExpandedOfUneven = 8;

// Sub-axes that move together.
struct Atom {
  AxisList axes;
  int64_t size = 1;
  double bandwidth = 1;
};

// A list of atoms as digits of four bits, each 1 + the atom's number, the minor atom in the lowest
// bits; 0 is the empty list.
using AtomList = uint32_t;
using AtomMask = uint32_t;

int Length(AtomList list) { return (std::bit_width(list) + 3) / 4; }
int Minor(AtomList list) { return static_cast<int>(list & 15) - 1; }
AtomList Append(AtomList list, int atom) { return list << 4 | static_cast<AtomList>(atom + 1); }
AtomList Append(AtomList list, AtomList run) { return list << (4 * Length(run)) | run; }
// Tail is the last `count` atoms of a list; Head is the list without them.
AtomList Tail(AtomList list, int count) {
  return count == 8 ? list : list & ((AtomList{1} << (4 * count)) - 1);
}
AtomList Head(AtomList list, int count) { return count == 8 ? 0 : list >> (4 * count); }
int CommonPrefix(AtomList a, AtomList b) {
  int length = std::min(Length(a), Length(b));
  a = Head(a, Length(a) - length);
  b = Head(b, Length(b) - length);
  for (; a != b; --length) a >>= 4, b >>= 4;
  return length;
}

AtomMask MaskOfList(AtomList list) {
  AtomMask mask = 0;
  for (; list != 0; list >>= 4) mask |= AtomMask{1} << Minor(list);
  return mask;
}

struct State {
  std::array<AtomList, kMaxRank> lists{};
  std::array<int64_t, kMaxRank> chunks{};  // 0 in a dimension without axes
  AtomMask unreduced = 0;

  bool SameDims(const State& other) const { return lists == other.lists && chunks == other.chunks; }
  friend bool operator==(const State& a, const State& b) {
    return a.SameDims(b) && a.unreduced == b.unreduced;
  }
  template <typename H>
  friend H AbslHashValue(H h, const State& s) {
    return H::combine(std::move(h), s.lists, s.chunks, s.unreduced);
  }
};

// How a state was reached.
struct Step {
  MoveKind kind = MoveKind::kSlice;
  AtomList run = 0;
  int dim = -1;
  int to_dim = -1;
  double bytes = 0;
  double seconds = 0;
};

struct Reached {
  State state;
  Step step;
  int before = -1;
  double seconds = 0;
  int effort = 0;
};

// Breaks ties between equal prices: fewer steps, then two named collectives rather than an
// exchange, which backends support less well. Slices hardly count.
int EffortOf(MoveKind kind) {
  if (kind == MoveKind::kSlice) return 1;
  return kind == MoveKind::kExchange ? 24 : 8;
}

class MoveSearch {
 public:
  MoveSearch(const TensorType& type, const Grid& grid, const Sharding& from, const Sharding& to,
             const Prices& prices)
      : type_(type), grid_(grid), from_(from), to_(to), prices_(prices), rank_(type.rank()) {}

  std::optional<absl::InlinedVector<MoveStep, 2>> Run(double limit) {
    limit_ = limit;
    if (!FindPace() || rank_ > kMaxRank || !MakeAtoms()) return std::nullopt;
    const State start = ToState(from_);
    target_ = ToState(to_);
    kept_ = from_.reduce_kind == to_.reduce_kind ? start.unreduced & target_.unreduced : 0;
    int64_t holders = grid_.num_devices() / SizeOf(kept_);
    double tile = static_cast<double>(ByteSize(type_.dtype));
    for (int d = 0; d < rank_; ++d) {
      holders /= SizeOfList(target_.lists[d]);
      tile *=
          static_cast<double>(type_.dims[d]) / static_cast<double>(SizeOfList(target_.lists[d]));
    }
    tile_ = tile;
    holders_ = static_cast<double>(holders);
    std::set<int64_t> products = {1};
    for (const Atom& atom : atoms_) {
      const std::set<int64_t> before = products;
      for (int64_t p : before) products.insert(p * atom.size);
    }
    products_.assign(std::next(products.begin()), products.end());
    shards_are_even_ = even_ = IsEven(start) && IsEven(target_);
    for (int64_t n : type_.dims) even_ = even_ && n % products_.back() == 0;
    if (AtLeast(start) >= limit_) return std::nullopt;
    Push(start, {}, -1);
    const int most = rank_ <= 3         ? kMaxExpanded
                     : shards_are_even_ ? kMaxExpandedOfMany
                                        : kMaxExpandedOfUneven;
    for (int expanded = 0; !queue_.empty(); ++expanded) {
      const int at = queue_.top().reached;
      queue_.pop();
      if (best_.at(reached_[at].state) != at) continue;  // a cheaper path to this state was found
      if (IsGoal(reached_[at].state)) return StepsTo(at);
      if (expanded == most) return std::nullopt;
      Expand(at);
    }
    return std::nullopt;
  }

 private:
  struct Entry {
    double at_least;
    int effort;
    int reached;
    // The order is reversed, since the queue's top is its largest entry.
    bool operator<(const Entry& other) const {
      return std::tie(at_least, effort, reached) >
             std::tie(other.at_least, other.effort, other.reached);
    }
  };

  // --- atoms ---

  // Calls `fn` with every axis list of the two shardings.
  template <typename Fn>
  void ForEachList(Fn&& fn) const {
    for (const Sharding* s : {&from_, &to_}) {
      for (const DimSharding& d : s->dims) fn(d.axes);
      fn(s->unreduced);
    }
  }

  bool SideBySide(AxisId a, AxisId b) const {
    if (grid_.axis(a).bandwidth != grid_.axis(b).bandwidth) return false;
    bool used = false, together = true;
    ForEachList([&](const AxisList& list) {
      const auto i = std::find(list.begin(), list.end(), a);
      const auto j = std::find(list.begin(), list.end(), b);
      used = used || i != list.end() || j != list.end();
      const bool next = i != list.end() && j != list.end() && i + 1 == j;
      together = together && (next || (i == list.end() && j == list.end()));
    });
    return together && (used || grid_.axis(a).axis == grid_.axis(b).axis);
  }

  // Sets the bandwidths. Returns false where a direct move is optimal: all axes have one bandwidth
  // and no partial sums are to be reduced.
  bool FindPace() {
    for (int i = 0; i < grid_.num_axes(); ++i) {
      const double bandwidth = grid_.axis(static_cast<AxisId>(i)).bandwidth;
      fastest_ = std::max(fastest_, bandwidth);
      slowest_ = std::min(slowest_, bandwidth);
    }
    AxisMask leaving = from_.UnreducedAxes();
    if (from_.reduce_kind == to_.reduce_kind) leaving &= ~to_.UnreducedAxes();
    return slowest_ != fastest_ || leaving != 0;
  }

  // Groups sub-axes into atoms. Returns false where there are too many.
  bool MakeAtoms() {
    const AxisMask used = from_.UsedAxes() | to_.UsedAxes();
    separate_ = grid_.num_axes() <= kSeparateAxes;
    for (const bool idle : {false, true}) {
      for (int i = 0; i < grid_.num_axes(); ++i) {
        const AxisId a = static_cast<AxisId>(i);
        if (((MaskOf(a) & used) == 0) != idle) continue;
        const bool joins = !separate_ && !atoms_.empty() && atoms_.back().axes.back() == a - 1 &&
                           SideBySide(static_cast<AxisId>(a - 1), a);
        if (!joins) {
          // Axes that neither sharding uses can be left out; the search then considers fewer plans.
          if (atoms_.size() == kMaxAtoms) return idle;
          atoms_.emplace_back();
          atoms_.back().bandwidth = grid_.axis(a).bandwidth;
        }
        atoms_.back().axes.push_back(a);
        atoms_.back().size *= grid_.size(a);
      }
    }
    return true;
  }

  AtomList ToList(const AxisList& axes) const {
    AtomList list = 0;
    for (size_t i = 0; i < axes.size();) {
      size_t k = 0;
      while (atoms_[k].axes[0] != axes[i]) ++k;
      list = Append(list, static_cast<int>(k));
      i += atoms_[k].axes.size();
    }
    return list;
  }

  State ToState(const Sharding& s) const {
    State state;
    for (int d = 0; d < rank_; ++d) {
      state.lists[d] = ToList(s.dims[d].axes);
      if (state.lists[d] != 0) state.chunks[d] = EffectiveChunk(s.dims[d], type_.dims[d], grid_);
    }
    state.unreduced = MaskOfList(ToList(s.unreduced));
    return state;
  }

  AxisList ToAxes(AtomList list) const {
    AxisList axes;
    for (int i = Length(list); i-- > 0;) {
      const Atom& atom = atoms_[Minor(Head(list, i))];
      axes.insert(axes.end(), atom.axes.begin(), atom.axes.end());
    }
    return axes;
  }

  Sharding ToSharding(const State& state) const {
    Sharding s = Sharding::Replicated(rank_);
    for (int d = 0; d < rank_; ++d) {
      s.dims[d].axes = ToAxes(state.lists[d]);
      s.dims[d].chunk = state.chunks[d];
      NormalizeChunk(s.dims[d], type_.dims[d], grid_);
    }
    for (int i = 0; i < static_cast<int>(atoms_.size()); ++i) {
      if (!(state.unreduced >> i & 1)) continue;
      s.unreduced.insert(s.unreduced.end(), atoms_[i].axes.begin(), atoms_[i].axes.end());
    }
    std::sort(s.unreduced.begin(), s.unreduced.end());
    if (!s.unreduced.empty()) s.reduce_kind = from_.reduce_kind;
    return s;
  }

  int64_t SizeOfList(AtomList list) const {
    int64_t size = 1;
    for (; list != 0; list >>= 4) size *= atoms_[Minor(list)].size;
    return size;
  }

  int64_t SizeOf(AtomMask mask) const {
    int64_t size = 1;
    for (; mask != 0; mask &= mask - 1) size *= atoms_[std::countr_zero(mask)].size;
    return size;
  }

  AtomList ListOf(AtomMask mask) const {
    AtomList list = 0;
    for (; mask != 0; mask &= mask - 1) list = Append(list, std::countr_zero(mask));
    return list;
  }

  double BandwidthOf(AtomList list) const {
    double slowest = std::numeric_limits<double>::infinity();
    for (; list != 0; list >>= 4) slowest = std::min(slowest, atoms_[Minor(list)].bandwidth);
    return slowest * prices_.link_bandwidth;
  }

  double TileOf(const State& s) const {
    double bytes = static_cast<double>(ByteSize(type_.dtype));
    for (int d = 0; d < rank_; ++d) {
      const int64_t n = type_.dims[d];
      bytes *= static_cast<double>(
          s.lists[d] == 0 ? n : MaxShardSize(n, SizeOfList(s.lists[d]), s.chunks[d]));
    }
    return bytes;
  }

  bool IsEven(const State& s) const {
    for (int d = 0; d < rank_; ++d) {
      if (s.lists[d] != 0 && s.chunks[d] * SizeOfList(s.lists[d]) != type_.dims[d]) return false;
    }
    return true;
  }

  // --- the lower bound ---

  bool IsGoal(const State& s) const { return s.SameDims(target_) && (s.unreduced & ~kept_) == 0; }

  // A lower bound on the seconds of any steps from `s` to the target, at the bandwidth of the
  // fastest axis.
  //
  // Bytes, where W is the size of a target tile (the mean where shards are uneven) and h the number
  // of devices that hold the same tile:
  //   nothing to reduce, even   what a device lacks of W: exact, see DescribeExchange
  //   nothing to reduce         W less the mean tile that a device has now
  //   n partial sums            n-1 messages of W/h to the first holder, W to each of the others:
  //                             (W·(n-1) + W·(h-1)) / h per device
  // Starts: one for a reduction, and one for each dimension that loses axes, since an all-gather
  // and an all-to-all take axes from one dimension and an exchange has as many starts as
  // dimensions.
  double AtLeast(const State& s) const {
    const AtomMask leaving = s.unreduced & ~kept_;
    double kept = 1, fewer = 1;
    int surplus = 0;
    for (int d = 0; d < rank_; ++d) {
      const AtomList have = s.lists[d], want = target_.lists[d];
      if (have == want) continue;
      const int common = CommonPrefix(have, want);
      const int64_t gone = SizeOfList(Tail(have, Length(have) - common));
      const int64_t come = SizeOfList(Tail(want, Length(want) - common));
      fewer *= static_cast<double>(come) / static_cast<double>(gone);
      if (gone == 1) continue;
      ++surplus;
      kept = come == 1 ? kept / static_cast<double>(gone) : 0;
    }
    double bytes = tile_ * (1 - (even_ ? kept : std::min(fewer, 1.0)));
    if (leaving != 0) {
      // If an axis that could have stayed unreduced is reduced already, holders_ is not the number
      // of devices that hold the result. Then only the weaker bound of W is certain.
      const bool more = (s.unreduced & kept_) != kept_;
      bytes = more ? tile_ : tile_ * (1 + static_cast<double>(SizeOf(leaving) - 2) / holders_);
    }
    const int starts = (leaving != 0 ? 1 : 0) + surplus;
    return starts * prices_.latency + bytes / (prices_.link_bandwidth * fastest_);
  }

  // The transfer time (without starts) of everything that is left in one exchange. It is a lower
  // bound where all axes have one bandwidth.
  double SecondsAtOnce(const State& s) const {
    State there = target_;
    there.unreduced = s.unreduced;
    return DescribeExchange(type_, grid_, ToSharding(s), ToSharding(there)).bytes /
           (prices_.link_bandwidth * fastest_);
  }

  // --- steps ---

  void Push(State state, const Step& step, int before) {
    Reached next{state, step, before, 0, 0};
    if (before >= 0) {
      next.seconds = reached_[before].seconds + step.seconds;
      next.effort = reached_[before].effort + EffortOf(step.kind);
    }
    double at_least = next.seconds + AtLeast(state);
    if (at_least >= limit_) return;
    if (!even_ && slowest_ == fastest_ && (state.unreduced & ~kept_) == 0 &&
        !state.SameDims(target_)) {
      at_least = std::max(at_least, next.seconds + SecondsAtOnce(state));
      if (at_least >= limit_) return;
    }
    const int number = static_cast<int>(reached_.size());
    const auto [it, inserted] = best_.try_emplace(state, number);
    if (!inserted) {
      const Reached& known = reached_[it->second];
      if (std::tie(next.seconds, next.effort) >= std::tie(known.seconds, known.effort)) return;
      it->second = number;
    }
    reached_.push_back(next);
    queue_.push({at_least, next.effort, number});
  }

  void Collective(const State& after, MoveKind kind, AtomList run, int dim, int to_dim,
                  int before) {
    double bytes;
    if (kind == MoveKind::kAllReduce || kind == MoveKind::kReduceScatter) {
      bytes = ReductionBytes(kind, TileOf(after), SizeOfList(run));
    } else if (even_) {
      const double n = static_cast<double>(SizeOfList(run));
      bytes = TileOf(after) * (n - 1) / n;
    } else {
      bytes = DescribeExchange(type_, grid_, ToSharding(reached_[before].state), ToSharding(after))
                  .bytes;
    }
    const double seconds = StepSeconds(kind, bytes, 1, BandwidthOf(run), prices_);
    Push(after, {kind, run, dim, to_dim, bytes, seconds}, before);
  }

  // Calls `fn` with `s` after the atoms `run` are appended to dimension d, once for every chunk
  // that may be useful.
  template <typename Fn>
  void Cut(const State& s, int d, AtomList run, Fn&& fn) const {
    State after = s;
    after.lists[d] = Append(s.lists[d], run);
    const int64_t n = type_.dims[d];
    if (s.lists[d] != 0) {
      const int64_t parts = SizeOfList(run);
      after.chunks[d] = s.chunks[d] / parts;
      if (after.chunks[d] * parts == s.chunks[d]) fn(after);
      return;
    }
    const int64_t shards = SizeOfList(run);
    const int64_t usual = CeilDiv(n, shards);
    absl::InlinedVector<int64_t, 4> chunks = {usual};
    const auto add = [&](int64_t chunk) {
      if (chunk < CeilDiv(n, shards + 1)) return;
      if (std::find(chunks.begin(), chunks.end(), chunk) == chunks.end()) chunks.push_back(chunk);
    };
    add(ChunkAsInTarget(d, run));
    // Chunks that become the default chunk when more atoms are appended.
    for (int64_t more : products_) {
      const bool fits = products_.back() % (shards * more) == 0;
      if (fits && usual % more != 0) add(CeilDiv(n, shards * more) * more);
    }
    for (int64_t chunk : chunks) {
      after.chunks[d] = chunk;
      fn(after);
    }
  }

  // The chunk with which the shards along `list` have boundaries that the target has too; -1 if
  // there is none.
  int64_t ChunkAsInTarget(int d, AtomList list) const {
    const AtomList want = target_.lists[d];
    const int common = CommonPrefix(list, want);
    if (want == 0 || common < std::min(Length(list), Length(want))) return -1;
    const int64_t chunk = target_.chunks[d];
    if (common == Length(list)) return chunk * SizeOfList(Tail(want, Length(want) - common));
    const int64_t parts = SizeOfList(Tail(list, Length(list) - common));
    return chunk % parts == 0 ? chunk / parts : -1;
  }

  // `s` without the last `count` atoms of dimension d.
  State Uncut(const State& s, int d, int count) const {
    State after = s;
    after.lists[d] = Head(s.lists[d], count);
    after.chunks[d] = after.lists[d] == 0 ? 0 : s.chunks[d] * SizeOfList(Tail(s.lists[d], count));
    return after;
  }

  void Expand(int at) {
    const State s = reached_[at].state;
    Slices(s, at);
    Reductions(s, at);
    Moves(s, at);
    State there;
    there.unreduced = s.unreduced;
    const bool alike = slowest_ == fastest_, reduced = (s.unreduced & ~kept_) == 0;
    if (separate_ && !(alike && (reduced || rank_ > 2 || shards_are_even_))) {
      ExchangeToAll(s, there, 0, at);
    } else if (!reduced && !shards_are_even_) {
      MoveBoundaries(s, at);
    }
    there = target_;
    there.unreduced = s.unreduced;
    if ((AtomsOfDims(there) & s.unreduced) == 0) ExchangeTo(s, there, at);
  }

  AtomMask AtomsOfDims(const State& s) const {
    AtomMask mask = 0;
    for (int d = 0; d < rank_; ++d) mask |= MaskOfList(s.lists[d]);
    return mask;
  }

  // Calls fn(state, dimension, atom) for every way to append one idle atom to a dimension from
  // `first` on.
  template <typename Fn>
  void ForEachSlice(const State& s, int first, Fn&& fn) const {
    const AtomMask used = AtomsOfDims(s) | s.unreduced;
    for (int i = 0; i < static_cast<int>(atoms_.size()); ++i) {
      if (used >> i & 1) continue;
      const AtomList run = Append(AtomList{0}, i);
      for (int d = first; d < rank_; ++d) {
        Cut(s, d, run, [&](const State& after) { fn(after, d, run); });
      }
    }
  }

  void Slices(const State& s, int at) {
    ForEachSlice(s, 0, [&](const State& after, int d, AtomList run) {
      Push(after, {MoveKind::kSlice, run, d, -1, 0, 0}, at);
    });
  }

  void Reductions(const State& s, int at) {
    // Where all axes have one bandwidth, reducing an axis that may stay unreduced never pays.
    const AtomMask may = slowest_ == fastest_ ? s.unreduced & ~kept_ : s.unreduced;
    for (AtomMask some = may; some != 0; some = (some - 1) & may) {
      State after = s;
      after.unreduced &= ~some;
      Collective(after, MoveKind::kAllReduce, ListOf(some), -1, -1, at);
    }
    Scatter(s, at, may, 0);
  }

  // Tries a reduce-scatter to each dimension for every sequence of atoms that begins with `run` and
  // goes on with atoms of `may`.
  void Scatter(const State& s, int at, AtomMask may, AtomList run) {
    for (AtomMask rest = may; rest != 0; rest &= rest - 1) {
      const int i = std::countr_zero(rest);
      const AtomList longer = Append(run, i);
      State before = s;
      before.unreduced &= ~(AtomMask{1} << i);
      for (int d = 0; d < rank_; ++d) {
        Cut(before, d, longer, [&](const State& after) {
          Collective(after, MoveKind::kReduceScatter, longer, d, -1, at);
        });
      }
      if (Length(longer) < kSeparateAxes) Scatter(before, at, may & ~(AtomMask{1} << i), longer);
    }
  }

  void Moves(const State& s, int at) {
    for (int d = 0; d < rank_; ++d) {
      for (int count = 1; count <= Length(s.lists[d]); ++count) {
        const AtomList run = Tail(s.lists[d], count);
        const State without = Uncut(s, d, count);
        for (int e = 0; e < rank_; ++e) {
          if (e == d) continue;
          Cut(without, e, run,
              [&](const State& after) { Collective(after, MoveKind::kAllToAll, run, d, e, at); });
        }
        Collective(without, MoveKind::kAllGather, run, d, -1, at);
      }
    }
  }

  void ExchangeTo(const State& s, const State& after, int at) {
    if (s.SameDims(after)) return;
    const double so_far = reached_[at].seconds + prices_.latency;
    if (so_far + AtLeast(after) >= limit_) return;
    const auto known = best_.find(after);
    if (known != best_.end() && reached_[known->second].seconds <= so_far) return;
    const Exchange e = DescribeExchange(type_, grid_, ToSharding(s), ToSharding(after));
    const double seconds =
        StepSeconds(e.kind, e.bytes, e.starts, LinkBandwidth(prices_, grid_, e.axes), prices_);
    Push(after, {e.kind, 0, -1, -1, e.bytes, seconds}, at);
  }

  // Tries exchanges that only move the boundaries of one dimension, so that a later reduce-scatter
  // finds boundaries that fit. Where all axes have one bandwidth, exchanges to other states than
  // the target gain little else, and for tensors of many dimensions nothing else is tried.
  void MoveBoundaries(const State& s, int at) {
    for (int d = 0; d < rank_; ++d) {
      if (s.lists[d] == 0) continue;
      State uncut = s;
      uncut.lists[d] = 0;
      uncut.chunks[d] = 0;
      Cut(uncut, d, s.lists[d], [&](const State& after) { ExchangeTo(s, after, at); });
    }
  }

  // Tries exchanges to `after` and to every state that appends idle atoms to it in dimensions from
  // `first` on.
  void ExchangeToAll(const State& s, const State& after, int first, int at) {
    ExchangeTo(s, after, at);
    ForEachSlice(after, first,
                 [&](const State& slice, int d, AtomList) { ExchangeToAll(s, slice, d, at); });
  }

  absl::InlinedVector<MoveStep, 2> StepsTo(int at) const {
    std::vector<int> path;
    for (; reached_[at].before >= 0; at = reached_[at].before) path.push_back(at);
    absl::InlinedVector<MoveStep, 2> steps;
    for (; !path.empty(); path.pop_back()) {
      const Reached& r = reached_[path.back()];
      MoveStep step{r.step.kind,   ToAxes(r.step.run),  r.step.dim,
                    r.step.to_dim, ToSharding(r.state), static_cast<int64_t>(r.step.bytes),
                    r.step.seconds};
      // Merges consecutive slices of one dimension.
      if (step.kind == MoveKind::kSlice && !steps.empty() &&
          steps.back().kind == MoveKind::kSlice && steps.back().dim == step.dim) {
        step.axes.insert(step.axes.begin(), steps.back().axes.begin(), steps.back().axes.end());
        steps.pop_back();
      }
      if (step.kind == MoveKind::kAllReduce) std::sort(step.axes.begin(), step.axes.end());
      steps.push_back(std::move(step));
    }
    return steps;
  }

  const TensorType& type_;
  const Grid& grid_;
  const Sharding& from_;
  const Sharding& to_;
  const Prices& prices_;
  const int rank_;
  double limit_ = 0;
  bool separate_ = false;  // each sub-axis is an atom
  std::vector<Atom> atoms_;
  std::vector<int64_t> products_;  // of the sizes of any set of atoms, ascending; without 1
  double fastest_ = 0;
  double slowest_ = std::numeric_limits<double>::infinity();
  State target_;
  AtomMask kept_ = 0;  // atoms that may stay unreduced
  double tile_ = 0;    // bytes of a target tile if all shards are even
  double holders_ = 1;
  bool even_ = false;             // all shards of all states are even
  bool shards_are_even_ = false;  // the shards of source and target are even
  std::vector<Reached> reached_;
  // Only looked up, never iterated, since its order is random.
  absl::flat_hash_map<State, int> best_;
  std::priority_queue<Entry> queue_;
};

}  // namespace

std::optional<absl::InlinedVector<MoveStep, 2>> FindCheaperMove(
    const TensorType& type, const Grid& grid, const Sharding& from, const Sharding& to,
    const Prices& prices, double limit) {
  return MoveSearch(type, grid, from, to, prices).Run(limit);
}

}  // namespace spmd::cost
