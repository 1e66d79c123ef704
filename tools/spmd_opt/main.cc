// SPDX-License-Identifier: Apache-2.0
// spmd-opt: drives the compiler by hand. Text in, text out, no LibTorch.
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "csrc/partition/compile.h"
#include "csrc/util/status.h"
#include "tools/spmd_opt/steps.h"

namespace {

std::string Usage() {
  return absl::StrCat(
      "usage: spmd-opt [options] [file]        reads standard input when there is no file, or '-'\n"
      "\n"
      "  --pass=<steps>   a list of steps, e.g. --pass=propagate or --pass=finish,traffic\n"
      "  --pipeline       all passes: the same as --pass=",
      spmd::partition::PassNames().back(),
      "\n"
      "  --verify         reads and verifies only; prints nothing when all is well\n"
      "  --help           this text\n"
      "\n"
      "Without options the text is verified and printed in normal form. Steps:\n",
      spmd::opt::DescribeSteps());
}

struct Arguments {
  std::vector<std::string> steps = {"print"};
  bool quiet = false;
  bool help = false;
  std::string file = "-";
};

absl::StatusOr<Arguments> ParseArguments(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    if (absl::ConsumePrefix(&argument, "--pass=")) {
      arguments.steps = spmd::opt::SplitSteps(argument);
    } else if (argument == "--pipeline") {
      arguments.steps = {spmd::partition::PassNames().back()};
    } else if (argument == "--verify") {
      arguments.quiet = true;
    } else if (argument == "--help" || argument == "-h") {
      arguments.help = true;
    } else if (absl::StartsWith(argument, "-") && argument != "-") {
      return absl::InvalidArgumentError(absl::StrCat("unknown option '", argument, "'\n", Usage()));
    } else {
      arguments.file = std::string(argument);
    }
  }
  return arguments;
}

absl::StatusOr<std::string> ReadAll(const std::string& file) {
  if (file == "-") return std::string(std::istreambuf_iterator<char>(std::cin), {});
  std::ifstream in(file);
  if (!in) {
    return absl::NotFoundError(absl::StrCat("cannot read '", file, "': ", std::strerror(errno)));
  }
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

absl::StatusOr<std::string> Run(int argc, char** argv) {
  SPMD_ASSIGN_OR_RETURN(const Arguments arguments, ParseArguments(argc, argv));
  if (arguments.help) return Usage();
  SPMD_ASSIGN_OR_RETURN(const std::string text, ReadAll(arguments.file));
  SPMD_ASSIGN_OR_RETURN(std::string result, spmd::opt::RunSteps(text, arguments.steps));
  return arguments.quiet ? std::string() : result;
}

}  // namespace

int main(int argc, char** argv) {
  const absl::StatusOr<std::string> result = Run(argc, argv);
  if (!result.ok()) {
    std::cerr << "spmd-opt: " << result.status().message() << "\n";
    return 1;
  }
  std::cout << *result;
  return 0;
}
