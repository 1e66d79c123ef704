// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/fuse_cross_entropy.h"

namespace spmd::partition {

std::optional<ir::ValueId> FuseCrossEntropy(rules::Builder& builder, ir::ValueId grad,
                                            ir::ValueId logp, const Attributes& attributes) {
  const ir::NodeId producer = builder.graph().value(grad).producer;
  if (producer == ir::kNoNode) return std::nullopt;
  const ir::Node nll = builder.graph().node(producer);
  const TensorType type = builder.type(logp);
  const int64_t dim = attributes.GetInt("dim");
  const bool last = dim == type.rank() - 1 || dim == -1;
  if (nll.op != "spmd::nll_dinput" || type.rank() < 2 || !last || builder.type(grad) != type) {
    return std::nullopt;
  }
  return builder.Call(
      "spmd::cross_entropy_dinput",
      {nll.operands[0], logp, nll.operands[1], nll.operands[2], nll.operands[3]},
      {{"ignore_index", *nll.attributes.Find("ignore_index")}, {"first_class", int64_t{0}}});
}

}  // namespace spmd::partition
