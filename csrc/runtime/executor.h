// SPDX-License-Identifier: Apache-2.0
// Runs programs on tiles.
//
// Instructions are scheduled, not device threads: no device has a thread and no collective blocks
// one, so any number of virtual devices runs on one core. A work item is (instruction, distinct
// tile). Devices that share a place take turns, a few at a time (csrc/runtime/schedule.h); their
// items of one instruction run in parallel over the cores (the wheel's own OpenMP pool), each with
// ATen's inner parallelism off, while there are at least as many as workers, else one after another
// with ATen's own threads. Terms are added in device order, so results do not depend on timing.
// Coalesced programs have one tile per value or group of devices, and results that stay whole.
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

namespace spmd::runtime {

// A program made ready for a backend: operators resolved, expressions evaluated per tile, move
// plans made. Immutable. Thread safety: Run may be called from one thread at a time.
class LoadedProgram {
 public:
  struct Options {
    // False: a tile per device, replicas computed again (honest timing of the full work).
    bool deduplicate = true;
    // True: where all devices share a place, adjacent tiles run as one (csrc/program/coalesce.h).
    bool coalesce = false;
    // Devices that share a place take turns (csrc/runtime/schedule.h; coalesced ones in a few
    // groups, csrc/program/turns.h): never, where that saves memory, or wherever it is possible;
    // then the smallest sums, too, are made inside products (csrc/runtime/sum_of_products.h).
    enum class Turns : uint8_t { kNever, kWhereTheyPay, kAlways };
    Turns turns = Turns::kWhereTheyPay;
  };
  // Errors: ResourceExhausted with the ten largest values when the peak exceeds the backend's
  // memory; InvalidArgument when an op or attribute does not exist.
  static absl::StatusOr<std::shared_ptr<LoadedProgram>> Load(program::Program program,
                                                             std::shared_ptr<Backend> backend,
                                                             Options options);
  static absl::StatusOr<std::shared_ptr<LoadedProgram>> Load(program::Program program,
                                                             std::shared_ptr<Backend> backend) {
    return Load(std::move(program), std::move(backend), Options());
  }

  // As loaded, coalesced or not.
  const program::Program& program() const { return program_; }
  const Backend& backend() const { return *backend_; }
  const std::shared_ptr<Backend>& backend_ptr() const { return backend_; }

  struct Argument {
    TiledTensorPtr value;
    // The caller drops its reference: tiles may be overwritten or become the result's. Only tiles
    // that nobody else holds are.
    bool donate = false;
  };
  // inputs[i] for program().inputs[i]. An argument in another layout (or grid) is moved first, as a
  // copy. results[k] for program().outputs[k]. Nothing is written into non-donated inputs.
  //
  // Up to the *commit* (after the last instruction that can fail on the values at hand, and before
  // the first that overwrites or drops a donated input) a failure or an interrupt (interrupt.h)
  // leaves every argument as it was. At the commit the donated arguments are taken: their `value`
  // becomes null, and stays so if a later instruction fails (the buffers they came from are then
  // lost). Errors: as the op's exception says (see StatusFromException), naming op, shapes and the
  // user's line; Cancelled when interrupted.
  absl::StatusOr<std::vector<TiledTensorPtr>> Run(absl::Span<Argument> inputs,
                                                  const std::vector<c10::Scalar>& scalars);
  // The same for a caller that does not want its arguments back.
  absl::StatusOr<std::vector<TiledTensorPtr>> Run(std::vector<Argument> inputs,
                                                  const std::vector<c10::Scalar>& scalars) {
    return Run(absl::MakeSpan(inputs), scalars);
  }

  ~LoadedProgram();

  // Of the heap, as far as it is this program's own (csrc/util/heap_bytes.h).
  int64_t HeapBytes() const;

 private:
  struct Impl;
  LoadedProgram(program::Program program, std::shared_ptr<Backend> backend);
  program::Program program_;
  std::optional<program::Program> coalesced_;
  std::shared_ptr<Backend> backend_;
  std::unique_ptr<Impl> impl_;
};

// The op whose kernel refused, of the status that Run ended with; "" where it was none.
std::string FailedOp(const absl::Status& status);
// Whether an op looks at values and may refuse them. Ops that are neither aten's nor ours do.
bool CanFailOnValues(absl::string_view op);

// The value in another layout (any grid over the same backend). Shares tiles that are already
// right. Throws what ATen throws (out of memory).
TiledTensorPtr MoveTo(const TiledTensor& value, const Layout& layout, Backend& backend);

}  // namespace spmd::runtime
