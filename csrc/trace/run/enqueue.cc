// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/run/enqueue.h"

#include <utility>

#include "csrc/trace/program/verify_run.h"
#include "csrc/trace/run/known_values.h"
#include "csrc/trace/session/devices.h"
#include "csrc/trace/session/session_lock.h"
#include "csrc/trace/tape/starts.h"
#include "csrc/util/status.h"

namespace spmd::trace {

absl::StatusOr<runtime::PendingRunPtr> Enqueue(SessionState& state, const Tape& tape,
                                               const CachedProgramPtr& program_of_tape,
                                               const std::vector<ValuePtr>& results) {
  const CachedProgram& cached = *program_of_tape;
  SPMD_ASSIGN_OR_RETURN(std::shared_ptr<runtime::Backend> backend, TheBackend(state));
  const program::Program& program = cached.program->program();
  std::vector<runtime::ExecutorQueue::Argument> arguments;
  RunInFlight in_flight;
  arguments.reserve(cached.inputs.size());
  in_flight.arguments.reserve(cached.inputs.size());
  in_flight.results.reserve(cached.outputs.size());
  for (size_t k = 0; k < cached.inputs.size(); ++k) {
    const ValuePtr& value = tape.value(tape.inputs()[cached.inputs[k]].id);
    if (!value->poison.ok()) return value->poison;
    if (value->host.defined()) {
      if (backend->planning()) value->known = KnownUpload(value->host);
      const Layout wanted = program.LayoutOf(program.inputs[k].value);
      value->layout =
          std::make_shared<const Layout>(wanted.grid(), wanted.sharding().Reduced(), wanted.dims());
      value->tiles =
          runtime::Upload(value->host, *value->layout, *backend, LoadOptions(state).coalesce);
      value->host = at::Tensor();
    }
    runtime::ExecutorQueue::Argument argument;
    // Only the tape holds the value, so no Buffer will read it again.
    argument.donate = value.use_count() == 1;
    argument.value = {value->tiles, value->tiles == nullptr ? value->run : nullptr,
                      value->run_output};
    if (argument.donate) value->tiles = nullptr;
    arguments.push_back(std::move(argument));
    in_flight.arguments.push_back(
        {c10::weak_intrusive_ptr<Value>(value), arguments.back().value.run, value->run_output});
  }
  std::vector<c10::Scalar> scalars = tape.scalars();
  for (const int r : cached.starts) {
    AppendStarts(tape.records()[r], tape.ArgumentsOf(r), scalars);
  }
  if (state.in_flight.queue == nullptr) {
    state.in_flight.queue = std::make_unique<runtime::ExecutorQueue>(state.options.sync);
  }
  std::optional<GraphInputs> given;
  if (state.options.verify && !backend->planning()) {
    // If an argument is missing, the run itself fails.
    if (auto recorded = RecordInputs(arguments, scalars, state.processes.job.script);
        recorded.ok()) {
      given = *std::move(recorded);
    }
  }
  in_flight.program = program_of_tape;
  in_flight.scalars = scalars;
  {
    const GilReleased no_gil(state);
    in_flight.run = state.in_flight.queue->Enqueue(cached.program->loaded, std::move(arguments),
                                                   std::move(scalars));
  }
  if (given.has_value() && in_flight.run->Wait().ok()) {
    SPMD_RETURN_IF_ERROR(
        CompareWithUnsharded(*cached.program, *given, *in_flight.run, state.processes.job.script));
  }
  for (const ValuePtr& result : results) in_flight.results.emplace_back(result);
  if (backend->planning()) NoteKnown(tape, cached, in_flight.scalars, results);
  runtime::PendingRunPtr run = in_flight.run;
  state.in_flight.runs.push_back(std::move(in_flight));
  return run;
}

}  // namespace spmd::trace
