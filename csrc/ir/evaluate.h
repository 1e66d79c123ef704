// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "csrc/ir/attributes.h"
#include "csrc/util/expr.h"

namespace spmd {

// `attributes` with numbers in place of expressions, as one device passes them to its kernel.
Attributes Evaluated(const Attributes& attributes, const Expr::Env& env);

}  // namespace spmd
