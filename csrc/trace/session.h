// SPDX-License-Identifier: Apache-2.0
// The one mutable global: backend, tape, program cache, random state, what was compiled and run.
//
// Thread safety: every public function takes the session's lock. A thread that has to wait for it
// gives up the GIL first (`GilHooks`), so whoever holds the lock may take the GIL.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "csrc/mesh/mesh.h"
#include "csrc/partition/compile.h"
#include "csrc/rules/rule.h"
#include "csrc/runtime/backend.h"
#include "csrc/runtime/executor.h"
#include "csrc/sharding/spec.h"
#include "csrc/trace/buffer.h"
#include "csrc/trace/one_call.h"
#include "csrc/trace/optimizer_step.h"

namespace spmd::trace {

// What sharding_of shows.
struct ShardingInfo {
  Mesh mesh;
  PartitionSpec spec;
  bool committed = false;    // the user's mark
  bool provisional = false;  // the value is pending: what would be chosen if it were cut now
  std::vector<std::string> unreduced;  // axis names
};

// One device's part of a tensor.
struct ShardData {
  at::Tensor data;  // CPU, true size, owned
  Box index;
  int64_t device = 0;
  int64_t replica_id = 0;  // 0 for the first device that holds it
};

// A program that was compiled: what spmd.debug shows.
struct CompiledProgram {
  int64_t number = 0;
  ir::Graph traced;              // as lowered from the tape
  partition::Compiled compiled;  // its `program` was moved into `loaded`
  // False: `compiled` lacks its graph and reasons, which take as long to make as the program does,
  // and are made when somebody asks.
  bool explained = true;
  std::shared_ptr<runtime::LoadedProgram> loaded;
  const program::Program& program() const { return loaded->program(); }
  // What it takes of the heap without its graph and reasons, which few programs have.
  int64_t HeapBytes() const;
};

// One line of explain_compile.
struct CompileEvent {
  int64_t number = 0;  // of the program
  std::string reason;  // what differed from the nearest cached program
  std::string cut;     // what made the cut: "item", "cpu", "optimizer step", "sync", …
  int64_t records = 0;
  int64_t instructions = 0;
  double lower_ms = 0, compile_ms = 0, load_ms = 0;
};

// The calls of what is pending, and what they are given.
struct PendingCalls {
  ir::Graph graph;  // rewritten as far as rules are asked about it
  GraphInputs given;
  std::shared_ptr<runtime::Backend> backend;
};

struct Statistics {
  int64_t records = 0;
  int64_t replayed = 0;  // calls that were gone over (csrc/trace/replay.h)
  int64_t runs = 0;
  int64_t compiles = 0;
  int64_t cache_hits = 0;
  int64_t disk_hits = 0;       // of the compiles, those that were read from disk
  int64_t host_fallbacks = 0;  // ops run on host copies
};

// Ways into Python, set by csrc/python; each may be null.
struct PythonHooks {
  // Releases the GIL if the calling thread holds it; gives what Reacquire takes (null: not held).
  void* (*release_gil)() = nullptr;
  void (*reacquire_gil)(void*) = nullptr;
  // "file.py:12" of the innermost frame outside torch; "" when the thread holds no GIL.
  std::string (*current_line)() = nullptr;
  // Python's warnings.warn.
  void (*warn)(const std::string& text) = nullptr;
  // Runs the handlers of signals that came; true when one of them raised (KeyboardInterrupt).
  bool (*signalled)() = nullptr;
  // Throws what it raised, as the bindings turn it into the Python exception, with `note` as its
  // message if it has none ("" is no note).
  void (*raise_signal)(const std::string& note) = nullptr;
};

class Session {
 public:
  // Never destroyed.
  static Session& Get();

  void SetPythonHooks(PythonHooks hooks);

  // --- backend ---
  // Errors: FailedPrecondition when a tensor of the device exists already; MakeBackend's.
  absl::Status SetDefaultBackend(const std::string& name, std::optional<int64_t> devices);
  // Made at first use, from SPMD_BACKEND and SPMD_NUM_DEVICES.
  absl::StatusOr<std::shared_ptr<runtime::Backend>> backend();
  absl::StatusOr<int64_t> DeviceCount();
  // True when the user set the number of devices (a larger mesh is then an error).
  bool device_count_was_set();

  // --- shardings ---
  // In place, as API.md's mark_sharding for one tensor.
  absl::Status MarkSharding(const at::Tensor& tensor, const Mesh& mesh, const PartitionSpec& spec);
  absl::Status ClearSharding(const at::Tensor& tensor);
  // nullopt where no mesh is known: the tensor is one tile on device 0.
  absl::StatusOr<std::optional<ShardingInfo>> ShardingOf(const at::Tensor& tensor);
  // A new tensor with the sharding, not differentiable by itself.
  absl::StatusOr<at::Tensor> Reshard(const at::Tensor& tensor, const Mesh& mesh,
                                     const PartitionSpec& spec);
  // Runs what is pending.
  absl::StatusOr<std::vector<ShardData>> LocalShards(const at::Tensor& tensor);
  // A shard per device (replicas may be left out). Errors: InvalidArgument naming the missing box.
  absl::StatusOr<at::Tensor> FromLocalShards(const std::vector<ShardData>& shards, const Mesh& mesh,
                                             const PartitionSpec& spec,
                                             const std::vector<int64_t>& dims);
  absl::Status LoadLocalShards(const at::Tensor& tensor, const std::vector<ShardData>& shards);

  // --- running ---
  // Runs what is pending; with `wait`, until it is done.
  absl::Status Sync(bool wait);
  // Called by the hooks around an optimizer's step (csrc/trace/optimizer_step.h); `changes` is what
  // it will have changed on the host. Its end is a cut, unless inside a backward pass. Errors: the
  // cut's; that of a failure by which the step is lost before it has begun.
  void OptimizerBegins(const void* optimizer, HostChangesPtr changes);
  absl::Status OptimizerStepped(const void* optimizer);
  // The step of the optimizer has raised: what is recorded from here on is none of its.
  void OptimizerRaised(const void* optimizer);
  // What was changed on the host because the last step of the optimizer (null: of any) was made; it
  // is undone with that step, if its program has not run yet.
  void AddToLastStep(const void* optimizer, HostChangesPtr changes);
  // Before the interpreter ends: runs nothing more, drops what is pending.
  void Shutdown();

  // --- random numbers ---
  void ManualSeed(uint64_t seed);
  uint64_t InitialSeed();

  // --- rules ---
  // Adds a user's rule; what was compiled without it is compiled again. Errors: rules::Register's.
  absl::Status RegisterRule(rules::Rule rule);
  // What runs next is compiled again.
  void ForgetPrograms();

  // --- seeing ---
  // The last program that ran, or null; the one that made tensor's value, or null.
  std::shared_ptr<const CompiledProgram> LastProgram();
  // The programs of the last step of an optimizer, in order of their runs, and how many runs there
  // have been since.
  std::pair<std::vector<std::shared_ptr<const CompiledProgram>>, int64_t> LastStep();
  // Those that are kept, oldest first. They are while all together take no more bytes than
  // SetProgramBytes says.
  std::vector<std::shared_ptr<const CompiledProgram>> Programs();
  // Why `tensor` is cut as it is: the chain back to an annotation. Runs nothing.
  absl::StatusOr<std::string> Explain(const at::Tensor& tensor);
  // The annotated graph of a program, compiled once more where it is not kept.
  absl::StatusOr<std::string> GraphText(const std::shared_ptr<CompiledProgram>& program);
  // How long the passes took when it was last compiled.
  absl::StatusOr<std::vector<partition::Compiled::PassTime>> PassTimes(
      const std::shared_ptr<CompiledProgram>& program);
  std::vector<CompileEvent> CompileEvents();
  Statistics statistics();
  // How much is kept, by name: for tests of what must not grow.
  std::vector<std::pair<std::string, int64_t>> Sizes();
  // Bounds the bytes of programs that are kept.
  void SetProgramBytes(int64_t bytes);
  // The pending graph as text (lowered, not run).
  absl::StatusOr<std::string> PendingGraph();
  // What is pending, call by call. Waits for the inputs. Errors: those of the runs that make them.
  absl::StatusOr<PendingCalls> Calls();
  // Replicas as separate tiles.
  void SetDeduplication(bool on);
  void SetCoalescing(bool on);

  // For csrc/trace only.
  struct State;
  State& state() { return *state_; }

 private:
  Session();
  State* state_;
};

}  // namespace spmd::trace
