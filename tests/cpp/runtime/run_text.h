// SPDX-License-Identifier: Apache-2.0
// Runs programs that are given as text on the backend "cpu".
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "csrc/program/program.h"
#include "csrc/runtime/executor.h"
#include "tests/cpp/runtime/tiles.h"

namespace spmd::runtime {

// The inputs on the devices, as the program takes them.
inline std::vector<LoadedProgram::Argument> Uploaded(const std::vector<at::Tensor>& inputs,
                                                     const LoadedProgram& loaded,
                                                     Backend& backend) {
  std::vector<LoadedProgram::Argument> arguments;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Layout layout = loaded.program().LayoutOf(loaded.program().inputs[i].value);
    arguments.push_back({Upload(inputs[i], layout, backend), false});
  }
  return arguments;
}

// The results for inputs that are uploaded in the layouts of the text. Nothing, and a failure of
// the test, if the text is no valid program, or if it does not load or run.
inline std::vector<TiledTensorPtr> RunTiled(const std::string& text,
                                            const std::vector<at::Tensor>& inputs,
                                            LoadedProgram::Options options) {
  const auto backend = *MakeBackend("cpu", std::nullopt);
  absl::StatusOr<program::Program> program = program::Program::Parse(text);
  EXPECT_TRUE(program.ok()) << program.status() << text;
  if (!program.ok()) return {};
  EXPECT_TRUE(Verify(*program).ok()) << Verify(*program);
  const auto loaded = LoadedProgram::Load(*std::move(program), backend, options);
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  if (!loaded.ok()) return {};
  std::vector<LoadedProgram::Argument> arguments = Uploaded(inputs, **loaded, *backend);
  const auto results = (*loaded)->Run(absl::MakeSpan(arguments), {});
  EXPECT_TRUE(results.ok()) << results.status();
  return results.ok() ? *results : std::vector<TiledTensorPtr>();
}

// The same, with each result as the value that its tiles represent.
inline std::vector<at::Tensor> RunText(const std::string& text,
                                       const std::vector<at::Tensor>& inputs,
                                       LoadedProgram::Options options) {
  std::vector<at::Tensor> values;
  for (const TiledTensorPtr& result : RunTiled(text, inputs, options)) {
    values.push_back(Assemble(*result));
  }
  return values;
}

}  // namespace spmd::runtime
