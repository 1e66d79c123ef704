// SPDX-License-Identifier: Apache-2.0
// The text form of attributes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>

#include "csrc/ir/attributes.h"

namespace spmd {
namespace {

std::string Reprinted(absl::string_view text) {
  const auto attr = ParseAttr(text);
  return attr.ok() ? AttrToString(*attr) : std::string(attr.status().message());
}

TEST(AttributeText, RoundTrips) {
  for (const char* text : {"none",
                           "true",
                           "false",
                           "0",
                           "-7",
                           "9223372036854775807",
                           "-9223372036854775808",
                           "1.0",
                           "-0.0",
                           "1e-05",
                           "1e+300",
                           "0.1",
                           "inf",
                           "-inf",
                           "nan",
                           "complex(1.0,-2.5)",
                           "\"\"",
                           "\"a \\\"b\\\" \\\\ \\n\"",
                           "f32",
                           "bool",
                           "f8e4m3fn",
                           "$0",
                           "$12",
                           "[]",
                           "[1,-2,3]",
                           "[1.0,inf]",
                           "[true,false]",
                           "float[]",
                           "bool[]",
                           "start(o0,1)",
                           "max(start(r0,0)*2-1,0)",
                           "[2,size(r0,1)]",
                           "coord(1)"}) {
    EXPECT_EQ(Reprinted(text), text);
  }
}

TEST(AttributeText, KeepsEveryDouble) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 20000; ++i) {
    const uint64_t bits = random();
    double value;
    std::memcpy(&value, &bits, sizeof(value));
    if (!std::isfinite(value)) continue;
    const auto read = ParseAttr(AttrToString(value));
    ASSERT_TRUE(read.ok()) << AttrToString(value);
    ASSERT_EQ(std::get<double>(*read), value) << AttrToString(value);
  }
}

TEST(AttributeText, IntegersAndFloatsDiffer) {
  EXPECT_EQ(std::get<int64_t>(*ParseAttr("1")), 1);
  EXPECT_EQ(std::get<double>(*ParseAttr("1.0")), 1.0);
  EXPECT_EQ(std::get<double>(*ParseAttr("1e3")), 1000.0);
  EXPECT_EQ(Reprinted("[1,2.0]"),
            "expected integers, floats, bools or expressions, all of one kind, at '1,2.0]' in "
            "'[1,2.0]'");
}

TEST(AttributeText, RefusesWhatIsNoValue) {
  for (const char* text : {"", "foo", "-", "1 2", "[1", "[[1]]", "$", "$-1", "\"a", "complex(1)",
                           "99999999999999999999", "start(o0)", "[1,]", "1.5.2", "%x"}) {
    const auto attr = ParseAttr(text);
    ASSERT_FALSE(attr.ok()) << text << " read as " << AttrToString(*attr);
    EXPECT_THAT(std::string(attr.status().message()), testing::HasSubstr("expected")) << text;
  }
}

}  // namespace
}  // namespace spmd
