// SPDX-License-Identifier: Apache-2.0
// Random ops. Each takes its (seed, counter) when it is recorded.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/where.h>

#include <cmath>
#include <limits>
#include <string_view>

#include "csrc/trace/device/device_type.h"
#include "csrc/trace/device/generator.h"
#include "csrc/trace/dispatch/run_elsewhere.h"
#include "csrc/trace/dispatch/run_on_host.h"
#include "csrc/trace/ops/handlers.h"
#include "csrc/trace/recorder/arguments.h"
#include "csrc/trace/recorder/recorder.h"
#include "csrc/trace/recorder/tensor.h"
#include "csrc/trace/session/session_state.h"
#include "csrc/trace/shape/cpu_forms.h"

namespace spmd::trace {

namespace {

struct Distribution {
  const char* name;
  double p0 = 0;
  double p1 = 0;
};

std::optional<at::Generator> GeneratorOf(const OpInfo& op, const Args& args) {
  for (size_t i = 0; i < args.size(); ++i) {
    if (op.args[i].kind == ArgKind::kGenerator && !args[i].isNone()) return args[i].toGenerator();
  }
  return std::nullopt;
}

// In a manual region each device draws numbers of its own: they are drawn as one tensor with a
// first dimension in front, of which each device has an index.
std::vector<std::string> AxesOfRegions() {
  std::vector<std::string> axes;
  for (const EnteredManual& region : entered_manual) {
    axes.insert(axes.end(), region.axes.begin(), region.axes.end());
  }
  return axes;
}
TensorType OfAllDevices(TensorType type) {
  int64_t devices = 1;
  for (const EnteredManual& region : entered_manual) devices *= region.devices;
  type.dims.insert(type.dims.begin(), devices);
  return type;
}
TapeId EmitOwn(SessionState& state, TapeId all, const TensorType& own) {
  Dims one = own.dims;
  one.insert(one.begin(), 1);
  const std::string border = FirstBorder(static_cast<int64_t>(one.size()), AxesOfRegions());
  const TapeId part =
      EmitBorder(state, /*enters=*/true, all, one, border, entered_manual.back().mesh);
  return EmitView(state, part, own.dims);
}
TapeId EmitAll(SessionState& state, TapeId own) {
  const TensorType type = TypeOf(state, own);
  const std::vector<std::string> axes = AxesOfRegions();
  const std::string& mesh = entered_manual.back().mesh;
  if (const ManualAxes missing = ManualAxesOf(axes) & ~state.tape->manual(own)) {
    own = EmitBorder(state, /*enters=*/true, own, type.dims,
                     AllBorder(type.rank(), NamesOf(missing)), mesh);
  }
  Dims one = type.dims;
  one.insert(one.begin(), 1);
  return EmitBorder(state, /*enters=*/false, EmitView(state, own, one), OfAllDevices(type).dims,
                    FirstBorder(type.rank() + 1, axes), mesh);
}

TapeId EmitRandom(SessionState& state, const TensorType& own, const Distribution& d,
                  const std::optional<at::Generator>& generator) {
  if (!entered_manual.empty()) {
    const TensorType all = OfAllDevices(own);
    std::vector<EnteredManual> regions;
    regions.swap(entered_manual);
    const TapeId drawn = EmitRandom(state, all, d, generator);
    regions.swap(entered_manual);
    return EmitOwn(state, drawn, own);
  }
  const TensorType& type = own;
  const RandomKey key = NextRandom(generator);
  const std::vector<int64_t> size(type.dims.begin(), type.dims.end());
  return EmitNamed(state, "spmd::random", {},
                   {{"size", size},
                    {"offset", std::vector<int64_t>(size.size(), 0)},
                    {"global_size", size},
                    {"seed", static_cast<int64_t>(key.seed)},
                    {"counter", static_cast<int64_t>(key.counter)},
                    {"distribution", std::string(d.name)},
                    {"p0", d.p0},
                    {"p1", d.p1},
                    {"dtype", static_cast<int64_t>(runtime::ToScalarType(type.dtype))}},
                   type);
}

// For complex numbers both parts are drawn, each with half the variance.
TapeId EmitDraw(SessionState& state, const TensorType& type, Distribution d,
                const std::optional<at::Generator>& generator) {
  if (!IsComplex(type.dtype)) return EmitRandom(state, type, d, generator);
  TensorType parts = type;
  parts.dtype = runtime::FromScalarType(c10::toRealValueType(runtime::ToScalarType(type.dtype)));
  parts.dims.push_back(2);
  if (std::string_view(d.name) == "normal") d.p1 /= std::sqrt(2.0);
  const TapeId drawn = EmitRandom(state, parts, d, generator);
  return EmitNamed(state, "aten::view_as_complex", {drawn}, {}, type);
}

double Number(const OpInfo& op, const Args& args, const char* name, double fallback) {
  const int i = op.FindArg(name);
  return i < 0 || args[i].isNone() ? fallback : args[i].toScalar().toDouble();
}

// What a call draws. Requires: the CPU accepts the call.
using DistributionFn = Distribution (*)(const OpInfo&, const Args&, at::ScalarType);

Distribution StandardNormal(const OpInfo&, const Args&, at::ScalarType) { return {"normal", 0, 1}; }
Distribution Normal(const OpInfo& op, const Args& args, at::ScalarType) {
  return {"normal", Number(op, args, "mean", 0), Number(op, args, "std", 1)};
}
Distribution Uniform(const OpInfo& op, const Args& args, at::ScalarType) {
  return {"uniform", Number(op, args, "from", 0), Number(op, args, "to", 1)};
}
Distribution Integers(const OpInfo& op, const Args& args, at::ScalarType) {
  return {"randint", Number(op, args, "low", 0), Number(op, args, "high", 0)};
}
Distribution OneBernoulli(const OpInfo& op, const Args& args, at::ScalarType) {
  return {"bernoulli", Number(op, args, "p", 0.5)};
}
Distribution Exponential(const OpInfo& op, const Args& args, at::ScalarType) {
  return {"exponential", Number(op, args, "lambd", 1)};
}
Distribution LogNormal(const OpInfo& op, const Args& args, at::ScalarType) {
  return {"log_normal", Number(op, args, "mean", 1), Number(op, args, "std", 2)};
}
Distribution Cauchy(const OpInfo& op, const Args& args, at::ScalarType) {
  return {"cauchy", Number(op, args, "median", 0), Number(op, args, "sigma", 1)};
}
Distribution Geometric(const OpInfo& op, const Args& args, at::ScalarType) {
  return {"geometric", Number(op, args, "p", 0.5)};
}

// The first integer that random_ does not draw unless it is told to: the type represents all below
// it exactly.
double BeyondExactIntegers(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return 16777217;
    case at::kHalf:
      return 2049;
    case at::kBFloat16:
      return 257;
    case at::kByte:
      return 256;
    case at::kChar:
      return 128;
    case at::kShort:
      return 32768;
    case at::kInt:
      return 2147483648.0;
    case at::kBool:
      return 2;
    default:
      return 9007199254740992.0;
  }
}
Distribution ExactIntegers(const OpInfo& op, const Args& args, at::ScalarType dtype) {
  return {"randint", Number(op, args, "from", 0),
          Number(op, args, "to", BeyondExactIntegers(dtype))};
}

// Takes the arguments off the stack and returns the result's metadata; nullopt if the call ran on
// the host, which reports what is wrong with it.
std::optional<TensorMeta> TakeCall(SessionState& state, const OpInfo& op, const Args& args,
                                   torch::jit::Stack* stack) {
  const Inference& inferred = state.shapes.Infer(op, args);
  if (!inferred.ok) {
    RunOnHost(state, op, stack);
    return std::nullopt;
  }
  const TensorMeta meta = inferred.tensors[0];
  torch::jit::drop(*stack, op.args.size());
  return meta;
}

void Create(SessionState& state, const OpInfo& op, torch::jit::Stack* stack,
            DistributionFn distribution_of) {
  const Args args = PeekArguments(op, stack);
  if (RunElsewhere(state, op, args, stack)) return;
  const std::optional<TensorMeta> meta = TakeCall(state, op, args, stack);
  if (!meta.has_value()) return;
  const Distribution distribution = distribution_of(op, args, meta->dtype);
  TORCH_CHECK_NOT_IMPLEMENTED(std::string_view(distribution.name) != "uniform" ||
                                  at::isFloatingType(meta->dtype) || at::isComplexType(meta->dtype),
                              "\"check_uniform_bounds\" not implemented for '", meta->dtype, "'");
  const TapeId id = EmitDraw(state, TypeOf(*meta), distribution, GeneratorOf(op, args));
  stack->push_back(NewTensor(state, *meta, id));
}

template <DistributionFn DistributionOf>
void Created(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  Create(state, op, stack, DistributionOf);
}

void DrawInto(SessionState& state, const OpInfo& op, torch::jit::Stack* stack,
              DistributionFn distribution_of) {
  const Args args = PeekArguments(op, stack);
  if (!state.shapes.Infer(op, args).ok) {
    RunOnHost(state, op, stack);
    return;
  }
  torch::jit::drop(*stack, op.args.size());
  const at::Tensor self = args[0].toTensor();
  Write(state, self,
        EmitDraw(state, TypeOf(self), distribution_of(op, args, self.scalar_type()),
                 GeneratorOf(op, args)));
  stack->push_back(self);
}

template <DistributionFn DistributionOf>
void InPlace(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  DrawInto(state, op, stack, DistributionOf);
}

// x itself; the program refuses it if it finds an element outside [low, high].
TapeId EmitInRange(SessionState& state, TapeId x, double low, double high, const char* refusal) {
  return EmitNamed(state, "spmd::in_range", {x},
                   {{"low", low}, {"high", high}, {"refusal", refusal}}, TypeOf(state, x));
}

// x < p with x uniform, for probabilities that are tensors.
TapeId EmitBernoulli(SessionState& state, const at::Tensor& p, const TensorType& result,
                     const std::optional<at::Generator>& generator) {
  const TapeId given = EmitInRange(state, ReadOperand(state, p), 0, 1,
                                   "Expected p_in >= 0 && p_in <= 1 to be true, but got false.");
  const TapeId probability = EmitExpand(state, given, result.dims);
  const DType dtype = TypeOf(state, probability).dtype;
  const TapeId x = EmitRandom(state, {dtype, result.dims}, {"uniform", 0, 1}, generator);
  const TapeId hit =
      EmitNamed(state, "aten::lt.Tensor", {x, probability}, {}, {DType::kBool, result.dims});
  return EmitCast(state, hit, result.dtype);
}

void Bernoulli(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args args = PeekArguments(op, stack);
  if (!state.shapes.Infer(op, args).ok) {
    RunOnHost(state, op, stack);
    return;
  }
  torch::jit::drop(*stack, op.args.size());
  const at::Tensor self = args[0].toTensor();
  const bool has_p = op.FindArg("p") >= 0;
  const at::Tensor p = has_p ? args[1].toTensor() : self;
  const TapeId id = EmitBernoulli(state, p, TypeOf(self), GeneratorOf(op, args));
  if (!op.written.empty()) {
    Write(state, self, id);
    stack->push_back(self);
  } else {
    stack->push_back(
        NewTensor(state, TensorMeta::Contiguous(self.scalar_type(), self.sizes()), id));
  }
}

// normal with a tensor as mean or deviation: n * std + mean.
void NormalOfTensors(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args args = PeekArguments(op, stack);
  const std::optional<TensorMeta> meta = TakeCall(state, op, args, stack);
  if (!meta.has_value()) return;
  const TensorType type = TypeOf(*meta);
  const bool mean_is_tensor = args[0].isTensor(), std_is_tensor = args[1].isTensor();
  TapeId x =
      EmitRandom(state, type, {"normal", 0, std_is_tensor ? 1 : args[1].toScalar().toDouble()},
                 GeneratorOf(op, args));
  if (std_is_tensor) {
    const TapeId deviation = EmitInRange(state, ReadOperand(state, args[1].toTensor()), 0,
                                         std::numeric_limits<double>::infinity(),
                                         "normal expects all elements of std >= 0.0");
    x = EmitNamed(state, "aten::mul.Tensor", {x, deviation}, {}, type);
  }
  if (mean_is_tensor) {
    x = EmitNamed(state, "aten::add.Tensor", {x, ReadOperand(state, args[0].toTensor())}, {}, type);
  } else if (std_is_tensor) {
    x = EmitNamed(state, "aten::add.Scalar", {x}, {{"other", args[0].toScalar()}}, type);
  }
  stack->push_back(NewTensor(state, *meta, x));
}

// The places of random numbers in ascending order. Two of them are equal in one of a million draws
// of 10^5, and one of the orders is taken.
void RandPerm(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args args = PeekArguments(op, stack);
  const int64_t n = args[0].toInt();
  if (RunElsewhere(state, op, args, stack)) return;
  constexpr int64_t kMostInEveryType = 128;
  const int dtype = op.FindArg("dtype");
  const at::ScalarType type = dtype < 0
                                  ? args.back().toTensor().scalar_type()
                                  : args[dtype].toOptional<at::ScalarType>().value_or(at::kLong);
  const bool fits = n >= 0 && (n < kMostInEveryType || type == at::kLong || type == at::kInt ||
                               type == at::kDouble);
  if (!fits) return RunOnHost(state, op, stack);  // raises the error
  const std::optional<at::Generator> generator = GeneratorOf(op, args);
  const at::AutoDispatchBelowADInplaceOrView below;
  torch::jit::drop(*stack, op.args.size());
  const at::Tensor keys =
      at::rand({n}, generator, at::TensorOptions().device(TheDevice()).dtype(at::kDouble));
  const at::Tensor order = at::argsort(keys).to(type);
  if (dtype >= 0) {
    stack->push_back(order);
    return;
  }
  const at::Tensor out = args.back().toTensor();
  at::native::resize_output(out, {n});
  stack->push_back(out.copy_(order));
}

// A slope is drawn for each element that is not positive; `noise` has the slopes.
void RRelu(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args args = PeekArguments(op, stack);
  const at::Tensor self = args[0].toTensor(), noise = args[1].toTensor();
  const at::Scalar lower = args[2].toScalar(), upper = args[3].toScalar();
  if (!at::isFloatingType(self.scalar_type()) || noise.scalar_type() != self.scalar_type() ||
      lower.toDouble() > upper.toDouble()) {
    return RunOnHost(state, op, stack);  // raises the error
  }
  const bool training = args[4].toBool();
  const at::AutoDispatchBelowADInplaceOrView below;
  torch::jit::drop(*stack, op.args.size());
  at::Tensor out;
  if (training) {
    at::Tensor slope = at::empty_like(self);
    slope.uniform_(lower.toDouble(), upper.toDouble(), GeneratorOf(op, args));
    slope = at::where(self.le(0), slope, 1);
    at::native::resize_output(noise, self.sizes());
    noise.copy_(slope);
    out = self.mul(slope);
  } else {
    out = at::leaky_relu(self, (lower.toDouble() + upper.toDouble()) / 2);
  }
  stack->push_back(op.result_alias[0] >= 0 ? self.copy_(out) : out);
}

void NativeDropout(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args args = PopArguments(op, stack);
  const at::Tensor self = args[0].toTensor();
  const double p = args[1].toDouble();
  const bool train = args[2].isNone() || args[2].toBool();
  const TensorType type = TypeOf(self);
  const TensorType mask_type{DType::kBool, type.dims};
  TensorMeta meta = TensorMeta::Contiguous(self.scalar_type(), self.sizes());
  TensorMeta mask_meta = TensorMeta::Contiguous(at::kBool, self.sizes());
  meta.strides = mask_meta.strides = StridesInOrderOf(self);
  const TapeId x = Read(state, self);
  if (!train) {
    stack->push_back(NewTensor(state, meta, x));
    stack->push_back(NewTensor(state, mask_meta, EmitFull(state, mask_type, 1)));
    return;
  }
  const RandomKey key = NextRandom(std::nullopt);
  const bool own = !entered_manual.empty();
  const TensorType drawn = own ? OfAllDevices(type) : type;
  const std::vector<int64_t> size(drawn.dims.begin(), drawn.dims.end());
  const OpInfo& dropout = GetOp("spmd::dropout");
  const TapeId first =
      Emit(state, dropout,
           {c10::IValue(), p, static_cast<int64_t>(key.seed), static_cast<int64_t>(key.counter),
            std::vector<int64_t>(size.size(), 0), size},
           {own ? EmitAll(state, x) : x}, {drawn, {DType::kBool, drawn.dims}});
  const TapeId kept = own ? EmitOwn(state, first, type) : first;
  stack->push_back(NewTensor(state, meta, kept));
  const TapeId mask = own ? EmitOwn(state, first + 1, mask_type) : first + 1;
  stack->push_back(NewTensor(state, mask_meta, mask));
}

// Draws with one or more parameters for each element.
void DrawFrom(SessionState& state, const char* draw, const OpInfo& op, size_t parameters,
              torch::jit::Stack* stack) {
  const Args args = PeekArguments(op, stack);
  const std::optional<TensorMeta> meta = TakeCall(state, op, args, stack);
  if (!meta.has_value()) return;
  const TensorType type = TypeOf(*meta);
  const RandomKey key = NextRandom(GeneratorOf(op, args));
  absl::InlinedVector<TapeId, 4> operands;
  const bool own = !entered_manual.empty();
  for (size_t i = 0; i < parameters; ++i) {
    const TapeId x =
        EmitExpand(state, ReadOperand(state, args[i].toTensor(), meta->dtype), type.dims);
    operands.push_back(own ? EmitAll(state, x) : x);
  }
  const TensorType drawn = own ? OfAllDevices(type) : type;
  const std::vector<int64_t> size(drawn.dims.begin(), drawn.dims.end());
  const TapeId id = EmitNamed(state, draw, operands,
                              {{"seed", static_cast<int64_t>(key.seed)},
                               {"counter", static_cast<int64_t>(key.counter)},
                               {"offset", std::vector<int64_t>(size.size(), 0)},
                               {"global_size", size}},
                              drawn);
  stack->push_back(NewTensor(state, *meta, own ? EmitOwn(state, id, type) : id));
}

void Poisson(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  DrawFrom(state, "spmd::poisson", op, 1, stack);
}
void Binomial(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  DrawFrom(state, "spmd::binomial", op, 2, stack);
}
void StandardGamma(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  DrawFrom(state, "spmd::standard_gamma", op, 1, stack);
}
void Dirichlet(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  DrawFrom(state, "spmd::dirichlet", op, 1, stack);
}

constexpr HandlerRow kRandomHandlers[] = {
    {"aten::_sample_dirichlet", &Dirichlet},
    {"aten::_sample_dirichlet.out", &RunIntoOut},
    {"aten::_standard_gamma", &StandardGamma},
    {"aten::_standard_gamma.out", &RunIntoOut},
    {"aten::bernoulli", &Bernoulli},
    {"aten::bernoulli.Tensor", &Bernoulli},
    {"aten::bernoulli.out", &RunIntoOut},
    {"aten::bernoulli.p", &Created<OneBernoulli>},
    {"aten::bernoulli_.Tensor", &Bernoulli},
    {"aten::bernoulli_.float", &InPlace<OneBernoulli>},
    {"aten::binomial", &Binomial},
    {"aten::binomial.out", &RunIntoOut},
    {"aten::cauchy_", &InPlace<Cauchy>},
    {"aten::exponential_", &InPlace<Exponential>},
    {"aten::geometric_", &InPlace<Geometric>},
    {"aten::log_normal_", &InPlace<LogNormal>},
    {"aten::native_dropout", &NativeDropout},
    {"aten::normal.Tensor_Tensor", &NormalOfTensors},
    {"aten::normal.Tensor_Tensor_out", &RunIntoOut},
    {"aten::normal.Tensor_float", &NormalOfTensors},
    {"aten::normal.float_Tensor", &NormalOfTensors},
    {"aten::normal.float_Tensor_out", &RunIntoOut},
    {"aten::normal.float_float", &Created<Normal>},
    {"aten::normal_", &InPlace<Normal>},
    {"aten::poisson", &Poisson},
    {"aten::poisson.out", &RunIntoOut},
    {"aten::rand", &Created<Uniform>},
    {"aten::rand.generator", &Created<Uniform>},
    {"aten::rand_like", &Created<Uniform>},
    {"aten::rand_like.generator", &Created<Uniform>},
    {"aten::rand_like.generator_out", &RunIntoOut},
    {"aten::rand_like.out", &RunIntoOut},
    {"aten::randint", &Created<Integers>},
    {"aten::randint.generator", &Created<Integers>},
    {"aten::randint.low", &Created<Integers>},
    {"aten::randint.low_generator", &Created<Integers>},
    {"aten::randint_like", &Created<Integers>},
    {"aten::randint_like.generator", &Created<Integers>},
    {"aten::randint_like.generator_out", &RunIntoOut},
    {"aten::randint_like.low_dtype", &Created<Integers>},
    {"aten::randint_like.low_dtype_out", &RunIntoOut},
    {"aten::randint_like.low_generator_dtype", &Created<Integers>},
    {"aten::randint_like.low_generator_dtype_out", &RunIntoOut},
    {"aten::randint_like.out", &RunIntoOut},
    {"aten::randn", &Created<StandardNormal>},
    {"aten::randn.generator", &Created<StandardNormal>},
    {"aten::randn_like", &Created<StandardNormal>},
    {"aten::randn_like.generator", &Created<StandardNormal>},
    {"aten::randn_like.generator_out", &RunIntoOut},
    {"aten::randn_like.out", &RunIntoOut},
    {"aten::random_", &InPlace<ExactIntegers>},
    {"aten::random_.from", &InPlace<ExactIntegers>},
    {"aten::random_.to", &InPlace<ExactIntegers>},
    {"aten::randperm", &RandPerm},
    {"aten::randperm.generator", &RandPerm},
    {"aten::randperm.generator_out", &RandPerm},
    {"aten::randperm.out", &RandPerm},
    {"aten::rrelu_with_noise", &RRelu},
    {"aten::rrelu_with_noise_", &RRelu},
    {"aten::uniform_", &InPlace<Uniform>},
};
static_assert(IsSortedAndUnique(kRandomHandlers, &HandlerRow::op));

}  // namespace

absl::Span<const HandlerRow> RandomHandlers() { return kRandomHandlers; }

}  // namespace spmd::trace
