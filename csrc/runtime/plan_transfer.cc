// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/plan_transfer.h"

#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace spmd::runtime {
namespace {

// A piece of a tile, and the sources whose boxes are added to make it.
struct Wanted {
  Piece piece;
  Transfer::Sources sources;
};
using Term = std::vector<Wanted>;

// A sum of fewer elements is sent to everyone who wants it: one exchange costs less than two.
constexpr int64_t kLeastInParts = 16 << 10;

class TransferPlanner {
 public:
  TransferPlanner(const Placement& from, const Placement& to, const Peers& peers, bool one_by_one,
                  absl::FunctionRef<TileMove(int64_t, int)> make, MovePlan& plan)
      : from_(from),
        to_(to),
        size_(peers.size()),
        here_(peers.rank()),
        make_(make),
        plan_(plan),
        adds_first_(to.layout().num_tiles(), 0) {
    plan.transfer.send.resize(size_);
    plan.transfer.receive.resize(size_);
    if (!one_by_one) FindSumsInTwoLevels();
  }

  void Plan() {
    for (int q = 0; q < size_; ++q) {
      known_.clear();
      count_.assign(size_, 0);
      for (int64_t i = 0; i < to_.count(); ++i) {
        if (!IsMadeBy(i, q)) continue;
        const TileMove move = q == here_ ? plan_.tiles[i] : make_(i, q);
        const int64_t tile = to_.TileOf(i);
        std::vector<Term> terms = adds_first_[tile] ? Grouped(move) : AsTheyAre(move);
        if (adds_first_[tile] && IsSharedSum(i, move, terms)) {
          if (q == here_) KeepSum(tile, plan_.tiles[i]);
          continue;
        }
        for (Term& term : terms) {
          for (Wanted& wanted : term) Add(wanted, q);
        }
        if (q == here_) Keep(terms, plan_.tiles[i]);
      }
    }
    NumberSlots();
  }

 private:
  struct Slot {
    int process;     // the number of processes, for a sum that is added in parts
    int32_t packet;  // or the sum
  };

  bool IsMadeBy(int64_t index, int process) const {
    const int home = to_.HomeOf(index);
    return home == process || home == Homes::kEverywhere;
  }
  int HolderOf(int32_t source) const {
    return source < 0 ? Homes::kEverywhere : from_.HomeOf(source);
  }
  bool HasAll(const TileMove& move, int process) const {
    for (const std::vector<Piece>& term : move.terms) {
      for (const Piece& piece : term) {
        const int holder = HolderOf(piece.source);
        if (holder != process && holder != Homes::kEverywhere) return false;
      }
    }
    return true;
  }

  // A tile that every process which makes it can make from what it holds is summed at once. That is
  // decided for all of these processes together.
  void FindSumsInTwoLevels() {
    for (int64_t i = 0; i < to_.count(); ++i) {
      for (int q = 0; q < size_; ++q) {
        if (!IsMadeBy(i, q)) continue;
        const TileMove move = make_(i, q);
        if (move.action == TileMove::Action::kReduce && !HasAll(move, q)) {
          adds_first_[to_.TileOf(i)] = 1;
        }
      }
    }
  }

  static std::vector<Term> AsTheyAre(const TileMove& move) {
    std::vector<Term> terms;
    for (const std::vector<Piece>& pieces : move.terms) {
      Term& term = terms.emplace_back();
      for (const Piece& piece : pieces) term.push_back({piece, {piece.source}});
    }
    return terms;
  }

  // Whether the tile is a sum that several processes want and that is worth a second exchange. If
  // so, it is listed when it is met first.
  bool IsSharedSum(int64_t index, const TileMove& move, const std::vector<Term>& terms) {
    const int64_t tile = to_.TileOf(index);
    if (sum_of_tile_.contains(tile)) return true;
    if (NumElements(move.dims) < kLeastInParts || terms.size() < 2) return false;
    Transfer::Sum sum;
    sum.size = move.dims;
    for (const Term& term : terms) {
      if (term.size() != 1 || term[0].sources[0] < 0 || term[0].piece.size != move.dims) {
        return false;
      }
      const int holder = HolderOf(term[0].sources[0]);
      if (holder == Homes::kEverywhere) return false;
      sum.terms.push_back({holder, term[0].sources, term[0].piece.source_offset});
    }
    for (int q = 0; q < size_; ++q) {
      for (int64_t i = 0; i < to_.count(); ++i) {
        if (to_.TileOf(i) != tile || !IsMadeBy(i, q)) continue;
        sum.owners.push_back(q);
        break;
      }
    }
    if (sum.owners.size() < 2) return false;
    sum_of_tile_[tile] = static_cast<int32_t>(plan_.transfer.sums.size());
    plan_.transfer.sums.push_back(std::move(sum));
    plan_.transfer.exchanges = true;
    return true;
  }

  // The tile is the slot of the sum.
  void KeepSum(int64_t tile, TileMove& move) {
    const auto [slot, is_new] = slot_of_sum_.try_emplace(tile, static_cast<int32_t>(slots_.size()));
    if (is_new) slots_.push_back({size_, sum_of_tile_[tile]});
    const Dims zeros(move.dims.size(), 0);
    const Piece piece{static_cast<int32_t>(plan_.num_sources) + slot->second, zeros, zeros,
                      move.dims};
    move.terms = {{piece}};
  }

  // One term for each process, in their order. A term whose pieces lie in several processes stays
  // as it is. Sources are the first holders of their tiles, whatever process asks.
  std::vector<Term> Grouped(const TileMove& move) const {
    std::map<int, Term> groups;
    std::vector<Term> others;
    for (Term& term : AsTheyAre(move)) {
      int holder = Homes::kEverywhere;
      bool together = true;
      for (Wanted& wanted : term) {
        int32_t& source = wanted.sources[0];
        if (source < 0) continue;
        source = static_cast<int32_t>(from_.IndexAt(from_.FirstPosition(from_.TileOf(source))));
        wanted.piece.source = source;
        if (holder == Homes::kEverywhere) holder = HolderOf(source);
        together = together && holder == HolderOf(source);
      }
      if (!together) {
        others.push_back(std::move(term));
        continue;
      }
      Term& group = groups[holder];
      if (group.empty()) {
        group = std::move(term);
        continue;
      }
      for (size_t k = 0; k < term.size(); ++k) {
        if (term[k].piece.source >= 0) group[k].sources.push_back(term[k].sources[0]);
      }
    }
    std::vector<Term> terms;
    for (auto& [holder, group] : groups) terms.push_back(std::move(group));
    for (Term& term : others) terms.push_back(std::move(term));
    return terms;
  }

  // Lets process `q` have what it wants.
  void Add(Wanted& wanted, int q) {
    const int holder = HolderOf(wanted.sources[0]);
    const bool travels = holder != q && holder != Homes::kEverywhere;
    if (wanted.sources[0] < 0 || (!travels && wanted.sources.size() == 1)) return;
    Transfer& transfer = plan_.transfer;
    transfer.exchanges = transfer.exchanges || travels;
    const int list = holder == Homes::kEverywhere ? q : holder;
    const auto [packet, is_new] = known_.try_emplace(
        {wanted.sources, wanted.piece.source_offset, wanted.piece.size}, count_[list]);
    if (is_new) {
      ++count_[list];
      Transfer::Packet sent{wanted.sources, wanted.piece.source_offset, wanted.piece.size};
      if (q == here_) {
        transfer.receive[list].push_back(std::move(sent));
      } else if (list == here_) {
        transfer.send[q].push_back(std::move(sent));
      }
    }
    if (q != here_) return;
    wanted.piece.source = static_cast<int32_t>(plan_.num_sources + slots_.size());
    wanted.piece.source_offset.assign(wanted.piece.size.size(), 0);
    slots_.push_back({list, packet->second});
  }

  static void Keep(const std::vector<Term>& terms, TileMove& move) {
    move.terms.clear();
    for (const Term& term : terms) {
      std::vector<Piece>& pieces = move.terms.emplace_back();
      for (const Wanted& wanted : term) pieces.push_back(wanted.piece);
    }
  }

  // Slots are numbered process by process, and then sum by sum.
  void NumberSlots() {
    std::vector<int32_t> first(size_ + 1, static_cast<int32_t>(plan_.num_sources));
    for (int p = 1; p <= size_; ++p) {
      first[p] = first[p - 1] + static_cast<int32_t>(plan_.transfer.receive[p - 1].size());
    }
    std::vector<int32_t> number(plan_.transfer.sums.size(), 0);  // among those wanted here
    for (size_t s = 1; s < number.size(); ++s) {
      number[s] = number[s - 1] + (plan_.transfer.sums[s - 1].PartOf(here_) >= 0 ? 1 : 0);
    }
    for (TileMove& move : plan_.tiles) {
      for (std::vector<Piece>& term : move.terms) {
        for (Piece& piece : term) {
          if (piece.source < plan_.num_sources) continue;
          const Slot& slot = slots_[piece.source - plan_.num_sources];
          piece.source =
              first[slot.process] + (slot.process == size_ ? number[slot.packet] : slot.packet);
        }
      }
    }
  }

  const Placement& from_;
  const Placement& to_;
  const int size_;
  const int here_;
  absl::FunctionRef<TileMove(int64_t, int)> make_;
  MovePlan& plan_;
  std::vector<uint8_t> adds_first_;  // by tile of `to`: it is summed in two levels
  // Of one process: the number of each packet among those of its sender, and how many there are.
  absl::flat_hash_map<std::tuple<Transfer::Sources, Dims, Dims>, int32_t> known_;
  std::vector<int32_t> count_;
  std::vector<Slot> slots_;                            // that pieces of this process read
  absl::flat_hash_map<int64_t, int32_t> sum_of_tile_;  // of those that are added in parts
  absl::flat_hash_map<int64_t, int32_t> slot_of_sum_;  // by tile
};

}  // namespace

void PlanTransfer(const Placement& from, const Placement& to, const Peers& peers, bool one_by_one,
                  absl::FunctionRef<TileMove(int64_t index, int process)> make, MovePlan& plan) {
  TransferPlanner(from, to, peers, one_by_one, make, plan).Plan();
}

}  // namespace spmd::runtime
