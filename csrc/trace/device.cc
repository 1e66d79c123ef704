// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/device.h"

#include <ATen/core/GeneratorForPrivateuseone.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <pthread.h>

#include "csrc/runtime/kernels/register.h"
#include "csrc/trace/buffer.h"
#include "csrc/trace/generator.h"
#include "csrc/trace/marks.h"
#include "csrc/trace/refused_collectives.h"
#include "csrc/trace/session_state.h"
#include "csrc/trace/status_to_exception.h"
#include "csrc/trace/tensor.h"

namespace spmd::trace {

namespace {

void CheckIndex(c10::DeviceIndex index) {
  TORCH_CHECK(index <= 0, "torch_spmd has one device, '", TheDevice(), "'; got index ",
              static_cast<int>(index),
              "; the devices of a mesh are chosen by mark_sharding, not by index");
}

// There is one device with one stream: the tape orders the work.
struct Guard final : c10::impl::DeviceGuardImplInterface {
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
  void record(void**, const c10::Stream&, const c10::DeviceIndex,
              const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {
    ThrowIfError(Session::Get().Sync(/*wait=*/true));
  }
  void synchronizeEvent(void*) const override { ThrowIfError(Session::Get().Sync(/*wait=*/true)); }
  void synchronizeDevice(const c10::DeviceIndex) const override {
    ThrowIfError(Session::Get().Sync(/*wait=*/true));
  }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};

// Makes storages for PyTorch itself: new Buffers of bytes.
struct Allocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr data = NewDataPtr();
    static_cast<Buffer*>(data.get_context())->form =
        ContiguousForm(at::kByte, {static_cast<int64_t>(bytes)});
    return data;
  }
  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK(
        false,
        "torch_spmd: storages of the device have no memory that could be copied byte by byte");
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override { return {}; }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}
};

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
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return c10::GetAllocator(c10::DeviceType::CPU);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    SessionLock lock;
    ResizeStorage(*lock, storage.unsafeGetStorageImpl(), static_cast<int64_t>(bytes));
  }
};

}  // namespace

c10::Allocator* DeviceAllocatorInstance() {
  static auto* allocator = new Allocator;
  return allocator;
}

void RegisterDevice() {
  static bool done = false;
  if (done) return;
  done = true;
  runtime::RegisterKernels();
  c10::impl::DeviceGuardImplRegistrar(kDeviceType, new Guard);
  c10::SetAllocator(kDeviceType, DeviceAllocatorInstance());
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  RegisterKernels();
  RegisterAutocast();
  RegisterSavedMarks();
  RefuseCollectives();
  pthread_atfork(nullptr, nullptr,
                 [] { Session::Get().state().forked = Session::Get().state().used.load(); });
}

}  // namespace spmd::trace
