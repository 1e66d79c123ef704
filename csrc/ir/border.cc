// SPDX-License-Identifier: Apache-2.0
#include "csrc/ir/border.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "csrc/util/status.h"

namespace spmd::ir {

absl::StatusOr<std::shared_ptr<const Border>> ParseBorder(const Attributes& attributes,
                                                          absl::Span<const GridPtr> grids,
                                                          absl::Span<const std::string> names) {
  for (const char* const name : {"enter", "leave"}) {
    const Attr* const attr = attributes.Find(name);
    if (attr == nullptr) continue;
    const auto* const text = std::get_if<std::string>(attr);
    const Attr* const named = attributes.Find("mesh");
    const auto* const mesh = named == nullptr ? nullptr : std::get_if<std::string>(named);
    const auto found = mesh == nullptr ? names.end() : std::find(names.begin(), names.end(), *mesh);
    if (text == nullptr || found == names.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "attribute ", name, " is a sharding in quotes, and the attribute mesh names its mesh"));
    }
    auto border = std::make_shared<Border>();
    border->enters = name[0] == 'e';
    border->grid = static_cast<int>(found - names.begin());
    SPMD_ASSIGN_OR_RETURN(border->sharding, Sharding::Parse(*text, *grids[border->grid]));
    return std::shared_ptr<const Border>(std::move(border));
  }
  return std::shared_ptr<const Border>();
}

}  // namespace spmd::ir
