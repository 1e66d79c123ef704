// SPDX-License-Identifier: Apache-2.0
// A backend holds tiles and runs ops. Each backend is a folder of csrc/runtime/backends, which the
// build finds.
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

// Backends use device-generic ATen. Thread safety: all functions may be called from any thread.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual const std::string& name() const = 0;  // "cpu", "cuda", "mock_tpu:v4-16"
  virtual int64_t num_devices() const = 0;
  // True if a mesh may have more devices than num_devices(): nobody set the number of virtual
  // devices.
  virtual bool elastic() const = 0;
  virtual const machine::Machine& machine() const = 0;
  // The torch device that holds the tiles of device `id`. Devices with equal torch devices share a
  // place.
  virtual c10::Device torch_device(int64_t id) const = 0;
  // True if the backend knows shapes only and computes nothing.
  virtual bool planning() const { return false; }
  // Usable bytes per device; 0 means unlimited.
  virtual int64_t memory_limit() const { return machine().memory_bytes; }
  virtual std::string Describe() const = 0;
};

// Makes the backend with this name: "cpu", "cpu:16", "cuda", "mock_tpu:v4-16",
// "mock_tpu:v5e-64:plan". `devices` overrides the number of devices that the name gives.
// `otherwise` is the number of virtual devices if neither gives one.
// Errors: InvalidArgument for an unknown `name`, with the known backends and the nearest one;
// Unavailable if the machine has no such hardware.
absl::StatusOr<std::shared_ptr<Backend>> MakeBackend(
    absl::string_view name, std::optional<int64_t> devices,
    std::optional<int64_t> otherwise = std::nullopt);
std::vector<std::string> BackendNames();

}  // namespace spmd::runtime
