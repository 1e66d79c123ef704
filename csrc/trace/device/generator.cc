// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/device/generator.h"

#include <ATen/Utils.h>
#include <ATen/core/GeneratorForPrivateuseone.h>
#include <c10/core/GeneratorImpl.h>

#include <cstring>
#include <random>

#include "csrc/trace/compat/tensor.h"
#include "csrc/trace/device/device_type.h"

namespace spmd::trace {

namespace {

class GeneratorImpl final : public c10::GeneratorImpl {
 public:
  GeneratorImpl()
      : c10::GeneratorImpl(TheDevice(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

  void set_current_seed(uint64_t seed) override {
    seed_ = seed;
    counter_ = 0;
  }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override {
    std::random_device random;
    constexpr int kBits = 53;  // which a double holds, as PyTorch's generators do
    set_current_seed((uint64_t{random()} << 32 | random()) & ((uint64_t{1} << kBits) - 1));
    return seed_;
  }
  void set_offset(uint64_t offset) override { counter_ = offset; }
  uint64_t get_offset() const override { return counter_; }
  uint64_t Next() { return counter_++; }

  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    at::Tensor state = compat::EmptyOnCpu({2 * sizeof(uint64_t)}, at::kByte);
    std::memcpy(state.data_ptr(), &seed_, sizeof(seed_));
    std::memcpy(static_cast<char*>(state.data_ptr()) + sizeof(seed_), &counter_, sizeof(counter_));
    return state.getIntrusivePtr();
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK_TYPE(
        state.layout() == at::kStrided && state.device().is_cpu() && state.dtype() == at::kByte,
        "RNG state must be a torch.ByteTensor");
    TORCH_CHECK(state.is_contiguous(), "RNG state must be contiguous");
    TORCH_CHECK(state.numel() == 2 * sizeof(uint64_t), "RNG state of ", TheDevice(), " has ",
                2 * sizeof(uint64_t), " bytes; got ", state.numel());
    const auto* bytes = static_cast<const char*>(state.data());
    std::memcpy(&seed_, bytes, sizeof(seed_));
    std::memcpy(&counter_, bytes + sizeof(seed_), sizeof(counter_));
  }

 private:
  GeneratorImpl* clone_impl() const override {
    auto* copy = new GeneratorImpl;
    copy->seed_ = seed_;
    copy->counter_ = counter_;
    return copy;
  }
  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t counter_ = 0;
};

}  // namespace

const at::Generator& DefaultGenerator() {
  static const auto* generator = new at::Generator(at::make_generator<GeneratorImpl>());
  return *generator;
}

at::Generator NewGenerator() { return at::make_generator<GeneratorImpl>(); }

RandomKey NextRandom(const std::optional<at::Generator>& generator) {
  const at::Generator& g =
      generator.has_value() && generator->defined() ? *generator : DefaultGenerator();
  TORCH_CHECK(g.device().type() == kDeviceType, "Expected a '", TheDevice().type(),
              "' device type for generator but found '", g.device().type(), "'");
  auto* impl = static_cast<GeneratorImpl*>(g.unsafeGetGeneratorImpl());
  const std::lock_guard<std::mutex> lock(impl->mutex_);
  return {impl->current_seed(), impl->Next()};
}

}  // namespace spmd::trace
