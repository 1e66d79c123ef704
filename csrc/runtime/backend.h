// SPDX-License-Identifier: Apache-2.0
// Where tiles live and ops run. One folder of csrc/runtime/backends per backend, found by the
// build.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "csrc/machine/machine.h"

namespace spmd::runtime {

// Written against device-generic ATen. Thread safety: safe.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual const std::string& name() const = 0;  // "cpu", "cuda", "mock_tpu:v4-16"
  virtual int64_t num_devices() const = 0;
  // True when a larger mesh is fine (virtual devices nobody counted).
  virtual bool elastic() const = 0;
  virtual const machine::Machine& machine() const = 0;
  // The real torch device that holds tiles of device `id`; devices with equal ones share a place.
  virtual c10::Device torch_device(int64_t id) const = 0;
  // Shapes only, nothing computed.
  virtual bool planning() const { return false; }
  // Usable bytes per device; 0: unlimited.
  virtual int64_t memory_limit() const { return machine().memory_bytes; }
  virtual std::string Describe() const = 0;
};

// "cpu", "cpu:16", "cuda", "mock_tpu:v4-16", "mock_tpu:v5e-64:plan". `devices` overrides the count.
// Errors: InvalidArgument naming the known backends (did you mean); Unavailable when no such
// hardware.
absl::StatusOr<std::shared_ptr<Backend>> MakeBackend(absl::string_view name,
                                                     std::optional<int64_t> devices);
std::vector<std::string> BackendNames();

}  // namespace spmd::runtime
