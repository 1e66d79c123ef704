// SPDX-License-Identifier: Apache-2.0
// What PyTorch's profiler, and whatever else has callbacks of at::RecordFunction, sees of programs.
// A program runs on another thread than the one that asks for it, and callbacks belong to threads.
#pragma once

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <memory>
#include <optional>
#include <string>

namespace spmd::runtime {

// The callbacks of a thread, and the state that they find there.
class Observers {
 public:
  // Those of this thread; nothing if it has none.
  static std::optional<Observers> OfThisThread();

  // While it lives, this thread has `observers`, and afterwards its own again.
  class Scope {
   public:
    explicit Scope(const Observers& observers);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    const at::RecordFunctionTLS callbacks_;
    const c10::DebugInfoGuard state_;
  };

 private:
  at::RecordFunctionTLS callbacks_;
  std::shared_ptr<c10::ThreadLocalDebugInfo> state_;
};

// True if something sees what this thread does.
bool Observed();

// An instruction as observers see it: as one op, whatever ops it calls. Its tiles may be computed
// by workers, whose ops no observer sees.
class ObservedInstruction {
 public:
  explicit ObservedInstruction(const std::string& name) {
    if (range_.isActive()) range_.before(name);
  }

 private:
  at::RecordFunction range_{at::RecordScope::FUNCTION};
  at::DisableRecordFunctionGuard within_;
};

}  // namespace spmd::runtime
