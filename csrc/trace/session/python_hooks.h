// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace spmd::trace {

// Functions that call Python, set by csrc/python; each may be null.
struct PythonHooks {
  // Releases the GIL if the calling thread holds it; returns what reacquire_gil takes (null if the
  // thread did not hold it).
  void* (*release_gil)() = nullptr;
  void (*reacquire_gil)(void*) = nullptr;
  // "file.py:12" of the innermost frame outside torch; "" when the thread holds no GIL.
  std::string (*current_line)() = nullptr;
  // Python's warnings.warn.
  void (*warn)(const std::string& text) = nullptr;
  // Runs the handlers of signals that arrived; true if one of them raised (KeyboardInterrupt).
  bool (*signalled)() = nullptr;
  // Throws what the handler raised, in the form that the bindings turn into the Python exception.
  // If that has no message, `note` becomes its message ("" for none).
  void (*raise_signal)(const std::string& note) = nullptr;
};

}  // namespace spmd::trace
