#include "checkpoint/part_inventory.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <tuple>

#include "checkpoint/candidates.h"
#include "checkpoint/names.h"
#include "runtime/core/digest.h"

namespace holdfast::checkpoint {
namespace {

// Returns whether the host has something of this step, whatever it is.
bool has_some_of(const PartInventory& inventory, const ParentCheckpoint& state) {
  return std::ranges::find(inventory.parts, state, &CheckpointPart::state) != inventory.parts.end() ||
         std::ranges::find(inventory.unreadable, state.step, &UnreadablePart::step) !=
             inventory.unreadable.end();
}

// Returns whether its lineage tells of this step, or of one that was published later.
bool has_recorded(const PartInventory& inventory, const ParentCheckpoint& state) {
  const std::optional<ParentCheckpoint>& newest = inventory.lineage.newest_checkpoint;
  return newest.has_value() &&
         std::pair(newest->generation, newest->step) >= std::pair(state.generation, state.step);
}

bool is_file_of(Env& env, const std::string& path, std::uint64_t bytes) {
  const Result<FileStatus> status = env.status(path);
  return status.ok() && status->exists && status->bytes == bytes;
}

std::string run_of(const PartInventory& inventory) {
  if (!inventory.parts.empty()) return inventory.parts.front().run_id;
  return inventory.lineage.run_id;
}

Error different_runs(const PartInventory& one, const PartInventory& other) {
  return fail(ExitCode::config,
              "the run directories of {} and {} are of different runs ({} and {}), so they cannot be put "
              "together; give the directories of one run, or another run.directory",
              one.host, other.host, run_of(one), run_of(other));
}

Error different_futures(const PartInventory& one, const PartInventory& other, std::uint64_t generation) {
  return fail(
      ExitCode::config,
      "the run directories of {} and {} have gone different ways: generation {} began in each of them by "
      "itself, under two leaders; leave out the directories of one of them",
      one.host, other.host, generation);
}

// Returns whether two records of a generation lead to the same bits.
bool is_same_future(const Generation& one, const Generation& other) {
  return one.parent == other.parent && one.settings == other.settings &&
         one.is_rollback == other.is_rollback && one.jump == other.jump;
}

}  // namespace

std::string content_of(const std::vector<ShardFile>& shards) {
  std::string text;
  for (const ShardFile& shard : shards)
    text += fmt::format("{} {} {} {}\n", shard.name, shard.bytes, shard.index_crc32c, shard.piece_count);
  return to_hex(digest_of(text));
}

Result<std::vector<BaseFile>> bases_of_shard(Env& env, const std::string& directory, const ShardFile& shard,
                                             const ParentCheckpoint& state, const std::string& run_id) {
  if (!shard.hosts.empty()) return std::vector<BaseFile>();
  HF_TRY(const std::unique_ptr<File> file, env.open(directory + "/" + shard.name, OpenMode::read));
  HF_TRY(ShardIndex index, read_shard_index(*file, shard, state.step, run_id));
  return std::move(index.bases);
}

bool has_shard(Env& env, const std::string& directory, const ShardFile& shard, const ParentCheckpoint& state,
               const std::string& run_id) {
  if (!is_file_of(env, directory + "/" + shard.name, shard.bytes)) return false;
  const Result<std::vector<BaseFile>> bases = bases_of_shard(env, directory, shard, state, run_id);
  if (!bases.ok()) return true;  // it is damaged, for whoever verifies it to say
  return std::ranges::all_of(
      *bases, [&](const BaseFile& base) { return is_file_of(env, directory + "/" + base.name, base.bytes); });
}

Result<PartInventory> take_inventory(Env& env, const std::string& run_directory, const std::string& host) {
  PartInventory inventory{.host = host};
  HF_TRY(inventory.lineage, read_lineage(env, run_directory));
  HF_TRY(const std::vector<CheckpointCandidate> candidates, list_candidates_patiently(env, run_directory));
  for (const CheckpointCandidate& candidate : candidates) {
    if (!candidate.manifest.ok()) {
      const Error& error = candidate.manifest.error();
      inventory.unreadable.push_back(
          {.step = candidate.step, .why = error.message, .may_pass = error.reach == Reach::minute});
      continue;
    }
    const Manifest& manifest = *candidate.manifest;
    CheckpointPart& part = inventory.parts.emplace_back(CheckpointPart{.run_id = manifest.run_id,
                                                                       .state = state_of(manifest),
                                                                       .content = content_of(manifest.shards),
                                                                       .directory = candidate.directory,
                                                                       .named = manifest.shards});
    for (const ShardFile& shard : manifest.shards) {
      if (has_shard(env, candidate.directory, shard, part.state, part.run_id))
        part.present.push_back(shard.name);
    }
  }
  return inventory;
}

Result<Lineage> merge_lineages(std::span<const PartInventory> inventories) {
  const PartInventory* first = nullptr;  // that knows of a run
  Lineage merged;
  std::map<std::uint64_t, const PartInventory*> reporter;  // by generation
  for (const PartInventory& each : inventories) {
    if (run_of(each).empty()) continue;
    if (first == nullptr) first = &each;
    const bool is_foreign = std::ranges::any_of(
        each.parts, [&](const CheckpointPart& part) { return part.run_id != run_of(*first); });
    if (is_foreign || run_of(each) != run_of(*first)) return different_runs(*first, each);
    if (each.lineage.run_id != run_of(*first)) continue;  // says nothing about this run
    for (const Generation& generation : each.lineage.generations) {
      const Generation* const known = merged.find(generation.number);
      if (known != nullptr && !is_same_future(*known, generation))
        return different_futures(*reporter.at(generation.number), each, generation.number);
      if (known != nullptr) continue;
      merged.generations.push_back(generation);
      reporter[generation.number] = &each;
    }
    const auto& newest = each.lineage.newest_checkpoint;
    const auto age = [](const ParentCheckpoint& state) { return std::pair(state.generation, state.step); };
    if (newest.has_value() &&
        (!merged.newest_checkpoint.has_value() || age(*newest) > age(*merged.newest_checkpoint)))
      merged.newest_checkpoint = newest;
    // Where one host does not know when the first checkpoint was published, nobody does.
    const bool is_known =
        each.lineage.first_step.has_value() && (merged.run_id.empty() || merged.first_step.has_value());
    if (is_known) {
      merged.first_step =
          std::min(*each.lineage.first_step, merged.first_step.value_or(Lineage::none_published));
    } else {
      merged.first_step.reset();
    }
    merged.run_id = each.lineage.run_id;
  }
  std::ranges::sort(merged.generations, {}, &Generation::number);
  if (merged.newest_checkpoint.has_value() && merged.discards(*merged.newest_checkpoint))
    merged.newest_checkpoint.reset();
  return merged;
}

std::vector<std::string> FoundParts::missing() const {
  std::vector<std::string> names;
  for (const ShardFile& shard : named) {
    if (!holders.contains(shard.name)) names.push_back(shard.name);
  }
  return names;
}

std::vector<FoundParts> find_parts(std::span<const PartInventory> inventories, const Lineage& lineage) {
  std::map<std::tuple<std::uint64_t, std::uint64_t, std::string>, FoundParts> found;
  const std::string everywhere;  // no host's name
  std::map<std::pair<const FoundParts*, std::string>, std::vector<const ShardFile*>> shards_of;  // by host
  for (std::size_t i = 0; i < inventories.size(); ++i) {
    for (const CheckpointPart& part : inventories[i].parts) {
      if (part.run_id == lineage.run_id && lineage.discards(part.state)) continue;
      FoundParts& parts = found[{part.state.generation, part.state.step, part.content}];
      parts.run_id = part.run_id;
      parts.state = part.state;
      parts.content = part.content;
      parts.directory_name = checkpoint_names::step_name(part.state.step);
      if (parts.named.empty()) {
        parts.named = part.named;
        for (const ShardFile& shard : parts.named) {
          for (const std::string& host : shard.hosts) shards_of[{&parts, host}].push_back(&shard);
          if (shard.hosts.empty()) shards_of[{&parts, everywhere}].push_back(&shard);
        }
      }
      parts.with_manifest.push_back(i);
      parts.directories[i] = part.directory;
      for (const std::string& shard : part.present) parts.holders[shard].push_back(i);
      const std::string& host = inventories[i].host;
      for (const std::string& place : {everywhere, host}) {
        for (const ShardFile* const shard : shards_of[{&parts, place}]) {
          const bool is_here = std::ranges::find(part.present, shard->name) != part.present.end();
          if (!is_here) parts.gone[shard->name].push_back(host);
        }
      }
    }
  }
  std::vector<FoundParts> newest_first;
  for (auto& [key, parts] : found) newest_first.insert(newest_first.begin(), std::move(parts));
  // Puts the whole one of two of the same step first.
  std::ranges::stable_sort(newest_first, std::greater<>(), [](const FoundParts& parts) {
    return std::tuple(parts.state.generation, parts.state.step, parts.missing().empty());
  });
  return newest_first;
}

std::string why_not_whole(const FoundParts& parts) {
  const std::vector<std::string> missing = parts.missing();
  const auto shard = std::ranges::find(parts.named, missing.front(), &ShardFile::name);
  const std::string more = missing.size() == 1 ? "" : fmt::format(" and {} more", missing.size() - 1);
  if (const auto gone = parts.gone.find(shard->name); gone != parts.gone.end()) {
    return fmt::format("step {} is not whole: {} is gone, or has another length, in {} on {}{}",
                       parts.state.step, shard->name, parts.directory_name, fmt::join(gone->second, " and "),
                       more.empty() ? "" : "," + more + " with it");
  }
  return fmt::format("step {} is not whole: no host that is here has {}{}; it was on host {}",
                     parts.state.step, shard->name, more, fmt::join(shard->hosts, " and on host "));
}

bool is_with_other_hosts(const FoundParts& parts, std::span<const PartInventory> inventories) {
  const auto is_away = [&](const std::string& host) {
    return std::ranges::find(inventories, host, &PartInventory::host) == inventories.end();
  };
  return std::ranges::all_of(parts.missing(), [&](const std::string& name) {
    const auto shard = std::ranges::find(parts.named, name, &ShardFile::name);
    return std::ranges::any_of(shard->hosts, is_away);
  });
}

bool is_lost(const FoundParts& parts, std::span<const PartInventory> inventories) {
  const auto may_have_published = [&](const std::string& host) {
    const auto here = std::ranges::find(inventories, host, &PartInventory::host);
    return here == inventories.end() || !here->knows_run() || has_some_of(*here, parts.state) ||
           has_recorded(*here, parts.state);
  };
  return std::ranges::any_of(parts.missing(), [&](const std::string& name) {
    const auto shard = std::ranges::find(parts.named, name, &ShardFile::name);
    return shard->hosts.empty() || std::ranges::any_of(shard->hosts, may_have_published);
  });
}

std::vector<FoundParts> take_never_whole(std::vector<FoundParts>& found,
                                         std::span<const PartInventory> inventories) {
  std::vector<FoundParts> never_whole, left;
  for (FoundParts& parts : found) {
    const bool counts = parts.missing().empty() || is_lost(parts, inventories);
    (counts ? left : never_whole).push_back(std::move(parts));
  }
  found = std::move(left);
  return never_whole;
}

Lineage forget(Lineage lineage, std::span<const FoundParts> never_whole, std::span<const FoundParts> left,
               std::span<const PartInventory> inventories) {
  std::size_t forgotten = 0, directories = 0;
  bool forgets_newest = false;
  for (const FoundParts& parts : never_whole) {
    forgotten += parts.with_manifest.size();
    forgets_newest = forgets_newest || lineage.newest_checkpoint == parts.state;
  }
  for (const PartInventory& inventory : inventories)
    directories += inventory.parts.size() + inventory.unreadable.size();
  if (forgotten > 0 && forgotten == directories) return {};
  if (forgets_newest) {
    lineage.newest_checkpoint.reset();
    if (!left.empty()) lineage.newest_checkpoint = left.front().state;
  }
  return lineage;
}

}  // namespace holdfast::checkpoint
