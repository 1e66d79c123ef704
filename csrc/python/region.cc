// SPDX-License-Identifier: Apache-2.0
// What manual regions (torch_spmd/regions/manual.py) do at their borders.
#include "csrc/trace/recorder/region.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/sum.h>
#include <c10/core/AutogradState.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/anomaly_mode.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "csrc/python/init.h"
#include "csrc/trace/api/lanes.h"
#include "csrc/trace/api/shard_places.h"
#include "csrc/trace/api/shard_run.h"
#include "csrc/trace/compat/autograd.h"
#include "csrc/trace/compat/keys.h"
#include "csrc/trace/compat/levels.h"
#include "csrc/trace/compat/python.h"
#include "csrc/trace/compat/torch_function.h"
#include "csrc/trace/device/shard_impl.h"
#include "csrc/trace/pytorch/autograd_keys.h"
#include "csrc/trace/pytorch/region_gradient.h"

namespace spmd::python {
namespace {

// --- the regions that a thread is in ---

// PyTorch's functions for levels of vmap. Their C++ header needs one that PyTorch does not install.
struct VmapLevels {
  py::object enter, leave, randomness = py::str("different");
};

const VmapLevels& Levels() {
  static const VmapLevels* const levels = [] {
    const py::module functions = py::module::import("torch._C").attr("_functorch");
    return new VmapLevels{functions.attr("_vmap_increment_nesting"),
                          functions.attr("_vmap_decrement_nesting")};
  }();
  return *levels;
}

class AxisLevels final : public trace::RegionLevels {
 public:
  AxisLevels(std::vector<int64_t> sizes, std::vector<std::string> checked)
      : sizes_(std::move(sizes)), checked_(std::move(checked)) {}

  int64_t Enter() const override {
    const py::gil_scoped_acquire gil;
    int64_t level = 0;
    for (const int64_t size : sizes_) {
      level = Levels().enter(size, Levels().randomness).cast<int64_t>();
    }
    const int64_t first = level - static_cast<int64_t>(sizes_.size()) + 1;
    trace::EnterRegion(first, &checked_);
    return first;
  }
  void Leave(int64_t first) const override {
    trace::LeaveRegions(first);
    for (size_t i = 0; i < sizes_.size(); ++i) LeaveOne();
  }
  static void LeaveOne() {
    const py::gil_scoped_acquire gil;
    Levels().leave();
  }
  size_t axes() const override { return sizes_.size(); }
  const std::vector<int64_t>& sizes() const { return sizes_; }
  const std::vector<std::string>& checked() const { return checked_; }

 private:
  const std::vector<int64_t> sizes_;
  const std::vector<std::string> checked_;  // the axes over which tensors from outside are refused
};

struct RegionAxes {
  py::object mesh;
  std::vector<std::string> names;
  std::shared_ptr<const AxisLevels> levels;
};
using RegionAxesPtr = std::shared_ptr<const RegionAxes>;

// An axis of a region: number `which` of `region`. `object` is what Python sees of it, made when it
// is asked for.
struct EnteredAxis {
  RegionAxesPtr region;
  size_t which;
  int64_t level;
  py::object object;

  const std::string& name() const { return region->names[which]; }
  const py::object& Object() {
    static const auto* const type =
        new py::object(py::module::import("torch_spmd.regions.manual").attr("ManualAxis"));
    if (!object) object = (*type)(region->mesh, name(), region->levels->sizes()[which], level);
    return object;
  }
};
// The axes of the regions that a thread is in, the outermost first.
thread_local std::vector<EnteredAxis> entered_axes;

// The run of a region's function whose ops this thread notes; null while it performs them.
trace::ShardRun* ShardRunHere() { return static_cast<trace::ShardRun*>(trace::shard_ops); }
// How often something was asked of the regions of this thread that such a run cannot do.
thread_local int64_t asked_for_levels = 0;

void AskForLevels() {
  ++asked_for_levels;
  if (trace::ShardRun* const run = ShardRunHere()) run->End();
}

// Enters a region: one level of vmap for each of its axes. Returns the first level; the others
// follow.
int64_t EnterRegion(const RegionAxesPtr& region) {
  const int64_t first = region->levels->Enter();
  for (size_t i = 0; i < region->names.size(); ++i) {
    entered_axes.push_back({region, i, first + static_cast<int64_t>(i), {}});
  }
  return first;
}

// Leaves the levels from `first` on, as far as the thread is in them.
void LeaveLevels(int64_t first) {
  trace::LeaveRegions(first);
  for (; !entered_axes.empty() && entered_axes.back().level >= first; entered_axes.pop_back()) {
    Levels().leave();
  }
}

py::list EnteredAxes() {
  AskForLevels();
  py::list objects;
  for (EnteredAxis& axis : entered_axes) objects.append(axis.Object());
  return objects;
}

// Lets the thread be in regions of these axes, without entering levels. Returns those before. The
// device is told of them, too, since what is computed again in a backward pass is to be recorded as
// it was.
py::list ReplaceAxes(const py::list& objects) {
  static const std::vector<std::string> none_checked;
  py::list before = EnteredAxes();
  if (!entered_axes.empty() && objects.empty()) trace::LeaveRegions(entered_axes.front().level);
  if (entered_axes.empty() && !objects.empty()) {
    trace::EnterRegion(objects[0].attr("level").cast<int64_t>(), &none_checked);
  }
  entered_axes.clear();
  for (const py::handle& axis : objects) {
    auto region = std::make_shared<const RegionAxes>(RegionAxes{
        axis.attr("mesh"),
        {axis.attr("name").cast<std::string>()},
        std::make_shared<const AxisLevels>(std::vector{axis.attr("size").cast<int64_t>()},
                                           std::vector<std::string>())});
    entered_axes.push_back({std::move(region), 0, axis.attr("level").cast<int64_t>(),
                            py::reinterpret_borrow<py::object>(axis)});
  }
  return before;
}

// The innermost axis of that name, or null.
EnteredAxis* FindAxis(std::string_view name) {
  const auto it = std::find_if(entered_axes.rbegin(), entered_axes.rend(),
                               [&](const EnteredAxis& axis) { return axis.name() == name; });
  return it == entered_axes.rend() ? nullptr : &*it;
}

// The same for a Python string, which may be no Unicode text.
EnteredAxis* FindAxis(const py::str& name) {
  Py_ssize_t size = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(name.ptr(), &size);
  if (text == nullptr) PyErr_Clear();
  return text == nullptr ? nullptr : FindAxis(std::string_view(text, size));
}

py::object AxisNamed(const py::str& name) {
  EnteredAxis* const axis = FindAxis(name);
  return axis == nullptr ? py::none() : axis->Object();
}

// --- into a region and out of it ---

py::object ToPython(at::Tensor t) { return py::cast(std::move(t)); }

// How arguments of known sizes become the shards that a region sees: `tensors` become lanes, and
// lane dimension i of tensor k is that of the region's axis axes[k][i].
struct Entrance {
  std::vector<trace::LaneFormPtr> forms;
  std::vector<std::vector<int64_t>> axes;
};

// How a result whose shards have the sizes `shard` becomes a tensor. named[i] tells whether its
// spec names the region's axis i.
struct Exit {
  trace::LaneFormPtr form;
  std::vector<int64_t> shard;
  std::vector<bool> named;
  std::vector<int64_t> sizes;  // of the axes
};

// Whether it is a dense tensor of the device with these sizes.
bool IsOfSizes(const at::Tensor& t, at::IntArrayRef sizes) {
  return t.device().type() == c10::DeviceType::PrivateUse1 && t.layout() == at::kStrided &&
         !t.unsafeGetTensorImpl()->has_symbolic_sizes_strides() && t.sizes() == sizes;
}

// The arguments, or nullopt if there are other values than tensors of the device that have the
// forms' sizes.
std::optional<std::vector<at::Tensor>> TensorsThatFit(const Entrance& entrance,
                                                      const py::tuple& args) {
  const size_t n = entrance.forms.size();
  if (args.size() != n) return std::nullopt;
  std::vector<at::Tensor> tensors;
  tensors.reserve(n);
  for (size_t k = 0; k < n; ++k) {
    PyObject* const value = PyTuple_GET_ITEM(args.ptr(), static_cast<Py_ssize_t>(k));
    const at::Tensor* const tensor = compat::TensorOf(value);
    if (tensor == nullptr) return std::nullopt;
    const at::Tensor& t = tensors.emplace_back(*tensor);
    const Dims& whole = entrance.forms[k]->whole;
    if (!IsOfSizes(t, {whole.data(), whole.size()})) return std::nullopt;
  }
  return tensors;
}

constexpr int64_t kNoLevel = -1;  // of an axis whose region's function runs on shards

// What the function of the region sees of tensors whose lanes are apart.
py::tuple Shards(const Entrance& entrance, std::vector<at::Tensor> lanes, int64_t first_level) {
  py::tuple shards(lanes.size());
  for (size_t k = 0; k < lanes.size(); ++k) {
    at::Tensor t = std::move(lanes[k]);
    for (const int64_t axis : entrance.axes[k]) {
      t = compat::MakeBatched(std::move(t), /*dim=*/0, first_level + axis);
    }
    shards[k] = ToPython(std::move(t));
  }
  return shards;
}

// Leaves the levels from the last one to `first`, by `leave(axis)`, with a result that varies along
// axes that its spec names. Returns the tensor.
template <typename Leave>
at::Tensor Whole(const Exit& exit, at::Tensor t, int64_t first, const Leave& leave) {
  for (auto axis = static_cast<int64_t>(exit.sizes.size()) - 1; axis >= 0; --axis) {
    leave(axis);
    const compat::BatchedTensorImpl* const varies = compat::BatchedAt(t, first + axis);
    if (varies != nullptr) {
      const int64_t dim = varies->bdim();
      at::Tensor value = varies->value();
      t = dim == 0 ? std::move(value) : value.movedim(dim, 0);
    } else if (exit.named[axis]) {
      std::vector<int64_t> sizes(t.sizes().begin(), t.sizes().end());
      sizes.insert(sizes.begin(), exit.sizes[axis]);
      t = t.expand(sizes);
    }
  }
  return trace::FromLanes(t, exit.form);
}

// The result of a region whose function ran on shards, which are performed. Returns nullopt, having
// done nothing, for a shard that varies along an axis that its spec does not name.
std::optional<at::Tensor> Whole(const Exit& exit, const trace::ShardRun& run, int32_t shard,
                                const trace::RegionLevels& levels) {
  for (const trace::ShardLane& lane : run.LanesOf(shard)) {
    if (!exit.named[lane.axis]) return std::nullopt;
  }
  const int64_t first = levels.Enter();
  int64_t entered = static_cast<int64_t>(levels.axes());
  const auto leave = [&](int64_t axis) {
    if (axis == 0) trace::LeaveRegions(first);
    AxisLevels::LeaveOne();
    --entered;
  };
  const absl::Cleanup rest = [&] {
    while (entered > 0) leave(entered - 1);
  };
  return Whole(exit, run.Batched(shard, first), first, leave);
}

// Leaves the region whose first level is `first` with a result. Returns the tensor, or nullopt,
// having done nothing, for a value of other sizes, and one that varies along an axis that its spec
// does not name.
std::optional<at::Tensor> LeaveWith(const Exit& exit, const py::handle& result, int64_t first) {
  const at::Tensor* const tensor = compat::TensorOf(result.ptr());
  if (tensor == nullptr) return std::nullopt;
  at::Tensor t = *tensor;
  if (!IsOfSizes(t, exit.shard)) return std::nullopt;
  const auto axes = static_cast<int64_t>(exit.sizes.size());
  at::Tensor inner = t;
  for (int64_t axis = axes - 1; axis >= 0; --axis) {
    const compat::BatchedTensorImpl* const varies = compat::BatchedAt(inner, first + axis);
    if (varies == nullptr) continue;
    if (!exit.named[axis]) return std::nullopt;
    inner = varies->value();
  }
  // What is still wrapped belongs to a level outside of the region, or to no level any more.
  if (compat::LevelOf(inner).value_or(kNoLevel) >= first || compat::IsOfGrad(inner)) {
    return std::nullopt;
  }
  return Whole(exit, std::move(t), first, [first](int64_t axis) { LeaveLevels(first + axis); });
}

// A region with arguments of known sizes. `region` is Python's, whose function, `_explain`,
// `_exit_of` and `_finish` are called. It is not held, since it holds this object.
class KnownRegion {
 public:
  KnownRegion(RegionAxesPtr axes, Entrance entrance)
      : axes_(std::move(axes)), entrance_(std::move(entrance)) {}

  // Runs the region. Returns NotImplemented, having done nothing, if the arguments do not fit, or
  // if the thread is in a region over one of the axes.
  py::object Run(const py::object& region, const py::tuple& args) {
    if (!entered_axes.empty()) AskForLevels();
    for (const std::string& name : axes_->names) {
      if (FindAxis(std::string_view(name)) != nullptr) return NotImplemented();
    }
    std::optional<std::vector<at::Tensor>> tensors = TensorsThatFit(entrance_, args);
    if (!tensors.has_value()) return NotImplemented();
    if (exit_ != nullptr && !needs_levels_ && failures_->joins() && DeviceIsFirst(*tensors)) {
      if (std::optional<at::Tensor> result = OnShards(region, *tensors)) {
        return ToPython(*std::move(result));
      }
      py::object result = OnLevels(region, *tensors);
      NeedLevels();  // unless the function raises an error in either case
      return result;
    }
    return OnLevels(region, *tensors);
  }

 private:
  // True if nothing sees ops before the device does, and nobody the nodes of autograd.
  static bool DeviceIsFirst(const std::vector<at::Tensor>& tensors) {
    return !tensors.empty() && entered_axes.empty() &&
           !at::autocast::is_autocast_enabled(c10::DeviceType::PrivateUse1) &&
           !compat::ModesSeeFunctions() && !c10::InferenceMode::is_enabled() &&
           !compat::LevelsSeeOps() && !compat::PythonSeesOps() && !trace::NodesAreSeen() &&
           !torch::autograd::AnomalyMode::is_enabled() &&
           std::all_of(tensors.begin(), tensors.end(),
                       [](const at::Tensor& t) { return trace::IsPlain(t); });
  }

  py::object OnLevels(const py::object& region, const std::vector<at::Tensor>& tensors) {
    const int64_t asked_before = asked_for_levels + trace::ops_with_effects;
    const trace::RegionStart start = trace::BeginRegion();
    std::vector<at::Tensor> lanes = trace::ToLanes(tensors, entrance_.forms);
    const int64_t first = EnterRegion(axes_);
    const absl::Cleanup leave = [first] { LeaveLevels(first); };
    const py::object outputs = Call(region, Shards(entrance_, std::move(lanes), first));
    std::optional<at::Tensor> result;
    if (exit_ != nullptr) result = LeaveWith(*exit_, outputs, first);
    if (!result.has_value()) {
      exit_ = region.attr("_exit_of")(outputs).cast<std::shared_ptr<Exit>>();
      if (exit_ != nullptr) result = LeaveWith(*exit_, outputs, first);
    }
    needs_levels_ |=
        asked_for_levels + trace::ops_with_effects != asked_before || !result.has_value();
    if (!result.has_value()) return region.attr("_finish")(outputs, first);
    const bool differentiates = result->requires_grad();
    const bool joined = trace::JoinNodes(*result, start, EdgesOf(tensors), failures_) != nullptr;
    needs_levels_ |= differentiates && !joined;
    return ToPython(*std::move(result));
  }

  // The region with its function on shards (csrc/trace/api/shard_run.h). Nullopt if that cannot be
  // done; then nothing but useless records has been left.
  std::optional<at::Tensor> OnShards(const py::object& region,
                                     const std::vector<at::Tensor>& tensors) {
    const trace::RegionStart begin = trace::BeginRegion();
    trace::NewLanes lanes = trace::ToLanesWithoutHistory(tensors, entrance_.forms);
    const trace::ShardPlaces::Start start = trace::ShardPlaces::StartAt(lanes.replayed);
    // What was recorded while steps were performed again would be recorded so in each step.
    if (std::exchange(failures_->lately, false)) places_ = {};
    trace::ShardProgramPtr known = places_.At(start);
    if (known == nullptr) known = latest_;
    const auto run = std::make_shared<trace::ShardRun>(
        axes_->levels, std::move(lanes.lanes), entrance_.axes, EdgesOf(tensors), entrance_.forms,
        std::move(known), /*at_once=*/start.lead == nullptr);
    const std::optional<Output> output = RunOnShards(region, *run);
    if (!output.has_value()) return std::nullopt;
    if (run->IsAsKnown(output->shard)) {
      if (std::optional<at::Tensor> result = Skip(start, run, *output)) return result;
    }
    return Perform(start, begin, *run, *output);
  }

  // What the function returned: the number of a shard, and how it becomes a tensor.
  struct Output {
    int32_t shard;
    std::shared_ptr<const Exit> exit;
  };

  // The result of a run that does what was recorded at this place; nullopt, having done nothing,
  // for others.
  std::optional<at::Tensor> Skip(const trace::ShardPlaces::Start& start,
                                 const std::shared_ptr<const trace::ShardRun>& run,
                                 const Output& output) {
    std::optional<trace::ShardPlaces::Skipped> skipped =
        places_.Skip(start, run->program(), run->edges());
    if (!skipped.has_value()) return std::nullopt;
    ++skipped_;
    performed_ = 0;
    // If nodes are often made later, levels make them as well.
    if (failures_->without_nodes >= trace::RegionFailures::kMost &&
        8 * failures_->without_nodes > skipped_) {
      NeedLevels();
    }
    if (skipped->joined != nullptr) {
      trace::JoinWithoutNodes(
          skipped->result, skipped->joined, run->edges(), failures_, start.tape,
          [run, output, levels = axes_->levels] {
            const auto again = run->PerformedCopy();
            return compat::GradientEdge(Whole(*output.exit, *again, output.shard, *levels).value());
          });
    }
    return std::move(skipped->result);
  }

  // The result of a run whose steps are performed. Nullopt for a shard that varies along an axis
  // that its spec does not name.
  std::optional<at::Tensor> Perform(const trace::ShardPlaces::Start& start,
                                    const trace::RegionStart& begin, trace::ShardRun& run,
                                    const Output& output) {
    run.Perform();
    std::optional<at::Tensor> result = Whole(*output.exit, run, output.shard, *axes_->levels);
    if (!result.has_value()) return std::nullopt;
    const bool differentiates = result->requires_grad();
    trace::JoinedRegionPtr joined = trace::JoinNodes(*result, begin, run.edges(), failures_);
    constexpr int kMostPerformed = 64;  // without one that is skipped
    const trace::ShardProgramPtr program = run.ProgramOf(output.shard);
    if (!program->repeatable || (differentiates && joined == nullptr) ||
        ++performed_ > kMostPerformed) {
      NeedLevels();
      return result;
    }
    latest_ = program;
    places_.Note(start, *result, program, std::move(joined));
    return result;
  }

  void NeedLevels() {
    needs_levels_ = true;
    latest_ = nullptr;
    places_ = {};
  }

  // Calls the function. Nullopt if the run has ended, if PyTorch raises an error, or if the
  // function returns something else than a shard that has an exit. Throws: other errors of the
  // function.
  std::optional<Output> RunOnShards(const py::object& region, trace::ShardRun& run) {
    py::tuple shards(run.arguments());
    for (size_t k = 0; k < run.arguments(); ++k) shards[k] = ToPython(run.Argument(k));
    py::object returned;
    {
      for (size_t i = 0; i < axes_->names.size(); ++i) {
        entered_axes.push_back({axes_, i, kNoLevel, {}});
      }
      trace::EnterRegion(kNoLevel, &axes_->levels->checked());
      trace::shard_ops = &run;
      const absl::Cleanup leave = [] {
        trace::shard_ops = nullptr;
        trace::LeaveRegions(kNoLevel);
        entered_axes.clear();
      };
      try {
        returned = Call(region, shards);
      } catch (const py::error_already_set& error) {
        // The device refuses what shards cannot do as PyTorch does, by a RuntimeError.
        if (!run.HasEnded() && !error.matches(PyExc_RuntimeError)) throw;
        if (!error.matches(PyExc_Exception)) throw;
        return std::nullopt;
      }
    }
    const at::Tensor* const t = compat::TensorOf(returned.ptr());
    if (!run.IsOver() || t == nullptr) return std::nullopt;
    const std::optional<int32_t> shard = run.NumberOf(*t);
    if (!shard.has_value()) return std::nullopt;
    std::shared_ptr<Exit> exit = exit_;
    if (exit == nullptr || !IsOfSizes(*t, exit->shard)) {
      exit = region.attr("_exit_of")(returned).cast<std::shared_ptr<Exit>>();
      if (exit == nullptr) return std::nullopt;
      exit_ = exit;
    }
    return Output{*shard, std::move(exit)};
  }

  // Where the gradients of the arguments go, if there are any.
  static torch::autograd::edge_list EdgesOf(const std::vector<at::Tensor>& tensors) {
    torch::autograd::edge_list edges(tensors.size());
    if (!c10::AutogradState::get_tls_state().get_grad_mode()) return edges;
    for (size_t k = 0; k < tensors.size(); ++k) {
      if (tensors[k].requires_grad()) edges[k] = compat::GradientEdge(tensors[k]);
    }
    return edges;
  }

  static py::object NotImplemented() {
    return py::reinterpret_borrow<py::object>(Py_NotImplemented);
  }

  static py::object Call(const py::object& region, const py::tuple& shards) {
    const py::object f = region.attr("f");
    PyObject* const outputs = PyObject_CallObject(f.ptr(), shards.ptr());
    if (outputs != nullptr) return py::reinterpret_steal<py::object>(outputs);
    const py::error_already_set error;
    if (error.matches(PyExc_Exception)) {
      PyException_SetTraceback(error.value().ptr(), error.trace().ptr());
      region.attr("_explain")(error.value());
    }
    throw error;
  }

  const RegionAxesPtr axes_;
  const Entrance entrance_;
  std::shared_ptr<Exit> exit_;     // of the latest result, or null
  bool needs_levels_ = false;      // whether its function cannot run on shards
  trace::ShardProgramPtr latest_;  // of its function, or null
  trace::ShardPlaces places_;
  const trace::RegionFailuresPtr failures_ = std::make_shared<trace::RegionFailures>();
  int performed_ = 0;  // runs since the latest that was skipped
  int skipped_ = 0;    // runs in all
};

// --- collectives ---

// The sum over the axis of a shard that varies along it, or None for anything that more than one
// level, or something else that watches ops, has to see.
py::object SumOverAxis(const py::handle& x, const py::str& name) {
  if (!compat::IsPlainTensor(x.ptr()) || compat::ModesSeeFunctions()) return py::none();
  const EnteredAxis* const axis = FindAxis(name);
  if (axis == nullptr) return py::none();
  const at::Tensor& t = *compat::TensorOf(x.ptr());
  trace::ShardRun* const run = ShardRunHere();
  if (run != nullptr && trace::ShardImpl::Of(t) != nullptr) {
    std::optional<at::Tensor> sum = run->Sum(t, axis->which);
    return sum.has_value() ? ToPython(*std::move(sum)) : py::none();
  }
  const compat::BatchedTensorImpl* const varies = compat::BatchedAt(t, axis->level);
  if (varies == nullptr || compat::LevelOf(varies->value()).has_value() ||
      compat::IsOfGrad(varies->value()) || compat::PythonSeesOps()) {
    return py::none();
  }
  // The value is of no other level, so the levels need not see the op.
  const compat::ExcludeDispatchKeyGuard below(compat::kKeysOfLevels);
  const bool counts = t.scalar_type() == at::kBool;
  return ToPython(at::sum(varies->value(), varies->bdim(), /*keepdim=*/false,
                          counts ? std::nullopt : std::optional(t.scalar_type())));
}

// A function of Python: (*shards, axis, argument) -> shard.
class PythonFunction final : public trace::ShardFunction {
 public:
  PythonFunction(py::object function, const EnteredAxis& axis, py::object argument)
      : parts_(new Parts{std::move(function), axis.region, axis.which, std::move(argument)},
               [](Parts* parts) {
                 if (Py_IsInitialized() == 0) return;
                 const py::gil_scoped_acquire gil;
                 delete parts;
               }) {}

  bool Is(const py::object& function, size_t which, const py::object& argument) const {
    return parts_->function.is(function) && parts_->which == which &&
           (parts_->argument.is(argument) || parts_->argument.equal(argument));
  }
  at::Tensor Call(const std::vector<at::Tensor>& shards, int64_t first) const override {
    const py::gil_scoped_acquire gil;
    EnteredAxis axis{
        parts_->region, parts_->which, first + static_cast<int64_t>(parts_->which), {}};
    py::tuple args(shards.size() + 2);
    for (size_t k = 0; k < shards.size(); ++k) args[k] = ToPython(shards[k]);
    args[shards.size()] = axis.Object();
    args[shards.size() + 1] = parts_->argument;
    return parts_->function(*args).cast<at::Tensor>();
  }

 private:
  struct Parts {
    py::object function;
    RegionAxesPtr region;
    size_t which;
    py::object argument;
  };
  std::shared_ptr<const Parts> parts_;
};

// Calls a function of shards, an axis and an argument as one step, where a region's function runs
// on shards. None elsewhere.
py::object CallOnShards(const py::object& function, const py::tuple& tensors, const py::str& name,
                        const py::object& argument) {
  trace::ShardRun* const run = ShardRunHere();
  if (run == nullptr) return py::none();
  const EnteredAxis* const axis = FindAxis(name);
  std::vector<at::Tensor> shards;
  for (const py::handle& t : tensors) shards.push_back(t.cast<at::Tensor>());
  const bool all = std::all_of(shards.begin(), shards.end(), [](const at::Tensor& t) {
    return trace::ShardImpl::Of(t) != nullptr;
  });
  if (axis == nullptr || !all || compat::ModesSeeFunctions()) run->End();
  return ToPython(run->Apply(
      shards,
      [&](const trace::ShardFunction& other) {
        return static_cast<const PythonFunction&>(other).Is(function, axis->which, argument);
      },
      [&] { return std::make_shared<PythonFunction>(function, *axis, argument); }));
}

}  // namespace

void init_region(py::module& m) {
  py::class_<Exit, std::shared_ptr<Exit>>(m, "RegionExit")
      .def(py::init([](const std::shared_ptr<trace::LaneForm>& form, std::vector<int64_t> shard,
                       std::vector<bool> named, std::vector<int64_t> sizes) {
             return Exit{form, std::move(shard), std::move(named), std::move(sizes)};
           }),
           py::arg("form"), py::arg("shard"), py::arg("named"), py::arg("sizes"));
  py::class_<RegionAxes, std::shared_ptr<RegionAxes>>(m, "RegionAxes")
      .def(py::init([](py::object mesh, std::vector<std::string> names, std::vector<int64_t> sizes,
                       std::vector<std::string> checked) {
             return RegionAxes{
                 std::move(mesh), std::move(names),
                 std::make_shared<const AxisLevels>(std::move(sizes), std::move(checked))};
           }),
           py::arg("mesh"), py::arg("names"), py::arg("sizes"), py::arg("checked"))
      .def("enter", [](const std::shared_ptr<RegionAxes>& region) { return EnterRegion(region); });
  py::class_<KnownRegion>(m, "KnownRegion")
      .def(py::init([](const std::shared_ptr<RegionAxes>& axes,
                       const std::vector<std::shared_ptr<trace::LaneForm>>& forms,
                       std::vector<std::vector<int64_t>> places) {
             return std::make_unique<KnownRegion>(
                 axes, Entrance{{forms.begin(), forms.end()}, std::move(places)});
           }),
           py::arg("axes"), py::arg("forms"), py::arg("places"))
      .def("run", &KnownRegion::Run, py::arg("region"), py::arg("args"));
  m.def("leave_levels", &LeaveLevels, py::arg("first"));
  m.def("entered_axes", &EnteredAxes);
  m.def("replace_axes", &ReplaceAxes, py::arg("axes"));
  m.def("axis_named", &AxisNamed, py::arg("name"));
  m.def("call_on_shards", &CallOnShards, py::arg("function"), py::arg("tensors"), py::arg("axis"),
        py::arg("argument"));
  m.def("sum_over_axis", &SumOverAxis, py::arg("x"), py::arg("name"));
}

}  // namespace spmd::python
