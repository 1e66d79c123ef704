// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/compile_cache.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "csrc/ir/fingerprint.h"
#include "csrc/rules/registry.h"
#include "csrc/util/private_directory.h"
#include "csrc/util/status.h"

namespace spmd::partition {

namespace {

constexpr absl::string_view kHeader = "torch_spmd program 2\n";
constexpr absl::string_view kExtension = ".spmd";

std::string Digest(absl::string_view text) {
  ir::Fingerprinter f;
  return f.Add(text).Finish().ToString();
}

// Appends a name, the length of a text, and the text.
void Put(std::string& out, absl::string_view name, absl::string_view text) {
  absl::StrAppend(&out, name, " ", text.size(), "\n", text, "\n");
}

// Reads texts in the order in which they were put.
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
  bool AtEnd() const { return rest_.empty(); }

 private:
  absl::string_view rest_;
};

std::string EntryOf(const std::string& key, const Decisions& decisions) {
  std::string body;
  Put(body, "key", key);
  Put(body, "decisions", decisions.ToString());
  return absl::StrCat(kHeader, "digest ", Digest(body), "\n", body);
}

// The decisions of an entry; nullopt if `text` is not a complete entry. `other` becomes true if it
// is one for another key.
std::optional<Decisions> Parsed(absl::string_view text, const std::string& key, bool& other) {
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
  const std::optional<std::string> printed = taker.Take("decisions");
  if (!printed || !taker.AtEnd()) return std::nullopt;
  absl::StatusOr<Decisions> decisions = Decisions::Parse(*printed);
  if (!decisions.ok()) return std::nullopt;
  return *std::move(decisions);
}

// Whether this is a temporary file, which a process has written and not renamed.
bool IsTemporary(absl::string_view name) {
  return absl::StrContains(name, absl::StrCat(kExtension, "."));
}

int64_t Now() {
  using std::chrono::nanoseconds;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<nanoseconds>(now).count();
}

}  // namespace

CompileCache::CompileCache(Options options) : options_(std::move(options)) {}

std::string CompileCache::Key(const ir::Graph& graph, const CompileOptions& options) const {
  const machine::Machine& m = options.machine ? *options.machine : machine::Nominal();
  std::string key = absl::StrCat("build ", options_.build, "\n");
  absl::StrAppendFormat(&key, "machine %s %a %a %a %a %d %d %d\n", m.name, m.flops,
                        m.memory_bandwidth, m.link_bandwidth, m.latency, m.memory_bytes,
                        m.tile_rows, m.tile_columns);
  absl::StrAppendFormat(&key, "options %d %d %d\n", options.warn_gather_bytes,
                        options.merge_cap_bytes, options.memory_limit);
  absl::StrAppend(&key, graph.ToString());
  return key;
}

std::string CompileCache::NameOf(const std::string& key) {
  return absl::StrCat(Digest(key), kExtension);
}

absl::StatusOr<Compiled> CompileCache::Read(const ir::Graph& graph,
                                            const CompileOptions& options) const {
  const std::string key = Key(graph, options), name = NameOf(key);
  SPMD_ASSIGN_OR_RETURN(const PrivateDirectory directory,
                        PrivateDirectory::Open(options_.directory, /*make=*/false));
  const absl::StatusOr<std::string> text = directory.Read(name, options_.max_bytes);
  const auto damaged = [&](absl::string_view what) {
    const bool removed = directory.Remove(name);
    return absl::DataLossError(absl::StrCat(
        "the compiled program in ", options_.directory, "/", name, " is damaged (", what,
        "): ", removed ? "it was removed and is compiled anew" : "it is compiled anew"));
  };
  if (absl::IsDataLoss(text.status())) return damaged(text.status().message());
  SPMD_RETURN_IF_ERROR(text.status());
  bool other = false;
  std::optional<Decisions> decisions = Parsed(*text, key, other);
  if (other) return absl::NotFoundError(name);
  if (!decisions.has_value()) return damaged("its text is not what was written");
  absl::StatusOr<Compiled> compiled = CompileAs(graph, *std::move(decisions), options);
  if (!compiled.ok()) return damaged(compiled.status().message());
  compiled->graph = {};
  compiled->decisions = {};
  return compiled;
}

absl::Status CompileCache::Write(const ir::Graph& graph, const CompileOptions& options,
                                 const Compiled& compiled) {
  SPMD_ASSIGN_OR_RETURN(const PrivateDirectory directory,
                        PrivateDirectory::Open(options_.directory, /*make=*/true));
  const std::string key = Key(graph, options);
  const std::string text = EntryOf(key, compiled.decisions);
  // The entry would displace all others, and then itself.
  if (static_cast<int64_t>(text.size()) > options_.max_bytes) return absl::OkStatus();
  SPMD_RETURN_IF_ERROR(directory.Write(NameOf(key), text));
  if (bytes_ >= 0) bytes_ += static_cast<int64_t>(text.size());
  if (bytes_ < 0 || bytes_ > options_.max_bytes) RemoveOldest(directory);
  return absl::OkStatus();
}

// Removes files down to three quarters of the allowed bytes, so that not every later entry looks
// again. Temporary files go first. If one of them is still being written, its entry is not kept.
void CompileCache::RemoveOldest(const PrivateDirectory& directory) {
  constexpr int64_t kLeft = int64_t{3600} * 1000000000;  // no write takes an hour
  std::vector<PrivateDirectory::Entry> files = directory.List();
  files.erase(std::remove_if(files.begin(), files.end(),
                             [](const auto& file) {
                               return !absl::EndsWith(file.name, kExtension) &&
                                      !IsTemporary(file.name);
                             }),
              files.end());
  bytes_ = 0;
  for (const auto& file : files) bytes_ += file.bytes;
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) {
    const bool first = IsTemporary(a.name), second = IsTemporary(b.name);
    return first != second ? first : a.used < b.used;
  });
  const bool too_much = bytes_ > options_.max_bytes;
  const int64_t now = Now();
  for (const auto& file : files) {
    const bool left = IsTemporary(file.name) && file.used < now - kLeft;
    if (!left && (!too_much || bytes_ <= options_.max_bytes / 4 * 3)) continue;
    if (directory.Remove(file.name)) bytes_ -= file.bytes;
  }
  bytes_ = std::max(bytes_, options_.max_bytes / 16 * 15);
}

bool IsSelfContained(const ir::Graph& graph) {
  const auto& nodes = graph.nodes();
  return std::none_of(nodes.begin(), nodes.end(),
                      [](const ir::Node& node) { return rules::IsUsers(node.op); });
}

}  // namespace spmd::partition
