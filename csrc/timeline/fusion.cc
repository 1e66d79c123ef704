// SPDX-License-Identifier: Apache-2.0
#include "csrc/timeline/fusion.h"

#include <algorithm>
#include <numeric>

#include "absl/container/flat_hash_set.h"

namespace spmd::timeline {
namespace {

using program::Instruction;
using program::kNoValue;
using program::OpCode;
using program::Program;
using program::ValueId;

bool IsFree(const Instruction& i) { return i.code == OpCode::kFree; }

class Fuser {
 public:
  Fuser(const Program& program, const std::vector<Work>& work)
      : program_(program),
        work_(work),
        root_(program.values.size()),
        maker_(program.values.size(), -1),
        readers_(program.values.size()),
        is_output_(program.values.size(), false),
        tile_bytes_(program.values.size(), -1),
        level_(program.instructions.size(), 0),
        cluster_(program.instructions.size()) {
    std::iota(root_.begin(), root_.end(), 0);
    std::iota(cluster_.begin(), cluster_.end(), 0);
  }

  Fusion Run() {
    FindRoots();
    FindLevels();
    SinkToReaders();
    JoinClusters();
    AbsorbProducts();
    return CountBytes();
  }

 private:
  int Count() const { return static_cast<int>(program_.instructions.size()); }
  const Instruction& At(int i) const { return program_.instructions[i]; }

  // Calls and local moves that see their operand in another form.
  bool IsView(int i) const {
    const OpCode code = At(i).code;
    if (code == OpCode::kCall) return work_[i].kind == CallKind::kView;
    return code == OpCode::kSlice || code == OpCode::kTerm;
  }
  bool IsFused(int i) const {
    return At(i).code == OpCode::kCall &&
           (work_[i].kind == CallKind::kPointwise || work_[i].kind == CallKind::kReduction ||
            work_[i].kind == CallKind::kNormalisation);
  }
  // A normalisation's operands are complete in memory before its second pass.
  bool ReadsTwice(int i) const {
    return At(i).code == OpCode::kCall && work_[i].kind == CallKind::kNormalisation;
  }
  bool IsCreation(int i) const {
    return i >= 0 && At(i).code == OpCode::kCall && work_[i].kind == CallKind::kCreation;
  }
  // Whether what reads the results of `i` must wait until they are complete.
  bool EndsCluster(int i) const {
    return !IsView(i) && !IsCreation(i) && !(IsFused(i) && work_[i].kind != CallKind::kReduction);
  }

  // A view's root is what it sees. Its readers read the root.
  void FindRoots() {
    for (int i = 0; i < Count(); ++i) {
      if (IsFree(At(i))) continue;
      for (ValueId v : At(i).operands) {
        if (v != kNoValue && !IsView(i)) readers_[root_[v]].push_back(i);
      }
      for (size_t r = 0; r < At(i).results.size(); ++r) {
        const ValueId result = At(i).results[r];
        maker_[result] = i;
        if (!IsView(i)) continue;
        const ValueId seen = At(i).operands[std::min(r, At(i).operands.size() - 1)];
        if (seen != kNoValue) root_[result] = root_[seen];
      }
    }
    for (const program::Output& output : program_.outputs) is_output_[root_[output.value]] = true;
  }

  // The instruction that made what `v` sees; -1 for an input.
  int MakerOf(ValueId v) const { return maker_[root_[v]]; }

  // A level for each stretch between products, collectives and finished reductions.
  void FindLevels() {
    for (int i = 0; i < Count(); ++i) {
      if (IsFree(At(i))) continue;
      for (ValueId v : At(i).operands) {
        if (v == kNoValue || MakerOf(v) < 0) continue;
        const bool after = EndsCluster(MakerOf(v)) || ReadsTwice(i);
        level_[i] = std::max(level_[i], level_[MakerOf(v)] + (after ? 1 : 0));
      }
    }
  }

  // A fused call whose readers are all fused runs with the first of them.
  void SinkToReaders() {
    for (int i = Count(); i-- > 0;) {
      if (!IsFused(i) || EndsCluster(i)) continue;
      int first = -1;
      bool all = true;
      for (ValueId v : At(i).results) {
        all = all && !is_output_[v];
        for (int reader : readers_[v]) {
          all = all && IsFused(reader) && !ReadsTwice(reader);
          first = first < 0 ? level_[reader] : std::min(first, level_[reader]);
        }
      }
      if (all && first > level_[i]) level_[i] = first;
    }
  }

  int Find(int i) {
    while (cluster_[i] != i) i = cluster_[i] = cluster_[cluster_[i]];
    return i;
  }

  void JoinClusters() {
    for (int i = 0; i < Count(); ++i) {
      if (!IsFused(i) || ReadsTwice(i)) continue;
      for (ValueId v : At(i).operands) {
        if (v == kNoValue) continue;
        const int maker = MakerOf(v);
        if (maker >= 0 && IsFused(maker) && !EndsCluster(maker) && level_[maker] == level_[i]) {
          cluster_[Find(i)] = Find(maker);
        }
      }
    }
  }

  // Each cluster takes in at most one product, the last one, whose result it alone reads.
  void AbsorbProducts() {
    absorbs_.assign(program_.instructions.size(), -1);
    absorbed_.assign(program_.instructions.size(), false);
    for (int i = 0; i < Count(); ++i) {
      if (At(i).code != OpCode::kCall || work_[i].kind != CallKind::kProduct) continue;
      int by = -1;
      bool alone = At(i).results.size() == 1 && !is_output_[At(i).results[0]];
      for (int reader : readers_[At(i).results[0]]) {
        alone = alone && IsFused(reader) && !ReadsTwice(reader) && (by < 0 || by == Find(reader));
        if (alone) by = Find(reader);
      }
      if (!alone || by < 0) continue;
      if (absorbs_[by] >= 0) absorbed_[absorbs_[by]] = false;
      absorbs_[by] = i;
      absorbed_[i] = true;
    }
  }

  double TileBytes(ValueId v) {
    if (tile_bytes_[v] < 0) tile_bytes_[v] = static_cast<double>(program_.TileBytes(v));
    return tile_bytes_[v];
  }

  Fusion CountBytes() {
    Fusion fusion;
    fusion.bytes.assign(program_.instructions.size(), 0);
    absl::flat_hash_set<std::pair<int, ValueId>> read;  // cluster or instruction, root
    for (int i = 0; i < Count(); ++i) {
      fusion.cluster.push_back(IsFused(i) ? Find(i) : -1);
      if (At(i).code != OpCode::kCall || IsView(i) || IsCreation(i)) continue;
      const int kernel = IsFused(i) ? Find(i) : i;
      for (ValueId v : At(i).operands) {
        if (v == kNoValue) continue;
        const int maker = MakerOf(v);
        if (IsCreation(maker)) continue;
        const bool inside = maker >= 0 && IsFused(maker) && Find(maker) == kernel;
        if (inside || (maker >= 0 && absorbed_[maker])) continue;
        if (!read.insert({kernel, root_[v]}).second) continue;
        const double bytes = std::min(TileBytes(v), TileBytes(root_[v]));
        // The first pass of a normalisation is fused with what makes its operand.
        const bool twice = ReadsTwice(i) && !(maker >= 0 && IsFused(maker));
        fusion.bytes[i] += twice ? 2 * bytes : bytes;
      }
      if (absorbed_[i]) continue;
      for (ValueId v : At(i).results) {
        bool written = is_output_[v] || !IsFused(i);
        for (int reader : readers_[v]) {
          written = written || !IsFused(reader) || Find(reader) != kernel;
        }
        if (written) fusion.bytes[i] += TileBytes(v);
      }
    }
    return fusion;
  }

  const Program& program_;
  const std::vector<Work>& work_;
  std::vector<ValueId> root_;              // by value
  std::vector<int> maker_;                 // by value
  std::vector<std::vector<int>> readers_;  // by root
  std::vector<bool> is_output_;            // by root
  std::vector<double> tile_bytes_;         // by value; -1: not known yet
  std::vector<int> level_;                 // by instruction
  std::vector<int> cluster_;               // by instruction: union-find
  std::vector<int> absorbs_;               // by cluster: the product that it computes
  std::vector<bool> absorbed_;             // by instruction
};

}  // namespace

Fusion Fuse(const Program& program, const std::vector<Work>& work) {
  return Fuser(program, work).Run();
}

}  // namespace spmd::timeline
