// SPDX-License-Identifier: Apache-2.0
// The one mutable global: backend, tape, program cache, random state, and the record of what was
// compiled and run.
//
// Thread safety: every public function takes the session's lock. A thread that has to wait for the
// lock releases the GIL first (`PythonHooks`), so the holder of the lock may take the GIL.
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
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "csrc/mesh/mesh.h"
#include "csrc/partition/compile.h"
#include "csrc/rules/rule.h"
#include "csrc/runtime/backend.h"
#include "csrc/runtime/executor.h"
#include "csrc/runtime/make_tiles.h"
#include "csrc/sharding/spec.h"
#include "csrc/trace/program/compiled_program.h"
#include "csrc/trace/program/diagnostics.h"
#include "csrc/trace/program/single_node.h"
#include "csrc/trace/session/optimizer_step.h"
#include "csrc/trace/session/python_hooks.h"
#include "csrc/trace/value/buffer.h"
#include "csrc/util/options.h"

namespace spmd::trace {

// What sharding_of shows.
struct ShardingInfo {
  Mesh mesh;
  PartitionSpec spec;
  bool committed = false;              // the user's mark
  bool provisional = false;            // the value is pending: what a cut now would choose
  std::vector<std::string> unreduced;  // axis names
};

// One device's part of a tensor.
struct ShardData {
  at::Tensor data;  // CPU, true size, owned
  Box index;
  int64_t device = 0;
  int64_t replica_id = 0;  // 0 for the first device that holds it
};

// Parts of a tensor that the caller fills before they become its value.
struct PartsToFill {
  ValuePtr value;
  std::vector<runtime::HeldPart> parts;  // those of this process
};

// The pending calls and their inputs.
struct PendingCalls {
  ir::Graph graph;  // rewritten into the ops for which rules are asked
  GraphInputs given;
  std::shared_ptr<runtime::Backend> backend;
};

struct SessionState;

class Session {
 public:
  // Never destroyed.
  static Session& Get();

  void SetPythonHooks(PythonHooks hooks);

  // --- backend ---
  // Errors: FailedPrecondition if a tensor of the device exists already; those of MakeBackend for
  // `name` and `devices`.
  absl::Status SetDefaultBackend(const std::string& name, std::optional<int64_t> devices);
  // The backend, made at first use from SPMD_BACKEND and SPMD_NUM_DEVICES.
  absl::StatusOr<std::shared_ptr<runtime::Backend>> backend();
  absl::StatusOr<int64_t> DeviceCount();
  // This process, the number of processes, and a text for people, which is "" for one process.
  struct ProcessInfo {
    int rank = 0;
    int size = 1;
    std::string description;
  };
  absl::StatusOr<ProcessInfo> Process();
  // True if the user set the number of devices (a larger mesh is then an error).
  bool device_count_was_set();

  // --- shardings ---
  // Marks `tensor` in place, as mark_sharding does for one tensor.
  // `caller` begins with the function that the user called; after ": " it names the tensor, as in
  // "shard_module: parameter 'fc.weight'".
  absl::Status MarkSharding(const at::Tensor& tensor, const Mesh& mesh, const PartitionSpec& spec,
                            absl::string_view caller = "mark_sharding");
  absl::Status ClearSharding(const at::Tensor& tensor);
  // The sharding of `tensor`; nullopt if no mesh is known: the tensor is then one tile on device 0.
  absl::StatusOr<std::optional<ShardingInfo>> ShardingOf(const at::Tensor& tensor);
  // Returns a new tensor with this sharding. It is not differentiable by itself. `fits` says that
  // another tensor of the spec's rank has been resharded in this way.
  absl::StatusOr<at::Tensor> Reshard(const at::Tensor& tensor, const MarkPtr& mark, bool fits);
  // Reshards `tensor`, and reshapes the result to `apart` and permutes it to `order`, if these are
  // not empty; and the inverse, which gives a tensor of the sizes `whole`. The results are no
  // views, and not differentiable by themselves. Requires: the mark has no blocks.
  absl::StatusOr<at::Tensor> ReshardApart(const at::Tensor& tensor, const MarkPtr& mark, bool fits,
                                          const Dims& apart, absl::Span<const int64_t> order);
  absl::StatusOr<at::Tensor> ReshardTogether(const at::Tensor& tensor, const MarkPtr& mark,
                                             bool fits, const Dims& whole,
                                             absl::Span<const int64_t> order);
  // Runs what is pending.
  absl::StatusOr<std::vector<ShardData>> LocalShards(const at::Tensor& tensor);
  // Makes a tensor from one shard per device; replicas may be left out.
  // Errors: InvalidArgument that names the box that `shards` lacks.
  absl::StatusOr<at::Tensor> FromLocalShards(const std::vector<ShardData>& shards, const Mesh& mesh,
                                             const PartitionSpec& spec,
                                             const std::vector<int64_t>& dims);
  absl::Status LoadLocalShards(const at::Tensor& tensor, const std::vector<ShardData>& shards);
  // The tensor's own tiles if nobody else holds them, otherwise new ones, whose contents are
  // anything. Runs what is pending. Requires: the tensor is not a view (csrc/trace/run/read_host.h:
  // ReadsAlone). Until PutParts, the tensor is what it was, and its own tiles are what is written
  // to them.
  absl::StatusOr<PartsToFill> MakePartsToFill(const at::Tensor& tensor);
  absl::Status PutParts(const at::Tensor& tensor, PartsToFill parts);

  // --- running ---
  // Runs what is pending and, if `wait` is true, waits until it is done.
  absl::Status Sync(bool wait);
  // Waits until no program runs or waits. Runs nothing and reports nothing.
  void WaitForPrograms();
  // Called by the hooks around an optimizer's step (csrc/trace/session/optimizer_step.h). A step
  // that waits is run first. `call` is the Python call that makes the step. Returns how many steps
  // did not happen so far. Errors: those of the cut.
  absl::StatusOr<int64_t> OptimizerBegins(const void* optimizer, const void* call);
  // The end of a step is a cut, unless inside a backward pass; it waits until `gradients`, which
  // the optimizer's parameters hold, are dropped (csrc/trace/run/end_of_step.h). Errors: those of
  // the cut; the failure by which the step was lost before it began.
  absl::Status OptimizerStepped(const void* optimizer, absl::Span<const at::Tensor> gradients);
  // Called when gradients have been dropped: runs the step that waits, if those were the last of
  // them. Errors: those of the cut.
  absl::Status GradientsDropped();
  // Runs the step that waits, if there is one. Errors: those of the cut.
  absl::Status RunWaitingStep();
  // Whether the tensor's value was lost, because something on which it depends has failed.
  bool IsLost(const at::Tensor& tensor);
  // With several processes, when the script has ended: waits until those of the others have.
  // Errors: what the others do instead; that one is gone.
  absl::Status Leave();
  // The same when it has ended with an exception: the others end with this error.
  void LeaveBecause(const std::string& why);
  // Called before the interpreter ends: runs nothing more and drops what is pending.
  void Shutdown();

  // --- random numbers ---
  void ManualSeed(uint64_t seed);
  uint64_t InitialSeed();

  // --- rules ---
  // Adds a user's rule; programs that were compiled without it are compiled again.
  // Errors: those of rules::Register for `rule`.
  absl::Status RegisterRule(rules::Rule rule);
  // Drops the programs: what runs next is compiled again.
  void ForgetPrograms();

  // --- seeing ---
  // The last program that ran, or null.
  std::shared_ptr<const CompiledProgram> LastProgram();
  // The programs of the last optimizer step, in the order of their runs, and the number of runs
  // since.
  struct StepRuns {
    std::vector<std::shared_ptr<const CompiledProgram>> programs;
    int64_t since = 0;  // runs since then
    int64_t lost = 0;   // runs whose programs are no longer known
  };
  StepRuns LastStep();
  // The programs that are kept, oldest first. Their total size stays within the limit of
  // SetProgramBytes.
  std::vector<std::shared_ptr<const CompiledProgram>> Programs();
  // Why `tensor` has its sharding: the chain back to an annotation. Runs nothing.
  absl::StatusOr<std::string> Explain(const at::Tensor& tensor);
  // The annotated graph of `program`, which is compiled once more if it is not kept.
  absl::StatusOr<std::string> GraphText(const std::shared_ptr<CompiledProgram>& program);
  // The times that the passes took when `program` was last compiled.
  absl::StatusOr<std::vector<partition::Compiled::PassTime>> PassTimes(
      const std::shared_ptr<CompiledProgram>& program);
  std::vector<CompileEvent> CompileEvents();
  Statistics statistics();
  // The sizes of what is kept, by name, for tests of what must not grow.
  std::vector<std::pair<std::string, int64_t>> Sizes();
  // Limits the bytes of the programs that are kept.
  void SetProgramBytes(int64_t bytes);
  // The pending graph as text (lowered, not run).
  absl::StatusOr<std::string> PendingGraph();
  // The pending calls. Waits for their inputs. Errors: those of the runs that make the inputs.
  absl::StatusOr<PendingCalls> Calls();

  // --- options ---
  Options options();
  // What values are taken to be that a planning backend does not know; the first that fits counts.
  void SetAnswers(std::vector<std::pair<std::string, double>> answers);
  // For what runs from now on. Programs that were compiled with other options that matter to them
  // are found again only with these.
  void SetOptions(const Options& options);

  // For tests: keys of tapes keep only so many of their 128 bits, so that they collide.
  void SetKeyBits(int bits);

 private:
  Session() = default;
};

}  // namespace spmd::trace
