// SPDX-License-Identifier: Apache-2.0
// A backend holds tiles and runs ops. Each backend is a folder of csrc/runtime/backends, which the
// build finds.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "csrc/machine/machine.h"
#include "csrc/runtime/homes.h"
#include "csrc/runtime/peers.h"
#include "csrc/runtime/place.h"

namespace c10 {
class OperatorHandle;
}

namespace spmd::runtime {

// What a backend is: how many devices, of which kind, and where. What it does: it allocates tiles,
// runs ops on them and copies them. Everything that the runtime allocates or copies from one place
// to another goes through these functions. Backends of torch devices derive from AtenBackend
// (csrc/runtime/aten_backend.h). Thread safety: all functions may be called from any thread.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual const std::string& name() const = 0;  // "cpu", "cuda", "mock_tpu:v4-16"
  virtual int64_t num_devices() const = 0;
  // True if a mesh may have more devices than num_devices(): nobody set the number of virtual
  // devices.
  virtual bool elastic() const = 0;
  // True if someone has said how many devices there are.
  virtual bool count_is_given() const { return false; }
  virtual const machine::Machine& machine() const = 0;
  // Where the tiles of device `id` are.
  virtual Place place(int64_t id) const = 0;
  // True if all devices, however many there are, share one place.
  virtual bool has_one_place() const = 0;
  // True if the processes of a job can share the devices.
  virtual bool runs_in_jobs() const { return false; }
  // True if the backend knows shapes only and computes nothing.
  virtual bool planning() const { return false; }
  // Usable bytes per device; 0 means unlimited.
  virtual int64_t memory_limit() const { return machine().memory_bytes; }
  virtual std::string Describe() const = 0;

  // A tensor whose elements have no values yet; of a planning backend, its shape only.
  virtual at::Tensor Allocate(const Place& place, at::IntArrayRef sizes,
                              at::ScalarType type) const = 0;
  // The same with the sizes, strides and type of `tensor`, which may be anywhere.
  // Requires: `tensor` is dense, and no two elements share memory.
  virtual at::Tensor AllocateLike(const Place& place, const at::Tensor& tensor) const = 0;
  // Calls an op on tensors of one place. The results replace the arguments on `stack`. Throws what
  // the op throws.
  virtual void Run(const c10::OperatorHandle& op, torch::jit::Stack& stack) const = 0;
  // Writes the elements of `from` into `to`, whose shape it has, wherever both are. They are
  // converted to the type of `to`.
  virtual void Copy(const at::Tensor& from, const at::Tensor& to) const = 0;
  // `tensor` at `place`: itself if it is there already, else a copy.
  virtual at::Tensor CopyTo(const Place& place, const at::Tensor& tensor) const = 0;
  // Writes the memory of `from` into that of `to`, whatever types they have.
  // Requires: both are contiguous and have the same number of bytes.
  virtual void MoveBytes(const at::Tensor& from, const at::Tensor& to) const = 0;

  // Waits until all places have done what they were given to do. Throws what has gone wrong there.
  virtual void Synchronize() const {}

  // Deals the devices to the processes of a job. `peers` outlives the backend; programs exchange
  // through it. With `exact_sums` partial sums are added in device order, one by one; otherwise
  // each process adds its own first, and the order is that of the processes. Called before the
  // backend is used. Requires: peers->size() * devices_per_process is the number of devices.
  void Join(Peers* peers, int64_t devices_per_process, bool exact_sums) {
    peers_ = peers;
    tile_peers_ = peers;
    homes_ = {devices_per_process, peers->rank()};
    exact_sums_ = exact_sums;
  }
  bool exact_sums() const { return exact_sums_; }
  // An exchange in which this process sends so many bytes goes on during what does not wait for it.
  // Every process decides for itself: what is exchanged, and in which order, is the same either
  // way. kNoOverlap, the default: none does.
  static constexpr int64_t kNoOverlap = -1;
  void set_overlap_from(int64_t bytes) { overlap_from_ = bytes; }
  int64_t overlap_from() const { return overlap_from_; }
  Peers* peers() const { return peers_; }  // null if one process runs all devices
  // Those through which programs exchange tiles: peers(), unless others were named, whose buffers
  // are on the GPU. What the processes agree on always goes through peers().
  Peers* tile_peers() const { return tile_peers_; }
  void set_tile_peers(Peers* peers) { tile_peers_ = peers; }
  // The first place of this process. In a job it has no other.
  Place here() const { return place(homes_.here * homes_.devices_per_process); }
  const Homes& homes() const { return homes_; }

 private:
  Peers* peers_ = nullptr;
  Peers* tile_peers_ = nullptr;
  Homes homes_;
  bool exact_sums_ = true;
  int64_t overlap_from_ = kNoOverlap;
};

// Where a process stands among those of its job.
struct PartOfJob {
  int processes = 1;
  int on_host = 1;         // those of the host
  int number_on_host = 0;  // of this process
};

// Makes the backend with this name: "cpu", "cpu:16", "cuda", "mock_tpu:v4-16",
// "mock_tpu:v5e-64:plan". `devices` overrides the number of devices that the name gives.
// `otherwise` is the number of virtual devices if neither gives one. With `job` it is the backend
// of one process, which has one place. Errors: InvalidArgument for an unknown `name`, with the
// known backends and the nearest one; Unavailable if the machine has no such hardware.
absl::StatusOr<std::shared_ptr<Backend>> MakeBackend(
    absl::string_view name, std::optional<int64_t> devices,
    std::optional<int64_t> otherwise = std::nullopt, const PartOfJob* job = nullptr);
std::vector<std::string> BackendNames();

}  // namespace spmd::runtime
