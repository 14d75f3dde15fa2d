#include "checkpoint/ram_runs.h"

#include <fmt/core.h>

#include <array>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "checkpoint/kept_rollback.h"
#include "runtime/os/processes.h"

namespace holdfast::checkpoint {
namespace {

constexpr std::string_view name_begin = "holdfast-";

// Returns the digest in the name of a snapshot, whatever follows it; none where the name is of another kind.
std::optional<Digest> run_of_name(std::string_view name) {
  constexpr std::size_t digits = 32;
  if (!name.starts_with(name_begin) || name.size() <= name_begin.size() + digits) return std::nullopt;
  const std::string_view hex = name.substr(name_begin.size(), digits);
  if (name[name_begin.size() + digits] != '-') return std::nullopt;
  std::array<std::uint64_t, 2> halves{};
  for (std::size_t i = 0; i < digits; ++i) {
    const std::size_t value = std::string_view("0123456789abcdef").find(hex[i]);
    if (value == std::string_view::npos) return std::nullopt;
    halves[i / 16] = halves[i / 16] << 4 | value;
  }
  return Digest{.high = halves[0], .low = halves[1]};
}

void add_sealed(Env& env, const std::string& name, RunInMemory& run) {
  const Result<std::unique_ptr<SharedMemory>> memory = env.open_shared_memory(name);
  if (!memory.ok()) return;
  const Result<SnapshotReader> reader = SnapshotReader::open((*memory)->bytes(), name);
  if (!reader.ok() || reader->identity().run != run.run) return;
  const bool newer = run.sealed == 0 || reader->identity().step > run.newest_step;
  ++run.sealed;
  if (!newer) return;
  run.newest_step = reader->identity().step;
  const auto& values = reader->manifest().values;
  const auto directory = values.find(run_directory_key);
  run.directory = directory == values.end() ? "" : directory->second;
}

// Returns the digests of the runs whose snapshots a process of this host has mapped. This process is none.
std::set<std::string> digests_in_use(Env& env) {
  std::set<std::string> found;
  const std::string mark = env.shared_memory_path(std::string(name_begin));
  for (const std::int64_t id : env.processes().list()) {
    if (id == env.process_id()) continue;
    const Result<std::string> maps = env.read_text(fmt::format("/proc/{}/maps", id));
    if (!maps.ok()) continue;  // it has ended, or is another user's
    for (std::size_t at = maps->find(mark); at != std::string::npos; at = maps->find(mark, at + 1)) {
      const std::size_t begin = at + mark.size();
      found.insert(maps->substr(begin, maps->find('-', begin) - begin));
    }
  }
  return found;
}

}  // namespace

std::vector<RunInMemory> list_runs_in_memory(Env& env) {
  const Result<std::vector<std::string>> names = env.list_shared_memory();
  if (!names.ok()) return {};
  std::map<std::string, RunInMemory> runs;
  for (const std::string& name : *names) {
    const std::optional<Digest> digest = run_of_name(name);
    if (!digest.has_value()) continue;
    const Result<FileStatus> status = env.status(env.shared_memory_path(name));
    if (!status.ok() || !status->exists) continue;  // it went meanwhile
    RunInMemory& run = runs.try_emplace(to_hex(*digest), RunInMemory{.run = *digest}).first->second;
    if (is_rollback_name(name, *digest)) continue;  // no snapshot
    ++run.snapshots.count;
    run.snapshots.bytes += status->bytes;
    add_sealed(env, name, run);
  }
  std::vector<RunInMemory> listed;
  if (runs.empty()) return listed;
  const std::set<std::string> in_use = digests_in_use(env);
  for (auto& [hex, run] : runs) {
    run.in_use = in_use.contains(hex);
    for (const KeptRollback& kept : kept_rollbacks(env, run.run)) {
      run.keeps_rollback = true;
      if (run.directory.empty()) run.directory = kept.run_directory;
    }
    listed.push_back(std::move(run));
  }
  return listed;
}

}  // namespace holdfast::checkpoint
