// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/run_on_host.h"

#include <utility>
#include <vector>

namespace spmd::runtime {
namespace {

class HostCopies {
 public:
  explicit HostCopies(c10::Device device) : device_(device) {}

  at::Tensor Of(const at::Tensor& given) {
    if (!given.defined() || given.device() != device_) return given;
    for (const auto& [theirs, copy] : copies_) {
      if (theirs.is_same(given)) return copy;
    }
    return copies_.emplace_back(given, given.to(at::kCPU)).second;
  }

  c10::IValue Of(const c10::IValue& value) {
    if (value.isTensor()) return Of(value.toTensor());
    if (value.isDevice()) return value.toDevice() == device_ ? c10::Device(at::kCPU) : value;
    if (value.isTensorList()) {
      std::vector<at::Tensor> list = value.toTensorVector();
      for (at::Tensor& t : list) t = Of(t);
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& t : value.toOptionalTensorList()) {
        list.push_back(t.has_value() ? std::optional<at::Tensor>(Of(*t)) : std::nullopt);
      }
      return list;
    }
    return value;
  }

  // The result, where the tiles are.
  at::Tensor Back(const at::Tensor& result) const {
    if (!result.defined()) return result;
    for (const auto& [theirs, copy] : copies_) {
      if (copy.is_same(result)) return theirs;
    }
    return result.to(device_);
  }

  void WriteBack(const c10::IValue& argument) const {
    if (!argument.isTensor()) return;
    for (const auto& [theirs, copy] : copies_) {
      if (copy.is_same(argument.toTensor())) theirs.copy_(copy);
    }
  }

 private:
  const c10::Device device_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;
};

}  // namespace

void RunOnHost(const c10::OperatorHandle& op, torch::jit::Stack& stack, c10::Device device) {
  HostCopies copies(device);
  torch::jit::Stack on_host;
  for (const c10::IValue& argument : stack) on_host.push_back(copies.Of(argument));
  const torch::jit::Stack arguments = on_host;
  op.callBoxed(&on_host);
  const c10::FunctionSchema& schema = op.schema();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::AliasInfo* const alias = schema.arguments()[i].alias_info();
    if (alias != nullptr && alias->isWrite()) copies.WriteBack(arguments[i]);
  }
  stack.clear();
  for (const c10::IValue& result : on_host) {
    if (result.isTensor()) {
      stack.push_back(copies.Back(result.toTensor()));
    } else if (result.isTensorList()) {
      std::vector<at::Tensor> list = result.toTensorVector();
      for (at::Tensor& t : list) t = copies.Back(t);
      stack.push_back(std::move(list));
    } else {
      stack.push_back(result);
    }
  }
}

}  // namespace spmd::runtime
