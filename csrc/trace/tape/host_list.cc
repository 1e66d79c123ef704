// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/tape/host_list.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "csrc/runtime/one_place/tile_memory.h"
#include "csrc/runtime/tiled_tensor.h"
#include "csrc/trace/tape/recording.h"

namespace spmd::trace {

namespace {

// Of other views of a list, as `rows[i]` in a loop, no more are kept.
constexpr size_t kMostParts = 64;

uint64_t HashOf(const at::Tensor& host) {
  uint64_t hash = static_cast<uint64_t>(host.numel());
  const auto* const bytes = static_cast<const unsigned char*>(host.const_data_ptr());
  const int64_t size = static_cast<int64_t>(host.nbytes());
  for (int64_t k = 0; k < size; k += static_cast<int64_t>(sizeof(uint64_t))) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + k, std::min<size_t>(sizeof(word), static_cast<size_t>(size - k)));
    hash = (hash ^ (word + (hash >> 29))) * 0x9e3779b97f4a7c15ull;
  }
  return hash ^ (hash >> 32);
}

}  // namespace

ValuePtr ListValue(const at::Tensor& host) {
  const runtime::TileMemory::Scope kept;
  auto list = std::make_shared<HostList>();
  list->host = host.clone(at::MemoryFormat::Contiguous);
  list->hash = HashOf(list->host);
  auto value = c10::make_intrusive<Value>(TensorType{
      runtime::FromScalarType(host.scalar_type()), Dims(host.sizes().begin(), host.sizes().end())});
  value->host = list->host;
  value->list = std::move(list);
  return value;
}

ValuePtr PartOfList(Value& list, const RecipePtr& recipe) {
  auto& parts = list.list->parts;
  for (const auto& [known, part] : parts) {
    if (part->poison.ok() && SameRecipe(known, recipe)) return part;
  }
  at::Tensor host = list.list->host;
  for (const Recipe* step : Chain(recipe)) host = ApplyOnHost(*step, host);
  if (parts.size() >= kMostParts) parts.erase(parts.begin(), parts.begin() + kMostParts / 2);
  return parts.emplace_back(recipe, ListValue(host)).second;
}

bool SameList(const Value& a, const Value& b) {
  if (a.list == nullptr || b.list == nullptr || !(a.type == b.type)) return false;
  const at::Tensor& x = a.list->host;
  const at::Tensor& y = b.list->host;
  if (a.list->hash != b.list->hash || x.numel() < 2) return false;
  return std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

}  // namespace spmd::trace
