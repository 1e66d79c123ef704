// SPDX-License-Identifier: Apache-2.0
#include "csrc/machine/placement.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "csrc/util/prime_factors.h"
#include "csrc/util/status.h"

namespace spmd::machine {
namespace {

using Factors = Placement::Factors;
using Axes = std::vector<std::vector<Part>>;
// Relative difference up to which bandwidths count as equal.
constexpr double kNothing = 1e-9;

int64_t Product(absl::Span<const Factors> axes) {
  int64_t n = 1;
  for (const Factors& axis : axes) {
    for (int64_t f : axis) n *= f;
  }
  return n;
}

absl::Status DoesNotFit(const System& system, int64_t devices) {
  return absl::InvalidArgumentError(absl::StrCat("a mesh of ", devices, " devices does not divide ",
                                                 system.name, ", which has ",
                                                 system.num_devices()));
}

// Tries every way to hand the prime factors of the levels to the axes.
class Search {
 public:
  Search(const System& system, std::vector<Factors> axes,
         const std::function<std::vector<double>(const Axes&)>& speeds)
      : system_(system), axes_(std::move(axes)), speeds_(speeds), level_of_(axes_.size()) {
    for (const Level& level : system_.levels) {
      std::map<int64_t, int>& left = left_.emplace_back();
      for (int64_t p : PrimeFactors(level.size)) ++left[p];
    }
    for (size_t a = 0; a < axes_.size(); ++a) level_of_[a].assign(axes_[a].size(), 0);
  }

  std::optional<Axes> Run() {
    Place(static_cast<int>(axes_.size()) - 1, axes_.empty() ? 0 : axes_.back().size());
    return best_;
  }

 private:
  // Places the first `f` factors of axis `a`, the last of them first, then the axes before. Later
  // levels are tried first, so that of equals the row-major order of the devices is found.
  void Place(int a, size_t f) {
    if (f == 0) return a == 0 ? Judge() : Place(a - 1, axes_[a - 1].size());
    --f;
    // Equal factors of an axis take levels in order, so that no choice is tried twice.
    const bool repeats = f + 1 < axes_[a].size() && axes_[a][f] == axes_[a][f + 1];
    for (size_t l = repeats ? level_of_[a][f + 1] + 1 : left_.size(); l-- > 0;) {
      int& left = left_[l][axes_[a][f]];
      if (left == 0) continue;
      --left;
      level_of_[a][f] = l;
      Place(a, f);
      ++left_[l][axes_[a][f]];
    }
  }

  // On each level later factors lie closer together.
  Axes Parts() const {
    std::vector<int64_t> stride(system_.levels.size(), 1);
    Axes parts(axes_.size());
    for (size_t a = axes_.size(); a-- > 0;) {
      parts[a].resize(axes_[a].size());
      for (size_t f = axes_[a].size(); f-- > 0;) {
        const size_t l = level_of_[a][f];
        parts[a][f] = {static_cast<int>(l), axes_[a][f], stride[l]};
        stride[l] *= axes_[a][f];
      }
    }
    return parts;
  }

  void Judge() {
    Axes parts = Parts();
    std::vector<double> speeds = speeds_(parts);
    const int divided = TimesDivided();
    if (best_.has_value() && !Better(speeds, divided)) return;
    best_ = std::move(parts);
    best_speeds_ = std::move(speeds);
    best_divided_ = divided;
  }

  // How often a level is divided between axes.
  int TimesDivided() const {
    int owners = 0;
    std::vector<bool> used(left_.size(), false);
    for (const std::vector<size_t>& levels : level_of_) {
      std::vector<bool> owned(left_.size(), false);
      for (size_t l : levels) {
        owners += !owned[l];
        owned[l] = used[l] = true;
      }
    }
    return owners - static_cast<int>(std::count(used.begin(), used.end(), true));
  }

  bool Better(const std::vector<double>& speeds, int divided) const {
    if (divided != best_divided_) return divided < best_divided_;
    for (size_t a = speeds.size(); a-- > 0;) {
      if (speeds[a] > best_speeds_[a] * (1 + kNothing)) return true;
      if (speeds[a] < best_speeds_[a] * (1 - kNothing)) return false;
    }
    return false;
  }

  const System& system_;
  const std::vector<Factors> axes_;
  const std::function<std::vector<double>(const Axes&)>& speeds_;
  std::vector<std::map<int64_t, int>> left_;   // by level: prime factors not yet handed out
  std::vector<std::vector<size_t>> level_of_;  // by axis and factor
  std::optional<Axes> best_;
  std::vector<double> best_speeds_;
  int best_divided_ = 0;
};

// By level: what its neighbours' ids differ by.
std::vector<int64_t> IdStrides(const System& system) {
  std::vector<int64_t> strides(system.levels.size(), 1);
  for (size_t l = system.levels.size(); l-- > 1;) {
    strides[l - 1] = strides[l] * system.levels[l].size;
  }
  return strides;
}

}  // namespace

absl::StatusOr<Placement> Placement::Choose(const System& system, absl::Span<const Factors> axes) {
  const int64_t devices = Product(axes);
  if (system.num_devices() % devices != 0) return DoesNotFit(system, devices);
  // Devices that the mesh leaves out are one more axis, before the others.
  std::vector<Factors> all = {PrimeFactors(system.num_devices() / devices)};
  all.insert(all.end(), axes.begin(), axes.end());
  const std::function<std::vector<double>(const Axes&)> speeds = [&](const Axes& parts) {
    const Placement placement(system, parts);
    std::vector<double> result;
    for (const std::vector<Part>& axis : parts) result.push_back(placement.GatherBandwidth(axis));
    result.front() = 0;  // nothing is sent over the devices that are left out
    return result;
  };
  std::optional<Axes> best = Search(system, std::move(all), speeds).Run();
  if (!best.has_value()) return DoesNotFit(system, devices);
  best->erase(best->begin());
  return Placement(system, *std::move(best));
}

absl::StatusOr<Placement> Placement::OfDevices(const System& system, absl::Span<const Factors> axes,
                                               absl::Span<const int64_t> device_ids) {
  const std::vector<int64_t> id_strides = IdStrides(system);
  Axes parts(axes.size());
  int64_t positions = Product(axes);
  SPMD_CHECK(positions == static_cast<int64_t>(device_ids.size()), "a mesh of ", positions,
             " devices lists ", device_ids.size());
  for (size_t a = 0; a < axes.size(); ++a) {
    for (int64_t f : axes[a]) {
      positions /= f;  // how far neighbours along this factor are apart in the list
      const int64_t step = device_ids[positions] - device_ids[0];
      size_t l = 0;
      while (l < id_strides.size() && (step <= 0 || step % id_strides[l] != 0)) ++l;
      const bool on_level =
          l < id_strides.size() && step * f <= id_strides[l] * system.levels[l].size;
      if (!on_level) {
        return absl::InvalidArgumentError(
            absl::StrCat("devices of mesh axis ", a, " are not evenly spaced on ", system.name));
      }
      parts[a].push_back({static_cast<int>(l), f, step / id_strides[l]});
    }
  }
  Placement placement(system, std::move(parts));
  const std::vector<int64_t> order = placement.DeviceOrder();
  for (size_t i = 0; i < order.size(); ++i) {
    if (order[i] + device_ids[0] == device_ids[i]) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the devices of the mesh are not evenly spaced on ", system.name));
  }
  return placement;
}

Routes Placement::RoutesOf(absl::Span<const Part> parts) const {
  std::vector<int64_t> size(system_.levels.size(), 1), stride(system_.levels.size(), 0);
  for (const Part& part : parts) {
    size[part.level] *= part.size;
    int64_t& nearest = stride[part.level];
    nearest = nearest == 0 ? part.stride : std::min(nearest, part.stride);
  }
  Routes routes;
  int64_t group = 1;  // of the devices that this level joins as one, those that take part
  for (size_t l = system_.levels.size(); l-- > 0;) {
    const Level& level = system_.levels[l];
    const bool is_switch = level.wiring == Wiring::kSwitch;
    if (size[l] > 1) {
      const bool ring = level.wiring == Wiring::kRing && size[l] * stride[l] == level.size;
      const Wiring wiring = is_switch ? Wiring::kSwitch : ring ? Wiring::kRing : Wiring::kLine;
      // Groups that lie between each other's devices share the links.
      const double share = is_switch ? 1 : 1 / static_cast<double>(stride[l]);
      const double rate = level.rate * (ring ? 2 : 1) * share * static_cast<double>(group);
      routes.insert(routes.begin(), {static_cast<int>(l), size[l], wiring, rate, level.latency});
    }
    if (is_switch) group *= size[l];
  }
  return routes;
}

double Placement::GatherBandwidth(absl::Span<const Part> parts) const {
  const Routes routes = RoutesOf(parts);
  if (routes.empty()) return std::numeric_limits<double>::infinity();
  double torus_rate = 0, torus_size = 1, all = 1, slowest = 0;  // seconds per byte
  const auto seconds = [](double n, double rate) { return (n - 1) / n / rate; };
  for (const Route& route : routes) {
    const double n = static_cast<double>(route.size);
    all *= n;
    if (route.wiring == Wiring::kSwitch) {
      slowest = std::max(slowest, seconds(n, route.rate));
    } else {
      torus_rate += route.rate;
      torus_size *= n;
    }
  }
  if (torus_size > 1) slowest = std::max(slowest, seconds(torus_size, torus_rate));
  return (all - 1) / all / slowest;
}

std::vector<int64_t> Placement::DeviceOrder() const {
  const std::vector<int64_t> id_strides = IdStrides(system_);
  std::vector<int64_t> order = {0};
  for (const std::vector<Part>& axis : axes_) {
    for (const Part& part : axis) {
      std::vector<int64_t> next;
      next.reserve(order.size() * static_cast<size_t>(part.size));
      for (int64_t id : order) {
        for (int64_t i = 0; i < part.size; ++i) {
          next.push_back(id + i * part.stride * id_strides[part.level]);
        }
      }
      order = std::move(next);
    }
  }
  return order;
}

std::string Placement::ToString(int axis) const {
  const Routes routes = RoutesOf(axes_[axis]);
  if (routes.empty()) return "one place";
  return absl::StrJoin(routes, ", ", [&](std::string* out, const Route& route) {
    absl::StrAppend(out, system_.levels[route.level].name, " ", route.size, " ",
                    WiringName(route.wiring));
  });
}

}  // namespace spmd::machine
