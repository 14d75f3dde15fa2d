// holdfast collect: makes one whole checkpoint of the parts that hosts store where run.directory is local to
// each.
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/candidates.h"
#include "checkpoint/names.h"
#include "checkpoint/store.h"
#include "runtime/cli/collect_source.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/common/arguments.h"
#include "runtime/core/split.h"
#include "runtime/launch/launch_options.h"
#include "runtime/os/console.h"
#include "runtime/os/paths.h"
#include "runtime/run/run_directory.h"

namespace holdfast::inline cli {
namespace {

constexpr const char* collect_usage =
    "usage: holdfast collect RUN [DIRECTORY...] [--hosts LIST]\n"
    "\n"
    "Of a run whose run.directory was local to each host: puts the parts of its newest checkpoint together, "
    "so "
    "that RUN\n"
    "holds all of it. RUN is a run directory of this host, or a new one. The parts are there, in each "
    "DIRECTORY "
    "(the run\n"
    "directory of another host, as it is mounted or copied here), and, with --hosts a,b, in RUN on these "
    "hosts, "
    "which are\n"
    "reached by ssh, or what PRTE_MCA_plm_ssh_agent names. Where RUN has no event log, that of the furthest "
    "is "
    "copied, too,\n"
    "with the config. Exit code 2: they are of different runs, or of two futures of one; 5: a part is "
    "missing.\n";

namespace names = checkpoint_names;

class Collection {
 public:
  Collection(Env& env, std::string run) : env_(env), paths_{std::move(run)} {}

  Result<void> run(std::vector<CollectSource> sources) {
    sources_ = std::move(sources);
    for (const CollectSource& source : sources_) inventories_.push_back(source.inventory);
    HF_TRY(const Lineage lineage, merge_lineages(inventories_));
    const std::vector<FoundParts> found = find_parts(inventories_, lineage);
    HF_TRY(const FoundParts* const newest, choose(found));
    HF_TRY(const std::unique_ptr<Claim> claim, claim_run_directory(env_, paths_));
    FaultPoints none;
    HF_TRY_VOID(CheckpointStore(env_, none, paths_.directory).restore_replaced());
    HF_TRY_VOID(gather(*newest));
    if (!lineage.run_id.empty()) HF_TRY_VOID(write_lineage(env_, paths_.directory, lineage, claim->fence()));
    HF_TRY_VOID(copy_log());
    const std::string directory = directory_of(*newest);
    HF_TRY_VOID(outcome_of(open_verified(env_, directory)));
    fmt::print("step {} is whole in {}: {} files, {} of them copied\n", newest->state.step, directory,
               newest->named.size(), copied_);
    return {};
  }

 private:
  // Returns the newest checkpoint that is whole; newer ones that are not whole are reported.
  Result<const FoundParts*> choose(const std::vector<FoundParts>& found) {
    std::string list;
    for (const FoundParts& parts : found) {
      if (parts.missing().empty()) {
        if (!list.empty()) print_message("checkpoints skipped:{}", list);
        return &parts;
      }
      list += "\n  " + why_not_whole(parts);
    }
    std::vector<std::string> names;
    for (const PartInventory& inventory : inventories_) {
      names.push_back(inventory.host);
      for (const UnreadablePart& part : inventory.unreadable)
        list += fmt::format("\n  step {} in {}: {}", part.step, inventory.host, part.why);
    }
    if (list.empty()) {
      return fail(ExitCode::checkpoint,
                  "there is no checkpoint in {}. Give run directories of hosts on which the run has saved",
                  fmt::join(names, " and "));
    }
    return fail(ExitCode::checkpoint,
                "no checkpoint is whole in {} together; give the run directories of the other hosts, too:{}",
                fmt::join(names, " and "), list);
  }

  std::string directory_of(const FoundParts& parts) const {
    return names::checkpoints(paths_.directory) + "/" + parts.directory_name;
  }
  std::string staging_of(const FoundParts& parts) const {
    return names::pending(paths_.directory) + "/collected-" + parts.directory_name;
  }

  // Gathers the files of a checkpoint. RUN, the first source, may have a part of it; the whole appears by one
  // rename, or file by file beside that part.
  Result<void> gather(const FoundParts& parts) {
    const std::string directory = directory_of(parts), staging = staging_of(parts);
    const bool has_part = parts.with_manifest.front() == 0;
    HF_TRY_VOID(env_.remove_tree(staging));
    HF_TRY_VOID(env_.make_directories(staging));
    for (const ShardFile& shard : parts.named) HF_TRY_VOID(fetch(parts, shard, staging));
    if (!has_part) {
      const CollectSource& reporter = sources_[parts.with_manifest.front()];
      HF_TRY_VOID(copy_from(env_, reporter, parts.directories.begin()->second + "/" + names::manifest,
                            staging + "/" + names::manifest));
      HF_TRY_VOID(env_.sync_directory(staging));
      HF_TRY_VOID(env_.make_directories(names::checkpoints(paths_.directory)));
      HF_TRY_VOID(env_.remove_tree(directory));
      HF_TRY_VOID(env_.rename(staging, directory));
      return env_.sync_directory(names::checkpoints(paths_.directory));
    }
    HF_TRY(const std::vector<std::string> files, env_.list(staging));
    for (const std::string& file : files)
      HF_TRY_VOID(env_.rename(staging + "/" + file, directory + "/" + file));
    HF_TRY_VOID(env_.sync_directory(directory));
    return env_.remove_tree(staging);
  }

  // Fetches the first copy of a file that is sound; a copy in RUN itself stays where it is.
  Result<void> fetch(const FoundParts& parts, const ShardFile& shard, const std::string& staging) {
    std::string damage;
    for (const std::size_t holder : parts.holders.at(shard.name)) {
      const bool is_here = holder == 0;
      if (!is_here) {
        HF_TRY_VOID(copy_of(parts, holder, shard.name, staging));
        const Result<std::vector<BaseFile>> bases =
            bases_of_shard(env_, staging, shard, parts.state, parts.run_id);
        if (bases.ok()) {
          for (const BaseFile& base : *bases) HF_TRY_VOID(copy_of(parts, holder, base.name, staging));
        }
      }
      const Result<void> sound = verify_shard(env_, is_here ? directory_of(parts) : staging, shard,
                                              parts.state, parts.run_id, env_.processor_count());
      if (sound.ok()) {
        copied_ += is_here ? 0 : 1;
        return {};
      }
      damage = sound.error().message;
      print_message("{}", damage);
    }
    return fail(ExitCode::checkpoint, "no copy of {} of step {} is sound: {}", shard.name, parts.state.step,
                damage);
  }

  Result<void> copy_of(const FoundParts& parts, std::size_t holder, const std::string& file,
                       const std::string& staging) {
    HF_TRY_VOID(env_.remove(staging + "/" + file));
    return copy_from(env_, sources_[holder], parts.directories.at(holder) + "/" + file, staging + "/" + file);
  }

  Result<void> copy_log() {
    HF_TRY(const FileStatus log, env_.status(paths_.events()));
    const auto furthest = std::ranges::max_element(sources_, {}, &CollectSource::newest_step);
    if (log.exists || furthest->newest_step == 0) return {};
    const RunPaths of_source{furthest->directory};
    HF_TRY_VOID(copy_from(env_, *furthest, of_source.events(), paths_.events()));
    HF_TRY(const FileStatus config, env_.status(paths_.config()));
    if (!config.exists) HF_TRY_VOID(copy_from(env_, *furthest, of_source.config(), paths_.config()));
    return env_.sync_directory(paths_.directory);
  }

  Env& env_;
  RunPaths paths_;
  std::vector<CollectSource> sources_;  // RUN first
  std::vector<PartInventory> inventories_;
  std::size_t copied_ = 0;
};

Result<void> collect(std::vector<std::string> words) {
  std::vector<std::string> directories;  // after RUN
  std::vector<std::string> rest;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const bool is_option = words[i].starts_with("-");
    const bool takes_next = words[i] == "--hosts";
    if (!is_option &&
        std::ranges::any_of(rest, [](const std::string& word) { return !word.starts_with("-"); })) {
      directories.push_back(words[i]);
      continue;
    }
    rest.push_back(words[i]);
    if (takes_next && i + 1 < words.size()) rest.back() += "=" + words[++i];
  }
  Env& env = posix_env();
  HF_TRY(const Arguments arguments, Arguments::parse("collect", rest, {"RUN"}, {"hosts"}, {"list"}));
  const std::string& run = arguments.positional(0);
  if (arguments.has("list")) {
    HF_TRY(const std::string listing, listing_of(env, run));
    fmt::print("{}\n", listing);
    return {};
  }
  std::vector<CollectSource> sources;
  HF_TRY(CollectSource own, source_at(env, run));
  sources.push_back(std::move(own));
  for (const std::string& directory : directories) {
    HF_TRY(CollectSource source, source_at(env, directory));
    sources.push_back(std::move(source));
  }
  for (const std::string& host : split_list(arguments.text("hosts", ""))) {
    HF_TRY_VOID(check_host_name(host, "collect: --hosts"));
    if (host == env.host_name()) continue;
    HF_TRY(CollectSource source, source_on_host(env, host, run, program_path()));
    sources.push_back(std::move(source));
  }
  return Collection(env, run).run(std::move(sources));
}

}  // namespace

int run_collect_command(const std::vector<std::string>& arguments) {
  if (wants_help(arguments)) {
    fmt::print("{}", collect_usage);
    return 0;
  }
  const Result<void> collected = collect(arguments);
  return collected.ok() ? 0 : complain(collected.error());
}

}  // namespace holdfast::inline cli
