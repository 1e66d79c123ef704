// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/program/meshes.h"

#include <algorithm>
#include <utility>

namespace spmd::trace {

namespace {

constexpr size_t kRecent = 16;

// A copy of the set; its grids, and those of every further copy, keep the set alive.
MeshSet Holding(const std::shared_ptr<const MeshSet>& set) {
  MeshSet copy = *set;
  for (GridPtr& grid : copy.grids.grids) grid = GridPtr(set, grid.get());
  return copy;
}

}  // namespace

MeshSet Meshes::SetOf(const std::vector<Mesh>& meshes) {
  std::vector<Mesh> each;
  for (const Mesh& mesh : meshes) {
    if (std::find(each.begin(), each.end(), mesh) == each.end()) each.push_back(mesh);
  }
  std::weak_ptr<const MeshSet>& known = by_meshes_[each];
  SetPtr set = known.lock();
  if (set == nullptr) {
    auto made = std::make_shared<MeshSet>();
    made->meshes = std::move(each);
    made->grids = Grid::ForMeshes(made->meshes);
    if (made->meshes.empty()) made->grids.grids = {Grid::SingleDevice()};
    set = std::move(made);
    known = set;
    for (const GridPtr& grid : set->grids.grids) by_grid_[grid.get()] = set;
    if (by_meshes_.size() > most_) DropEnded();
  }
  if (std::find(recent_.begin(), recent_.end(), set) == recent_.end()) {
    recent_.push_front(set);
    if (recent_.size() > kRecent) recent_.pop_back();
  }
  return Holding(set);
}

std::vector<Mesh> Meshes::MeshesOf(const GridPtr& grid) const {
  std::vector<Mesh> meshes;
  const auto it = by_grid_.find(grid.get());
  const SetPtr set = it == by_grid_.end() ? nullptr : it->second.lock();
  if (set == nullptr) return meshes;
  for (size_t m = 0; m < set->meshes.size(); ++m) {
    if (set->grids.grids[set->grids.grid_of[m]] == grid) meshes.push_back(set->meshes[m]);
  }
  return meshes;
}

std::vector<Mesh> Meshes::Recent() const {
  std::vector<Mesh> meshes;
  if (latest_.has_value()) meshes.push_back(*latest_);
  for (const SetPtr& set : recent_) {
    meshes.insert(meshes.end(), set->meshes.begin(), set->meshes.end());
  }
  return meshes;
}

void Meshes::DropEnded() {
  absl::erase_if(by_meshes_, [](const auto& entry) { return entry.second.expired(); });
  absl::erase_if(by_grid_, [](const auto& entry) { return entry.second.expired(); });
  most_ = std::max<size_t>(64, 2 * by_meshes_.size());
}

}  // namespace spmd::trace
