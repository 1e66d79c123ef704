// SPDX-License-Identifier: Apache-2.0
// What regions recorded at places of recordings (csrc/trace/api/shard_run.h), so that a tape that
// comes to such a place again skips it:
//
//   calls of the recording   …  _to_lanes   bmm  tanh  bmm  sum   _from_lanes  …
//                               ^ Start     ^ all of this is skipped         ^ its result is made
//
// An equal call at the same place has equal results, so the shards of the arguments are those that
// were noted; and equal steps on them record the same.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "csrc/trace/api/shard_run.h"
#include "csrc/trace/pytorch/region_gradient.h"
#include "csrc/trace/tape/recording.h"

namespace spmd::trace {

// What regions recorded at places of recordings, by which a tape can skip it.
class ShardPlaces {
 public:
  // Where a run begins, behind the call that takes its arguments apart.
  struct Start {
    RecordingPtr lead;  // null if that call was not replayed
    size_t call = 0;    // the number of that call
    uint64_t tape = 0;
    int32_t event = 0;
    int64_t slot = 0;
    int64_t records = 0;
    size_t scalars = 0;
  };
  // `replayed`: whether that call, the latest one, was replayed.
  static Start StartAt(bool replayed);

  // Notes what was recorded since `start` for the program and its result, whose nodes were joined
  // as `joined` says (null: it has no gradient).
  void Note(const Start& start, const at::Tensor& result, ShardProgramPtr program,
            JoinedRegionPtr joined);
  // The program that was noted at this place, or null.
  ShardProgramPtr At(const Start& start) const;
  // The result of the program, whose records are skipped; null if it is not known at this place.
  // `edges` are those of the arguments.
  struct Skipped {
    at::Tensor result;
    JoinedRegionPtr joined;
  };
  std::optional<Skipped> Skip(const Start& start, const ShardProgramPtr& program,
                              const torch::autograd::edge_list& edges);

 private:
  struct Place {
    std::weak_ptr<const Recording> recording;
    ShardProgramPtr program;
    TracedCall all;  // only what Tape::Skip and the records need
    std::shared_ptr<const TracedCall> last;
    int64_t calls = 0;
    std::vector<c10::Scalar> scalars;
    JoinedRegionPtr joined;
  };
  std::shared_ptr<const Place> Find(const Start& start) const;

  absl::flat_hash_map<std::pair<const Recording*, size_t>, std::shared_ptr<const Place>> places_;
};

}  // namespace spmd::trace
