// SPDX-License-Identifier: Apache-2.0
#include "csrc/ir/evaluate.h"

#include <gtest/gtest.h>

#include <vector>

namespace spmd {
namespace {

// The device whose tiles of any tensor begin at 10 in dimension 0, at 20 in dimension 1, ….
Expr::Env Env() {
  Expr::Env env;
  env.start = [](TensorRef, int dim) { return 10 * (dim + 1); };
  env.size = [](TensorRef, int) { return 4; };
  env.extent = [](TensorRef, int) { return 64; };
  env.coord = [](int) { return 1; };
  return env;
}

TEST(Evaluated, HasNumbersInPlaceOfExpressions) {
  const Attributes attributes{{"offset", Expr::Start(Result(0), 1)},
                              {"size", std::vector<Expr>{Expr(7), Expr::Size(Operand(0), 0) * 2}},
                              {"dim", int64_t{1}},
                              {"mode", std::string("sum")},
                              {"scale", RuntimeScalar{2}}};
  EXPECT_EQ(Evaluated(attributes, Env()).ToString(),
            "offset=20, size=[7,8], dim=1, mode=\"sum\", scale=$2");
}

TEST(Evaluated, NothingIsNothing) { EXPECT_TRUE(Evaluated({}, Env()).empty()); }

}  // namespace
}  // namespace spmd
