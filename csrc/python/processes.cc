// SPDX-License-Identifier: Apache-2.0
// The processes of a torch.distributed job.
#include "csrc/python/processes.h"

#include <ATen/ops/zeros.h>

#include <chrono>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "csrc/python/errors.h"
#include "csrc/python/init.h"
#include "csrc/runtime/peers_c10d.h"
#include "csrc/runtime/peers_shared.h"
#include "csrc/trace/api/job.h"
#include "csrc/trace/api/session.h"
#include "csrc/util/status.h"

namespace spmd::python {

using trace::Session;

namespace {

// What a process alone can tell without importing anything.
bool MayHavePeers() {
  const char* const size = std::getenv("WORLD_SIZE");
  if (size != nullptr && std::atoi(size) > 1) return true;
  const py::dict modules = py::module_::import("sys").attr("modules");
  const char* const distributed = "torch.distributed";
  if (!modules.contains(distributed)) return false;
  const py::object module = modules[distributed];
  return py::hasattr(module, "is_initialized") && module.attr("is_initialized")().cast<bool>();
}

// For whoever writes or reads checkpoints; null if there is one process.
runtime::Peers* files_peers = nullptr;

// What each process gives, by rank. Beside the rounds of the scripts: threads may call it, one
// after another. `doing` is for the messages of others.
py::list GatherBytes(const std::string& mine, const std::string& doing) {
  static std::mutex* const one_at_a_time = new std::mutex;
  runtime::Peers* const peers = files_peers;
  if (peers == nullptr) return py::cast(std::vector<py::bytes>{py::bytes(mine)});
  bool raised = false;
  absl::StatusOr<std::vector<std::string>> all;
  {
    const py::gil_scoped_release no_gil;
    const std::lock_guard<std::mutex> lock(*one_at_a_time);
    peers->set_interrupted([&] {
      const py::gil_scoped_acquire gil;
      raised = raised || PyErr_CheckSignals() != 0;  // does nothing but in the main thread
      return raised;
    });
    peers->set_doing(doing);
    all = peers->Tell(mine);
    peers->set_interrupted(nullptr);
  }
  if (raised) throw py::error_already_set();
  py::list result;
  for (const std::string& theirs : ValueOrThrow(std::move(all))) result.append(py::bytes(theirs));
  return result;
}

absl::StatusOr<trace::JobConnection::Gpu> DescribeGpu(c10::Device device) {
  py::gil_scoped_acquire gil;
  try {
    const py::object told =
        py::module_::import("torch_spmd.processes.job").attr("gpu")(device.index());
    const auto [id, kind, may_share, has_nccl] =
        told.cast<std::tuple<std::string, std::string, bool, bool>>();
    return trace::JobConnection::Gpu{id, kind, may_share, has_nccl};
  } catch (const std::exception& e) {
    return absl::UnavailableError(
        absl::StrCat("torch_spmd learns nothing of ", device.str(), ": ", e.what()));
  }
}

absl::StatusOr<runtime::Peers*> ConnectGpus(c10::Device device,
                                            const std::shared_ptr<runtime::JobWatch>& watch,
                                            std::chrono::milliseconds wait) {
  py::gil_scoped_acquire gil;
  try {
    const py::object made = py::module_::import("torch_spmd.processes.job").attr("group_of_gpus")();
    const auto group = made.cast<c10::intrusive_ptr<c10d::ProcessGroup>>();
    const py::gil_scoped_release no_gil;
    runtime::Peers* const peers =
        runtime::MakeC10dPeers(group, watch, "tiles", wait, device).release();
    // NCCL connects at the first exchange, which is none of a program this way.
    const auto bytes = [&] {
      return at::zeros({peers->size() - 1}, at::TensorOptions().dtype(at::kByte).device(device));
    };
    std::vector<int64_t> sizes(peers->size(), 1);
    sizes[peers->rank()] = 0;
    peers->set_doing("connects its GPU");
    SPMD_RETURN_IF_ERROR(peers->Exchange(bytes(), sizes, bytes(), sizes));
    return peers;
  } catch (const std::exception& e) {
    return absl::UnavailableError(
        absl::StrCat("torch_spmd cannot connect the GPUs of this job: ", e.what()));
  }
}

}  // namespace

absl::StatusOr<std::optional<trace::JobConnection>> JoinJob(double timeout) {
  if (!Py_IsInitialized()) return std::nullopt;
  py::gil_scoped_acquire gil;
  using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
  using Connection = std::tuple<Group, Group, Group, c10::intrusive_ptr<c10d::Store>, bool>;
  try {
    if (!MayHavePeers()) return std::nullopt;
    const py::object found =
        py::module_::import("torch_spmd.processes.job").attr("connect")(timeout);
    if (found.is_none()) return std::nullopt;
    const auto [script, programs, files, store, share_memory] = found.cast<Connection>();
    const auto wait = std::chrono::milliseconds(static_cast<int64_t>(timeout * 1000));
    const auto watch = runtime::JobWatch::Make(store, script->getRank(), script->getSize());
    const py::gil_scoped_release no_gil;
    // A group must not be destroyed while somebody may wait for it, so the peers are never.
    files_peers = runtime::MakeC10dPeers(files, watch, "files", wait).release();
    const auto peers_of = [&, share = share_memory](
                              const Group& group,
                              const std::string& channel) -> absl::StatusOr<runtime::Peers*> {
      runtime::Peers* const remote = runtime::MakeC10dPeers(group, watch, channel, wait).release();
      SPMD_ASSIGN_OR_RETURN(std::unique_ptr<runtime::Peers> peers,
                            runtime::ShareMemory(*remote, share, watch, channel, wait));
      return peers != nullptr ? peers.release() : remote;
    };
    trace::JobConnection job;
    job.describe_gpu = [](c10::Device device) { return DescribeGpu(device); };
    job.connect_gpus = [=](c10::Device device) { return ConnectGpus(device, watch, wait); };
    SPMD_ASSIGN_OR_RETURN(job.script, peers_of(script, "script"));
    SPMD_ASSIGN_OR_RETURN(job.programs, peers_of(programs, "programs"));
    return job;
  } catch (const std::exception& e) {
    return absl::UnavailableError(
        absl::StrCat("torch_spmd cannot join the processes of this job: ", e.what()));
  }
}

void init_processes(py::module& m) {
  m.def("process", [] {
    const auto process = ValueOrThrow(Session::Get().Process());
    return std::make_tuple(process.rank, process.size, process.description);
  });
  m.def("works_alone", [] { return trace::WorksAlone(); });
  m.def(
      "say",
      [](const std::string& mine, const std::string& doing) {
        return ValueOrThrow(trace::Say(mine, doing));
      },
      py::arg("mine"), py::arg("doing"));
  m.def(
      "gather_bytes",
      [](const py::bytes& mine, const std::string& doing) { return GatherBytes(mine, doing); },
      py::arg("mine"), py::arg("doing"));
  m.def("fail_job", [](const std::string& why) { trace::EndJob(why); }, py::arg("why"));
  m.def("leave", [] { ThrowIfError(Session::Get().Leave()); });
  m.def(
      "leave_because", [](const std::string& why) { Session::Get().LeaveBecause(why); },
      py::arg("why"));
}

}  // namespace spmd::python
