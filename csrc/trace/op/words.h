// SPDX-License-Identifier: Apache-2.0
// What a call is, in words: equal for equal calls, and for no others. A key that is compared, where
// a hash (csrc/trace/op/hash.h) would have to be trusted.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <string>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"

namespace spmd::trace {

class Words {
 public:
  void Mix(uint64_t v) { words_.push_back(v); }
  void Mix(absl::Span<const int64_t> values) {
    Mix(values.size());
    words_.insert(words_.end(), values.begin(), values.end());
  }
  void MixText(const std::string& text);

  friend bool operator==(const Words& x, const Words& y) { return x.words_ == y.words_; }
  template <typename H>
  friend H AbslHashValue(H h, const Words& x) {
    return H::combine(std::move(h), absl::MakeConstSpan(x.words_));
  }

 private:
  absl::InlinedVector<uint64_t, 24> words_;
};

// As for hashes.
void MixIValue(Words& words, const c10::IValue& v, bool value = true);

}  // namespace spmd::trace
