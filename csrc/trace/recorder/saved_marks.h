// SPDX-License-Identifier: Apache-2.0
// Marks in files. torch.save keeps them as one text in the metadata that PyTorch lets a device add
// to a tensor. If the device is not known, the file reads like any other.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace spmd::trace {

struct SessionState;

// The mark as text that GiveSavedMark reads; "" for none.
std::string SavedMark(const at::Tensor& tensor);
void GiveSavedMark(SessionState& state, const at::Tensor& tensor, const std::string& text);
// Makes torch.save and torch.load keep marks, as metadata of tensors.
void RegisterSavedMarks();

}  // namespace spmd::trace
