// SPDX-License-Identifier: Apache-2.0
// A mesh as the user writes it: named axes with sizes over a list of devices.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "csrc/util/did_you_mean.h"

namespace spmd {

// The order is row-major: device_ids()[i] has the coordinates that spell i in the mixed radix of
// shape(), first axis major. Value type: immutable, comparable, hashable, printable.
//
//   Mesh [data=2, model=4] over devices 0..7
//   Mesh [node=2@0.1, gpu=8] over devices 0..15      links along `node` are ten times slower
class Mesh {
 public:
  // Axes without names are called "axis0", "axis1", … Without bandwidths every axis has 1.
  // Errors: InvalidArgument naming the offender: the number of ids differs from the product of the
  // shape, duplicate or negative ids, axis sizes < 1, a wrong number of names, repeated or empty
  // names, names that are not identifiers (the text form needs identifiers), a wrong number of
  // bandwidths, or a bandwidth that is not a positive number.
  static absl::StatusOr<Mesh> Create(
      std::vector<int64_t> device_ids, std::vector<int64_t> shape,
      std::optional<std::vector<std::string>> axis_names,
      std::optional<std::vector<double>> axis_bandwidths = std::nullopt);

  const std::vector<int64_t>& device_ids() const { return device_ids_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  const std::vector<std::string>& axis_names() const { return axis_names_; }
  // Per axis, the bandwidth of the links between neighbours along it, relative to the machine's
  // bandwidth.
  const std::vector<double>& axis_bandwidths() const { return axis_bandwidths_; }
  int64_t size() const { return static_cast<int64_t>(device_ids_.size()); }
  int rank() const { return static_cast<int>(shape_.size()); }

  // Errors: NotFound "mesh [data=2, model=4] has no axis 'modle'; did you mean 'model'?".
  absl::StatusOr<int> AxisIndex(absl::string_view name) const;
  // The end of an error message about a missing axis: "; did you mean 'model'?", or "; its axes are
  // 'data', 'model'".
  std::string SuggestAxis(absl::string_view name) const;

  // "[data=2, model=4]"; "[node=2@0.1, gpu=8]" where a bandwidth is not 1.
  std::string AxesToString() const;
  // "[data=2, model=4] over devices 0..7"; lists the ids when they are not a range.
  std::string ToString() const;

  friend bool operator==(const Mesh& a, const Mesh& b) {
    return a.device_ids_ == b.device_ids_ && a.shape_ == b.shape_ &&
           a.axis_names_ == b.axis_names_ && a.axis_bandwidths_ == b.axis_bandwidths_;
  }
  template <typename H>
  friend H AbslHashValue(H h, const Mesh& m) {
    return H::combine(std::move(h), m.device_ids_, m.shape_, m.axis_names_, m.axis_bandwidths_);
  }

 private:
  Mesh() = default;
  std::vector<int64_t> device_ids_;
  std::vector<int64_t> shape_;
  std::vector<std::string> axis_names_;
  std::vector<double> axis_bandwidths_;
};

}  // namespace spmd
