// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "csrc/ir/attributes.h"
#include "csrc/util/expr.h"

namespace spmd {

// The same attributes with numbers in the place of expressions: what a device passes to its kernel.
Attributes Evaluated(const Attributes& attributes, const Expr::Env& env);

}  // namespace spmd
