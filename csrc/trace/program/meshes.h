// SPDX-License-Identifier: Apache-2.0
// The meshes in use, and the grids in which tapes are planned.
//
// Meshes that are written in the same grids are a *set*. A set lives as long as one of its grids:
// the layouts of data and the programs that are kept know the meshes after which their axes are
// named. Otherwise only the last few sets are kept, so that a process may make any number of
// meshes.
//
//   MeshSet set = meshes.SetOf({mesh, other});
//   set.grids.grids[set.grids.grid_of[1]]      the grid in which `other` is written
//   meshes.MeshesOf(set.grids.grids[0])        {mesh}, and `other` if it refines to the same grid
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "csrc/mesh/grid.h"
#include "csrc/mesh/mesh.h"

namespace spmd::trace {

struct MeshSet {
  std::vector<Mesh> meshes;
  Grid::Common grids;  // of `meshes`; of one device if there are none
};

// Thread safety: guarded by the session's lock; grids may end on any thread.
class Meshes {
 public:
  // Notes that `mesh` is used now.
  void Use(const Mesh& mesh) { latest_ = mesh; }
  // The mesh that was used last, if any.
  const std::optional<Mesh>& latest() const { return latest_; }

  // The set of `meshes`; repeated ones count once. The same meshes in the same order give the same
  // grids while anything holds them.
  MeshSet SetOf(const std::vector<Mesh>& meshes);
  // The meshes that are written in `grid`, which SetOf gave; the first one named its axes.
  std::vector<Mesh> MeshesOf(const GridPtr& grid) const;

  // The meshes that were used lately, the last one first, some perhaps twice.
  std::vector<Mesh> Recent() const;

  // The number of known sets: at most a few more than twice as many as live.
  size_t num_sets() const { return by_meshes_.size(); }

 private:
  using SetPtr = std::shared_ptr<const MeshSet>;
  void DropEnded();

  std::optional<Mesh> latest_;
  std::deque<SetPtr> recent_;  // kept although nothing else uses them
  absl::flat_hash_map<std::vector<Mesh>, std::weak_ptr<const MeshSet>> by_meshes_;
  absl::flat_hash_map<const Grid*, std::weak_ptr<const MeshSet>> by_grid_;
  size_t most_ = 64;  // the number of sets at which those that have ended are dropped
};

}  // namespace spmd::trace
