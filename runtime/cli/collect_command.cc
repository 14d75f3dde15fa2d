// holdfast collect: makes one whole checkpoint of the parts that hosts store where run.directory is local to
// each.
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/candidates.h"
#include "checkpoint/names.h"
#include "checkpoint/part_inventory.h"
#include "checkpoint/store.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/common/arguments.h"
#include "runtime/cli/common/program.h"
#include "runtime/core/record.h"
#include "runtime/core/result.h"
#include "runtime/core/text.h"
#include "runtime/launch/host_probe.h"
#include "runtime/launch/launch_options.h"
#include "runtime/launch/run_progress.h"
#include "runtime/os/console.h"
#include "runtime/os/env.h"
#include "runtime/os/paths.h"
#include "runtime/run/run_directory.h"

namespace holdfast::cli {
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

// CollectSource is a place from which `holdfast collect` takes files. It is another directory of the run that this
// host sees, or the run directory of another host, which is reached as `holdfast launch` reaches hosts.
struct CollectSource {
  std::string host = {};       // empty: a directory of this host
  std::string directory = {};  // run directory
  PartInventory inventory = {};
  std::uint64_t newest_step = 0;  // newest step in its event log

  // Names the fields that a host reports.
  static void visit_fields(auto& self, auto&& visit) {
    visit("inventory", self.inventory);
    visit("newest_step", self.newest_step);
  }
};

constexpr std::uint64_t copied_at_a_time = std::uint64_t{4} << 20;
constexpr std::int64_t list_limit_ms = 60'000, copy_limit_ms = 3'600'000;

// Returns the beginning of a listing, with the program's digest: a listing of another program may mean
// something else.
std::string listing_mark(Env& env) {
  return fmt::format("holdfast-listing {} ", program_digest(env));
}

std::string line_for_host(Env& env, const std::string& host, const std::string& words) {
  std::string line;
  for (const std::string& word : host_agent(env)) line += shell_word(word) + " ";
  return line + shell_word(host) + " " + shell_word(words);
}

Error host_failed(const std::string& host, const std::string& what, const CommandEnd& end) {
  return fail(ExitCode::communication, "host {} {}: {}", host, what,
              end.output.empty() ? "it does not answer" : end.output);
}

Result<void> copy_file(Env& env, const std::string& source_path, const std::string& target_path) {
  HF_TRY(const std::unique_ptr<File> source, env.open(source_path, OpenMode::read));
  HF_TRY(const std::uint64_t bytes, source->size());
  HF_TRY(const std::unique_ptr<File> target, env.open(target_path, OpenMode::create));
  std::vector<std::byte> part;
  for (std::uint64_t done = 0; done < bytes; done += part.size()) {
    part.resize(std::min(copied_at_a_time, bytes - done));
    HF_TRY_VOID(source->read_at(done, part));
    HF_TRY_VOID(target->write_at(done, part));
  }
  return target->sync();
}

// Returns the source with an inventory of its content. ExitCode::checkpoint: there is nothing of a run.
Result<CollectSource> source_at(Env& env, const std::string& directory) {
  CollectSource source{.directory = directory};
  HF_TRY(source.inventory, take_inventory(env, directory, directory));
  source.newest_step = newest_step(env, RunPaths{directory});
  return source;
}

// Returns the text that source_on_host() makes the host print.
Result<std::string> listing_of(Env& env, const std::string& directory) {
  HF_TRY(const CollectSource source, source_at(env, directory));
  return listing_mark(env) + record_to_text(source);
}

// Returns the same of another host. ExitCode::communication: it does not answer. `program`: path of this program,
// which the host has under the same path.
Result<CollectSource> source_on_host(Env& env, const std::string& host, const std::string& directory,
                                     const std::string& program) {
  const std::string words = fmt::format("{} collect {} --list", shell_word(program), shell_word(directory));
  constexpr std::size_t listing_bytes_max = std::size_t{64} << 20;
  HF_TRY(const CommandEnd end, env.run_command({.line = line_for_host(env, host, words),
                                                .timeout_ms = list_limit_ms,
                                                .output_bytes = listing_bytes_max}));
  const std::string mark = listing_mark(env);
  const std::size_t begin = end.output.find(mark);
  if (!end.succeeded() || begin == std::string::npos)
    return host_failed(host, fmt::format("does not say what it has in {}", directory), end);
  const std::string text = end.output.substr(begin + mark.size());
  Result<CollectSource> source = record_from_text<CollectSource>(text.substr(0, text.find('\n')));
  if (!source.ok()) return host_failed(host, "answers something else than this program would", end);
  source->host = source->inventory.host = host;
  source->directory = directory;
  return source;
}

// Copies the file `path` of the source to `target`, which must not exist; the copy is durable when it returns.
Result<void> copy_from(Env& env, const CollectSource& source, const std::string& path,
                       const std::string& target) {
  if (source.host.empty()) return copy_file(env, path, target);
  const std::string words = "cat " + shell_word(path);
  HF_TRY(const CommandEnd end,
         env.run_command({.line = line_for_host(env, source.host, words) + " > " + shell_word(target),
                          .timeout_ms = copy_limit_ms}));
  if (!end.succeeded()) return host_failed(source.host, fmt::format("does not give {}", path), end);
  HF_TRY(const std::unique_ptr<File> copied, env.open(target, OpenMode::read));
  return copied->sync();
}

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

}  // namespace holdfast::cli
