// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/op/hash.h"

#include <algorithm>
#include <cstring>

#include "csrc/trace/op/words.h"
#include "csrc/util/bits.h"

namespace spmd::trace {

namespace {

// `Into` is Hash128 or Words.
template <typename Into>
void MixTextInto(Into& into, const std::string& text) {
  into.Mix(text.size());
  for (size_t i = 0; i < text.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + i, std::min<size_t>(8, text.size() - i));
    into.Mix(word);
  }
}

template <typename Into>
void MixInto(Into& hash, const c10::IValue& v, bool value) {
  if (v.isNone()) {
    hash.Mix(1);
  } else if (v.isBool()) {
    hash.Mix(2);
    if (value) hash.Mix(v.toBool());
  } else if (v.isInt()) {
    hash.Mix(3);
    if (value) hash.Mix(static_cast<uint64_t>(v.toInt()));
  } else if (v.isDouble()) {
    hash.Mix(4);
    if (value) hash.Mix(BitsOf(v.toDouble()));
  } else if (v.isComplexDouble()) {
    hash.Mix(5);
    if (value) {
      hash.Mix(BitsOf(v.toComplexDouble().real()));
      hash.Mix(BitsOf(v.toComplexDouble().imag()));
    }
  } else if (v.isString()) {
    hash.Mix(6);
    if (value) hash.MixText(v.toStringRef());
  } else if (v.isIntList()) {
    hash.Mix(7);
    const auto list = v.toIntList();
    hash.Mix(list.size());
    if (value) {
      for (size_t i = 0; i < list.size(); ++i) hash.Mix(static_cast<uint64_t>(list.get(i)));
    }
  } else if (v.isDoubleList()) {
    hash.Mix(8);
    const auto list = v.toDoubleList();
    hash.Mix(list.size());
    if (value) {
      for (size_t i = 0; i < list.size(); ++i) hash.Mix(BitsOf(list.get(i)));
    }
  } else if (v.isBoolList()) {
    hash.Mix(9);
    const auto list = v.toBoolList();
    hash.Mix(list.size());
    for (size_t i = 0; i < list.size(); ++i) hash.Mix(static_cast<uint64_t>(list.get(i)));
  } else if (v.isList()) {
    hash.Mix(10);
    const auto list = v.toListRef();
    hash.Mix(list.size());
    for (const auto& item : list) MixInto(hash, item, value);
  } else {
    hash.Mix(11);
    hash.MixText(v.tagKind());
  }
}

}  // namespace

void Hash128::MixText(const std::string& text) { MixTextInto(*this, text); }
void Words::MixText(const std::string& text) { MixTextInto(*this, text); }

void MixIValue(Hash128& hash, const c10::IValue& v, bool value) { MixInto(hash, v, value); }
void MixIValue(Words& words, const c10::IValue& v, bool value) { MixInto(words, v, value); }

}  // namespace spmd::trace
