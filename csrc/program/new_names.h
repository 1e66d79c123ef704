// SPDX-License-Identifier: Apache-2.0
// Names for new values, without a look at all values for each.
#pragma once

#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "csrc/program/program.h"

namespace spmd::program {

class NewNames {
 public:
  // Keeps a reference to `program`, all of whose new values are added through this object.
  explicit NewNames(Program& program) : program_(program) {
    for (const Value& value : program.values) names_.insert(value.name);
  }

  // As Program::AddValue, with the same names.
  ValueId AddValue(Value value) {
    for (size_t number = program_.values.size(); value.name.empty(); ++number) {
      std::string name = absl::StrCat(number);
      if (!names_.contains(name)) value.name = std::move(name);
    }
    names_.insert(value.name);
    return program_.AddValue(std::move(value));
  }

 private:
  Program& program_;
  absl::flat_hash_set<std::string> names_;
};

}  // namespace spmd::program
