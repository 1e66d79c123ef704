// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/signature.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "tests/cpp/rules/one_op.h"

namespace spmd::rules {
namespace {

TEST(Signature, ReadsASchema) {
  const auto s = Signature::Parse(
      "a::b(Tensor(a!) x, Tensor?[] i, SymInt[2]? size=None, *, str mode=\"a,b\") -> (Tensor, "
      "Tensor)");
  ASSERT_TRUE(s.ok()) << s.status();
  ASSERT_EQ(s->parameters.size(), 4u);
  EXPECT_EQ(s->results, 2);
  EXPECT_EQ(s->parameters[0].type, Parameter::Type::kTensor);
  EXPECT_TRUE(s->parameters[1].is_list && s->parameters[1].items_optional);
  EXPECT_TRUE(s->parameters[2].optional && s->parameters[2].has_default);
  EXPECT_EQ(s->parameters[2].size, 2);
  EXPECT_EQ(s->parameters[3].name, "mode");
  EXPECT_FALSE(Signature::Parse("a::b").ok());
}

// What does not fit when the call in `line` is checked against `schema`; "" if all fits.
std::string Misfit(const char* schema, const char* line) {
  const OneOp op(line);
  return std::string(CheckSignature(*Signature::Parse(schema), op.call()).message());
}

TEST(Signature, OptionalOnesMayBeLeftOut) {
  constexpr char kSchema[] = "a::b(Tensor x, Tensor? y=None, *, int dim=0, float eps) -> Tensor";
  EXPECT_EQ(Misfit(kSchema, "f32[2] = a::b(f32[2], eps=1)"), "");
  EXPECT_EQ(Misfit(kSchema, "f32[2] = a::b(f32[2], _, dim=1, eps=0.5)"), "");
  EXPECT_EQ(Misfit(kSchema, "f32[2] = a::b(f32[2])"),
            "a::b(f32[2]): argument 'eps' (float) is missing");
  EXPECT_EQ(Misfit(kSchema, "f32[2] = a::b(_, eps=1)"),
            "a::b(_, eps=1): operand 0 ('x') is absent");
  EXPECT_EQ(Misfit(kSchema, "f32[2] = a::b(f32[2], dim=none, eps=1)"),
            "a::b(f32[2], dim=none, eps=1): argument dim=none should be int");
}

TEST(Signature, ListsHaveTheirSizeOrOneItemForAll) {
  constexpr char kSchema[] = "a::b(Tensor[] x, SymInt[2] size) -> Tensor";
  EXPECT_EQ(Misfit(kSchema, "f32[2] = a::b([f32[2], f32[2]], size=[3,4])"), "");
  EXPECT_EQ(Misfit(kSchema, "f32[2] = a::b([f32[2]], size=[3])"), "");
  EXPECT_EQ(Misfit(kSchema, "f32[2] = a::b([f32[2]], size=[3,4,5])"),
            "a::b(f32[2], size=[3,4,5]): argument size=[3,4,5] should be SymInt[2]");
  EXPECT_EQ(Misfit(kSchema, "f32[2] = a::b([f32[2], _], size=[3,4])"),
            "a::b(f32[2], _, size=[3,4]): item 1 of 'x' is absent");
}

TEST(Signature, TextThatIsNoSchemaIsRefused) {
  for (const char* text : {"", "a::b", "a::b(Tensor x)", "a::b(x) -> Tensor"}) {
    EXPECT_FALSE(Signature::Parse(text).ok()) << text;
  }
  EXPECT_EQ(FindSignature("mylib::unknown"), nullptr);
}

}  // namespace
}  // namespace spmd::rules
