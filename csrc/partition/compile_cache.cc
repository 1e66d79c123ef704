// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/compile_cache.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <system_error>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "csrc/ir/fingerprint.h"
#include "csrc/rules/registry.h"
#include "csrc/util/status.h"

namespace spmd::partition {

namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kHeader = "torch_spmd program 1\n";
constexpr absl::string_view kExtension = ".spmd";

std::string Digest(absl::string_view text) {
  ir::Fingerprinter f;
  return f.Add(text).Finish().ToString();
}

// A name, the length of a text, the text.
void Put(std::string& out, absl::string_view name, absl::string_view text) {
  absl::StrAppend(&out, name, " ", text.size(), "\n", text, "\n");
}

// Takes texts in the order in which they were put.
class Taker {
 public:
  explicit Taker(absl::string_view rest) : rest_(rest) {}

  std::optional<std::string> Take(absl::string_view name) {
    const size_t end = rest_.find('\n');
    if (end == absl::string_view::npos) return std::nullopt;
    absl::string_view line = rest_.substr(0, end);
    uint64_t size = 0;
    if (!absl::ConsumePrefix(&line, absl::StrCat(name, " ")) || !absl::SimpleAtoi(line, &size)) {
      return std::nullopt;
    }
    const absl::string_view after = rest_.substr(end + 1);
    if (after.size() < size + 1 || after[size] != '\n') return std::nullopt;
    rest_ = after.substr(size + 1);
    return std::string(after.substr(0, size));
  }
  bool NextIs(absl::string_view name) const {
    return absl::StartsWith(rest_, absl::StrCat(name, " "));
  }
  bool AtEnd() const { return rest_.empty(); }

 private:
  absl::string_view rest_;
};

std::string EntryOf(const std::string& key, const Compiled& compiled) {
  std::string body;
  Put(body, "key", key);
  for (const Warning& warning : compiled.warnings) {
    Put(body, "warning", warning.key);
    Put(body, "text", warning.text);
  }
  for (const std::string& op : compiled.decomposed) Put(body, "decomposed", op);
  Put(body, "program", compiled.program.ToString());
  return absl::StrCat(kHeader, "digest ", Digest(body), "\n", body);
}

// Nothing where the text is no whole entry. `other`: it is one, of another key.
std::optional<Compiled> Parsed(absl::string_view text, const std::string& key, bool& other) {
  if (!absl::ConsumePrefix(&text, absl::StrCat(kHeader, "digest "))) return std::nullopt;
  const size_t end = text.find('\n');
  if (end == absl::string_view::npos) return std::nullopt;
  const absl::string_view digest = text.substr(0, end), body = text.substr(end + 1);
  if (digest != Digest(body)) return std::nullopt;
  Taker taker(body);
  const std::optional<std::string> written = taker.Take("key");
  if (!written.has_value()) return std::nullopt;
  other = *written != key;
  if (other) return std::nullopt;
  Compiled compiled;
  while (taker.NextIs("warning")) {
    auto name = taker.Take("warning"), said = taker.Take("text");
    if (!name || !said) return std::nullopt;
    compiled.warnings.push_back({*std::move(name), *std::move(said)});
  }
  while (taker.NextIs("decomposed")) {
    auto op = taker.Take("decomposed");
    if (!op) return std::nullopt;
    compiled.decomposed.push_back(*std::move(op));
  }
  const std::optional<std::string> printed = taker.Take("program");
  if (!printed || !taker.AtEnd()) return std::nullopt;
  auto program = program::Program::Parse(*printed);
  if (!program.ok() || !program::Verify(*program).ok()) return std::nullopt;
  compiled.program = *std::move(program);
  return compiled;
}

absl::Status FileError(const std::string& what, const std::error_code& error) {
  return absl::UnavailableError(absl::StrCat(what, ": ", error.message()));
}

}  // namespace

CompileCache::CompileCache(Options options) : options_(std::move(options)) {}

std::string CompileCache::Key(const ir::Graph& graph, const CompileOptions& options) const {
  const machine::Machine& m = options.machine ? *options.machine : machine::Nominal();
  std::string key = absl::StrCat("build ", options_.build, "\n");
  absl::StrAppendFormat(&key, "machine %s %a %a %a %a %d %d %d\n", m.name, m.flops,
                        m.memory_bandwidth, m.link_bandwidth, m.latency, m.memory_bytes,
                        m.tile_rows, m.tile_columns);
  absl::StrAppendFormat(&key, "options %d %d\n", options.warn_gather_bytes,
                        options.merge_cap_bytes);
  absl::StrAppend(&key, graph.ToString());
  return key;
}

std::string CompileCache::PathOf(const std::string& key) const {
  return absl::StrCat(options_.directory, "/", Digest(key), kExtension);
}

absl::StatusOr<Compiled> CompileCache::Read(const ir::Graph& graph,
                                            const CompileOptions& options) const {
  const std::string key = Key(graph, options), path = PathOf(key);
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(path);
  std::ostringstream text;
  text << file.rdbuf();
  bool other = false;
  std::optional<Compiled> compiled = Parsed(text.str(), key, other);
  std::error_code ignored;
  if (other) return absl::NotFoundError(path);
  if (!compiled.has_value()) {
    fs::remove(path, ignored);
    return absl::DataLossError(absl::StrCat("the compiled program in ", path,
                                            " is damaged: it was removed and is compiled anew"));
  }
  // The same mesh, the same object: what runs compares pointers first.
  for (GridPtr& grid : compiled->program.grids) {
    for (const GridPtr& known : graph.grids()) {
      if (*known == *grid) grid = known;
    }
  }
  fs::last_write_time(path, fs::file_time_type::clock::now(), ignored);
  return *std::move(compiled);
}

absl::Status CompileCache::Write(const ir::Graph& graph, const CompileOptions& options,
                                 const Compiled& compiled) {
  std::error_code error;
  fs::create_directories(options_.directory, error);
  if (error) return FileError(options_.directory, error);
  const std::string key = Key(graph, options), path = PathOf(key);
  const std::string text = EntryOf(key, compiled);
  // It would push out all others, and then itself.
  if (static_cast<int64_t>(text.size()) > options_.max_bytes) return absl::OkStatus();
  const std::string aside = absl::StrCat(path, ".", ::getpid());
  {
    std::ofstream file(aside, std::ios::binary | std::ios::trunc);
    file << text;
    if (!file.flush()) {
      fs::remove(aside, error);
      return absl::UnavailableError(absl::StrCat("cannot write ", aside));
    }
  }
  fs::rename(aside, path, error);
  if (error) return FileError(path, error);
  if (bytes_ >= 0) bytes_ += static_cast<int64_t>(text.size());
  if (bytes_ < 0 || bytes_ > options_.max_bytes) RemoveOldest();
  return absl::OkStatus();
}

// To three quarters of what is allowed, so that not every entry after it looks again.
void CompileCache::RemoveOldest() {
  struct File {
    fs::path path;
    fs::file_time_type used;
    int64_t bytes;
  };
  std::vector<File> files;
  std::error_code error;
  bytes_ = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(options_.directory, error)) {
    std::error_code gone;
    if (entry.path().extension() != std::string(kExtension)) continue;
    const auto used = entry.last_write_time(gone);
    const auto bytes = gone ? 0 : static_cast<int64_t>(entry.file_size(gone));
    if (gone) continue;
    files.push_back({entry.path(), used, bytes});
    bytes_ += bytes;
  }
  // Other processes write here, too: it is looked at again after a sixteenth of what is allowed.
  const int64_t found = bytes_;
  bytes_ = std::max(bytes_, options_.max_bytes / 16 * 15);
  if (found <= options_.max_bytes) return;
  bytes_ = found;
  std::sort(files.begin(), files.end(),
            [](const File& a, const File& b) { return a.used < b.used; });
  for (const File& file : files) {
    if (bytes_ <= options_.max_bytes / 4 * 3) break;
    if (fs::remove(file.path, error)) bytes_ -= file.bytes;
  }
  bytes_ = std::max(bytes_, options_.max_bytes / 16 * 15);
}

bool IsSelfContained(const ir::Graph& graph) {
  const auto& nodes = graph.nodes();
  return std::none_of(nodes.begin(), nodes.end(),
                      [](const ir::Node& node) { return rules::IsUsers(node.op); });
}

}  // namespace spmd::partition
