// SPDX-License-Identifier: Apache-2.0
// What every backend must do. No line here is about any one of them; a backend without its hardware
// is skipped with its own message.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "csrc/program/analysis.h"
#include "csrc/runtime/executor.h"
#include "tests/cpp/runtime/move_to.h"
#include "tests/cpp/runtime/tiles.h"

namespace spmd::runtime {
namespace {

class Conformance : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    absl::StatusOr<std::shared_ptr<Backend>> made = MakeBackend(GetParam(), std::nullopt);
    if (made.status().code() == absl::StatusCode::kUnavailable) {
      GTEST_SKIP() << made.status().message();
    }
    ASSERT_TRUE(made.ok()) << made.status();
    backend = *made;
    const int64_t n =
        backend->elastic() ? std::max<int64_t>(backend->num_devices(), 4) : backend->num_devices();
    for (int64_t a = 1; a * a <= n; ++a) {
      if (n % a == 0) rows = a;
    }
    grid = MakeGrid({rows, n / rows}, {"a", "b"});
  }

  Layout MakeLayout(const std::string& sharding, Dims dims) const {
    return Layout(grid, *Sharding::Parse(sharding, *grid), dims);
  }

  void ExpectEqual(const TiledTensor& value, const at::Tensor& expected, double tolerance = 0) {
    const absl::StatusOr<at::Tensor> read = Download(value);
    if (backend->planning()) {
      EXPECT_EQ(read.status().code(), absl::StatusCode::kFailedPrecondition);
      return;
    }
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_TRUE(read->is_cpu());
    EXPECT_TRUE(at::allclose(*read, expected, tolerance, tolerance));
  }

  std::shared_ptr<Backend> backend;
  GridPtr grid;
  int64_t rows = 1;
};

TEST_P(Conformance, DescribesItself) {
  EXPECT_EQ(backend->name().substr(0, backend->name().find(':')),
            GetParam().substr(0, GetParam().find(':')));
  EXPECT_GE(backend->num_devices(), 1);
  EXPECT_FALSE(backend->Describe().empty());
  EXPECT_GE(backend->memory_limit(), 0);
  EXPECT_GT(backend->machine().flops, 0);
  for (int64_t id = 0; id < backend->num_devices(); ++id) {
    EXPECT_EQ(backend->planning(), backend->place(id).device.is_meta());
    EXPECT_TRUE(!backend->has_one_place() || backend->place(id) == backend->place(0));
  }
}

TEST_P(Conformance, AllocatesAtThePlaceThatIsNamed) {
  for (int64_t id : {int64_t{0}, backend->num_devices() - 1}) {
    const Place place = backend->place(id);
    const at::Tensor tile = backend->Allocate(place, {3, 0, 2}, at::kHalf);
    EXPECT_EQ(tile.sizes(), at::IntArrayRef({3, 0, 2}));
    EXPECT_EQ(tile.scalar_type(), at::kHalf);
    EXPECT_EQ(tile.device(), place.device);
    const at::Tensor columns = backend->AllocateLike(place, at::zeros({3, 5}).t());
    EXPECT_EQ(columns.sizes(), at::IntArrayRef({5, 3}));
    EXPECT_EQ(columns.strides(), at::IntArrayRef({1, 5}));
    EXPECT_EQ(columns.device(), place.device);
  }
}

TEST_P(Conformance, CopiesFromPlaceToPlace) {
  if (backend->planning()) GTEST_SKIP() << "holds no values";
  const Place first = backend->place(0), last = backend->place(backend->num_devices() - 1);
  const at::Tensor host = at::randn({4, 6});
  // A part, to another type.
  const at::Tensor there = backend->Allocate(first, {6, 2}, at::kDouble);
  backend->Copy(host.t().narrow(1, 1, 2), there);
  const at::Tensor moved = backend->CopyTo(last, there);
  EXPECT_EQ(moved.device(), last.device);
  EXPECT_EQ(moved.is_same(there), first == last);
  const at::Tensor back = backend->CopyTo({c10::Device(c10::kCPU)}, moved);
  EXPECT_TRUE(at::equal(back, host.t().narrow(1, 1, 2).to(at::kDouble)));
}

TEST_P(Conformance, MovesBytesAsTheyAre) {
  if (backend->planning()) GTEST_SKIP() << "holds no values";
  const Place first = backend->place(0), last = backend->place(backend->num_devices() - 1);
  for (const at::Tensor& host : {at::randn({3, 5}), at::randn({}), at::randn({2}) > 0,
                                 at::randn({7}).to(at::kBFloat16), at::empty({0, 4})}) {
    const at::Tensor tile = backend->CopyTo(first, host);
    const at::Tensor buffer =
        backend->Allocate(last, {static_cast<int64_t>(host.nbytes())}, at::kByte);
    backend->MoveBytes(tile, buffer);
    const at::Tensor received = backend->Allocate(last, host.sizes(), host.scalar_type());
    backend->MoveBytes(buffer, received);
    EXPECT_TRUE(at::equal(backend->CopyTo({c10::Device(c10::kCPU)}, received), host));
  }
  const at::Tensor strided = backend->CopyTo(first, at::randn({3, 5})).t();
  EXPECT_THROW(backend->MoveBytes(strided, strided), c10::Error);
}

TEST_P(Conformance, RunsAnOp) {
  const Place place = backend->place(0);
  const at::Tensor a = backend->Allocate(place, {2, 3}, at::kFloat).fill_(2);
  const at::Tensor b = backend->Allocate(place, {3}, at::kFloat).fill_(3);
  torch::jit::Stack stack = {a, b};
  backend->Run(c10::Dispatcher::singleton().findSchemaOrThrow("aten::mv", ""), stack);
  ASSERT_EQ(stack.size(), 1u);
  const at::Tensor product = stack[0].toTensor();
  EXPECT_EQ(product.sizes(), at::IntArrayRef({2}));
  EXPECT_EQ(product.device(), place.device);
  EXPECT_TRUE(backend->planning() || product[0].item<float>() == 18);
}

TEST_P(Conformance, TilesSurviveTheWayThere) {
  const at::Tensor host = at::randn({11, 7});
  for (const char* sharding : {"{},{}", "{a},{}", "{b},{a}", "{b,a},{}"}) {
    const Layout layout = MakeLayout(sharding, {11, 7});
    const TiledTensorPtr value = Upload(host, layout, *backend);
    for (const char* to : {"{},{}", "{a},{b}", "{},{a,b}"}) {
      const TiledTensorPtr moved = MoveTo(*value, MakeLayout(to, {11, 7}), *backend);
      for (size_t i = 0; i < moved->tiles.size(); ++i) {
        const int64_t tile = moved->per_position ? moved->layout.TileAt(i) : i;
        EXPECT_EQ(moved->tiles[i].sizes(), Sizes(BoxDims(moved->layout.BoxOfTile(tile))));
      }
      ExpectEqual(*moved, host);
    }
  }
}

TEST_P(Conformance, RunsAProgram) {
  program::Program program;
  program.grids = {grid};
  program.grid_names = {"m"};
  const auto value = [&](const std::string& sharding, Dims dims) {
    return program.AddValue({{DType::kF32, dims}, 0, *Sharding::Parse(sharding, *grid), {}, ""});
  };
  const auto x = value("{a},{b}", {10, 12}), w = value("{},{b}", {5, 12}), bias = value("{}", {5});
  program.inputs = {{x}, {w}, {bias}};
  const auto y = value("{a},{} unreduced(sum){b}", {10, 5}), z = value("{a},{}", {10, 5}),
             noise = value("{a},{}", {10, 5}), sum = value("{a},{}", {10, 5}),
             all = value("{},{}", {10, 5});
  AxisList a, b;
  for (AxisId axis = 0; axis < grid->num_axes(); ++axis) {
    (grid->axis(axis).axis == "a" ? a : b).push_back(axis);
  }
  const auto add = [&](program::OpCode code, std::string op, std::vector<program::ValueId> operands,
                       program::ValueId result) -> program::Instruction& {
    program::Instruction& i = program.instructions.emplace_back();
    i.code = code;
    i.op = std::move(op);
    i.operands.assign(operands.begin(), operands.end());
    i.results = {result};
    return i;
  };
  using program::OpCode;
  add(OpCode::kCall, "aten::linear", {x, w, bias}, y).added_once = {{2, b}};
  add(OpCode::kAllReduce, "", {y}, z).axes = b;
  const Expr rows_here = Expr::Size(Result(0), 0), first_row = Expr::Start(Result(0), 0);
  add(OpCode::kCall, "spmd::random", {}, noise).attributes = {
      {"size", std::vector<Expr>{rows_here, 5}},
      {"offset", std::vector<Expr>{first_row, 0}},
      {"global_size", std::vector<int64_t>{10, 5}},
      {"seed", int64_t{1}},
      {"counter", int64_t{2}},
      {"distribution", std::string("uniform")},
      {"p0", 0.0},
      {"p1", 1.0},
      {"dtype", DType::kF32}};
  add(OpCode::kCall, "aten::add.Tensor", {z, noise}, sum);
  add(OpCode::kAllGather, "", {sum}, all).axes = a;
  program.instructions.back().dim = 0;
  program.outputs = {{sum}, {all}};
  program::InsertFrees(program);

  for (bool deduplicate : {true, false}) {
    const auto loaded = LoadedProgram::Load(program, backend, {deduplicate});
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    const at::Tensor hx = at::randn({10, 12}), hw = at::randn({5, 12}), hb = at::randn({5});
    const auto results = (*loaded)->Run({{Upload(hx, program.LayoutOf(x), *backend)},
                                         {Upload(hw, program.LayoutOf(w), *backend)},
                                         {Upload(hb, program.LayoutOf(bias), *backend)}},
                                        {});
    ASSERT_TRUE(results.ok()) << results.status();
    at::Tensor expected = at::linear(hx, hw, hb);
    if (!backend->planning()) {
      ASSERT_TRUE(Download(*(*results)[1]).ok());
      // The noise does not depend on the sharding: a replicated run of the op's tile has the same.
      const at::Tensor difference = Download(*(*results)[1])->sub(expected);
      EXPECT_GE(difference.min().item<float>(), -1e-5);
      EXPECT_LE(difference.max().item<float>(), 1 + 1e-5);
      EXPECT_TRUE(at::equal(*Download(*(*results)[0]), *Download(*(*results)[1])));
    } else {
      ExpectEqual(*(*results)[0], expected);
    }
  }
}

TEST_P(Conformance, RefusesWhatDoesNotFit) {
  if (backend->memory_limit() == 0) GTEST_SKIP() << "no memory limit";
  program::Program program;
  program.grids = {grid};
  program.grid_names = {"m"};
  const int64_t elements = backend->memory_limit() / 4 + 1;
  const auto x = program.AddValue({{DType::kF32, {elements}}, 0, Sharding::Replicated(1), {}, ""});
  program::Instruction& i = program.instructions.emplace_back();
  i.op = "spmd::full";
  i.results = {x};
  i.attributes = {{"size", std::vector<int64_t>{elements}}, {"value", 0.0}, {"dtype", DType::kF32}};
  program.outputs = {{x}};
  const absl::Status status = LoadedProgram::Load(program, backend).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_NE(std::string(status.message()).find("largest values"), std::string::npos);
}

TEST_P(Conformance, ADeviceThatIsNotThereIsAnError) {
  if (backend->elastic()) GTEST_SKIP() << "any number of devices";
  program::Program program;
  program.grids = {MakeGrid({backend->num_devices() + 1}, {"a"})};
  program.grid_names = {"m"};
  EXPECT_EQ(LoadedProgram::Load(program, backend).status().code(),
            absl::StatusCode::kInvalidArgument);
}

std::vector<std::string> Instances() {
  std::vector<std::string> names = BackendNames();
  // A backend that can plan says so by this argument; others refuse it.
  for (const std::string& name : BackendNames()) {
    if (MakeBackend(absl::StrCat(name, ":plan"), std::nullopt).ok()) {
      names.push_back(absl::StrCat(name, ":plan"));
    }
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(Backends, Conformance, testing::ValuesIn(Instances()),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), ':', '_');
                           return name;
                         });

TEST(Backends, UnknownNamesAreCorrected) {
  EXPECT_EQ(MakeBackend("cpuu", std::nullopt).status().message(),
            "unknown backend 'cpuu'; known are cpu, cuda, mock_gpu, mock_tpu; did you mean 'cpu'?");
  EXPECT_EQ(MakeBackend("cpu", 0).status().message(), "a backend needs at least one device; got 0");
  EXPECT_EQ(MakeBackend("cpu:many", std::nullopt).status().message(),
            "backend 'cpu:many': 'many' is not a positive number of devices");
  EXPECT_EQ((*MakeBackend("cpu:16", std::nullopt))->num_devices(), 16);
  EXPECT_EQ((*MakeBackend("cpu", 3))->num_devices(), 3);
  EXPECT_FALSE((*MakeBackend("cpu", 3))->elastic());
}

}  // namespace
}  // namespace spmd::runtime
