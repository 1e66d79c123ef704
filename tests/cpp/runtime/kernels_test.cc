// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/kernels/kernels.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "csrc/runtime/kernels/philox.h"

namespace spmd::runtime::kernels {
namespace {

void ExpectClose(const Tensor& a, const Tensor& b, double tolerance = 1e-5) {
  ASSERT_EQ(a.sizes(), b.sizes());
  ASSERT_EQ(a.scalar_type(), b.scalar_type());
  if (a.numel() == 0) return;
  EXPECT_TRUE(at::allclose(a.to(at::kDouble), b.to(at::kDouble), tolerance, tolerance, true))
      << "largest difference " << a.to(at::kDouble).sub(b.to(at::kDouble)).abs().max();
}

TEST(Philox, KnownAnswers) {
  // From the authors' kat_vectors.
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t ones = 0xffffffff;
  EXPECT_EQ(Philox4x32({ones, ones, ones, ones}, {ones, ones}),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, GroupsAreBlocks) {
  const uint64_t seed = 0x1234567890abcdef, counter = 0xfedcba0987654321;
  for (int64_t group : {int64_t{0}, int64_t{7}, int64_t{1} << 29, (int64_t{1} << 33) + 5}) {
    PhiloxGroup words;
    GenerateGroup(seed, counter, group, words);
    for (int lane = 0; lane < kLanes; ++lane) {
      const uint64_t block = static_cast<uint64_t>(group) * kLanes + lane;
      const PhiloxBlock expected =
          Philox4x32({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                      static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32)},
                     {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
      for (int w = 0; w < 4; ++w) EXPECT_EQ(words.words[w][lane], expected[w]);
    }
  }
}

struct Distribution {
  const char* name;
  double p0, p1;
  at::ScalarType type;
};

Tensor Whole(const Distribution& d, IntArrayRef size, int64_t counter = 3) {
  return Random(size, std::vector<int64_t>(size.size(), 0), size, 42, counter, d.name, d.p0, d.p1,
                d.type, std::nullopt);
}

const Distribution kDistributions[] = {
    {"uniform", -1, 2, at::kFloat},    {"uniform", 0, 1, at::kDouble},
    {"uniform", 0, 1, at::kBFloat16},  {"normal", 1, 2, at::kFloat},
    {"normal", 0, 1, at::kDouble},     {"normal", 0, 1, at::kHalf},
    {"bernoulli", 0.3, 0, at::kFloat}, {"bernoulli", 0.3, 0, at::kBool},
    {"randint", -5, 7, at::kLong},     {"randint", 0, 1e15, at::kLong},
    {"exponential", 2, 0, at::kFloat}, {"log_normal", 0, 0.5, at::kFloat},
    {"cauchy", 0, 1, at::kFloat},      {"geometric", 0.4, 0, at::kFloat},
};

TEST(Random, EveryTilingGivesTheSameElements) {
  const std::vector<int64_t> size{7, 33, 50};
  for (const Distribution& d : kDistributions) {
    const Tensor whole = Whole(d, size);
    for (int64_t dim = 0; dim < 3; ++dim) {
      for (int64_t chunk : {1, 3, 17, 64}) {
        std::vector<Tensor> parts;
        for (int64_t begin = 0; begin < size[dim]; begin += chunk) {
          std::vector<int64_t> offset(3, 0), part = size;
          offset[dim] = begin;
          part[dim] = std::min(chunk, size[dim] - begin);
          parts.push_back(
              Random(part, offset, size, 42, 3, d.name, d.p0, d.p1, d.type, std::nullopt));
        }
        EXPECT_TRUE(at::equal(at::cat(parts, dim), whole)) << d.name << " " << d.type;
      }
    }
  }
}

TEST(Random, DependsOnSeedAndCounter) {
  const Distribution d{"uniform", 0, 1, at::kFloat};
  EXPECT_FALSE(at::equal(Whole(d, {100}, 3), Whole(d, {100}, 4)));
  EXPECT_TRUE(at::equal(Whole(d, {100}, 3), Whole(d, {100}, 3)));
  const Tensor other = Random({100}, {0}, {100}, 43, 3, "uniform", 0, 1, at::kFloat, std::nullopt);
  EXPECT_FALSE(at::equal(Whole(d, {100}, 3), other));
}

TEST(Random, Moments) {
  const int64_t n = 400000;
  const auto moments = [&](const Distribution& d) {
    const Tensor x = Whole(d, {n}).to(at::kDouble);
    return std::pair(x.mean().item<double>(), x.var().item<double>());
  };
  const double e = 0.01;
  auto [mean, variance] = moments({"uniform", -1, 2, at::kFloat});
  EXPECT_NEAR(mean, 0.5, e);
  EXPECT_NEAR(variance, 0.75, e);
  for (at::ScalarType type : {at::kFloat, at::kDouble}) {
    std::tie(mean, variance) = moments({"normal", 1, 2, type});
    EXPECT_NEAR(mean, 1, 2 * e);
    EXPECT_NEAR(variance, 4, 4 * e);
  }
  std::tie(mean, variance) = moments({"bernoulli", 0.3, 0, at::kBool});
  EXPECT_NEAR(mean, 0.3, e);
  std::tie(mean, variance) = moments({"randint", -5, 7, at::kLong});
  EXPECT_NEAR(mean, 0.5, 3 * e);
  std::tie(mean, variance) = moments({"exponential", 2, 0, at::kFloat});
  EXPECT_NEAR(mean, 0.5, e);
  EXPECT_NEAR(variance, 0.25, e);
  std::tie(mean, variance) = moments({"geometric", 0.4, 0, at::kFloat});
  EXPECT_NEAR(mean, 2.5, 3 * e);
}

TEST(Random, NormalIsNormal) {
  // Kolmogorov–Smirnov against the normal distribution, at a level of about 1e-4.
  const int64_t n = 100000;
  const Tensor sorted =
      std::get<0>(Whole({"normal", 0, 1, at::kFloat}, {n}).to(at::kDouble).sort());
  const Tensor cdf = sorted.div(std::sqrt(2.0)).erf().add(1).div(2);
  const Tensor steps = at::arange(n, at::kDouble).div(n);
  EXPECT_LT(cdf.sub(steps).abs().max().item<double>(), 2.2 / std::sqrt(n));
}

TEST(Random, UniformStaysBelowItsEnd) {
  for (at::ScalarType type : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble}) {
    const Tensor x = Whole({"uniform", 0, 1, type}, {200000});
    EXPECT_LT(x.max().item<double>(), 1.0);
    EXPECT_GE(x.min().item<double>(), 0.0);
  }
}

TEST(Dropout, KeepsScalesAndAgreesBetweenTilings) {
  const Tensor x = at::randn({40, 50});
  const auto [out, mask] = Dropout(x, 0.25, 1, 2, {0, 0}, {40, 50});
  ExpectClose(out, x.mul(mask).div(0.75));
  EXPECT_NEAR(mask.to(at::kFloat).mean().item<double>(), 0.75, 0.05);
  const auto [part, part_mask] = Dropout(x.slice(1, 30), 0.25, 1, 2, {0, 30}, {40, 50});
  EXPECT_TRUE(at::equal(part_mask, mask.slice(1, 30)));
  EXPECT_TRUE(at::equal(part, out.slice(1, 30)));
  EXPECT_EQ(std::get<0>(Dropout(x, 1.0, 1, 2, {0, 0}, {40, 50})).abs().max().item<float>(), 0);
}

TEST(Linear, Gradients) {
  for (const std::vector<int64_t>& lead :
       {std::vector<int64_t>{}, {5}, {2, 3}, {2, 0, 3}, {2, 3, 4}}) {
    std::vector<int64_t> grad_size = lead, input_size = lead;
    grad_size.push_back(6);
    input_size.push_back(7);
    const Tensor grad = at::randn(grad_size), input = at::randn(input_size),
                 weight = at::randn({6, 7});
    ExpectClose(LinearDInput(grad, weight), at::matmul(grad, weight));
    ExpectClose(LinearDWeight(grad, input),
                at::matmul(grad.reshape({-1, 6}).t(), input.reshape({-1, 7})));
  }
}

TEST(Attention, EqualsMath) {
  for (bool grouped : {false, true}) {
    for (int mask_kind : {0, 1, 2, 3}) {  // none, causal, boolean, additive
      for (at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
        SCOPED_TRACE(testing::Message()
                     << "grouped " << grouped << ", mask " << mask_kind << ", " << type);
        const int64_t heads = 4, kv = grouped ? 2 : 4;
        const auto random = [&](std::vector<int64_t> size) { return at::randn(size).to(type); };
        const Tensor q = random({2, 9, heads, 8}).transpose(1, 2), k = random({2, kv, 11, 8}),
                     v = random({2, kv, 11, 8}), g = random({2, heads, 9, 8});
        OptionalTensor mask;
        if (mask_kind == 2) mask = at::rand({2, 1, 9, 11}).gt(0.3);
        if (mask_kind == 3) mask = random({9, 11});
        const bool causal = mask_kind == 1;
        const auto [out, logsumexp] = Attention(q, k, v, mask, causal, std::nullopt);
        const auto grads =
            AttentionBackward(g, q, k, v, out, logsumexp, mask, causal, std::nullopt);

        std::vector<Tensor> leaves;
        for (const Tensor& t : {q, k, v}) {
          leaves.push_back(t.to(at::kDouble).detach().requires_grad_(true));
        }
        OptionalTensor wide = mask;
        if (mask_kind == 3) wide = mask->to(at::kDouble);
        if (mask_kind == 2) {
          wide = at::zeros({2, 1, 9, 11}, at::kDouble).masked_fill(mask->logical_not(), -INFINITY);
        }
        const Tensor expected = std::get<0>(
            at::_scaled_dot_product_attention_math(leaves[0], leaves[1], leaves[2], wide, 0.0,
                                                   causal, std::nullopt, std::nullopt, grouped));
        const double tolerance = type == at::kBFloat16 ? 0.1 : 2e-5;
        ExpectClose(out.to(at::kDouble), expected.detach(), tolerance);
        EXPECT_EQ(logsumexp.scalar_type(), type == at::kDouble ? at::kDouble : at::kFloat);
        EXPECT_EQ(logsumexp.sizes(), (std::vector<int64_t>{2, heads, 9}));
        expected.mul(g.to(at::kDouble)).sum().backward();
        ExpectClose(std::get<0>(grads).to(at::kDouble), leaves[0].grad(), tolerance);
        ExpectClose(std::get<1>(grads).to(at::kDouble), leaves[1].grad(), tolerance);
        ExpectClose(std::get<2>(grads).to(at::kDouble), leaves[2].grad(), tolerance);
      }
    }
  }
}

TEST(Embedding, WindowsOfRowsAddUp) {
  const Tensor weight = at::randn({10, 4}), indices = at::randint(0, 10, {3, 5}, at::kLong),
               grad = at::randn({3, 5, 4});
  ExpectClose(Embedding(weight, indices, 0), at::embedding(weight, indices));
  Tensor sum = at::zeros({3, 5, 4});
  std::vector<Tensor> rows;
  for (int64_t first : {0, 4, 8}) {
    const int64_t n = std::min<int64_t>(4, 10 - first);
    sum.add_(Embedding(weight.narrow(0, first, n), indices, first));
    rows.push_back(EmbeddingDWeight(grad, indices, n, 2, first));
  }
  ExpectClose(sum, at::embedding(weight, indices));
  ExpectClose(at::cat(rows), at::embedding_dense_backward(grad, indices, 10, 2, false));
  EXPECT_THROW(Embedding(weight, at::full({1}, -1, at::kLong), 0), c10::IndexError);
}

TEST(Nll, EqualsAtenAndClassesAddUp) {
  const int64_t n = 12, c = 7;
  const Tensor logp = at::randn({n, c}).log_softmax(1), target = at::randint(0, c, {n}, at::kLong);
  target[3] = -100;
  for (const OptionalTensor& weight : {OptionalTensor(), OptionalTensor(at::rand({c}).add(0.5))}) {
    const auto [loss, total] = NllSum(logp, target, weight, -100, 0);
    const auto expected = at::nll_loss_forward(logp, target, weight, at::Reduction::Sum, -100);
    ExpectClose(loss, std::get<0>(expected));
    const Tensor mean =
        std::get<0>(at::nll_loss_forward(logp, target, weight, at::Reduction::Mean, -100));
    ExpectClose(loss.div(total), mean);
    const Tensor rows = NllRows(logp, target, weight, -100, 0);
    ExpectClose(rows, at::nll_loss(logp, target, weight, at::Reduction::None, -100));

    Tensor loss_sum = at::zeros({}), total_sum = at::zeros({});
    std::vector<Tensor> columns, fused;
    const Tensor scale = total.reciprocal(), grad = at::full({}, 0.7);
    for (int64_t first : {0, 3, 6}) {
      const int64_t k = std::min<int64_t>(3, c - first);
      OptionalTensor part = weight;
      if (weight.has_value()) part = weight->narrow(0, first, k);
      const auto [l, t] = NllSum(logp.narrow(1, first, k), target, part, -100, first);
      loss_sum.add_(l);
      total_sum.add_(t);
      columns.push_back(NllDInput(grad, target, part, scale, k, -100, first));
      fused.push_back(
          CrossEntropyDInput(grad, logp.narrow(1, first, k), target, weight, scale, -100, first));
    }
    ExpectClose(loss_sum, loss);
    ExpectClose(total_sum, total);
    const Tensor dinput =
        at::nll_loss_backward(grad, logp, target, weight, at::Reduction::Mean, -100, total);
    ExpectClose(at::cat(columns, 1), dinput);
    ExpectClose(at::cat(fused, 1), at::_log_softmax_backward_data(dinput, logp, 1, at::kFloat));
  }
}

TEST(Convolution, GradientsEqualAtenAndRegionsAreRegions) {
  for (int64_t stride : {1, 2, 3}) {
    for (int64_t padding : {0, 1, 2}) {
      for (int64_t dilation : {1, 2}) {
        const Tensor input = at::randn({2, 4, 13, 12}), weight = at::randn({6, 2, 3, 3});
        const Tensor out = at::conv2d(input, weight, std::nullopt, {stride, stride},
                                      {padding, padding}, {dilation, dilation}, 2);
        const Tensor grad = at::randn_like(out);
        const auto [dinput, dweight, dbias] = at::convolution_backward(
            grad, input, weight, std::nullopt, {stride, stride}, {padding, padding},
            {dilation, dilation}, false, {0, 0}, 2, {true, true, false});
        const std::vector<int64_t> s{stride, stride}, p{padding, padding}, d{dilation, dilation};
        ExpectClose(ConvDInput(grad, weight, input.sizes(), s, p, d, 2, {0, 0}), dinput, 1e-4);
        ExpectClose(ConvDWeight(grad, input, weight.sizes(), s, p, d, 2), dweight, 1e-4);
        // Any region of the gradient, also one that begins in the padding.
        ExpectClose(ConvDInput(grad, weight, {5, 6}, s, p, d, 2, {4, 3}),
                    dinput.narrow(2, 4, 5).narrow(3, 3, 6), 1e-4);
        const Tensor before = ConvDInput(grad, weight, {7, 12}, s, p, d, 2, {-padding, 0});
        ExpectClose(before.narrow(2, padding, 7 - padding), dinput.narrow(2, 0, 7 - padding), 1e-4);
        // The weight's gradient is a sum over rows of the output.
        Tensor sum = at::zeros_like(weight);
        const Tensor padded = at::constant_pad_nd(input, {0, 0, padding, padding});
        for (int64_t row = 0; row < grad.size(2); ++row) {
          sum.add_(ConvDWeight(grad.narrow(2, row, 1),
                               padded.narrow(2, row * stride, 2 * dilation + 1), weight.sizes(), s,
                               {0, padding}, d, 2));
        }
        ExpectClose(sum, dweight, 1e-4);
      }
    }
  }
}

// Images of every layout: planes one after another, channels last, a part of another, one expanded.
std::vector<Tensor> LayoutsOf(IntArrayRef size, at::ScalarType type) {
  const Tensor x = at::randn(size, at::kDouble).to(type);
  std::vector<int64_t> wider(size.begin(), size.end());
  ++wider.back();
  const int64_t last = x.dim() - 1;
  return {x, x.transpose(1, last).contiguous().transpose(1, last),
          at::randn(wider, at::kDouble).to(type).narrow(last, 1, size.back()),
          at::full({}, 1.5, type).expand(size)};
}

TEST(ChannelAffine, IsAddcmulInEveryLayout) {
  const std::vector<std::vector<int64_t>> sizes = {
      {3, 4},       {3, 4, 5},    {2, 4, 3, 5}, {16, 3, 33, 32}, {2, 3, 2, 2, 3},
      {4, 3, 1, 1}, {1, 1, 7, 9}, {0, 3, 2, 2}, {2, 0, 3, 3},    {2, 3, 0, 4}};
  for (const std::vector<int64_t>& size : sizes) {
    std::vector<int64_t> per_channel(size.size(), 1);
    per_channel[1] = size[1];
    for (at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
      const Tensor factor = at::randn(per_channel, at::kDouble).to(type);
      for (const Tensor& offset :
           {at::randn(per_channel, at::kDouble).to(type), at::ones({}, type).expand(per_channel)}) {
        for (const Tensor& x : LayoutsOf(size, type)) {
          ExpectClose(ChannelAffine(offset, x, factor), at::addcmul(offset, x, factor), 1e-6);
        }
      }
    }
  }
}

TEST(ChannelAffine, InfinitiesAreOfTheirElementsOnly) {
  const Tensor x = at::tensor({0., 1., -1.}).expand({2, 3, 3}).contiguous();
  const double inf = INFINITY;
  const Tensor out = ChannelAffine(at::tensor({1., 1., -inf}).view({1, 3, 1}), x,
                                   at::tensor({2., inf, inf}).view({1, 3, 1}));
  ExpectClose(
      out,
      at::tensor({1., 3., -1., NAN, inf, -inf, NAN, NAN, -inf}).view({1, 3, 3}).expand({2, 3, 3}));
}

TEST(Simple, IotaSlicesAndFills) {
  EXPECT_TRUE(at::equal(Iota(4, 3, 2, 5, at::kLong, std::nullopt),
                        at::arange(3 + 5 * 2, 3 + 9 * 2, 2, at::kLong)));
  const Tensor whole = Iota(100, 0.1, 0.3, 0, at::kFloat, std::nullopt);
  EXPECT_TRUE(at::equal(Iota(20, 0.1, 0.3, 50, at::kFloat, std::nullopt), whole.narrow(0, 50, 20)));
  ExpectClose(whole, at::arange(100, at::kFloat).mul(0.3).add(0.1));
  const Tensor x = at::randn({4, 6}), src = at::randn({4, 2});
  const Tensor y = SliceStartScatter(x, src, 1, 3);
  EXPECT_TRUE(at::equal(SliceStart(y, 1, 3, 2), src));
  EXPECT_TRUE(at::equal(y.narrow(1, 0, 3), x.narrow(1, 0, 3)));
  EXPECT_TRUE(at::equal(Full({2, 3}, 1.5, at::kBFloat16, std::nullopt),
                        at::full({2, 3}, 1.5, at::kBFloat16)));
}

TEST(Meta, ShapesWithoutData) {
  const auto meta = at::TensorOptions().device(at::kMeta);
  const Tensor q = at::empty({2, 4, 9, 8}, meta), k = at::empty({2, 2, 11, 8}, meta);
  const auto [out, logsumexp] = Attention(q, k, k, std::nullopt, true, std::nullopt);
  EXPECT_EQ(out.sizes(), q.sizes());
  EXPECT_EQ(logsumexp.sizes(), (std::vector<int64_t>{2, 4, 9}));
  EXPECT_EQ(LinearDWeight(at::empty({3, 5, 6}, meta), at::empty({3, 5, 7}, meta)).sizes(),
            (std::vector<int64_t>{6, 7}));
  EXPECT_EQ(Embedding(at::empty({10, 4}, meta), at::empty({3}, meta.dtype(at::kLong)), 0).sizes(),
            (std::vector<int64_t>{3, 4}));
  const Tensor per_channel = at::empty({1, 4, 1, 1}, meta);
  EXPECT_EQ(ChannelAffine(per_channel, q, per_channel).sizes(), q.sizes());
  EXPECT_EQ(std::get<0>(Dropout(q, 0.5, 1, 2, {0, 0, 0, 0}, q.sizes())).sizes(), q.sizes());
}

}  // namespace
}  // namespace spmd::runtime::kernels
