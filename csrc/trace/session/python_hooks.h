// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace spmd::runtime {
class Peers;
}

namespace spmd::trace {

// How this process reaches the others of its job. The peers live as long as the process.
struct JobConnection {
  // What is to be known about a GPU of this process, to decide how processes exchange tiles.
  struct Gpu {
    std::string id;          // no other GPU has it
    std::string kind;        // "NVIDIA H100 80GB HBM3, capability 9.0"
    bool may_share = false;  // NCCL is to be used even where processes share a GPU
    bool has_nccl = false;   // and NCCL is wanted
  };

  runtime::Peers* script = nullptr;    // for the thread that runs the script
  runtime::Peers* programs = nullptr;  // for the thread that runs programs
  std::function<absl::StatusOr<Gpu>(c10::Device)> describe_gpu;
  // Collective. Peers whose buffers are on the GPU, over NCCL.
  std::function<absl::StatusOr<runtime::Peers*>(c10::Device)> connect_gpus;
};

// Functions that call Python, set by csrc/python; each may be null.
struct PythonHooks {
  // Releases the GIL if the calling thread holds it; returns what reacquire_gil takes (null if the
  // thread did not hold it).
  void* (*release_gil)() = nullptr;
  void (*reacquire_gil)(void*) = nullptr;
  // "file.py:12" of the innermost frame outside torch; "" when the thread holds no GIL.
  std::string (*current_line)() = nullptr;
  // Whether the calling thread is within the Python call of this frame, which is not read: it may
  // be over.
  bool (*is_running)(const void* frame) = nullptr;
  // Python's warnings.warn.
  void (*warn)(const std::string& text) = nullptr;
  // Runs the handlers of signals that arrived; true if one of them raised (KeyboardInterrupt).
  bool (*signalled)() = nullptr;
  // Throws what the handler raised, in the form that the bindings turn into the Python exception.
  // If that has no message, `note` becomes its message ("" for none).
  void (*raise_signal)(const std::string& note) = nullptr;
  // Calls Session::GradientsDropped soon, in the main thread. May be called by any thread, with or
  // without the GIL.
  void (*gradients_dropped)() = nullptr;
  // Joins the job of this process, with the others; nullopt if it has none.
  // Errors: those of torch.distributed.
  absl::StatusOr<std::optional<JobConnection>> (*join_job)(double timeout) = nullptr;
};

}  // namespace spmd::trace
