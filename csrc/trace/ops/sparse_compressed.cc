// SPDX-License-Identifier: Apache-2.0
// Compressed sparse tensors: conversions, sums and masks, in ops on their indices and values.
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/ops/_convert_indices_from_coo_to_csr.h>
#include <ATen/ops/_convert_indices_from_csr_to_coo.h>
#include <ATen/ops/_sparse_compressed_tensor_unsafe.h>
#include <ATen/ops/_to_sparse_bsc_ops.h>
#include <ATen/ops/_to_sparse_bsr_ops.h>
#include <ATen/ops/_to_sparse_csc_ops.h>
#include <ATen/ops/_to_sparse_csr_ops.h>
#include <ATen/ops/_to_sparse_ops.h>
#include <ATen/ops/_unique.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/index.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/sparse_mask_ops.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "csrc/trace/ops/sparse.h"
#include "csrc/trace/ops/sparse_parts.h"

namespace spmd::trace {

namespace {

constexpr c10::DispatchKeySet kComposed(c10::DispatchKey::SparseCsrCPU);

bool IsOfBlocks(at::Layout layout) { return layout == at::kSparseBsr || layout == at::kSparseBsc; }

// The parts of a compressed tensor as a coalesced one in coordinate form, whose sparse dimensions
// are the compressed dimension and the other one, and whose values are blocks.
at::Tensor AsCoo(const at::Tensor& self) {
  const auto [compressed, plain] = at::sparse_csr::getCompressedPlainIndices(self);
  TORCH_CHECK_NOT_IMPLEMENTED(compressed.dim() == 1,
                              "torch_spmd: this takes no batches of sparse matrices");
  const at::Tensor values = self.values();
  std::vector<int64_t> sizes = {self.size(0), self.size(1)};
  if (IsOfBlocks(self.layout())) {
    sizes = {self.size(0) / values.size(1), self.size(1) / values.size(2)};
  }
  if (!IsOfRows(self.layout())) std::swap(sizes[0], sizes[1]);
  for (int64_t d = 1; d < values.dim(); ++d) sizes.push_back(values.size(d));
  const at::Tensor indices = at::_convert_indices_from_csr_to_coo(compressed, plain);
  return Coo(self, sizes, indices, values, /*coalesced=*/true);
}

// What AsCoo has made, as a tensor of the layout and index type of `like`.
at::Tensor Compressed(const at::Tensor& like, at::IntArrayRef sizes, at::Layout layout,
                      const at::Tensor& coo) {
  const auto [compressed, plain] = at::sparse_csr::getCompressedPlainIndices(like);
  const at::Tensor indices = coo._indices();
  const at::Tensor starts = at::_convert_indices_from_coo_to_csr(
      indices.select(0, 0), coo.size(0), compressed.scalar_type() == at::kInt);
  const at::Tensor values = coo._values();
  return at::_sparse_compressed_tensor_unsafe(
      starts, indices.select(0, 1).to(plain.scalar_type()), values, sizes,
      like.options().layout(layout).dtype(values.scalar_type()));
}

// --- to blocks ---

// Waits for the number of blocks.
at::Tensor InBlocks(const at::Tensor& self, at::IntArrayRef block, at::Layout layout) {
  TORCH_CHECK(block.size() == 2 && block[0] > 0 && block[1] > 0,
              "to_sparse: expected two block sizes above 0; got ", block);
  TORCH_CHECK(self.size(0) % block[0] == 0 && self.size(1) % block[1] == 0,
              "to_sparse: tensor sparse size (", self.size(0), ",", self.size(1),
              ") must be divisible by given blocksize (", block[0], ",", block[1], ")");
  const at::Tensor coo = AsCoo(self), indices = coo._indices(), values = coo._values();
  const bool of_rows = IsOfRows(layout);
  const int64_t height = block[of_rows ? 0 : 1], width = block[of_rows ? 1 : 0];
  const int64_t across = coo.size(1) / width;
  const at::Tensor along = indices.select(0, 0), other = indices.select(0, 1);
  const auto down = [](const at::Tensor& x, int64_t by) { return x.div(by, "floor"); };
  const auto [blocks, block_of] =
      at::_unique(down(along, height).mul(across).add(down(other, width)), /*sorted=*/true,
                  /*return_inverse=*/true);
  const at::Tensor row = along.remainder(height), column = other.remainder(width);
  const at::Tensor place = of_rows ? row.mul(width).add(column) : column.mul(height).add(row);
  std::vector<int64_t> sizes = values.sizes().vec();
  sizes[0] = blocks.size(0) * height * width;
  at::Tensor spread = at::zeros(sizes, values.options())
                          .index_copy(0, block_of.mul(height * width).add(place), values);
  spread = spread.unflatten(0, {blocks.size(0), block[0], block[1]});
  std::vector<int64_t> grid = spread.sizes().vec();
  grid[0] = across;
  grid.insert(grid.begin(), coo.size(0) / height);
  const at::Tensor at_blocks = at::stack({down(blocks, across), blocks.remainder(across)});
  return Compressed(self, self.sizes(), layout,
                    Coo(self, grid, at_blocks, spread, /*coalesced=*/true));
}

// --- to the layout of the other dimension ---

// The same blocks, compressed along the other dimension. Batches are one matrix whose rows are
// numbered on.
at::Tensor Flipped(const at::Tensor& self) {
  const auto [compressed, plain] = at::sparse_csr::getCompressedPlainIndices(self);
  const int64_t last = plain.dim() - 1, each = plain.size(-1);
  const std::vector<int64_t> batch = plain.sizes().slice(0, last).vec();
  const int64_t batches = c10::multiply_integers(batch);
  const at::Tensor values = self.values();
  at::DimVector sizes(self.sizes().slice(last, 2));
  if (IsOfBlocks(self.layout())) {
    const at::DimVector block = at::sparse_csr::getBlockSize(self);
    sizes = {sizes[0] / block[0], sizes[1] / block[1]};
  }
  const bool of_rows = IsOfRows(self.layout());
  const int64_t from = sizes[of_rows ? 0 : 1], to = sizes[of_rows ? 1 : 0];
  const at::Tensor indices = at::_convert_indices_from_csr_to_coo(compressed, plain);
  const at::Tensor old = indices.select(0, last), index = indices.select(0, last + 1);
  const at::Tensor number = at::arange(batches, index.options());
  const at::Tensor in_batch = number.unsqueeze(1).expand({batches, each}).reshape({-1});
  const at::Tensor row = in_batch.mul(to).add(index);
  const at::Tensor order = row.mul(from).add(old).argsort();
  const at::Tensor starts =
      at::_convert_indices_from_coo_to_csr(row.index_select(0, order), batches * to);
  std::vector<int64_t> of_starts = batch, of_values = batch;
  of_starts.push_back(to + 1);
  of_values.push_back(each);
  const at::Tensor places = number.mul(to).unsqueeze(1).add(at::arange(to + 1, index.options()));
  const at::Tensor by_batch = starts.index_select(0, places.reshape({-1}))
                                  .view({batches, to + 1})
                                  .sub(number.mul(each).unsqueeze(1));
  return at::_sparse_compressed_tensor_unsafe(
      by_batch.view(of_starts).to(compressed.scalar_type()),
      old.index_select(0, order).view(of_values).to(plain.scalar_type()),
      values.flatten(0, last).index_select(0, order).unflatten(0, of_values), self.sizes(),
      self.options().layout(at::sparse_csr::flip_compressed_layout(self.layout())));
}

bool HasBlocks(const at::Tensor& self, at::IntArrayRef block) {
  return at::IntArrayRef(at::sparse_csr::getBlockSize(self)) == block;
}

// What these do not convert, PyTorch's function refuses, or converts in two steps.
at::Tensor ToCsr(const at::Tensor& self, std::optional<int64_t> dense_dim) {
  if (self.layout() == at::kSparseCsc && !dense_dim) return Flipped(self);
  return at::_ops::_to_sparse_csr::redispatch(kComposed, self, dense_dim);
}
at::Tensor ToCsc(const at::Tensor& self, std::optional<int64_t> dense_dim) {
  if (self.layout() == at::kSparseCsr && !dense_dim) return Flipped(self);
  return at::_ops::_to_sparse_csc::redispatch(kComposed, self, dense_dim);
}
at::Tensor ToBsr(const at::Tensor& self, at::IntArrayRef block, std::optional<int64_t> dense_dim) {
  if (self.layout() == at::kSparseCsr && !dense_dim) return InBlocks(self, block, at::kSparseBsr);
  if (self.layout() == at::kSparseBsc && HasBlocks(self, block)) return Flipped(self);
  return at::_ops::_to_sparse_bsr::redispatch(kComposed, self, block, dense_dim);
}
at::Tensor ToBsc(const at::Tensor& self, at::IntArrayRef block, std::optional<int64_t> dense_dim) {
  if (self.layout() == at::kSparseCsc && !dense_dim) return InBlocks(self, block, at::kSparseBsc);
  if (self.layout() == at::kSparseBsr && HasBlocks(self, block)) return Flipped(self);
  return at::_ops::_to_sparse_bsc::redispatch(kComposed, self, block, dense_dim);
}

// PyTorch's function calls its own conversions, and not the ones above.
at::Tensor ToLayout(const at::Tensor& self, std::optional<at::Layout> layout,
                    at::OptionalIntArrayRef block, std::optional<int64_t> dense_dim) {
  const bool has_block = block.has_value() || IsOfBlocks(self.layout());
  const at::DimVector size = block.has_value() || !has_block
                                 ? at::DimVector(block.value_or(at::IntArrayRef()))
                                 : at::sparse_csr::getBlockSize(self);
  switch (layout.value_or(at::kSparse)) {
    case at::kSparseCsr:
      return self.to_sparse_csr(dense_dim);
    case at::kSparseCsc:
      return self.to_sparse_csc(dense_dim);
    case at::kSparseBsr:
      return self.to_sparse_bsr(size, dense_dim);
    case at::kSparseBsc:
      return self.to_sparse_bsc(size, dense_dim);
    default:
      return at::_ops::_to_sparse::redispatch(kComposed, self, layout, block, dense_dim);
  }
}

// --- masks ---

at::Tensor Masked(const at::Tensor& self, const at::Tensor& mask) {
  CheckHere("sparse_mask", {&self, &mask});
  TORCH_CHECK(self.sizes() == mask.sizes(),
              "sparse_mask(): operands have incompatible sizes; self has size ", self.sizes(),
              " but mask has size ", mask.sizes());
  if (self.layout() != at::kStrided || at::sparse_csr::numBatchDimensions(mask) > 0) {
    return at::_ops::sparse_mask::redispatch(kComposed, self, mask);
  }
  at::Tensor tiles = self;
  if (IsOfBlocks(mask.layout())) {
    const at::DimVector block = at::sparse_csr::getBlockSize(mask);
    tiles = self.unflatten(1, {self.size(1) / block[1], block[1]})
                .unflatten(0, {self.size(0) / block[0], block[0]})
                .transpose(1, 2);
  }
  if (!IsOfRows(mask.layout())) tiles = tiles.transpose(0, 1);
  const auto [compressed, plain] = at::sparse_csr::getCompressedPlainIndices(mask);
  const at::Tensor values =
      at::index(tiles, AlongEachDim(at::_convert_indices_from_csr_to_coo(compressed, plain)));
  return at::_sparse_compressed_tensor_unsafe(compressed.clone(), plain.clone(), values,
                                              mask.sizes(),
                                              mask.options().dtype(values.scalar_type()));
}

// --- sums ---

at::Tensor SumOfCompressed(const at::Tensor& self, const at::Tensor& other,
                           const at::Scalar& alpha) {
  CheckHere("add", {&self, &other});
  if (self.layout() == at::kStrided) return at::add(self, other.to_sparse(), alpha);
  if (other.layout() == at::kStrided) {
    return at::add(Times(other.to(at::result_type(self, other)), alpha), self.to_sparse());
  }
  TORCH_CHECK(self.sizes() == other.sizes(),
              "torch.add: Expected input tensors to have the same shape, but got tensor `self` ",
              "with shape ", self.sizes(), " and tensor `other` with shape ", other.sizes());
  TORCH_CHECK(self.layout() == other.layout(), "add: expected sparse tensors of one layout; got ",
              self.layout(), " and ", other.layout());
  return Compressed(self, self.sizes(), self.layout(), at::add(AsCoo(self), AsCoo(other), alpha));
}
at::Tensor& SumOfCompressedInto(const at::Tensor& self, const at::Tensor& other,
                                const at::Scalar& alpha, at::Tensor& out) {
  const at::Tensor sum = SumOfCompressed(self, other, alpha);
  if (sum.layout() != at::kStrided) out.resize_as_sparse_(sum);
  return Into(out, sum);
}

// The sum over rows, columns or both, of which one each is left.
at::Tensor SumOverDims(const at::Tensor& self, at::IntArrayRef dims, bool keepdim,
                       std::optional<at::ScalarType> dtype) {
  TORCH_CHECK(keepdim, "reduction operations on CSR tensors with keepdim=False is unsupported");
  TORCH_CHECK(self.layout() == at::kSparseCsr && self.dim() == 2,
              "sum over dimensions takes a matrix in CSR form; got layout ", self.layout(),
              " and shape ", self.sizes());
  const at::Tensor coo = AsCoo(self);
  std::array<bool, 2> summed = {dims.empty(), dims.empty()};
  for (const int64_t d : dims) summed[c10::maybe_wrap_dim(d, 2)] = true;
  std::vector<int64_t> sizes = self.sizes().vec();
  std::vector<at::Tensor> along = coo._indices().unbind(0);
  for (const int64_t d : {0, 1}) {
    if (!summed[d]) continue;
    sizes[d] = std::min<int64_t>(sizes[d], 1);
    along[d] = at::zeros_like(along[d]);
  }
  const bool whole = at::isIntegralType(self.scalar_type(), /*includeBool=*/true);
  const at::Tensor values =
      coo._values().to(dtype.value_or(whole ? at::kLong : self.scalar_type()));
  return Compressed(self, sizes, at::kSparseCsr,
                    Coo(self, sizes, at::stack(along), values, /*coalesced=*/false).coalesce());
}

}  // namespace

void AddCompressed(torch::Library& library) {
  library.impl("_sparse_csr_sum.dim_dtype", TORCH_FN(SumOverDims));
  library.impl("_to_sparse", TORCH_FN(ToLayout));
  library.impl("_to_sparse_bsc", TORCH_FN(ToBsc));
  library.impl("_to_sparse_bsr", TORCH_FN(ToBsr));
  library.impl("_to_sparse_csc", TORCH_FN(ToCsc));
  library.impl("_to_sparse_csr", TORCH_FN(ToCsr));
  library.impl("add.out", TORCH_FN(SumOfCompressedInto));
  library.impl("sparse_mask", TORCH_FN(Masked));
}

}  // namespace spmd::trace
