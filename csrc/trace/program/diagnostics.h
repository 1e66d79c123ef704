// SPDX-License-Identifier: Apache-2.0
// What the session remembers for its users: what was compiled and why, what ran, what was counted,
// and which warnings have been given. Nothing that is computed depends on it.
//
// Thread safety: guarded by the session's lock.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "csrc/trace/program/compiled_program.h"
#include "csrc/trace/program/step_log.h"

namespace spmd::trace {

// One line of explain_compile.
struct CompileEvent {
  int64_t number = 0;  // of the program
  std::string reason;  // what differed from the nearest cached program
  std::string cut;     // what caused the cut: "item", "cpu", "optimizer step", "sync", …
  int64_t records = 0;
  int64_t instructions = 0;
  double lower_ms = 0, compile_ms = 0, load_ms = 0;
};

struct Statistics {
  int64_t records = 0;
  int64_t replayed = 0;  // replayed calls (csrc/trace/recorder/replay.h)
  int64_t runs = 0;
  int64_t compiles = 0;
  int64_t cache_hits = 0;
  int64_t host_fallbacks = 0;      // ops run on host copies
  int64_t plans_of_pending = 0;    // for questions about the layout of pending values
  int64_t planned_of_pending = 0;  // ops in these plans
};

struct Diagnostics {
  // True the first time for each warning, by `key`; again after thousands of others have been
  // given.
  bool FirstTime(const std::string& key) {
    constexpr size_t kMost = size_t{1} << 12;
    if (warned.size() >= kMost) warned.clear();
    return warned.insert(key).second;
  }
  // Adds a line of explain_compile; the oldest are dropped.
  void Add(CompileEvent event) {
    constexpr size_t kMost = 1000;
    events.push_back(std::move(event));
    if (events.size() > kMost) events.pop_front();
  }

  Statistics statistics;
  std::deque<CompileEvent> events;
  std::shared_ptr<const CompiledProgram> last_program;
  StepLog steps;
  absl::flat_hash_set<std::string> warned;
  int64_t next_program = 0;  // the number of the next program that is compiled
};

}  // namespace spmd::trace
