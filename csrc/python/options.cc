// SPDX-License-Identifier: Apache-2.0
// The options that may change while a process runs.
#include "csrc/util/options.h"

#include <optional>

#include "csrc/python/init.h"
#include "csrc/trace/api/session.h"

namespace spmd::python {
namespace {

// As the variable: never, always, or where they pay if it is not set.
std::optional<bool> TurnsOf(const Options& options) {
  if (options.turns == Turns::kWhereTheyPay) return std::nullopt;
  return options.turns == Turns::kAlways;
}

void SetTurns(Options& options, std::optional<bool> on) {
  options.turns = !on ? Turns::kWhereTheyPay : (*on ? Turns::kAlways : Turns::kNever);
}

}  // namespace

void init_options(py::module& m) {
  using trace::Session;
  py::class_<Options>(m, "Options")
      .def_readwrite("one_place", &Options::one_place)
      .def_readwrite("coalesce", &Options::coalesce)
      .def_readwrite("deduplicate", &Options::deduplicate)
      .def_property("turns", &TurnsOf, &SetTurns)
      .def_readwrite("price_moves", &Options::price_moves)
      .def_readwrite("replay", &Options::replay)
      .def_readwrite("verify", &Options::verify)
      .def_readwrite("check_passes", &Options::check_passes)
      .def_readwrite("dump", &Options::dump);
  m.def("options", [] { return Session::Get().options(); });
  m.def(
      "set_options", [](const Options& options) { Session::Get().SetOptions(options); },
      py::arg("options"));
  m.def(
      "set_answers",
      [](std::vector<std::pair<std::string, double>> answers) {
        Session::Get().SetAnswers(std::move(answers));
      },
      py::arg("answers"));
  m.def("memory_limit", [] { return Session::Get().options().memory_limit; });
  m.def(
      "set_memory_limit",
      [](int64_t bytes) {
        Options options = Session::Get().options();
        options.memory_limit = bytes;
        Session::Get().SetOptions(options);
      },
      py::arg("bytes"));
}

}  // namespace spmd::python
