// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/api/register_device.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/GeneratorForPrivateuseone.h>
#include <c10/core/DeviceGuard.h>
#include <pthread.h>

#include <chrono>
#include <new>

#include "csrc/runtime/kernels/register.h"
#include "csrc/runtime/tiled_tensor.h"
#include "csrc/trace/api/register_kernels.h"
#include "csrc/trace/api/session.h"
#include "csrc/trace/compat/device.h"
#include "csrc/trace/device/device_type.h"
#include "csrc/trace/device/generator.h"
#include "csrc/trace/device/refused_collectives.h"
#include "csrc/trace/device/status_to_exception.h"
#include "csrc/trace/op/autocast.h"
#include "csrc/trace/recorder/marks.h"
#include "csrc/trace/recorder/saved_marks.h"
#include "csrc/trace/recorder/tensor.h"
#include "csrc/trace/run/end_of_step.h"
#include "csrc/trace/run/join_threads.h"
#include "csrc/trace/session/session_lock.h"
#include "csrc/trace/value/allocator.h"

namespace spmd::trace {

namespace {

void CheckIndex(c10::DeviceIndex index) {
  TORCH_CHECK(index <= 0, "torch_spmd has one device, '", TheDevice(), "'; got index ",
              static_cast<int>(index),
              "; the devices of a mesh are chosen by mark_sharding, not by index");
}

bool HasDType(c10::ScalarType type) {
  try {
    runtime::FromScalarType(type);
    return true;
  } catch (const c10::NotImplementedError&) {
    return false;
  }
}

using Time = std::chrono::steady_clock::time_point;

// There is one device with one stream: the tape orders the work.
struct Guard final : compat::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kDeviceType; }
  c10::Device exchangeDevice(c10::Device d) const override {
    CheckIndex(d.index());
    return TheDevice();
  }
  c10::Device getDevice() const override { return TheDevice(); }
  void setDevice(c10::Device d) const override { CheckIndex(d.index()); }
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override {
    return c10::Stream(c10::Stream::DEFAULT, TheDevice());
  }
  c10::Stream getDefaultStream(c10::Device) const override {
    return c10::Stream(c10::Stream::DEFAULT, TheDevice());
  }
  c10::Stream getNewStream(c10::Device, int) const override {
    return c10::Stream(c10::Stream::DEFAULT, TheDevice());
  }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override {
    return c10::Stream(c10::Stream::DEFAULT, TheDevice());
  }
  c10::Stream exchangeStream(c10::Stream) const override {
    return c10::Stream(c10::Stream::DEFAULT, TheDevice());
  }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  // Runs what is pending. For an event with a time, also waits until it has run: then `event` is
  // that time. Other events are null.
  void record(void** event, const c10::Stream&, const c10::DeviceIndex,
              const c10::EventFlag flag) const override {
    const bool timed = flag == c10::EventFlag::BACKEND_DEFAULT;
    ThrowIfError(Session::Get().Sync(/*wait=*/timed));
    if (!timed) return;
    if (*event == nullptr) *event = new Time;
    *static_cast<Time*>(*event) = std::chrono::steady_clock::now();
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void* event) const override {
    synchronizeEvent(event);
    return true;
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Time*>(event);
  }
  double elapsedTime(void* from, void* to, const c10::DeviceIndex) const override {
    const std::chrono::duration<double, std::milli> between =
        *static_cast<Time*>(to) - *static_cast<Time*>(from);
    return between.count();
  }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {
    ThrowIfError(Session::Get().Sync(/*wait=*/true));
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) ThrowIfError(Session::Get().Sync(/*wait=*/true));
  }
  void synchronizeDevice(const c10::DeviceIndex) const override {
    ThrowIfError(Session::Get().Sync(/*wait=*/true));
  }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
#if __has_include(<c10/core/DeviceCapability.h>)  // PyTorch 2.11 has none
  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    c10::DeviceCapability result;
    for (size_t i = 0; i < c10::NUMBER_OF_DEVICE_CAPABILITIES; ++i) {
      if (HasDType(static_cast<c10::ScalarType>(i))) continue;
      result.capability_data.capability_bits &= ~(uint64_t{1} << i);
    }
    return result;
  }
#endif
};

// Memory of the host for copies to and from the device: ordinary memory, of which nothing is kept.
struct HostAllocator final : at::HostAllocator {
  c10::DataPtr allocate(size_t bytes) override { return Ordinary().allocate(bytes); }
  c10::DeleterFnPtr raw_deleter() const override { return Ordinary().raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}

 private:
  static c10::Allocator& Ordinary() { return *c10::GetAllocator(c10::DeviceType::CPU); }
};

HostAllocator& TheHostAllocator() {
  static auto* const allocator = new HostAllocator;
  return *allocator;
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  void setCurrentDevice(c10::DeviceIndex index) const override { CheckIndex(index); }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    CheckIndex(index);
    return 0;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    CheckIndex(index);
    return DefaultGenerator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    CheckIndex(index);
    return NewGenerator();
  }
  at::Device getDeviceFromPtr(void*) const override { return TheDevice(); }
  bool isPinnedPtr(const void*) const override { return false; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &TheHostAllocator(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    SessionLock lock;
    ThrowIfError(RunWaitingStep(*lock));
    ResizeStorage(*lock, storage.unsafeGetStorageImpl(), static_cast<int64_t>(bytes));
  }
};

}  // namespace

void RegisterDevice() {
  static bool done = false;
  if (done) return;
  done = true;
  runtime::RegisterKernels();
  compat::RegisterDeviceGuard(kDeviceType, new Guard);
  c10::SetAllocator(kDeviceType, DeviceAllocatorInstance());
  at::setHostAllocator(kDeviceType, &TheHostAllocator());
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  RegisterKernels();
  RegisterAutocast();
  RegisterSavedMarks();
  RefuseCollectives();
  take_from_thread = &TakeFromThread;
  pthread_atfork(nullptr, nullptr, [] {
    session_flags.forked = session_flags.used.load();
    // A thread that stayed in the parent may hold it, to wait for a program.
    if (!session_mutex.IsMine()) new (&session_mutex) SessionMutex;
  });
}

}  // namespace spmd::trace
