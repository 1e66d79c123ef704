// SPDX-License-Identifier: Apache-2.0
// Runs programs on tiles.
//
// Instructions are scheduled, not device threads: no device has a thread and no collective blocks
// one, so any number of virtual devices runs on one core. A work item is one distinct tile of one
// instruction. Devices that share a place take turns, a few at a time (csrc/runtime/schedule.h). If
// their items of one instruction are at least as many as the workers, they run in parallel over the
// cores (in PyTorch's own OpenMP pool), each with ATen's inner parallelism off; otherwise they run
// one after another with ATen's own threads. Partial sums are added in device order, so results do
// not depend on timing. A coalesced program has one tile per value or per group of devices, and its
// results stay whole.
#pragma once

#include <c10/core/Scalar.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "csrc/program/program.h"
#include "csrc/runtime/backend.h"
#include "csrc/runtime/tiled_tensor.h"
#include "csrc/util/options.h"

namespace spmd::runtime {

// A program that is ready to run on a backend: operators are resolved, expressions are evaluated
// for each tile, and move plans are made. Immutable.
// Thread safety: Run may be called by one thread at a time.
class LoadedProgram {
 public:
  struct Options {
    // False: every device has its own tiles and computes replicas again, for honest timing of all
    // the work.
    bool deduplicate = true;
    // True: if all devices share a place, adjacent tiles run as one
    // (csrc/program/one_place/coalesce.h).
    bool coalesce = false;
    using Turns = spmd::Turns;
    Turns turns = Turns::kWhereTheyPay;
    // False: whatever is done only because virtual devices share one CPU is left out
    // (csrc/runtime/one_place/README.md). It overrides `coalesce` and `turns`.
    bool one_place = true;
    // Bytes per device that the program may need, if that is less than what the backend has; 0:
    // what it has.
    int64_t memory_limit = 0;
    // True: the memory of tiles is kept for the next tiles (csrc/runtime/one_place/tile_memory.h).
    bool keep_memory = false;
    // What observers (observers.h) see a run as.
    std::string name = "program";
  };
  // Errors: ResourceExhausted with the ten largest values if the peak exceeds the limit;
  // InvalidArgument if an op or an attribute of `program` does not exist.
  static absl::StatusOr<std::shared_ptr<LoadedProgram>> Load(program::Program program,
                                                             std::shared_ptr<Backend> backend,
                                                             Options options);
  static absl::StatusOr<std::shared_ptr<LoadedProgram>> Load(program::Program program,
                                                             std::shared_ptr<Backend> backend) {
    return Load(std::move(program), std::move(backend), Options());
  }

  // The program that was loaded, before any coalescing.
  const program::Program& program() const { return program_; }
  const Backend& backend() const { return *backend_; }
  const std::shared_ptr<Backend>& backend_ptr() const { return backend_; }

  struct Argument {
    TiledTensorPtr value;
    // The caller gives up its reference, so the tiles may be overwritten or become a result's. This
    // happens only to tiles that nobody else holds.
    bool donate = false;
  };
  // inputs[i] is the argument for program().inputs[i], results[k] is for program().outputs[k]. An
  // argument in another layout (or grid) is copied into the program's layout first. Inputs that are
  // not donated are not written.
  //
  // The *commit* comes after the last instruction that can fail on the values at hand, and before
  // the first that overwrites or drops a donated input. Until then a failure or an interrupt
  // (interrupt.h) leaves every argument as it was. At the commit the donated arguments are taken:
  // their `value` becomes null, and stays null if a later instruction fails; the Buffers from which
  // they came are then lost.
  // Errors: the op's exception (see StatusFromException), naming op, shapes and the user's line;
  // Cancelled if interrupted.
  absl::StatusOr<std::vector<TiledTensorPtr>> Run(absl::Span<Argument> inputs,
                                                  const std::vector<c10::Scalar>& scalars);
  // As above, for a caller that does not need its arguments back.
  absl::StatusOr<std::vector<TiledTensorPtr>> Run(std::vector<Argument> inputs,
                                                  const std::vector<c10::Scalar>& scalars) {
    return Run(absl::MakeSpan(inputs), scalars);
  }

  ~LoadedProgram();

  // The heap memory that belongs to this program alone (csrc/util/heap_bytes.h).
  int64_t HeapBytes() const;

 private:
  struct Impl;
  LoadedProgram(program::Program program, std::shared_ptr<Backend> backend);
  program::Program program_;
  std::optional<program::Program> rewritten_;  // for devices at one place; this is what runs
  std::shared_ptr<Backend> backend_;
  std::unique_ptr<Impl> impl_;
};

// The op whose kernel failed, taken from the status that Run returned; "" if no op did.
std::string FailedOp(const absl::Status& status);

}  // namespace spmd::runtime
