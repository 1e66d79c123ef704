// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/tape/recording.h"

#include <algorithm>

#include "csrc/util/bits.h"
#include "csrc/util/heap_bytes.h"

namespace spmd::trace {

namespace {

template <typename T>
std::vector<T> First(const std::vector<T>& all, size_t n) {
  return {all.begin(), all.begin() + static_cast<int64_t>(n)};
}

}  // namespace

void Recording::AlignCalls() {
  auto block = std::make_shared<std::vector<TracedCall>>();
  block->reserve(calls.size());
  for (const auto& call : calls) block->push_back(*call);
  for (size_t k = 0; k < calls.size(); ++k) {
    calls[k] = std::shared_ptr<const TracedCall>(block, &(*block)[k]);
  }
}

Recording Recording::Prefix(int32_t n) const {
  size_t counts[3] = {0, 0, 0};
  for (int32_t e = 0; e < n; ++e) ++counts[static_cast<int>(events[e].kind)];
  const auto [num_inputs, num_records, num_annotations] = counts;
  size_t num_slots = num_inputs;
  for (size_t r = 0; r < num_records; ++r) num_slots += records[r].num_results;
  Recording prefix;
  prefix.events = First(events, n);
  prefix.keys = First(keys, n);
  prefix.records = First(records, num_records);
  prefix.types = First(types, num_slots);
  prefix.origins = First(origins, num_slots);
  prefix.manual = First(manual, num_slots);
  prefix.input_marks = First(input_marks, num_inputs);
  prefix.annotations = First(annotations, num_annotations);
  prefix.sources = sources;
  for (const ViewRead& v : views) {
    if (v.event <= n) prefix.views.push_back(v);
  }
  for (const auto& c : calls) {
    if (c->end_event <= n) prefix.calls.push_back(c);
  }
  return prefix;
}

size_t Recording::FirstCallAt(int32_t n) const {
  const auto it = std::partition_point(calls.begin(), calls.end(),
                                       [n](const auto& c) { return c->first_event < n; });
  return static_cast<size_t>(it - calls.begin());
}

std::vector<uint64_t> Recording::RecordKeys() const {
  std::vector<uint64_t> result;
  for (size_t e = 0; e < events.size(); ++e) {
    if (events[e].kind == Event::Kind::kRecord) result.push_back(keys[e].lo());
  }
  return result;
}

namespace {

int64_t BytesOf(const c10::IValue& value) {
  if (value.isString()) return static_cast<int64_t>(value.toStringRef().size()) + 64;
  if (!value.isList()) return 0;
  int64_t bytes = 64;
  for (const c10::IValue& item : value.toListRef()) {
    bytes += static_cast<int64_t>(sizeof(c10::IValue)) + BytesOf(item);
  }
  return bytes;
}

int64_t BytesOf(const TracedCall& call) {
  int64_t bytes = sizeof(TracedCall) + sizeof(std::shared_ptr<const TracedCall>);
  // Counts what does not fit in place. Metadata and recipes are shared, so they do not count.
  const auto array = [](const auto& values, size_t inside) {
    const size_t n = values.capacity();
    return n <= inside ? int64_t{0} : static_cast<int64_t>(n * sizeof(values[0])) + kBlockBytes;
  };
  bytes += array(call.args, 3) + array(call.operands, 2) + array(call.results, 1) +
           array(call.list_sizes, 2);
  for (const CallArgument& arg : call.args) bytes += BytesOf(arg.value);
  return bytes;
}

}  // namespace

int64_t Recording::HeapBytes() const {
  using spmd::HeapBytes;
  int64_t bytes = static_cast<int64_t>(sizeof(Recording)) + HeapBytes(origins) + HeapBytes(manual) +
                  HeapBytes(input_marks) + HeapBytes(sources) + HeapBytes(events) + HeapBytes(keys);
  bytes += static_cast<int64_t>(
      types.capacity() * sizeof(TensorType) + annotations.capacity() * sizeof(Annotation) +
      views.capacity() * sizeof(ViewRead) + records.capacity() * sizeof(Record));
  for (const TensorType& type : types) bytes += HeapBytes(type.dims);
  for (const Record& record : records) {
    bytes += HeapBytes(record.operands) + HeapBytes(record.groups) +
             static_cast<int64_t>(record.args.capacity() * sizeof(c10::IValue)) + kBlockBytes;
    for (const c10::IValue& arg : record.args) bytes += BytesOf(arg);
  }
  for (const auto& call : calls) bytes += BytesOf(*call);
  // The bytes of an entry for one of its beginnings (State::known_prefixes).
  constexpr int64_t kPrefix = 48;
  return bytes + kPrefix * static_cast<int64_t>(records.size());
}

bool SameArgument(const c10::IValue& a, const c10::IValue& b, bool value) {
  if (a.isNone()) return b.isNone();
  if (a.isInt()) return b.isInt() && (!value || a.toInt() == b.toInt());
  if (a.isBool()) return b.isBool() && (!value || a.toBool() == b.toBool());
  if (a.isDouble()) return b.isDouble() && (!value || SameBits(a.toDouble(), b.toDouble()));
  if (a.isComplexDouble()) {
    if (!b.isComplexDouble() || !value) return b.isComplexDouble();
    const c10::complex<double> x = a.toComplexDouble(), y = b.toComplexDouble();
    return SameBits(x.real(), y.real()) && SameBits(x.imag(), y.imag());
  }
  if (a.isString()) return b.isString() && (!value || a.toStringRef() == b.toStringRef());
  if (a.isDevice()) return b.isDevice() && a.toDevice() == b.toDevice();
  if (!a.isList() || !b.isList()) return false;
  const auto x = a.toListRef(), y = b.toListRef();
  return std::equal(
      x.begin(), x.end(), y.begin(), y.end(),
      [value](const c10::IValue& i, const c10::IValue& j) { return SameArgument(i, j, value); });
}

bool SameRecipe(const RecipePtr& a, const RecipePtr& b) {
  if (a == b) return true;
  if (a == nullptr || b == nullptr) return false;
  return a->op == b->op && a->ints == b->ints && a->result == b->result && a->source == b->source &&
         SameRecipe(a->parent, b->parent);
}

bool SameMark(const MarkPtr& a, const MarkPtr& b) {
  if (a == b) return true;
  return a != nullptr && b != nullptr && a->mesh == b->mesh &&
         SpecToString(a->spec) == SpecToString(b->spec);
}

}  // namespace spmd::trace
