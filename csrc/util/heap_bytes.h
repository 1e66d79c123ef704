// SPDX-License-Identifier: Apache-2.0
// How many bytes of the heap an object holds on top of its own size, for caches that are bounded by
// bytes.
//
//   struct Node { std::string op; std::vector<int> operands; };
//   int64_t HeapBytes(const Node& n) { return HeapBytes(n.op) + HeapBytes(n.operands); }
//   std::vector<Node> nodes;   // HeapBytes(nodes): the array and what its nodes hold
//
// A shared object (behind a std::shared_ptr) counts as 0 here; its owner adds it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"

namespace spmd {

inline constexpr int64_t kBlockBytes = 16;  // what the allocator itself needs for each block

inline int64_t HeapBytes(const std::string& text) {
  constexpr size_t kInside = 15;
  return text.capacity() <= kInside ? 0 : static_cast<int64_t>(text.capacity()) + 1 + kBlockBytes;
}

template <typename T>
  requires std::is_trivially_copyable_v<T>
int64_t HeapBytes(const T&) {
  return 0;
}
template <typename T>
int64_t HeapBytes(const std::shared_ptr<T>&) {
  return 0;
}
template <typename A, typename B>
int64_t HeapBytes(const std::pair<A, B>& pair);
template <typename T>
int64_t HeapBytes(const std::optional<T>& value);
template <typename T>
int64_t HeapBytes(const std::vector<T>& values);
template <typename T, size_t N>
int64_t HeapBytes(const absl::InlinedVector<T, N>& values);

template <typename Values>
int64_t HeapBytesOfEach(const Values& values) {
  int64_t bytes = 0;
  for (const auto& value : values) bytes += HeapBytes(value);
  return bytes;
}

template <typename A, typename B>
int64_t HeapBytes(const std::pair<A, B>& pair) {
  return HeapBytes(pair.first) + HeapBytes(pair.second);
}
template <typename T>
int64_t HeapBytes(const std::optional<T>& value) {
  return value.has_value() ? HeapBytes(*value) : 0;
}
template <typename T>
int64_t HeapBytes(const std::vector<T>& values) {
  if (values.capacity() == 0) return 0;
  const auto array = static_cast<int64_t>(values.capacity() * sizeof(T)) + kBlockBytes;
  return array + HeapBytesOfEach(values);
}
inline int64_t HeapBytes(const std::vector<bool>& values) {
  return values.capacity() == 0 ? 0 : static_cast<int64_t>(values.capacity() / 8) + kBlockBytes;
}
template <typename T, size_t N>
int64_t HeapBytes(const absl::InlinedVector<T, N>& values) {
  const bool inside = values.capacity() <= N;
  const auto array = static_cast<int64_t>(values.capacity() * sizeof(T)) + kBlockBytes;
  return (inside ? 0 : array) + HeapBytesOfEach(values);
}

}  // namespace spmd
