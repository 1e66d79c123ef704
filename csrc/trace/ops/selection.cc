// SPDX-License-Identifier: Apache-2.0
// Ops that choose elements by value: masks, nonzero, unique. If the values determine the size of
// the result, the op waits for their number, as on CUDA, or for a small mask; the elements stay on
// their devices.
#include <ATen/ExpandUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/any.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "csrc/trace/dispatch/record_generic.h"
#include "csrc/trace/dispatch/run_on_host.h"
#include "csrc/trace/ops/choose_elements.h"
#include "csrc/trace/ops/handlers.h"
#include "csrc/trace/recorder/arguments.h"
#include "csrc/trace/recorder/tensor.h"

namespace spmd::trace {

namespace {

using Indices = c10::List<std::optional<at::Tensor>>;

at::Tensor FlagsOf(const at::Tensor& t) { return t.scalar_type() == at::kBool ? t : t.ne(0); }

at::TensorOptions Integers(const at::Tensor& t) { return t.options().dtype(at::kLong); }

// The elements of `self` at these coordinates.
at::Tensor ElementsAt(const at::Tensor& self, std::vector<at::Tensor> coordinates) {
  Indices indices;
  for (at::Tensor& along : coordinates) indices.push_back(std::move(along));
  return at::index(self, indices);
}

void Nonzero(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const Args a = PopArguments(op, stack);
  stack->push_back(ChosenRows(FlagsOf(a[0].toTensor())));
}

void NonzeroStatic(SessionState&, const OpInfo& op, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const Args a = PopArguments(op, stack);
  const at::Tensor self = a[0].toTensor();
  const int64_t size = a[1].toInt();
  TORCH_CHECK(size >= 0, "nonzero_static: 'size' must be an non-negative integer");
  if (self.numel() == 0 || size == 0 || self.dim() == 0) {
    stack->push_back(at::empty({size, self.dim()}, Integers(self)).fill_(a[2].toScalar()));
    return;
  }
  const at::Tensor flags = FlagsOf(self);
  const Ranks ranks = RanksOf(flags);
  const at::Tensor places = ChosenPlaces(flags, ranks, size);
  const at::Tensor rows = at::stack(CoordinatesOf(places, self.sizes()), 0).t();
  const at::Tensor is_one = at::arange(size, rows.options()).lt(ranks.total).unsqueeze(1);
  stack->push_back(at::where(is_one, rows.contiguous(), a[2].toScalar()));
}

void MaskedSelect(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const Args a = PopArguments(op, stack);
  const at::Tensor self = a[0].toTensor(), mask = a[1].toTensor();
  TORCH_CHECK(mask.scalar_type() == at::kBool, "masked_select: expected BoolTensor for mask");
  const std::vector<int64_t> size = at::infer_size(self.sizes(), mask.sizes());
  const at::Tensor flags = mask.expand(size);
  if (size.empty()) {
    stack->push_back(self.expand({ChosenRows(flags).size(0)}).clone());
  } else {
    stack->push_back(ElementsAt(self.expand(size), ChosenCoordinates(flags)));
  }
}

bool IsMask(const c10::IValue& index) {
  if (!index.isTensor() || !index.toTensor().defined()) return false;
  const at::ScalarType type = index.toTensor().scalar_type();
  return type == at::kBool || type == at::kByte;
}

// Replaces a mask by the coordinates of what it chooses.
void Index(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args a = PeekArguments(op, stack);
  const auto given = a[1].toListRef();
  if (std::none_of(given.begin(), given.end(), IsMask)) return RunGeneric(state, op, stack);
  const at::AutoDispatchBelowADInplaceOrView below;
  const at::Tensor self = a[0].toTensor();
  Indices indices;
  int64_t dim = 0;
  for (const c10::IValue& index : given) {
    if (!IsMask(index)) {
      indices.push_back(OptionalTensor(index));
      ++dim;
      continue;
    }
    const at::Tensor mask = index.toTensor().to(self.device());
    for (int64_t d = 0; d < mask.dim(); ++d) {
      TORCH_CHECK_INDEX(dim + d < self.dim() && mask.size(d) == self.size(dim + d),
                        "The shape of the mask ", mask.sizes(), " at index ", d,
                        " does not match the shape of the indexed tensor ", self.sizes(),
                        " at index ", dim + d);
    }
    for (at::Tensor& along : ChosenCoordinates(FlagsOf(mask))) {
      indices.push_back(std::move(along));
    }
    dim += mask.dim();
  }
  torch::jit::drop(*stack, op.args.size());
  stack->push_back(at::index(self, indices));
}

at::Tensor MaskedScattered(const at::Tensor& self, const at::Tensor& mask,
                           const at::Tensor& source) {
  const at::Tensor next = at::where(mask, RanksOf(mask).inclusive.sub(1), 0);
  return at::where(mask, at::index(source.reshape({-1}), Indices({next})), self);
}

// An element of the result takes the source element whose number is the count of chosen elements
// before it.
void MaskedScatter(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args a = PeekArguments(op, stack);
  const at::Tensor self = a[0].toTensor(), mask = a[1].toTensor(), source = a[2].toTensor();
  const bool in_place = !op.written.empty();
  TORCH_CHECK(self.scalar_type() == source.scalar_type(),
              "masked_scatter: expected self and source to have same dtypes but got ",
              self.scalar_type(), " and ", source.scalar_type());
  TORCH_CHECK(mask.scalar_type() == at::kBool,
              "masked_scatter_ only supports boolean masks, but got mask with dtype ",
              mask.scalar_type());
  if (self.numel() == 0 || source.numel() == 0 || !Buffer::IsOurs(self) ||
      mask.device() != self.device() || source.device() != self.device()) {
    return RunGeneric(state, op, stack);
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  const std::vector<int64_t> size =
      in_place ? self.sizes().vec() : at::infer_size(self.sizes(), mask.sizes());
  torch::jit::drop(*stack, op.args.size());
  const at::Tensor result = MaskedScattered(self.expand(size), mask.expand(size), source);
  stack->push_back(in_place ? self.copy_(result) : result.contiguous());  // as the CPU gives it
}

void MaskedScatterBackward(SessionState&, const OpInfo& op, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const Args a = PopArguments(op, stack);
  const at::Tensor grad = a[0].toTensor();
  const at::Tensor mask = a[1].toTensor().expand(grad.sizes());
  const std::vector<int64_t> size = a[2].toIntVector();
  const int64_t count = c10::multiply_integers(size);
  stack->push_back(Packed(grad, mask, RanksOf(mask), count).view(size));
}

// The common result of these ops: the slices of a row that begin a group of equal ones.
struct Unique {
  at::Tensor places;   // [count], of the slices that begin a group
  at::Tensor inverse;  // [slices], the group of each
  at::Tensor counts;   // [count]
};

// begins[i] is true if slice i differs from the one before.
Unique Groups(const at::Tensor& begins) {
  Unique result;
  const Ranks ranks = RanksOf(begins);
  const int64_t count = ranks.total.item<int64_t>();
  result.places = ChosenPlaces(begins, ranks, count);
  result.inverse = ranks.inclusive.sub(1);
  result.counts = at::zeros({count}, ranks.total.options())
                      .index_put({result.inverse}, at::ones_like(result.inverse), true);
  return result;
}

// For slices along dimension 0, whether each differs from the one before: [slices, …]. The first
// one does.
at::Tensor Differs(const at::Tensor& slices) {
  std::vector<int64_t> first = slices.sizes().vec();
  const int64_t n = first[0];
  first[0] = 1;
  return at::cat({at::ones(first, slices.options().dtype(at::kBool)),
                  slices.narrow(0, 1, n - 1).ne(slices.narrow(0, 0, n - 1))});
}

// Restores the order from before sorting.
at::Tensor Unsorted(const at::Tensor& values, const at::Tensor& order) {
  return at::zeros_like(values).scatter(0, order, values);
}

// The groups of equal elements of a row, in ascending order of the elements; `sorted` is set to the
// row in that order.
Unique SortedGroups(const at::Tensor& row, at::Tensor& sorted, at::Tensor& order) {
  std::tie(sorted, order) = row.sort(/*stable=*/true, 0, /*descending=*/false);
  Unique groups = Groups(Differs(sorted));
  groups.inverse = Unsorted(groups.inverse, order);
  return groups;
}

at::Tensor IfWanted(bool wanted, const at::Tensor& result) {
  return wanted ? result : at::empty({0}, result.options());
}

void UniqueElements(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args a = PeekArguments(op, stack);
  const at::Tensor self = a[0].toTensor();
  if (self.numel() == 0 || self.is_complex()) {
    return RunOnHost(state, op, stack);
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  torch::jit::drop(*stack, op.args.size());
  at::Tensor sorted, order;
  const Unique groups = SortedGroups(self.reshape({-1}), sorted, order);
  stack->push_back(ElementsAt(sorted, {groups.places}));
  stack->push_back(IfWanted(a[2].toBool(), groups.inverse.view(self.sizes())));
  if (a.size() > 3) stack->push_back(IfWanted(a[3].toBool(), groups.counts));
}

// Numbers the rows so that equal rows have equal numbers and greater rows greater ones. Columns are
// ranked, and pairs of neighbouring columns become one until one is left.
at::Tensor RowNumbers(const at::Tensor& rows) {
  const auto ranked = [](const at::Tensor& columns) {
    const auto [sorted, order] = columns.sort(/*stable=*/true, 0, /*descending=*/false);
    return Unsorted(Differs(sorted).cumsum(0).sub(1), order);
  };
  at::Tensor numbers = ranked(rows);
  while (numbers.size(1) > 1) {
    const int64_t n = numbers.size(0), m = numbers.size(1), pairs = m / 2;
    const at::Tensor both = numbers.narrow(1, 0, 2 * pairs).reshape({n, pairs, 2});
    at::Tensor joined = ranked(both.select(2, 0).mul(n).add(both.select(2, 1)));
    numbers = m % 2 == 0 ? joined : at::cat({joined, numbers.narrow(1, m - 1, 1)}, 1);
  }
  return numbers.select(1, 0);
}

bool HasSlices(const at::Tensor& self, int64_t dim) {
  return self.numel() > 0 && -self.dim() <= dim && dim < self.dim() && !self.is_complex();
}

void PushSlices(const at::Tensor& self, int64_t dim, const Unique& groups, const at::Tensor& places,
                bool inverse, bool counts, torch::jit::Stack* stack) {
  stack->push_back(self.index_select(dim, places));
  stack->push_back(IfWanted(inverse, groups.inverse));
  stack->push_back(IfWanted(counts, groups.counts));
}

void UniqueSlices(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args a = PeekArguments(op, stack);
  const at::Tensor self = a[0].toTensor();
  const int64_t dim = a[1].toInt();
  if (!HasSlices(self, dim)) return RunOnHost(state, op, stack);
  const at::AutoDispatchBelowADInplaceOrView below;
  torch::jit::drop(*stack, op.args.size());
  const at::Tensor rows = self.movedim(dim, 0).reshape({self.size(dim), -1});
  at::Tensor sorted, order;
  const Unique groups = SortedGroups(RowNumbers(rows), sorted, order);
  PushSlices(self, dim, groups, order.index_select(0, groups.places), a[3].toBool(), a[4].toBool(),
             stack);
}

void PushConsecutive(const at::Tensor& self, std::optional<int64_t> dim, bool inverse, bool counts,
                     torch::jit::Stack* stack) {
  if (!dim.has_value() || self.dim() == 1) {
    const at::Tensor row = self.reshape({-1});
    const Unique groups = Groups(Differs(row));
    stack->push_back(ElementsAt(row, {groups.places}));
    stack->push_back(IfWanted(inverse, groups.inverse.view(self.sizes())));
    stack->push_back(IfWanted(counts, groups.counts));
    return;
  }
  at::Tensor differs = Differs(self.movedim(*dim, 0));
  std::vector<int64_t> others;
  for (int64_t d = 1; d < self.dim(); ++d) others.push_back(d);
  const Unique groups = Groups(at::any(differs, at::IntArrayRef(others)));
  PushSlices(self, *dim, groups, groups.places, inverse, counts, stack);
}

void UniqueConsecutive(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args a = PeekArguments(op, stack);
  const at::Tensor self = a[0].toTensor();
  const std::optional<int64_t> dim = a[3].toOptional<int64_t>();
  if (self.numel() == 0 || (dim.has_value() && !HasSlices(self, *dim))) {
    return RunOnHost(state, op, stack);
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  torch::jit::drop(*stack, op.args.size());
  PushConsecutive(self, dim, a[1].toBool(), a[2].toBool(), stack);
}

void UniqueConsecutiveSlices(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args a = PeekArguments(op, stack);
  const at::Tensor self = a[0].toTensor();
  if (!HasSlices(self, a[1].toInt())) return RunOnHost(state, op, stack);
  const at::AutoDispatchBelowADInplaceOrView below;
  torch::jit::drop(*stack, op.args.size());
  PushConsecutive(self, a[1].toInt(), a[2].toBool(), a[3].toBool(), stack);
}

// The number of each element's repetitions. The result's place i belongs to the first element up to
// which there are more than i.
void RepeatInterleave(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args a = PeekArguments(op, stack);
  const at::Tensor repeats = a[0].toTensor();
  const bool integers = repeats.scalar_type() == at::kLong || repeats.scalar_type() == at::kInt;
  if (repeats.dim() != 1 || !integers || repeats.numel() == 0) {
    return RunOnHost(state, op, stack);  // makes the empty result, or raises the error
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  const at::Tensor up_to = repeats.to(at::kLong).cumsum(0);
  int64_t size = 0;
  if (a[1].isNone()) {
    const at::Tensor known =
        at::stack({up_to.select(0, -1), at::amin(repeats).to(at::kLong)}).cpu();
    TORCH_CHECK(known.data_ptr<int64_t>()[1] >= 0, "repeats can not be negative");
    size = known.data_ptr<int64_t>()[0];
  } else {
    size = a[1].toInt();
  }
  torch::jit::drop(*stack, op.args.size());
  const at::Tensor places = at::arange(size, up_to.options());
  stack->push_back(at::searchsorted(up_to, places, /*out_int32=*/false, /*right=*/true)
                       .to(repeats.scalar_type()));
}

// Calls that wait for a number are not replayed, whatever these rows say.
constexpr HandlerRow kSelectionHandlers[] = {
    {"aten::_unique", &UniqueElements},
    {"aten::_unique2", &UniqueElements},
    {"aten::index.Tensor", &Index, kReplayable},
    {"aten::masked_scatter", &MaskedScatter, kReplayable},
    {"aten::masked_scatter_", &MaskedScatter, kReplayable},
    {"aten::masked_scatter_backward", &MaskedScatterBackward, kReplayable},
    {"aten::masked_select", &MaskedSelect},
    {"aten::masked_select.out", &RunIntoOut},
    {"aten::nonzero", &Nonzero},
    {"aten::nonzero.out", &RunIntoOut},
    {"aten::nonzero_static", &NonzeroStatic, kReplayable},
    {"aten::nonzero_static.out", &RunIntoOut},
    {"aten::repeat_interleave.Tensor", &RepeatInterleave},
    {"aten::unique_consecutive", &UniqueConsecutive},
    {"aten::unique_dim", &UniqueSlices},
    {"aten::unique_dim_consecutive", &UniqueConsecutiveSlices},
};
static_assert(IsSortedAndUnique(kSelectionHandlers, &HandlerRow::op));

}  // namespace

absl::Span<const HandlerRow> SelectionHandlers() { return kSelectionHandlers; }

}  // namespace spmd::trace
