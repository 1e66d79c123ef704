// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/sums_in_portions.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "csrc/runtime/accumulate.h"
#include "csrc/runtime/dispatch_guard.h"
#include "csrc/runtime/moves.h"
#include "csrc/runtime/peers.h"
#include "csrc/util/dims.h"
#include "csrc/util/status.h"

namespace spmd::runtime {
namespace {

// Stretches begin at lines of the cache, and are no shorter than this unless their sum ends.
constexpr int64_t kLine = 64;
constexpr int64_t kLeastBytes = 4096;

// Elements of one part of a sum, and where they lie in a portion.
struct Stretch {
  size_t part;  // of the move
  size_t sum;
  int64_t begin;
  int64_t end;
  int64_t at;  // bytes

  int64_t count() const { return end - begin; }
};
using Portion = std::vector<Stretch>;

class Adder {
 public:
  Adder(Peers& peers, InPlacePeers& memory, absl::Span<const TransferPart> parts, bool failed,
        std::vector<std::vector<at::Tensor>>& sums)
      : peers_(peers),
        memory_(memory),
        parts_(parts),
        failed_(failed),
        size_(peers.size()),
        here_(peers.rank()),
        sums_(sums),
        rows_(parts.size()) {}

  absl::Status Run() {
    size_t count = 0;
    for (int q = 0; q < size_; ++q) {
      portions_.push_back(PortionsOf(q));
      count = std::max(count, portions_.back().size());
    }
    std::exception_ptr thrown;
    try {
      if (!failed_) Prepare();
    } catch (...) {
      thrown = std::current_exception();
      failed_ = true;
    }
    SPMD_RETURN_IF_ERROR(memory_.RunPortions(
        static_cast<int64_t>(count),
        {[&](int64_t n, absl::Span<char* const> to) { return Guarded([&] { Give(n, to); }); },
         [&](int64_t n, absl::Span<const char* const> from, char* to) {
           return Guarded([&] { Add(n, from, to); });
         },
         [&](int64_t n, absl::Span<const char* const> from) { Take(n, from); }}));
    if (thrown != nullptr) std::rethrow_exception(thrown);
    return absl::OkStatus();
  }

 private:
  // What process `owner` adds. The same in all processes.
  std::vector<Portion> PortionsOf(int owner) const {
    const int64_t bytes = memory_.portion_bytes();
    std::vector<Portion> portions;
    int64_t at = bytes;  // the last one is full
    for (size_t p = 0; p < parts_.size(); ++p) {
      const std::vector<Transfer::Sum>& sums = parts_[p].plan->transfer.sums;
      const auto size = static_cast<int64_t>(c10::elementSize(parts_[p].type));
      for (size_t s = 0; s < sums.size(); ++s) {
        const int part = sums[s].PartOf(owner);
        if (part < 0) continue;
        int64_t begin = sums[s].BeginOf(part);
        const int64_t end = sums[s].BeginOf(part + 1);
        while (begin < end) {
          if (bytes - at < std::min(kLeastBytes, (end - begin) * size)) {
            portions.emplace_back();
            at = 0;
          }
          const int64_t count = std::min(end - begin, (bytes - at) / size);
          portions.back().push_back({p, s, begin, begin + count, at});
          begin += count;
          at = CeilDiv(at + count * size, kLine) * kLine;
        }
      }
    }
    return portions;
  }

  // All memory that is needed, and this process's terms as rows.
  void Prepare() {
    for (size_t p = 0; p < parts_.size(); ++p) {
      const TransferPart& part = parts_[p];
      const std::vector<Transfer::Sum>& sums = part.plan->transfer.sums;
      sums_[p].resize(sums.size());
      rows_[p].resize(sums.size());
      for (size_t s = 0; s < sums.size(); ++s) {
        const Transfer::Sum& sum = sums[s];
        if (sum.PartOf(here_) >= 0) sums_[p][s] = at::empty({NumElements(sum.size)}, part.type);
        for (const Transfer::Sum::Term& term : sum.terms) {
          if (term.process != here_) continue;
          if (term.sources.size() > 1) added_here_.resize(memory_.portion_bytes());
          for (const int32_t source : term.sources) {
            SPMD_CHECK(source < std::ssize(part.sources) && part.sources[source].defined() &&
                           part.sources[source].scalar_type() == part.type,
                       "a process does not hold the tile ", source, " that it adds");
            const at::Tensor box = PartOfTile(part.sources[source], term.offset, sum.size);
            rows_[p][s].push_back(box.resolve_conj().resolve_neg().contiguous().view(-1));
          }
        }
      }
    }
  }

  template <typename F>
  absl::Status Guarded(F f) {
    try {
      f();
    } catch (const std::exception& e) {
      const absl::Status status =
          StatusFromException(e, absl::StrCat("a sum, in ", ProcessName(here_)));
      peers_.Fail(status);
      return status;
    }
    return absl::OkStatus();
  }

  const Portion* PortionOf(int owner, int64_t n) const {
    return n < std::ssize(portions_[owner]) ? &portions_[owner][n] : nullptr;
  }
  int64_t BytesOf(const Stretch& x) const {
    return x.count() * static_cast<int64_t>(c10::elementSize(parts_[x.part].type));
  }
  static const char* ElementOf(const at::Tensor& row, int64_t i) {
    return static_cast<const char*>(row.const_data_ptr()) + i * row.element_size();
  }
  static char* MutableElementOf(const at::Tensor& row, int64_t i) {
    return static_cast<char*>(row.mutable_data_ptr()) + i * row.element_size();
  }

  void AddRows(const Stretch& x, absl::Span<const void* const> terms,
               absl::Span<void* const> targets) const {
    const TransferPart& part = parts_[x.part];
    AccumulateRows(part.plan->kind, part.type, terms, x.count(), targets);
  }

  // This process's term: the memory where it lies, or that of `target`, where it is added.
  const char* OwnTerm(const Stretch& x, char* target) const {
    const std::vector<at::Tensor>& rows = rows_[x.part][x.sum];
    if (rows.size() == 1) return ElementOf(rows[0], x.begin);
    absl::InlinedVector<const void*, 8> terms;
    for (const at::Tensor& row : rows) terms.push_back(ElementOf(row, x.begin));
    void* const targets[] = {target};
    AddRows(x, terms, targets);
    return target;
  }

  void Give(int64_t n, absl::Span<char* const> to) {
    for (int q = 0; q < size_; ++q) {
      const Portion* const portion = PortionOf(q, n);
      if (q == here_ || portion == nullptr) continue;
      for (const Stretch& x : *portion) {
        char* const target = to[q] + x.at;
        if (failed_) {
          std::memset(target, 0, static_cast<size_t>(BytesOf(x)));
        } else if (!rows_[x.part][x.sum].empty()) {
          const char* const term = OwnTerm(x, target);
          if (term != target) std::memcpy(target, term, static_cast<size_t>(BytesOf(x)));
        }
      }
    }
  }

  void Add(int64_t n, absl::Span<const char* const> from, char* to) {
    const Portion* const portion = PortionOf(here_, n);
    if (portion == nullptr) return;
    for (const Stretch& x : *portion) {
      if (failed_) {
        std::memset(to + x.at, 0, static_cast<size_t>(BytesOf(x)));
        continue;
      }
      const Transfer::Sum& sum = parts_[x.part].plan->transfer.sums[x.sum];
      absl::InlinedVector<const void*, 8> terms;
      for (const Transfer::Sum::Term& term : sum.terms) {
        terms.push_back(term.process == here_ ? OwnTerm(x, added_here_.data() + x.at)
                                              : from[term.process] + x.at);
      }
      void* const targets[] = {MutableElementOf(sums_[x.part][x.sum], x.begin), to + x.at};
      AddRows(x, terms, targets);
    }
  }

  void Take(int64_t n, absl::Span<const char* const> from) {
    for (int q = 0; q < size_; ++q) {
      const Portion* const portion = PortionOf(q, n);
      if (failed_ || q == here_ || portion == nullptr) continue;
      for (const Stretch& x : *portion) {
        const at::Tensor& sum = sums_[x.part][x.sum];
        if (!sum.defined()) continue;
        std::memcpy(MutableElementOf(sum, x.begin), from[q] + x.at,
                    static_cast<size_t>(BytesOf(x)));
      }
    }
  }

  Peers& peers_;
  InPlacePeers& memory_;
  const absl::Span<const TransferPart> parts_;
  bool failed_;
  const int size_;
  const int here_;
  std::vector<std::vector<at::Tensor>>& sums_;
  std::vector<std::vector<std::vector<at::Tensor>>> rows_;  // by part and sum: the terms held here
  std::vector<std::vector<Portion>> portions_;              // by owner
  std::vector<char> added_here_;  // a portion of the sum of several terms of this process
};

}  // namespace

absl::Status AddInPortions(Peers& peers, InPlacePeers& memory, absl::Span<const TransferPart> parts,
                           bool failed, std::vector<std::vector<at::Tensor>>& sums) {
  return Adder(peers, memory, parts, failed, sums).Run();
}

}  // namespace spmd::runtime
