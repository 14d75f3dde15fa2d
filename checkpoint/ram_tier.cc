#include "checkpoint/ram_tier.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>
#include <utility>

namespace holdfast::checkpoint {
namespace {

std::string prefix_of(const Digest& run) {
  return fmt::format("holdfast-{}-", to_hex(run));
}

Result<std::vector<std::string>> names_with(Env& env, const std::string& prefix) {
  HF_TRY(std::vector<std::string> names, env.list_shared_memory());
  std::erase_if(names, [&](const std::string& name) { return !name.starts_with(prefix); });
  return names;
}

// The header of a slot says the same as its name, which has been asked for.
bool fits_name(const SnapshotIdentity& identity, const Digest& run, const std::string& name) {
  return identity.run == run &&
         name.starts_with(fmt::format("{}{:05}-", writer_prefix(run, identity.writer), identity.rank));
}

std::optional<SnapshotIdentity> identity_of_name(Env& env, const Digest& run, const std::string& name) {
  const Result<std::unique_ptr<SharedMemory>> memory = env.open_shared_memory(name);
  if (!memory.ok()) return std::nullopt;
  const Result<SnapshotIdentity> identity = SnapshotReader::identify((*memory)->bytes(), name);
  if (!identity.ok() || !fits_name(*identity, run, name)) return std::nullopt;
  return *identity;
}

// Returns whether a snapshot is of this host: where several hosts share a directory of shared memory, or a
// test simulates several, each has its own.
bool is_of_host(Env& env, const SnapshotIdentity& identity) {
  return identity.host == digest_of(env.host_id());
}

}  // namespace

std::string writer_prefix(const Digest& run, std::uint64_t writer) {
  return fmt::format("{}{:016x}-", prefix_of(run), writer);
}

SnapshotStep step_of(const SnapshotIdentity& identity) {
  return {.writer = identity.writer, .generation = identity.generation, .step = identity.step};
}

std::vector<std::string> snapshot_names(Env& env, const Digest& run) {
  Result<std::vector<std::string>> names = names_with(env, prefix_of(run));
  if (!names.ok()) return {};
  std::erase_if(*names, [&](const std::string& name) { return is_rollback_name(name, run); });
  return std::move(names).value();
}

std::string rollback_name(const Digest& run, std::uint64_t writer, int rank) {
  return fmt::format("{}rollback-{:016x}-{:05}", prefix_of(run), writer, rank);
}

bool is_rollback_name(std::string_view name, const Digest& run) {
  return name.starts_with(prefix_of(run) + "rollback-");
}

std::vector<std::string> rollback_names(Env& env, const Digest& run) {
  const Result<std::vector<std::string>> names = names_with(env, prefix_of(run) + "rollback-");
  return names.ok() ? *names : std::vector<std::string>();
}

std::string snapshot_name(const Digest& run, std::uint64_t writer, int rank, int slot) {
  return fmt::format("{}{:05}-{}", writer_prefix(run, writer), rank, slot);
}

std::string replica_name(const Digest& run, std::uint64_t writer, int rank, int slot) {
  return fmt::format("{}{:05}-replica-{}", writer_prefix(run, writer), rank, slot);
}

std::vector<FoundSnapshot> list_snapshots(Env& env, const Digest& run) {
  std::vector<FoundSnapshot> found;
  const Result<std::vector<std::string>> names = names_with(env, prefix_of(run));
  if (!names.ok()) return found;  // no shared memory here
  for (const std::string& name : *names) {
    const std::optional<SnapshotIdentity> identity = identity_of_name(env, run, name);
    if (identity.has_value() && is_of_host(env, *identity)) found.push_back({name, *identity});
  }
  return found;
}

void unseal_snapshots_after(Env& env, const Digest& run, std::uint64_t trusted_step) {
  for (const FoundSnapshot& found : list_snapshots(env, run)) {
    if (found.identity.step <= trusted_step) continue;
    const Result<std::unique_ptr<SharedMemory>> memory = env.open_shared_memory(found.name);
    if (memory.ok()) unseal_snapshot((*memory)->bytes());
  }
}

Result<SharedSnapshots> remove_snapshots(Env& env, const Digest& run,
                                         std::optional<std::uint64_t> kept_writer) {
  SharedSnapshots removed;
  HF_TRY(const std::vector<std::string> names, names_with(env, prefix_of(run)));
  const std::string kept = kept_writer.has_value() ? writer_prefix(run, *kept_writer) : "";
  for (const std::string& name : names) {
    if (!kept.empty() && (name.starts_with(kept) || is_rollback_name(name, run))) continue;
    if (const Result<FileStatus> status = env.status(env.shared_memory_path(name));
        status.ok() && status->exists) {
      ++removed.count;
      removed.bytes += status->bytes;
    }
    HF_TRY_VOID(env.remove_shared_memory(name));
  }
  return removed;
}

namespace {

struct OldName {
  std::string name;
  std::uint64_t bytes = 0;
  bool is_needed = false;
};

// The names in alphabetical order have a rank's own slots before replicas of them.
std::vector<OldName> old_names(Env& env, const Digest& run, const std::optional<SnapshotStep>& resumed,
                               std::optional<std::uint64_t> except_writer) {
  std::vector<OldName> found;
  std::set<std::uint32_t> parts_here;
  const std::string except = except_writer.has_value() ? writer_prefix(run, *except_writer) : "";
  for (const std::string& name : snapshot_names(env, run)) {
    if (!except.empty() && name.starts_with(except)) continue;
    OldName old{.name = name};
    const Result<FileStatus> status = env.status(env.shared_memory_path(name));
    if (!status.ok() || !status->exists) continue;  // it went meanwhile
    old.bytes = status->bytes;
    if (resumed.has_value()) {
      const std::optional<SnapshotIdentity> identity = identity_of_name(env, run, name);
      const bool is_of_step = identity.has_value() && step_of(*identity) == *resumed;
      old.is_needed = is_of_step && (!is_of_host(env, *identity) || parts_here.insert(identity->rank).second);
    }
    found.push_back(std::move(old));
  }
  return found;
}

}  // namespace

std::set<std::string> needed_snapshots(Env& env, const Digest& run,
                                       const std::optional<SnapshotStep>& resumed) {
  std::set<std::string> needed;
  for (const OldName& each : old_names(env, run, resumed, std::nullopt)) {
    if (each.is_needed) needed.insert(each.name);
  }
  return needed;
}

OldSnapshots count_old_snapshots(Env& env, const Digest& run, const std::optional<SnapshotStep>& resumed) {
  OldSnapshots old;
  for (const OldName& each : old_names(env, run, resumed, std::nullopt)) {
    SharedSnapshots& sum = each.is_needed ? old.resumed : old.unneeded;
    ++sum.count;
    sum.bytes += each.bytes;
  }
  return old;
}

Result<void> remove_unneeded_snapshots(Env& env, const Digest& run,
                                       const std::optional<SnapshotStep>& resumed,
                                       std::optional<std::uint64_t> except_writer) {
  for (const OldName& each : old_names(env, run, resumed, except_writer)) {
    if (!each.is_needed) HF_TRY_VOID(env.remove_shared_memory(each.name));
  }
  return {};
}

std::optional<SnapshotStep> newest_whole_step(const std::vector<std::vector<SnapshotIdentity>>& offers,
                                              const SnapshotStep& after,
                                              std::span<const SnapshotStep> passed_over) {
  // Ranks whose parts are there, by generation, step, writer and number of ranks.
  using Key = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, std::uint32_t>;
  std::map<Key, std::set<std::uint32_t>> parts;
  for (const std::vector<SnapshotIdentity>& offer : offers) {
    for (const SnapshotIdentity& each : offer) {
      if (each.rank < each.ranks)
        parts[{each.generation, each.step, each.writer, each.ranks}].insert(each.rank);
    }
  }
  for (auto candidate = parts.rbegin(); candidate != parts.rend(); ++candidate) {
    const auto& [generation, number, writer, ranks] = candidate->first;
    if (std::pair(generation, number) <= std::pair(after.generation, after.step)) break;
    const SnapshotStep step = {.writer = writer, .generation = generation, .step = number};
    if (candidate->second.size() == ranks && std::ranges::find(passed_over, step) == passed_over.end())
      return step;
  }
  return std::nullopt;
}

SnapshotSet SnapshotSet::open(Env& env, const Digest& run, const SnapshotStep& step, Pace pace) {
  SnapshotSet set;
  set.pace_ = std::move(pace);
  for (const FoundSnapshot& found : list_snapshots(env, run)) {
    const SnapshotIdentity& identity = found.identity;
    if (step_of(identity) != step) continue;
    Result<std::unique_ptr<SharedMemory>> memory = env.open_shared_memory(found.name);
    Result<SnapshotReader> reader = memory.ok() ? SnapshotReader::open((*memory)->bytes(), found.name)
                                                : Result<SnapshotReader>(memory.error());
    if (!reader.ok()) {
      set.note(reader.error());
      continue;
    }
    const SnapshotIdentity& opened = reader->identity();
    if (!fits_name(opened, run, found.name) || step_of(opened) != step || opened.ranks != identity.ranks)
      continue;  // its writer has changed it meanwhile
    set.memory_.push_back(std::move(memory).value());
    set.readers_.push_back(std::move(reader).value());
  }
  return set;
}

Error SnapshotSet::why_empty(Env& env, const SnapshotStep& step) const {
  if (!damages_.empty()) return fail(ExitCode::checkpoint, "{}", damages_.front());
  return fail(ExitCode::checkpoint, "host {} has no RAM snapshot of step {}", env.host_name(), step.step);
}

void SnapshotSet::note(const Error& damage) {
  if (std::ranges::find(damages_, damage.message) == damages_.end()) damages_.push_back(damage.message);
}

std::vector<std::uint32_t> SnapshotSet::ranks() const {
  std::set<std::uint32_t> ranks;
  for (const SnapshotReader& reader : readers_) ranks.insert(reader.identity().rank);
  return {ranks.begin(), ranks.end()};
}

const std::vector<ShardSpec>& SnapshotSet::pieces_of(std::uint32_t rank) const {
  const auto found = std::ranges::find_if(
      readers_, [rank](const SnapshotReader& reader) { return reader.identity().rank == rank; });
  HF_CHECK(found != readers_.end());
  return found->pieces();
}

// A replica has the same pieces.
Result<std::span<const std::byte>> SnapshotSet::piece(std::uint32_t rank, std::size_t index) {
  std::optional<Error> damage;
  for (SnapshotReader& reader : readers_) {
    if (reader.identity().rank != rank) continue;
    const Result<std::span<const std::byte>> bytes = reader.piece(index, pace_);
    if (bytes.ok()) return bytes;
    note(bytes.error());
    if (!damage.has_value()) damage = bytes.error();
  }
  HF_CHECK(damage.has_value());
  return *damage;
}

std::vector<std::uint32_t> SnapshotSet::drop_damaged(const std::vector<ShardSpec>& wanted) {
  using Key = std::tuple<std::string_view, std::string_view, std::uint32_t>;
  const auto key_of = [](const ShardSpec& spec) { return Key(spec.tensor, spec.kind, spec.slice); };
  std::multimap<Key, const ShardSpec*> wanted_of;
  for (const ShardSpec& spec : wanted) wanted_of.emplace(key_of(spec), &spec);
  const auto is_wanted = [&](const ShardSpec& piece) {
    const auto [begin, end] = wanted_of.equal_range(key_of(piece));
    return std::any_of(begin, end, [&](const auto& entry) {
      const ShardSpec& spec = *entry.second;
      return spec.first_block < piece.first_block + piece.block_count &&
             piece.first_block < spec.first_block + spec.block_count;
    });
  };
  std::vector<std::uint32_t> dropped;
  for (const std::uint32_t rank : ranks()) {
    const std::vector<ShardSpec>& pieces = pieces_of(rank);
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (!is_wanted(pieces[i]) || piece(rank, i).ok()) continue;
      dropped.push_back(rank);
      break;
    }
  }
  std::erase_if(readers_, [&](const SnapshotReader& reader) {
    return std::ranges::find(dropped, reader.identity().rank) != dropped.end();
  });
  return dropped;
}

// The one that piece() has verified is the first that is sound.
std::span<const std::byte> SnapshotSet::digests(std::uint32_t rank, std::size_t index) const {
  for (const SnapshotReader& reader : readers_) {
    if (reader.identity().rank == rank && reader.has_verified(index)) return reader.digests_of(index);
  }
  return {};
}

void SnapshotSet::add(const ShardSpec& spec, OwnedMemory bytes, std::vector<std::byte> digests) {
  added_.push_back({spec, std::move(bytes), std::move(digests)});
}

std::vector<SnapshotSet::Slot> SnapshotSet::slots() const {
  std::vector<Slot> slots;
  for (const std::uint32_t rank : ranks()) {
    const std::vector<ShardSpec>& pieces = pieces_of(rank);
    for (std::size_t i = 0; i < pieces.size(); ++i)
      slots.push_back({.spec = pieces[i], .rank = rank, .index = i, .added = false});
  }
  for (std::size_t i = 0; i < added_.size(); ++i)
    slots.push_back({.spec = added_[i].spec, .rank = 0, .index = i, .added = true});
  return slots;
}

bool SnapshotSet::holds(const std::vector<ShardSpec>& wanted) const {
  std::vector<ShardSpec> existing;
  for (const Slot& slot : slots()) existing.push_back(slot.spec);
  return plan_copies(existing, wanted).ok();
}

Result<void> SnapshotSet::read(std::span<const Checkpoint::Wanted> wanted) {
  const std::vector<Slot> from = slots();
  std::vector<ShardSpec> existing, specs;
  for (const Slot& slot : from) existing.push_back(slot.spec);
  for (const Checkpoint::Wanted& each : wanted) specs.push_back(each.spec);
  const Result<std::vector<ShardCopy>> copies = plan_copies(existing, specs);
  if (!copies.ok() && !damages_.empty()) return fail(ExitCode::checkpoint, "{}", damages_.front());
  if (!copies.ok()) return copies.error();
  for (const ShardCopy& copy : *copies) {
    const Slot& slot = from[copy.existing_index];
    std::span<const std::byte> source;
    if (slot.added) {
      source = {added_[slot.index].bytes.get(), added_[slot.index].spec.byte_count()};
    } else {
      HF_TRY(source, piece(slot.rank, slot.index));
    }
    const Checkpoint::Wanted& target = wanted[copy.wanted_index];
    const std::uint64_t element_bytes = bytes_of(target.spec.dtype);
    std::byte* const target_begin = target.target.data() + copy.wanted_offset * element_bytes;
    const std::byte* const source_begin = source.data() + copy.existing_offset * element_bytes;
    in_paced_parts(copy.element_count * element_bytes, pace_, [&](std::uint64_t offset, std::uint64_t bytes) {
      std::memcpy(target_begin + offset, source_begin + offset, bytes);
    });
  }
  return {};
}

Result<std::vector<std::byte>> SnapshotSet::read_digests(const std::vector<ShardSpec>& weights) const {
  constexpr std::uint64_t bytes_each = sizeof(std::uint64_t);
  const std::vector<Slot> from = slots();
  std::vector<ShardSpec> existing;
  for (const Slot& slot : from) existing.push_back(slot.spec);
  HF_TRY(const std::vector<ShardCopy> copies, plan_copies(existing, weights));
  std::vector<std::uint64_t> begins;
  std::uint64_t blocks = 0;
  for (const ShardSpec& weight : weights) {
    begins.push_back(blocks);
    blocks += weight.block_count;
  }
  std::vector<std::byte> digests(blocks * bytes_each);
  for (const ShardCopy& copy : copies) {
    const Slot& slot = from[copy.existing_index];
    const std::span<const std::byte> source = slot.added
                                                  ? std::span<const std::byte>(added_[slot.index].digests)
                                                  : this->digests(slot.rank, slot.index);
    if (source.empty()) return std::vector<std::byte>();
    const std::uint64_t target_block = begins[copy.wanted_index] + copy.wanted_offset / block_elements;
    const std::uint64_t count = (copy.element_count + block_elements - 1) / block_elements;
    std::ranges::copy(source.subspan(copy.existing_offset / block_elements * bytes_each, count * bytes_each),
                      digests.begin() + static_cast<std::ptrdiff_t>(target_block * bytes_each));
  }
  return digests;
}

}  // namespace holdfast::checkpoint
