// SPDX-License-Identifier: Apache-2.0
// An absl::InlinedVector whose element access throws std::out_of_range for a bad index. Abseil
// itself ends the process, which may hold a user's work, and the core reads texts and rules that
// anybody may write: a rule that asks a matrix for its third dimension gets an error (see
// rules::Guarded). CheckedSpan is an absl::Span with the same check.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"

namespace spmd {

[[noreturn]] inline void ThrowOutOfRange(size_t index, size_t size) {
  throw std::out_of_range("index " + std::to_string(static_cast<ptrdiff_t>(index)) +
                          " is outside of a list of " + std::to_string(size));
}

template <typename T, size_t N>
class CheckedVector : public absl::InlinedVector<T, N> {
 public:
  using Base = absl::InlinedVector<T, N>;
  using Base::Base;
  CheckedVector() = default;
  CheckedVector(const Base& other) : Base(other) {}        // NOLINT: it is one, with checks
  CheckedVector(Base&& other) : Base(std::move(other)) {}  // NOLINT

  T& operator[](size_t i) {
    if (i >= this->size()) ThrowOutOfRange(i, this->size());
    return Base::data()[i];
  }
  const T& operator[](size_t i) const {
    if (i >= this->size()) ThrowOutOfRange(i, this->size());
    return Base::data()[i];
  }
  T& front() { return (*this)[0]; }
  const T& front() const { return (*this)[0]; }
  T& back() { return (*this)[this->size() - 1]; }
  const T& back() const { return (*this)[this->size() - 1]; }
};

template <typename T>
class CheckedSpan : public absl::Span<T> {
 public:
  using Base = absl::Span<T>;
  using Base::Base;
  CheckedSpan() = default;
  CheckedSpan(Base other) : Base(other) {}  // NOLINT: it is one, with checks

  T& operator[](size_t i) const {
    if (i >= this->size()) ThrowOutOfRange(i, this->size());
    return Base::data()[i];
  }
};

}  // namespace spmd
