// SPDX-License-Identifier: Apache-2.0
#include "csrc/ir/attributes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <limits>
#include <random>
#include <stdexcept>

#include "absl/hash/hash.h"

namespace spmd {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(Attributes, KeepOrderAndReplaceInPlace) {
  Attributes attributes{{"dim", int64_t{1}}, {"keepdim", false}};
  attributes.Set("dim", int64_t{2});
  attributes.Set("dtype", DType::kF32);
  EXPECT_EQ(attributes.ToString(), "dim=2, keepdim=false, dtype=f32");
}

TEST(Attributes, TypedAccess) {
  const Attributes attributes{{"i", int64_t{3}},    {"d", 0.5},
                              {"b", true},          {"s", std::string("x")},
                              {"none", NoneAttr()}, {"l", std::vector<int64_t>{1, 2}}};
  EXPECT_EQ(attributes.GetInt("i"), 3);
  EXPECT_EQ(attributes.GetIntOr("absent", 7), 7);
  EXPECT_EQ(attributes.GetIntOr("none", 7), 7);
  EXPECT_EQ(attributes.GetDoubleOr("d", 1), 0.5);
  EXPECT_EQ(attributes.GetDoubleOr("i", 1), 3.0);
  EXPECT_TRUE(attributes.GetBoolOr("b", false));
  EXPECT_EQ(attributes.GetStringOr("s", "y"), "x");
  EXPECT_EQ(attributes.GetStringOr("absent", "y"), "y");
  EXPECT_EQ(attributes.GetInts("l"), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(attributes.GetIntsOr("absent", {4}), (std::vector<int64_t>{4}));
  EXPECT_TRUE(attributes.IsNone("absent"));
  EXPECT_TRUE(attributes.IsNone("none"));
  EXPECT_FALSE(attributes.IsNone("i"));
  EXPECT_THAT([&] { attributes.GetInt("s"); },
              ThrowsMessage<std::logic_error>(HasSubstr("attribute s=\"x\" is no integer")));
  EXPECT_THAT([&] { attributes.GetInts("absent"); },
              ThrowsMessage<std::logic_error>(HasSubstr("attribute 'absent' is missing")));
}

TEST(Attributes, ConstantExpressionsAreIntegers) {
  const Attributes attributes{{"a", Expr(4)},
                              {"b", std::vector<Expr>{Expr(1), Expr(2)}},
                              {"c", std::vector<Expr>{Expr(1), Expr::Size(Result(0), 1)}}};
  EXPECT_EQ(attributes.GetInt("a"), 4);
  EXPECT_EQ(attributes.GetInts("b"), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(attributes.ToString(), "a=4, b=[1,2], c=[1,size(r0,1)]");
}

TEST(Attributes, EqualOnesHashAlike) {
  const Attributes a{{"x", 1.5}, {"l", std::vector<bool>{true}}};
  Attributes b{{"x", 2.5}, {"l", std::vector<bool>{true}}};
  EXPECT_FALSE(a == b);
  b.Set("x", 1.5);
  EXPECT_TRUE(a == b);
  EXPECT_EQ(absl::HashOf(a), absl::HashOf(b));
}

TEST(Attributes, AreEqualInEveryBit) {
  const auto of = [](Attr attr) { return Attributes{{"value", std::move(attr)}}; };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(of(0.0), of(0.0));
  EXPECT_EQ(of(nan), of(nan));
  EXPECT_FALSE(of(0.0) == of(-0.0));
  EXPECT_FALSE(of(std::complex<double>(0, 1)) == of(std::complex<double>(-0.0, 1)));
  EXPECT_FALSE(of(std::vector<double>{1, 0}) == of(std::vector<double>{1, -0.0}));
  EXPECT_FALSE(of(int64_t{1}) == of(1.0));
}

}  // namespace
}  // namespace spmd
