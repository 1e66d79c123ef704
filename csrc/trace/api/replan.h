// SPDX-License-Identifier: Apache-2.0
// Programs of other machines from one trace, and planning next to another backend.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "csrc/machine/machine.h"
#include "csrc/mesh/mesh.h"
#include "csrc/trace/program/compiled_program.h"
#include "csrc/trace/program/meshes.h"
#include "csrc/trace/session/devices.h"

namespace spmd::trace {

// The program that the graph of `traced` becomes on `mesh` and `machine`. It is loaded on the
// session's backend, which only plans. Marks keep their axes by name; an axis that `mesh` lacks
// shards nothing. Layouts in which data had settled are kept where they are whole axes.
// Errors: InvalidArgument if a mark names a part of an axis; those of compiling.
absl::StatusOr<std::shared_ptr<CompiledProgram>> Replan(const CompiledProgram& traced,
                                                        const Mesh& mesh,
                                                        const machine::Machine& machine);

// While it lives, the session uses another backend; programs of the one before are compiled again
// afterwards. Tensors that are made meanwhile must not be used afterwards.
class OtherBackend {
 public:
  // Errors: those of MakeBackend, and of what was pending.
  static absl::StatusOr<std::unique_ptr<OtherBackend>> Use(const std::string& name);
  ~OtherBackend();
  OtherBackend(const OtherBackend&) = delete;

 private:
  OtherBackend(Devices devices, Meshes meshes)
      : devices_before_(std::move(devices)), meshes_before_(std::move(meshes)) {}
  Devices devices_before_;
  Meshes meshes_before_;
};

}  // namespace spmd::trace
