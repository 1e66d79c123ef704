// SPDX-License-Identifier: Apache-2.0
#include "csrc/ir/attributes.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "csrc/util/bits.h"
#include "csrc/util/status.h"

namespace spmd {
namespace {

// Stores a constant expression as an integer, so that each value has one form and text and equality
// agree.
Attr Canonical(Attr attr) {
  if (const auto* expr = std::get_if<Expr>(&attr)) {
    if (expr->IsConst()) return expr->value();
  } else if (const auto* list = std::get_if<std::vector<Expr>>(&attr)) {
    if (std::all_of(list->begin(), list->end(), [](const Expr& e) { return e.IsConst(); })) {
      std::vector<int64_t> values;
      for (const Expr& e : *list) values.push_back(e.value());
      return values;
    }
  }
  return attr;
}

}  // namespace

bool SameAttr(const Attr& a, const Attr& b) {
  if (const auto *x = std::get_if<double>(&a), *y = std::get_if<double>(&b); x && y) {
    return SameBits(*x, *y);
  }
  if (const auto *x = std::get_if<std::complex<double>>(&a),
      *y = std::get_if<std::complex<double>>(&b);
      x && y) {
    return SameBits(x->real(), y->real()) && SameBits(x->imag(), y->imag());
  }
  if (const auto *x = std::get_if<std::vector<double>>(&a),
      *y = std::get_if<std::vector<double>>(&b);
      x && y) {
    return std::equal(x->begin(), x->end(), y->begin(), y->end(), SameBits);
  }
  return a == b;
}

bool operator==(const Attributes& a, const Attributes& b) {
  return std::equal(a.items_.begin(), a.items_.end(), b.items_.begin(), b.items_.end(),
                    [](const auto& x, const auto& y) {
                      return x.first == y.first && SameAttr(x.second, y.second);
                    });
}

Attributes::Attributes(std::initializer_list<std::pair<std::string, Attr>> items) {
  items_.reserve(items.size());
  for (const auto& [name, value] : items) Set(name, value);
}

const Attr* Attributes::Find(absl::string_view name) const {
  for (const auto& [key, value] : items_) {
    if (name == key) return &value;
  }
  return nullptr;
}

void Attributes::Set(absl::string_view name, Attr value) {
  value = Canonical(std::move(value));
  for (auto& [key, old] : items_) {
    if (name == key) {
      old = std::move(value);
      return;
    }
  }
  items_.emplace_back(std::string(name), std::move(value));
}

bool Attributes::IsNone(absl::string_view name) const {
  const Attr* attr = Find(name);
  return attr == nullptr || std::holds_alternative<NoneAttr>(*attr);
}

int64_t Attributes::GetInt(absl::string_view name) const {
  const Attr* attr = Find(name);
  SPMD_REQUIRE(attr != nullptr, "attribute '", name, "' is missing among (", ToString(), ")");
  const auto* value = std::get_if<int64_t>(attr);
  SPMD_REQUIRE(value != nullptr, "attribute ", name, "=", AttrToString(*attr), " is no integer");
  return *value;
}

int64_t Attributes::GetIntOr(absl::string_view name, int64_t fallback) const {
  return IsNone(name) ? fallback : GetInt(name);
}

double Attributes::GetDoubleOr(absl::string_view name, double fallback) const {
  if (IsNone(name)) return fallback;
  const Attr& attr = *Find(name);
  if (const auto* value = std::get_if<double>(&attr)) return *value;
  if (const auto* value = std::get_if<int64_t>(&attr)) return static_cast<double>(*value);
  const auto* value = std::get_if<bool>(&attr);
  SPMD_REQUIRE(value != nullptr, "attribute ", name, "=", AttrToString(attr), " is no number");
  return *value ? 1.0 : 0.0;
}

bool Attributes::GetBoolOr(absl::string_view name, bool fallback) const {
  if (IsNone(name)) return fallback;
  const auto* value = std::get_if<bool>(Find(name));
  SPMD_REQUIRE(value != nullptr, "attribute ", name, "=", AttrToString(*Find(name)), " is no bool");
  return *value;
}

std::string Attributes::GetStringOr(absl::string_view name, absl::string_view fallback) const {
  if (IsNone(name)) return std::string(fallback);
  const auto* value = std::get_if<std::string>(Find(name));
  SPMD_REQUIRE(value != nullptr, "attribute ", name, "=", AttrToString(*Find(name)),
               " is no string");
  return *value;
}

const std::vector<int64_t>& Attributes::GetInts(absl::string_view name) const {
  const Attr* attr = Find(name);
  SPMD_REQUIRE(attr != nullptr, "attribute '", name, "' is missing among (", ToString(), ")");
  const auto* value = std::get_if<std::vector<int64_t>>(attr);
  SPMD_REQUIRE(value != nullptr, "attribute ", name, "=", AttrToString(*attr),
               " is no list of integers");
  return *value;
}

std::vector<int64_t> Attributes::GetIntsOr(absl::string_view name,
                                           std::vector<int64_t> fallback) const {
  return IsNone(name) ? std::move(fallback) : GetInts(name);
}

std::string Attributes::ToString() const {
  return absl::StrJoin(items_, ", ",
                       [](std::string* out, const std::pair<std::string, Attr>& item) {
                         absl::StrAppend(out, item.first, "=", AttrToString(item.second));
                       });
}

}  // namespace spmd
