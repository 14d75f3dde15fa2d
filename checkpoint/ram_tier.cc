#include "checkpoint/ram_tier.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

namespace holdfast {
namespace {

constexpr const char* shared_memory_directory = "/dev/shm";

std::string prefix_of(const Digest& run) {
  return fmt::format("holdfast-{}-", to_hex(run));
}

std::string prefix_of(const Digest& run, std::uint64_t writer) {
  return fmt::format("{}{:016x}-", prefix_of(run), writer);
}

Result<std::vector<std::string>> names_with(Env& env, const std::string& prefix) {
  HF_TRY(std::vector<std::string> names, env.list(shared_memory_directory));
  std::erase_if(names, [&](const std::string& name) { return !name.starts_with(prefix); });
  return names;
}

// Of this host: where several share a directory of shared memory, or a test plays several, each has its own.
bool is_of_host(Env& env, const SnapshotIdentity& identity) {
  return identity.host == digest_of(env.host_name());
}

}  // namespace

std::string snapshot_name(const Digest& run, std::uint64_t writer, int rank, int slot) {
  return fmt::format("{}{:05}-{}", prefix_of(run, writer), rank, slot);
}

std::vector<FoundSnapshot> list_snapshots(Env& env, const Digest& run) {
  std::vector<FoundSnapshot> found;
  const Result<std::vector<std::string>> names = names_with(env, prefix_of(run));
  if (!names.ok()) return found;  // no shared memory here
  for (const std::string& name : *names) {
    const Result<std::unique_ptr<SharedMemory>> memory = env.open_shared_memory(name);
    if (!memory.ok()) continue;
    const Result<SnapshotIdentity> identity = SnapshotReader::identify((*memory)->bytes(), name);
    if (identity.ok() && identity->run == run && is_of_host(env, *identity))
      found.push_back({name, *identity});
  }
  return found;
}

Result<SharedSnapshots> remove_snapshots(Env& env, const Digest& run,
                                         std::optional<std::uint64_t> kept_writer) {
  const Result<FileStatus> there = env.status(shared_memory_directory);
  if (!there.ok() || !there->exists) return SharedSnapshots{};
  SharedSnapshots removed;
  HF_TRY(const std::vector<std::string> names, names_with(env, prefix_of(run)));
  const std::string kept = kept_writer.has_value() ? prefix_of(run, *kept_writer) : "";
  for (const std::string& name : names) {
    if (!kept.empty() && name.starts_with(kept)) continue;
    if (const Result<FileStatus> status = env.status(fmt::format("{}/{}", shared_memory_directory, name));
        status.ok() && status->exists) {
      ++removed.count;
      removed.bytes += status->bytes;
    }
    HF_TRY_VOID(env.remove_shared_memory(name));
  }
  return removed;
}

std::optional<SnapshotStep> newest_whole_step(const std::vector<std::vector<SnapshotIdentity>>& offers,
                                              const SnapshotStep& after) {
  std::optional<SnapshotStep> newest;
  const auto age = [](const SnapshotStep& step) { return std::pair(step.generation, step.step); };
  for (const SnapshotIdentity& candidate : offers.front()) {
    const SnapshotStep step = {
        .writer = candidate.writer, .generation = candidate.generation, .step = candidate.step};
    if (age(step) <= age(after) || (newest.has_value() && age(step) <= age(*newest))) continue;
    std::set<std::uint32_t> ranks;
    for (const std::vector<SnapshotIdentity>& offer : offers) {
      for (const SnapshotIdentity& each : offer) {
        const SnapshotStep of_each = {
            .writer = each.writer, .generation = each.generation, .step = each.step};
        if (of_each == step && each.rank < candidate.ranks) ranks.insert(each.rank);
      }
    }
    if (ranks.size() == candidate.ranks) newest = step;
  }
  return newest;
}

Result<SnapshotSet> SnapshotSet::open(Env& env, const Digest& run, const SnapshotStep& step) {
  SnapshotSet set;
  for (const FoundSnapshot& found : list_snapshots(env, run)) {
    const SnapshotIdentity& identity = found.identity;
    if (SnapshotStep{identity.writer, identity.generation, identity.step} != step) continue;
    HF_TRY(std::unique_ptr<SharedMemory> memory, env.open_shared_memory(found.name));
    HF_TRY(SnapshotReader reader, SnapshotReader::open(memory->bytes(), found.name));
    set.memory_.push_back(std::move(memory));
    set.readers_.push_back(std::move(reader));
  }
  if (set.readers_.empty()) {
    return fail(ExitCode::checkpoint, "host {} has no RAM snapshot of step {}", env.host_name(), step.step);
  }
  return set;
}

Result<void> SnapshotSet::read(std::span<const Checkpoint::Wanted> wanted) {
  std::vector<ShardSpec> existing, specs;
  std::vector<std::pair<std::size_t, std::size_t>> places;  // of every piece: reader, index inside it
  for (std::size_t reader = 0; reader < readers_.size(); ++reader) {
    const std::vector<ShardSpec>& pieces = readers_[reader].pieces();
    existing.insert(existing.end(), pieces.begin(), pieces.end());
    for (std::size_t i = 0; i < pieces.size(); ++i) places.emplace_back(reader, i);
  }
  for (const Checkpoint::Wanted& each : wanted) specs.push_back(each.spec);
  HF_TRY(const std::vector<ShardCopy> copies, plan_copies(existing, specs));
  for (const ShardCopy& copy : copies) {
    const auto [reader, index] = places[copy.existing_index];
    HF_TRY(const std::span<const std::byte> piece, readers_[reader].piece(index));
    const Checkpoint::Wanted& target = wanted[copy.wanted_index];
    const std::uint64_t element_bytes = bytes_of(target.spec.dtype);
    std::memcpy(target.target.data() + copy.wanted_offset * element_bytes,
                piece.data() + copy.existing_offset * element_bytes, copy.element_count * element_bytes);
  }
  return {};
}

}  // namespace holdfast
