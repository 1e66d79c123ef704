// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/program_cache.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "csrc/trace/difference.h"

namespace spmd::trace {

std::vector<CachedProgramPtr> ProgramCache::Find(const Hash128& key) {
  const auto it = by_key_.find(key);
  if (it == by_key_.end()) return {};
  for (const CachedProgramPtr& p : it->second) {
    const auto place = std::find(recent_.begin(), recent_.end(), p);
    if (place != recent_.end()) recent_.splice(recent_.begin(), recent_, place);
  }
  return {it->second.rbegin(), it->second.rend()};
}

void ProgramCache::Insert(CachedProgramPtr program) {
  by_key_[program->key].push_back(program);
  recent_.push_front(std::move(program));
  while (recent_.size() > capacity_) {
    const CachedProgramPtr oldest = recent_.back();
    recent_.pop_back();
    std::vector<CachedProgramPtr>& same = by_key_[oldest->key];
    same.erase(std::remove(same.begin(), same.end(), oldest), same.end());
    if (same.empty()) by_key_.erase(oldest->key);
  }
}

RecordingPtr ProgramCache::SeenLoose(const Hash128& loose) const {
  const auto it = loose_.find(loose);
  return it == loose_.end() ? nullptr : it->second.lock();
}

void ProgramCache::NoteLoose(const Hash128& loose, const RecordingPtr& recording) {
  // Forgotten, a tape is compiled once more before its starts are passed at run time.
  constexpr size_t kMost = size_t{1} << 14;
  if (loose_.size() >= kMost) loose_.clear();
  loose_[loose] = recording;
}

void ProgramCache::Clear() {
  recent_.clear();
  by_key_.clear();
  loose_.clear();
}

std::string ProgramCache::Difference(const Tape& tape) const {
  const CachedProgram* nearest = nullptr;
  const std::vector<uint64_t> prefixes = tape.recording().RecordKeys();
  size_t common = 0;
  int looked_at = 0;
  for (const CachedProgramPtr& p : recent_) {
    if (++looked_at > 32) break;
    const size_t n = std::min(p->prefixes.size(), prefixes.size());
    size_t same = 0;
    while (same < n && p->prefixes[same] == prefixes[same]) ++same;
    if (nearest == nullptr || same > common) {
      nearest = p.get();
      common = same;
    }
  }
  if (nearest == nullptr) return "first program";
  const std::string which = absl::StrCat("program ", nearest->program->number);
  const size_t mine = tape.records().size(), other = nearest->ops.size();
  if (common == mine && common == other) {
    return absl::StrCat("same ops as ", which, ", but other values are alive afterwards");
  }
  if (common == mine) return absl::StrCat("the first ", mine, " of the ", other, " ops of ", which);
  if (common == other) {
    return absl::StrCat("the ", other, " ops of ", which, " and ", mine - other, " more, from ",
                        tape.records()[common].op->name);
  }
  return DescribeDifference(*nearest->recording, tape.recording(), common, which);
}

}  // namespace spmd::trace
