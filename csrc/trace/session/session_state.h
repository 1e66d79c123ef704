// SPDX-License-Identifier: Apache-2.0
// What the session holds, and the lock that guards it. Each part has a header of its own, which
// says what it keeps and what holds about it.
//
// A function takes the part that it needs; one that takes the whole state may cut the tape, or wait
// for programs.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "csrc/trace/program/diagnostics.h"
#include "csrc/trace/program/meshes.h"
#include "csrc/trace/program/program_cache.h"
#include "csrc/trace/session/devices.h"
#include "csrc/trace/session/in_flight.h"
#include "csrc/trace/session/optimizer_step.h"
#include "csrc/trace/session/processes.h"
#include "csrc/trace/session/python_hooks.h"
#include "csrc/trace/session/session_mutex.h"
#include "csrc/trace/session/threads.h"
#include "csrc/trace/shape/shape_inference.h"
#include "csrc/trace/tape/forward_lines.h"
#include "csrc/trace/tape/micro_steps.h"
#include "csrc/trace/tape/prefixes.h"
#include "csrc/trace/tape/repeats.h"
#include "csrc/trace/tape/tape.h"
#include "csrc/util/options.h"

namespace spmd::trace {

// What values are taken to be that a backend which only plans cannot know: the first pair whose
// text is part of the question (csrc/trace/run/known_values.h).
using Answers = std::vector<std::pair<std::string, double>>;

// The op that is being recorded.
struct CurrentCall {
  int depth = 0;           // nesting of ops that are recorded for others
  bool capturing = false;  // a CallCapture lives
  // Since it began, an op looked at what it may not be replayed with.
  bool looked_at_values = false;
  // What follows from the arguments of the call that is captured: so many annotations that it
  // makes, and the mark that its results have.
  int annotations = 0;
  MarkPtr result_mark;
};

// What may be looked at without the session.
struct SessionFlags {
  std::atomic<bool> used{false};    // a tensor of the device exists, or existed
  std::atomic<bool> forked{false};  // this process was forked from one that used it
};
inline SessionFlags session_flags;

// Who has a reference to the state holds the session: only SessionLock gives one. What it records
// is the work of the thread that holds it.
struct SessionState : ThreadWork {
  PythonHooks hooks;  // set once, before the first op

  // --- what is recorded ---
  OtherThreads threads;
  CurrentCall call;
  ShapeCache shapes;
  ForwardLines lines;
  Prefixes prefixes;
  // --- what becomes of it ---
  Devices devices;
  Processes processes;
  Meshes meshes;
  ProgramCache programs;
  InFlight in_flight;
  // --- what its users see and choose ---
  Diagnostics diagnostics;
  Options options;
  Answers answers;
  // Of the environment; reported when the backend is first asked for.
  absl::Status bad_options;

  bool closed = false;  // the interpreter ends
};

}  // namespace spmd::trace
