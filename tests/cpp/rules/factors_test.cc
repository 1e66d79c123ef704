// SPDX-License-Identifier: Apache-2.0
// What the tables say, as text: one line in, the factors out.
#include <gtest/gtest.h>

#include "tests/cpp/rules/one_op.h"

namespace spmd::rules {
namespace {

std::string Factors(const char* line) { return OneOp(line).FactorText(); }

TEST(MatmulRules, Products) {
  EXPECT_EQ(Factors("f32[2,4] = aten::addmm(f32[4], f32[2,3], f32[3,4], beta=1, alpha=1)"),
            "a, b c, c a -> b a  {a=4, b=2, c=3}");
  EXPECT_EQ(Factors("f32[7,2,4] = aten::bmm(f32[7,2,3], f32[7,3,4])"),
            "a b c, a c d -> a b d  {a=7, b=2, c=3, d=4}");
  EXPECT_EQ(Factors("f32[8,2,4] = aten::linear(f32[8,2,3], f32[4,3], f32[4])"),
            "a b c, d c, d -> a b d  {a=8, b=2, c=3, d=4}");
  EXPECT_EQ(Factors("f32[8,2,3] = spmd::linear_dinput(f32[8,2,4], f32[4,3])"),
            "a b c, c d -> a b d  {a=8, b=2, c=4, d=3}");
  EXPECT_EQ(Factors("f32[4,3] = spmd::linear_dweight(f32[8,2,4], f32[8,2,3])"),
            "a b c, a b d -> c d  {a=8, b=2, c=4, d=3}");
}

TEST(MatmulRules, AttentionHeadsSplitIntoGroups) {
  EXPECT_EQ(Factors("f32[2,8,5,6], f32[2,8,5] = spmd::attention(f32[2,8,5,6], f32[2,4,7,6], "
                    "f32[2,4,7,6], _, is_causal=false, scale=none)"),
            "a (b c) d [f], a b [e] [f], a b [e] [f], () -> a (b c) d [f], a (b c) d  "
            "{a=2, b=4, c=2, d=5, e=7, f=6}");
  EXPECT_EQ(Factors("f32[2,8,5,6], f32[2,8,5] = spmd::attention(f32[2,8,5,6], f32[2,8,5,6], "
                    "f32[2,8,5,6], bool[1,1,5,5], is_causal=true, scale=none)"),
            "a b [c] [e], a b [d] [e], a b [d] [e], 1 1 [c] [d] -> a b [c] [e], a b [c]  "
            "{a=2, b=8, c=5, d=5, e=6}");
}

TEST(MatmulRules, KeysAndValuesOfTheBackwardLackTheGroups) {
  EXPECT_EQ(Factors("f32[2,8,5,6], f32[2,4,7,6], f32[2,4,7,6] = spmd::attention_backward("
                    "f32[2,8,5,6], f32[2,8,5,6], f32[2,4,7,6], f32[2,4,7,6], f32[2,8,5,6], "
                    "f32[2,8,5], _, is_causal=false, scale=none)"),
            "a (b c) d [f], a (b c) d [f], a b [e] [f], a b [e] [f], a (b c) d [f], a (b c) d, () "
            "-> a (b c) d [f], a b [e] [f], a b [e] [f]  {a=2, b=4, c=2, d=5, e=7, f=6}");
}

TEST(ReductionRules, KindsAndKeptDimensions) {
  EXPECT_EQ(
      Factors("f32[3,1] = aten::sum.dim_IntList(f32[3,4], dim=[1], keepdim=true, dtype=none)"),
      "a b -> a 1  {a=3, b=4}");
  EXPECT_EQ(Factors("f32[] = aten::sum(f32[3,4], dtype=none)"), "a b -> ()  {a=3, b=4}");
  EXPECT_EQ(Factors("f32[4] = aten::amax(f32[3,4], dim=[-2], keepdim=false)"),
            "a b -> b  {a=3 max, b=4}");
  EXPECT_EQ(Factors("bool[3] = aten::any.dim(f32[3,4], dim=1, keepdim=false)"),
            "a b -> a  {a=3, b=4 or}");
  EXPECT_EQ(
      Factors("f32[3] = aten::var.correction(f32[3,4], dim=[1], correction=1, keepdim=false)"),
      "a [b] -> a  {a=3, b=4}");
}

TEST(ReductionRules, NormsThatAreSumsNeedNoDecomposition) {
  auto norm = [](const char* ord) {
    return Factors((std::string("f32[3] = aten::linalg_vector_norm(f32[3,4], ord=") + ord +
                    ", dim=[1], keepdim=false, dtype=none)")
                       .c_str());
  };
  EXPECT_EQ(norm("1"), "a b -> a  {a=3, b=4}");
  EXPECT_EQ(norm("inf"), "a b -> a  {a=3, b=4 max}");
  EXPECT_EQ(norm("-inf"), "a b -> a  {a=3, b=4 min}");
  EXPECT_EQ(norm("2"), "a [b] -> a  {a=3, b=4}");
}

TEST(ReductionRules, ScansAndSortsNeedTheirDimensionWhole) {
  EXPECT_EQ(Factors("f32[3,4] = aten::_softmax(f32[3,4], dim=-1, half_to_float=false)"),
            "a [b] -> a [b]  {a=3, b=4}");
  EXPECT_EQ(Factors("f32[3,2], i64[3,2] = aten::topk(f32[3,4], k=2, dim=1, largest=true, "
                    "sorted=true)"),
            "a [b] -> a 1, a 1  {a=3, b=4}");
  EXPECT_EQ(Factors("f32[] = aten::cumsum(f32[], dim=0, dtype=none)"), "() -> ()  {}");
}

TEST(NormalizationRules, RowsPassAndWeightGradientsSumOverThem) {
  EXPECT_EQ(Factors("f32[2,3,4], f32[2,3,1], f32[2,3,1] = aten::native_layer_norm(f32[2,3,4], "
                    "f32[4], f32[4], normalized_shape=[4], eps=1e-05)"),
            "a b [c], [c], [c] -> a b [c], a b 1, a b 1  {a=2, b=3, c=4}");
  EXPECT_EQ(Factors("f32[2,3,4], f32[4], f32[4] = aten::native_layer_norm_backward(f32[2,3,4], "
                    "f32[2,3,4], f32[2,3,1], f32[2,3,1], f32[4], f32[4], normalized_shape=[4], "
                    "output_mask=[true,true,true])"),
            "a b [c], a b [c], a b 1, a b 1, [c], [c] -> a b [c], [c], [c]  {a=2, b=3, c=4}");
}

TEST(NormalizationRules, GroupsOfChannelsPass) {
  const OneOp op(
      "f32[2,6,5], f32[2,3], f32[2,3] = aten::native_group_norm(f32[2,6,5], f32[6], _, "
      "N=2, C=6, HxW=5, group=3, eps=1e-05)");
  EXPECT_EQ(op.FactorText(),
            "a (b [c]) [d], (b [c]), () -> a (b [c]) [d], a b, a b  {a=2, b=3, c=2, d=5}");
  const OpFactors factors = *FactorsOf(op.rule(), op.call());
  EXPECT_EQ(op.rule().local(op.call(), factors, {true, false, false, false}).ToString(),
            "N=size(o0,0), C=6, HxW=5, group=3, eps=1e-05");
  EXPECT_EQ(op.rule().local(op.call(), factors, {false, true, false, false}).ToString(),
            "N=2, C=size(o0,1), HxW=5, group=size(r1,1), eps=1e-05");
}

TEST(NormalizationRules, BatchesPassWhereStatisticsAreGiven) {
  EXPECT_EQ(Factors("f32[2,3,5], f32[3], f32[3], f32[3], f32[3] = "
                    "aten::_native_batch_norm_legit_functional(f32[2,3,5], f32[3], _, f32[3], "
                    "f32[3], training=true, momentum=0.1, eps=1e-05)"),
            "[a] b [c], b, (), b, b -> [a] b [c], b, b, b, b  {a=2, b=3, c=5}");
  EXPECT_EQ(Factors("f32[2,3,5], f32[0], f32[0] = aten::native_batch_norm(f32[2,3,5], "
                    "f32[3], f32[3], f32[3], f32[3], training=false, momentum=0.1, eps=1e-05)"),
            "a b c, b, b, b, b -> a b c, 1, 1  {a=2, b=3, c=5}");
}

TEST(CreationRules, TilesAreMadeWhereTheyAre) {
  const OneOp full("f32[4,6] = spmd::full(size=[4,6], value=1.0, dtype=f32)");
  EXPECT_EQ(full.FactorText(), " -> a b  {a=4, b=6}");
  const OpFactors factors = *FactorsOf(full.rule(), full.call());
  EXPECT_EQ(full.rule().local(full.call(), factors, {true, false}).ToString(),
            "size=[size(r0,0),size(r0,1)], value=1.0, dtype=f32");
  EXPECT_EQ(full.rule().local(full.call(), factors, {false, false}).ToString(),
            "size=[4,6], value=1.0, dtype=f32");

  const OneOp iota("i64[6] = spmd::iota(size=6, start=0, step=1, offset=0, dtype=i64)");
  EXPECT_EQ(iota.rule().local(iota.call(), *FactorsOf(iota.rule(), iota.call()), {true}).ToString(),
            "size=size(r0,0), start=0, step=1, offset=start(r0,0), dtype=i64");

  const OneOp random(
      "f32[4] = spmd::random(size=[4], offset=[0], global_size=[4], seed=1, "
      "counter=2, distribution=\"normal\", p0=0.0, p1=1.0, dtype=f32)");
  EXPECT_TRUE(random.rule().random);
  EXPECT_EQ(random.rule()
                .local(random.call(), *FactorsOf(random.rule(), random.call()), {true})
                .ToString(),
            "size=[size(r0,0)], offset=[start(r0,0)], global_size=[4], seed=1, counter=2, "
            "distribution=\"normal\", p0=0.0, p1=1.0, dtype=f32");
}

TEST(LossRules, ReductionsAreAlwaysWrittenOut) {
  EXPECT_TRUE(Find("aten::mse_loss")->decompose_always);
  EXPECT_TRUE(Find("aten::mean.dim")->decompose_always);
  EXPECT_TRUE(Find("aten::_fused_adamw")->decompose_always);
  EXPECT_EQ(Factors("f32[2,3], f32[2,3], f32[2,3] = spmd::adam(f32[2,3], f32[2,3], f32[2,3], "
                    "f32[2,3], f32[], lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.0, eps=1.0, "
                    "decoupled=true, maximize=false)"),
            "a b, a b, a b, a b, () -> a b, a b, a b  {a=2, b=3}");
  EXPECT_FALSE(Find("aten::_softmax")->decompose_always);
}

}  // namespace
}  // namespace spmd::rules
