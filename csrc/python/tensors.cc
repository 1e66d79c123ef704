// SPDX-License-Identifier: Apache-2.0
// The shardings of tensors, and their shards.
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "csrc/python/errors.h"
#include "csrc/python/init.h"
#include "csrc/python/spec.h"
#include "csrc/trace/api/lanes.h"
#include "csrc/trace/api/manual_region.h"
#include "csrc/trace/api/register_reshard.h"
#include "csrc/trace/api/session.h"
#include "csrc/trace/pytorch/region_gradient.h"
#include "csrc/trace/recorder/marks.h"
#include "csrc/trace/recorder/saved_marks.h"
#include "csrc/trace/run/agree.h"
#include "csrc/trace/run/end_of_step.h"
#include "csrc/trace/run/marking.h"
#include "csrc/trace/run/read_host.h"
#include "csrc/trace/run/tensor_layout.h"
#include "csrc/trace/session/session_lock.h"

namespace spmd::python {
namespace {

using trace::Session;
using trace::ShardData;

// ((begin, end), …).
py::tuple FromBox(const Box& box) {
  py::tuple result(box.size());
  for (size_t d = 0; d < box.size(); ++d) result[d] = py::make_tuple(box[d].begin, box[d].end);
  return result;
}

// A shard as the tuple (data, ((begin, end), …), device, replica_id).
py::tuple FromShard(const ShardData& shard) {
  return py::make_tuple(shard.data, FromBox(shard.index), shard.device, shard.replica_id);
}

std::vector<ShardData> ToShards(const py::list& shards) {
  std::vector<ShardData> result;
  for (py::handle item : shards) {
    auto fields = py::cast<py::tuple>(item);
    ShardData shard;
    shard.data = fields[0].cast<at::Tensor>();
    for (py::handle interval : fields[1].cast<py::tuple>()) {
      auto [begin, end] = interval.cast<std::pair<int64_t, int64_t>>();
      shard.index.push_back({begin, end});
    }
    shard.device = fields[2].cast<int64_t>();
    shard.replica_id = fields[3].cast<int64_t>();
    result.push_back(std::move(shard));
  }
  return result;
}

// The tuple (mesh, spec, committed, provisional, unreduced axis names), or None if no mesh is
// known.
py::object ShardingOf(const at::Tensor& tensor) {
  std::optional<trace::ShardingInfo> info = ValueOrThrow(Session::Get().ShardingOf(tensor));
  if (!info) return py::none();
  return py::make_tuple(info->mesh, FromSpec(info->spec), info->committed, info->provisional,
                        py::tuple(py::cast(info->unreduced)));
}

// The tuple (mesh, spec) of the user's mark, or None. The time does not depend on what is pending.
py::object MarkOf(const at::Tensor& tensor) {
  trace::MarkPtr mark;
  {
    const trace::SessionLock lock;
    ThrowIfError(trace::CheckOurs("sharding_of", tensor));
    mark = trace::MarkOf(tensor);
  }
  if (mark == nullptr) return py::none();
  return py::make_tuple(mark->mesh, FromSpec(mark->spec));
}

// One tuple per device: (id, ((begin, end), …)).
py::list FromBoxes(const std::vector<trace::DeviceBox>& boxes) {
  py::list result;
  for (const trace::DeviceBox& held : boxes) {
    result.append(py::make_tuple(held.device, FromBox(held.box)));
  }
  return result;
}

// `items` are tuples (tensor, mesh, spec, what messages begin with). Either all are marked or none.
void MarkShardings(const py::list& items) {
  std::vector<trace::Marking> markings;
  for (const py::handle item : items) {
    const auto [tensor, mesh, spec, caller] =
        item.cast<std::tuple<at::Tensor, Mesh, py::object, std::string>>();
    markings.push_back({tensor, mesh, ToSpec(spec, mesh), caller});
  }
  ThrowIfError(trace::CheckMarks(markings));
  for (const trace::Marking& m : markings) {
    ThrowIfError(Session::Get().MarkSharding(m.tensor, m.mesh, m.spec, m.caller));
  }
}

void KeepMark(const at::Tensor& from, const at::Tensor& to, const char* caller) {
  trace::SessionLock lock;
  ThrowIfError(trace::RunWaitingStep(*lock));
  trace::KeepMark(*lock, from, to, caller);
}

void GiveSavedMark(const at::Tensor& tensor, const std::string& text) {
  trace::SessionLock lock;
  ThrowIfError(trace::RunWaitingStep(*lock));
  trace::GiveSavedMark(*lock, tensor, text);
}

// `box` is ((begin, end), …).
at::Tensor ReadPart(const at::Tensor& tensor, const std::vector<std::pair<int64_t, int64_t>>& box) {
  trace::SessionLock lock;
  ThrowIfError(trace::RunWaitingStep(*lock));
  ThrowIfError(trace::CheckOurs("local_shards", tensor));
  Box part;
  for (const auto& [begin, end] : box) part.push_back({begin, end});
  return trace::ReadHostPart(*lock, tensor, part, "local_shards");
}

bool ReadsAlone(const at::Tensor& tensor) {
  trace::SessionLock lock;
  ThrowIfError(trace::RunWaitingStep(*lock));
  ThrowIfError(trace::CheckOurs("local_shards", tensor));
  return trace::ReadsAlone(*lock, tensor);
}

std::optional<uint64_t> HostHash(const at::Tensor& tensor) {
  trace::SessionLock lock;
  ThrowIfError(trace::RunWaitingStep(*lock));
  ThrowIfError(trace::CheckOurs("save", tensor));
  return trace::HashOfHostData(*lock, tensor);
}

void RegisterManualRegions(const py::object& unwrap) {
  auto* kept = new py::object(unwrap);  // for the life of the process
  trace::RegisterManualRegions([kept](const at::Tensor& t) {
    const py::gil_scoped_acquire gil;
    return (*kept)(t).cast<at::Tensor>();
  });
}

// `read` is a function from the texts of a mesh and a spec to these.
void RegisterReshard(const py::object& read) {
  auto* const kept = new py::object(read);  // for the life of the process
  trace::RegisterReshard([kept](const std::string& mesh_text, const std::string& spec_text) {
    const py::gil_scoped_acquire gil;
    const auto [mesh, spec] = (*kept)(mesh_text, spec_text).cast<std::tuple<Mesh, py::object>>();
    return std::make_shared<const trace::Mark>(trace::Mark{mesh, ToSpec(spec, mesh)});
  });
  trace::RegisterLanes();
  trace::RegisterRegionGradient();
}

py::list LocalShards(const at::Tensor& tensor) {
  py::list result;
  for (const ShardData& shard : ValueOrThrow(Session::Get().LocalShards(tensor))) {
    result.append(FromShard(shard));
  }
  return result;
}

}  // namespace

void init_tensors(py::module& m) {
  m.def(
      "mark_sharding",
      [](const at::Tensor& tensor, const Mesh& mesh, py::object spec) {
        ThrowIfError(Session::Get().MarkSharding(tensor, mesh, ToSpec(spec, mesh)));
      },
      py::arg("tensor"), py::arg("mesh"), py::arg("spec"));
  m.def("mark_shardings", &MarkShardings, py::arg("items"));
  m.def(
      "clear_sharding",
      [](const at::Tensor& tensor) { ThrowIfError(Session::Get().ClearSharding(tensor)); },
      py::arg("tensor"));
  m.def("register_reshard", &RegisterReshard, py::arg("read"));
  m.def("register_manual_regions", &RegisterManualRegions, py::arg("unwrap"));
  m.def("enter_manual", &trace::EnterManual, py::arg("mesh"), py::arg("axes"), py::arg("devices"),
        py::arg("check"));
  m.def("leave_manual", &trace::LeaveManual);
  m.def("varies_along", &trace::VariesAlong, py::arg("t"));
  py::class_<trace::LaneForm, std::shared_ptr<trace::LaneForm>>(m, "LaneForm")
      .def(py::init([](const std::string& mesh, const std::string& spec,
                       const std::vector<int64_t>& whole, const std::vector<int64_t>& apart,
                       const std::vector<int64_t>& order) {
             return std::const_pointer_cast<trace::LaneForm>(
                 trace::MakeLaneForm(mesh, spec, Dims(whole.begin(), whole.end()),
                                     Dims(apart.begin(), apart.end()), order));
           }),
           py::arg("mesh"), py::arg("spec"), py::arg("whole"), py::arg("apart"), py::arg("order"))
      .def("to_lanes",
           [](const std::shared_ptr<trace::LaneForm>& form, const at::Tensor& whole) {
             const trace::LaneFormPtr constant = form;
             return trace::ToLanes({&whole, 1}, {&constant, 1})[0];
           })
      .def("from_lanes", [](const std::shared_ptr<trace::LaneForm>& form, const at::Tensor& lanes) {
        return trace::FromLanes(lanes, form);
      });
  m.def("sharding_of", &ShardingOf, py::arg("tensor"));
  m.def("mark_of", &MarkOf, py::arg("tensor"));
  m.def(
      "shard_boxes",
      [](const at::Tensor& tensor) { return FromBoxes(ValueOrThrow(trace::DeviceBoxes(tensor))); },
      py::arg("tensor"));
  m.def(
      "boxes_of",
      [](const Mesh& mesh, py::object spec, const std::vector<int64_t>& sizes) {
        return FromBoxes(ValueOrThrow(trace::BoxesOfMark(mesh, ToSpec(spec, mesh), sizes)));
      },
      py::arg("mesh"), py::arg("spec"), py::arg("sizes"));
  m.def("keep_mark", &KeepMark, py::arg("source"), py::arg("target"), py::arg("caller"));
  m.def("give_saved_mark", &GiveSavedMark, py::arg("tensor"), py::arg("text"));
  m.def("read_part", &ReadPart, py::arg("tensor"), py::arg("box"));
  m.def("reads_alone", &ReadsAlone, py::arg("tensor"));
  m.def("host_hash", &HostHash, py::arg("tensor"));
  m.def("local_shards", &LocalShards, py::arg("tensor"));
  m.def(
      "from_local_shards",
      [](const py::list& shards, const Mesh& mesh, py::object spec, std::vector<int64_t> dims) {
        return ValueOrThrow(
            Session::Get().FromLocalShards(ToShards(shards), mesh, ToSpec(spec, mesh), dims));
      },
      py::arg("shards"), py::arg("mesh"), py::arg("spec"), py::arg("dims"));
  m.def(
      "load_local_shards",
      [](const at::Tensor& tensor, const py::list& shards) {
        ThrowIfError(Session::Get().LoadLocalShards(tensor, ToShards(shards)));
      },
      py::arg("tensor"), py::arg("shards"));
  py::class_<trace::PartsToFill>(m, "PartsToFill")
      .def_property_readonly("parts", [](const trace::PartsToFill& self) {
        py::list result;
        for (const runtime::HeldPart& part : self.parts) {
          result.append(py::make_tuple(FromBox(part.box), part.tile));
        }
        return result;
      });
  m.def(
      "parts_to_fill",
      [](const at::Tensor& tensor) { return ValueOrThrow(Session::Get().MakePartsToFill(tensor)); },
      py::arg("tensor"));
  m.def(
      "put_parts",
      [](const at::Tensor& tensor, trace::PartsToFill& parts) {
        ThrowIfError(Session::Get().PutParts(tensor, std::exchange(parts, {})));
      },
      py::arg("tensor"), py::arg("parts"));
}

}  // namespace spmd::python
