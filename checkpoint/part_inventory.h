// Parts of checkpoints: what the run directories of several hosts hold together, where run.directory is
// another directory on each. Each has a manifest of every checkpoint and some of its shards; a checkpoint
// counts when every shard is on some host. Used to start a run from such directories, and to collect them.
//
//   inventory   of one directory: which checkpoints, which shards of each
//   merge       the lineages of all, unless they are of different runs or futures
//   find_parts  the newest checkpoints first, and where their shards are
//   is_lost     whether what is missing of one was there once; else it was never whole, and its parts are
//               not needed
//
// Pure, except for functions that take an Env. An inventory travels as text.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/lineage.h"
#include "checkpoint/manifest.h"
#include "checkpoint/shard_index.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"

namespace holdfast::checkpoint {

// One checkpoint directory of one host.
struct CheckpointPart {
  std::string run_id = {};
  ParentCheckpoint state = {};
  // Digest of the shards that the manifest names; needed because two layouts may have saved the same step.
  std::string content = {};
  std::string directory = {};
  // Shards that the manifest names; empty where an inventory before this one has them for the same state and content.
  std::vector<ShardFile> named = {};
  std::vector<std::string> present = {};  // those of them that has_shard() finds

  static void visit_fields(auto& self, auto&& visit) {
    visit("run_id", self.run_id);
    visit("state", self.state);
    visit("content", self.content);
    visit("directory", self.directory);
    visit("named", self.named);
    visit("present", self.present);
  }
};

// A checkpoint directory of one host whose content cannot be read.
struct UnreadablePart {
  std::uint64_t step = 0;  // from its name
  std::string why = {};
  bool may_pass = false;  // it could not be read, and may be at another time
  bool operator==(const UnreadablePart&) const = default;

  static void visit_fields(auto& self, auto&& visit) {
    visit("step", self.step);
    visit("why", self.why);
    visit("may_pass", self.may_pass);
  }
};

struct PartInventory {
  std::string host = {};        // host of the directory, as in manifests; also for error messages
  std::string shm_run_id = {};  // id of the run there (run_directory.h); set by the caller
  Lineage lineage = {};
  std::vector<CheckpointPart> parts = {};
  std::vector<UnreadablePart> unreadable = {};
  // Returns false for a new directory, such as that of a host whose disk was lost.
  bool knows_run() const {
    return !shm_run_id.empty() || !lineage.run_id.empty() || !parts.empty() || !unreadable.empty();
  }

  static void visit_fields(auto& self, auto&& visit) {
    visit("host", self.host);
    visit("shm_run_id", self.shm_run_id);
    visit("lineage", self.lineage);
    visit("parts", self.parts);
    visit("unreadable", self.unreadable);
  }
};

// Reads what `run_directory` holds. ExitCode::checkpoint where the directory or its lineage cannot be read.
Result<PartInventory> take_inventory(Env& env, const std::string& run_directory, const std::string& host);
std::string content_of(const std::vector<ShardFile>& shards);
// Returns whether the directory has the shard, with the length that the manifest says, and the files of older
// saves that it refers to.
bool has_shard(Env& env, const std::string& directory, const ShardFile& shard, const ParentCheckpoint& state,
               const std::string& run_id);
// Reads which files of older saves the shard refers to; checkpoints that were saved in parts have none.
Result<std::vector<BaseFile>> bases_of_shard(Env& env, const std::string& directory, const ShardFile& shard,
                                             const ParentCheckpoint& state, const std::string& run_id);

// Returns the newest generations in any of the inventories. ExitCode::config, with the hosts, where they are
// of different runs, or where a generation began in two ways: two leaders have gone on by themselves.
Result<Lineage> merge_lineages(std::span<const PartInventory> inventories);

// One checkpoint whose parts are in several directories.
struct FoundParts {
  std::string run_id = {};
  ParentCheckpoint state = {};
  std::string content = {};
  std::string directory_name = {};  // "step-00000020"
  std::vector<ShardFile> named = {};
  std::map<std::string, std::vector<std::size_t>> holders = {};  // by shard: inventories that have it
  std::vector<std::size_t> with_manifest = {};                   // inventories that have the manifest
  std::map<std::size_t, std::string> directories = {};           // directories of these inventories
  std::map<std::string, std::vector<std::string>> gone = {};     // by shard: hosts that had published it
  // Returns the shards that no inventory has.
  std::vector<std::string> missing() const;
};
// Returns the checkpoints that `lineage` does not discard, the newest first, whole or not.
std::vector<FoundParts> find_parts(std::span<const PartInventory> inventories, const Lineage& lineage);
// Says why a checkpoint that is not whole cannot be used: which shard is missing, and which host has it.
std::string why_not_whole(const FoundParts& parts);
// Returns whether hosts that are not among `inventories` had published all of the missing shards.
bool is_with_other_hosts(const FoundParts& parts, std::span<const PartInventory> inventories);
// Returns whether some of the missing shards may have been published: by a host that is not among
// `inventories`, or whose directory is new, or that has a part of this step and lacks the file. Else the
// hosts that were to have them never got that far.
bool is_lost(const FoundParts& parts, std::span<const PartInventory> inventories);

// Takes the checkpoints that are not whole and not lost out of `found`, and returns them.
std::vector<FoundParts> take_never_whole(std::vector<FoundParts>& found,
                                         std::span<const PartInventory> inventories);
// Returns the lineage of a run that has not published `never_whole`, only `left`: an empty one where it has
// published nothing else.
Lineage forget(Lineage lineage, std::span<const FoundParts> never_whole, std::span<const FoundParts> left,
               std::span<const PartInventory> inventories);

}  // namespace holdfast::checkpoint
