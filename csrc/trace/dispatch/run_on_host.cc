// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/dispatch/run_on_host.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "csrc/runtime/dispatch_guard.h"
#include "csrc/trace/device/device_type.h"
#include "csrc/trace/device/generator.h"
#include "csrc/trace/recorder/arguments.h"
#include "csrc/trace/recorder/recorder.h"
#include "csrc/trace/recorder/tensor.h"
#include "csrc/trace/run/read_host.h"
#include "csrc/trace/session/session_state.h"

namespace spmd::trace {

namespace {

// A host copy that has the tensor's own strides if it is dense, so that results get PyTorch's
// strides.
at::Tensor HostCopy(SessionState& state, const at::Tensor& t, const std::string& op) {
  if (!t.defined() || !Buffer::IsOurs(t)) return t;
  const at::Tensor host = ReadHost(state, t, op.c_str());
  if (host.strides() == t.strides() || !t.is_non_overlapping_and_dense()) return host;
  at::Tensor shaped = at::empty_strided(t.sizes(), t.strides(), host.options());
  shaped.copy_(host);
  return shaped;
}

uint64_t SeedOf(const RandomKey& key) { return key.seed * 0x9e3779b97f4a7c15ull + key.counter; }

c10::IValue HostArgument(SessionState& state, const OpInfo& op, const ArgInfo& info,
                         const c10::IValue& arg) {
  switch (info.kind) {
    case ArgKind::kTensor:
      return arg.isTensor() ? c10::IValue(HostCopy(state, arg.toTensor(), op.name)) : arg;
    case ArgKind::kTensorList: {
      if (!arg.isList()) return arg;
      if (arg.isTensorList()) {
        std::vector<at::Tensor> tensors;
        for (const at::Tensor& t : arg.toTensorVector())
          tensors.push_back(HostCopy(state, t, op.name));
        return c10::IValue(std::move(tensors));
      }
      c10::List<std::optional<at::Tensor>> list;
      for (const c10::IValue& item : arg.toListRef()) {
        list.push_back(item.isTensor()
                           ? std::optional<at::Tensor>(HostCopy(state, item.toTensor(), op.name))
                           : std::nullopt);
      }
      return c10::IValue(std::move(list));
    }
    case ArgKind::kGenerator: {
      const RandomKey key =
          NextRandom(arg.isNone() ? std::nullopt : std::optional<at::Generator>(arg.toGenerator()));
      return c10::IValue(at::make_generator<at::CPUGeneratorImpl>(SeedOf(key)));
    }
    case ArgKind::kDropped:
      if (arg.isDevice()) return c10::IValue(c10::Device(c10::kCPU));
      return info.name == "pin_memory" ? c10::IValue() : arg;
    default:
      return arg;
  }
}

at::Tensor Upload(const at::Tensor& host) {
  if (!host.defined()) return host;
  TORCH_CHECK_NOT_IMPLEMENTED(!host.is_nested(),
                              "torch_spmd: nested tensors are not supported on '", TheDevice(),
                              "'; keep them on the CPU");
  if (host.layout() != c10::kStrided) return host.to(TheDevice());
  TensorMeta meta = TensorMeta::Of(host);
  meta.offset = 0;
  if (!host.is_non_overlapping_and_dense()) {
    meta = TensorMeta::Contiguous(host.scalar_type(), host.sizes());
  }
  return NewTensor(meta, HostValue(host, /*steal=*/false));
}

c10::IValue UploadResult(const c10::IValue& v) {
  if (v.isTensor()) return c10::IValue(Upload(v.toTensor()));
  if (v.isTensorList()) {
    std::vector<at::Tensor> out;
    for (const at::Tensor& t : v.toTensorVector()) out.push_back(Upload(t));
    return c10::IValue(std::move(out));
  }
  return v;
}

// While it lives, an op that takes no generator draws from the device's random state; the CPU's
// generator is unchanged afterwards.
class SeededHost {
 public:
  explicit SeededHost(const OpInfo& op) {
    const bool takes_one = std::any_of(op.args.begin(), op.args.end(), [](const ArgInfo& arg) {
      return arg.kind == ArgKind::kGenerator;
    });
    if (takes_one || !op.handle.hasTag(at::Tag::nondeterministic_seeded)) return;
    const RandomKey key = NextRandom(std::nullopt);
    before_ = generator_.get_state();
    generator_.set_current_seed(SeedOf(key));
  }
  ~SeededHost() {
    if (before_.defined()) generator_.set_state(before_);
  }
  SeededHost(const SeededHost&) = delete;
  SeededHost& operator=(const SeededHost&) = delete;

 private:
  at::Generator generator_ = at::globalContext().defaultGenerator(at::kCPU);
  at::Tensor before_;
};

int64_t BytesOf(const c10::IValue& v) {
  if (v.isTensor()) {
    const at::Tensor& t = v.toTensor();
    if (!t.defined()) return 0;
    if (t.is_sparse()) return BytesOf(t._indices()) + BytesOf(t._values());
    return static_cast<int64_t>(t.nbytes());
  }
  int64_t bytes = 0;
  if (v.isList()) {
    for (const c10::IValue& item : v.toListRef()) bytes += BytesOf(item);
  }
  return bytes;
}

std::string BytesToString(int64_t bytes) {
  constexpr std::array<std::pair<int64_t, const char*>, 3> kUnits = {
      {{int64_t{1} << 30, "GiB"}, {int64_t{1} << 20, "MiB"}, {int64_t{1} << 10, "KiB"}}};
  for (const auto& [size, name] : kUnits) {
    if (bytes >= size) {
      return absl::StrFormat("%.1f %s", static_cast<double>(bytes) / static_cast<double>(size),
                             name);
    }
  }
  return absl::StrCat(bytes, " bytes");
}

// Warns once for each op that it ran on the host: its operands were gathered, and what was pending
// ran first.
void SayOnce(SessionState& state, const OpInfo& op, const std::vector<c10::IValue>& args,
             const torch::jit::Stack& results) {
  if (state.hooks.warn == nullptr || !state.diagnostics.FirstTime("on the host " + op.name)) return;
  int64_t here = 0, back = 0;
  for (const c10::IValue& arg : args) here += BytesOf(arg);
  for (const c10::IValue& result : results) back += BytesOf(result);
  const bool users = !op.name.starts_with("aten::");
  state.hooks.warn(absl::StrCat(
      "torch_spmd: ", op.name, " runs on the host, at once and unsharded: ", BytesToString(here),
      " were copied to the host, ", BytesToString(back), " back. ",
      users
          ? "The shapes of its results are not known: torch.library.register_fake gives them, and "
            "torch_spmd.register_rule says how it may be sharded. "
          : "",
      "This warning is given once per op; torch_spmd.debug.explain_compile() counts them"));
}

void WriteBack(SessionState& state, const at::Tensor& target, const at::Tensor& host) {
  if (!target.defined() || !Buffer::IsOurs(target)) return;
  if (target.sizes() != host.sizes()) ResizeTensor(state, target, host.sizes());
  Write(state, target, state.tape->Use(HostValue(host, /*steal=*/false), nullptr));
}

}  // namespace

void RunOnHost(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const std::vector<c10::IValue> args = PopArguments(op, stack);
  ++state.diagnostics.statistics.host_fallbacks;
  state.call.looked_at_values = true;
  torch::jit::Stack host;
  for (size_t i = 0; i < args.size(); ++i) {
    host.push_back(HostArgument(state, op, op.args[i], args[i]));
  }
  const std::vector<c10::IValue> host_args = host;
  {
    const runtime::DispatchGuard guard;
    const SeededHost seeded(op);
    op.handle.callBoxed(&host);
  }
  for (const int w : op.written) {
    if (args[w].isTensor()) {
      WriteBack(state, args[w].toTensor(), host_args[w].toTensor());
    } else if (args[w].isTensorList()) {
      const auto targets = args[w].toTensorVector();
      const auto values = host_args[w].toTensorVector();
      for (size_t k = 0; k < targets.size(); ++k) WriteBack(state, targets[k], values[k]);
    }
  }
  for (size_t r = 0; r < host.size(); ++r) {
    const int alias = op.result_alias[r];
    stack->push_back(alias >= 0 ? args[alias] : UploadResult(host[r]));
  }
  SayOnce(state, op, host_args, host);
}

}  // namespace spmd::trace
