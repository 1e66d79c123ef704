// SPDX-License-Identifier: Apache-2.0
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cstring>

#include "csrc/runtime/kernels/kernels.h"

namespace spmd::runtime::kernels {
namespace {

void CheckIndices(const Tensor& indices) {
  TORCH_CHECK(indices.scalar_type() == at::kLong || indices.scalar_type() == at::kInt,
              "spmd::embedding: indices must be i64 or i32; got ", indices.scalar_type());
}

void CheckRow(int64_t row, int64_t num_rows) {
  TORCH_CHECK_INDEX(row >= 0 && (num_rows < 0 || row < num_rows), "index ", row,
                    " is out of range for an embedding of ", num_rows, " rows");
}

// For each index whether its row is held, and the row to read (any valid one if it is not held).
std::pair<Tensor, Tensor> HeldRows(const Tensor& indices, int64_t first_row, int64_t rows) {
  const Tensor local = indices.to(at::kLong).reshape({-1}).sub(first_row);
  Tensor held = local.ge(0).logical_and_(local.lt(rows));
  return {held, local.clamp(0, std::max<int64_t>(rows - 1, 0))};
}

Tensor LookUpRows(const Tensor& weight, const Tensor& indices, int64_t first_row,
                  int64_t num_rows) {
  const Tensor table = weight.contiguous();
  const Tensor where = indices.to(at::kLong).contiguous();
  const int64_t rows = table.size(0), width = table.size(1) * table.element_size();
  Tensor out = at::empty({where.numel(), table.size(1)}, table.options());
  const int64_t* index = where.const_data_ptr<int64_t>();
  const char* source = static_cast<const char*>(table.const_data_ptr());
  char* target = static_cast<char*>(out.mutable_data_ptr());
  const int64_t grain = std::max<int64_t>(1, 65536 / std::max<int64_t>(width, 1));
  at::parallel_for(0, where.numel(), grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      CheckRow(index[i], num_rows);
      const int64_t row = index[i] - first_row;
      if (row >= 0 && row < rows) {
        std::memcpy(target + i * width, source + row * width, width);
      } else {
        std::memset(target + i * width, 0, width);
      }
    }
  });
  return out;
}

// Each thread owns a range of table rows and reads all indices, so sums are in the order of the
// indices.
template <typename T>
void AddRows(const Tensor& grad, const Tensor& indices, int64_t padding_idx, int64_t first_row,
             Tensor& result) {
  const int64_t rows = result.size(0), width = result.size(1), count = indices.numel();
  const int64_t* index = indices.const_data_ptr<int64_t>();
  const T* source = grad.const_data_ptr<T>();
  T* target = result.mutable_data_ptr<T>();
  const int64_t grain = std::max<int64_t>(1, rows * 16384 / std::max<int64_t>(count * width, 1));
  at::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = index[i] - first_row;
      if (row < begin || row >= end || index[i] == padding_idx) continue;
      const T* from = source + i * width;
      T* to = target + row * width;
      for (int64_t k = 0; k < width; ++k) to[k] += from[k];
    }
  });
}

}  // namespace

Tensor Embedding(const Tensor& weight, const Tensor& indices, int64_t first_row, int64_t num_rows) {
  CheckIndices(indices);
  TORCH_CHECK(weight.dim() == 2, "spmd::embedding: weight must be [rows, width]; got ",
              weight.sizes());
  std::vector<int64_t> size = indices.sizes().vec();
  size.push_back(weight.size(1));
  if (weight.is_meta()) return at::empty(size, weight.options());
  if (indices.numel() == 0 || (weight.size(0) == 0 && num_rows != 0))
    return at::zeros(size, weight.options());
  if (weight.is_cpu()) return LookUpRows(weight, indices, first_row, num_rows).view(size);
  const auto [held, rows] = HeldRows(indices, first_row, weight.size(0));
  Tensor out = weight.index_select(0, rows);
  out.masked_fill_(held.logical_not().unsqueeze(1), 0);
  return out.view(size);
}

Tensor EmbeddingDWeight(const Tensor& grad, const Tensor& indices, int64_t num_weights,
                        int64_t padding_idx, int64_t first_row, int64_t num_rows) {
  CheckIndices(indices);
  TORCH_CHECK(
      grad.dim() == indices.dim() + 1 && grad.sizes().slice(0, indices.dim()) == indices.sizes(),
      "spmd::embedding_dweight: grad ", grad.sizes(), " must be [", indices.sizes(), "..., width]");
  const int64_t width = grad.size(-1);
  if (grad.is_meta()) return at::empty({num_weights, width}, grad.options());
  const Tensor rows = grad.reshape({indices.numel(), width});
  const Tensor where = indices.to(at::kLong).reshape({-1});
  const at::ScalarType type = grad.scalar_type();
  // Half types are summed in f32, since the sum of a frequent token would lose its small addends.
  const at::ScalarType work = type == at::kDouble ? at::kDouble : at::kFloat;
  Tensor result = at::zeros({num_weights, width}, grad.options().dtype(work));
  if (num_weights == 0 || rows.numel() == 0) return result.to(type);
  const Tensor source = rows.to(work).contiguous();
  if (grad.is_cpu()) {
    const Tensor index = where.contiguous();
    // The lookup that would have reported the index may be dead code.
    for (int64_t i = 0; num_rows >= 0 && i < index.numel(); ++i) {
      CheckRow(index.const_data_ptr<int64_t>()[i], num_rows);
    }
    if (work == at::kDouble) {
      AddRows<double>(source, index, padding_idx, first_row, result);
    } else {
      AddRows<float>(source, index, padding_idx, first_row, result);
    }
    return result.to(type);
  }
  const auto [held, local] = HeldRows(where, first_row, num_weights);
  const Tensor counted = held.logical_and(where.ne(padding_idx)).unsqueeze(1);
  result.index_add_(0, local, source.masked_fill(counted.logical_not(), 0));
  return result.to(type);
}

}  // namespace spmd::runtime::kernels
