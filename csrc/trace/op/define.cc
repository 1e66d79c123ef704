// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/op/define.h"

#include <torch/library.h>

#include <optional>

namespace spmd::trace {

const OpInfo* DefineOp(const char* name, const char* schema, Handler handler) {
  // Never destroyed: the dispatcher may outlive static objects of this library.
  static auto* const library =
      new torch::Library(torch::Library::FRAGMENT, "spmd", std::nullopt, __FILE__, __LINE__);
  library->def(schema);
  OpInfo& op =
      MutableOpInfo(c10::Dispatcher::singleton().findSchemaOrThrow(name, /*overload_name=*/""));
  op.handler = handler;
  return &op;
}

}  // namespace spmd::trace
