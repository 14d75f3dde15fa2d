// Names a checkpoint at the place that it is uploaded to, and decides which rank sends which of its files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/save/storage_domains.h"

namespace holdfast::save {

// Returns a name such as "generation-0000-step-00000100-1a2b3c4d". The greatest name is the newest
// checkpoint, and a checkpoint of other bytes has another name (the end is a checksum of the manifest), so
// that an upload that is under way never overwrites a complete one.
std::string upload_name(const Manifest& manifest);

// Returns the text of RUN/uploaded, which says that this command line has sent this checkpoint completely.
std::string upload_record(const Manifest& manifest, const std::string& command);
// Writes that text. Where this fails, the checkpoint is sent once more at the next start. Does nothing when
// `path` is empty.
void record_upload(Env& env, const std::string& path, const Manifest& manifest, const std::string& command);

// Checks that a file, or each file of a directory, is no link, which an upload command may follow to what is no
// part of the checkpoint. Whoever may write the directory can put one there. Error: checkpoint.
Result<void> check_no_link(Env& env, const std::string& path);
Result<void> check_no_links_in(Env& env, const std::string& directory);

// UploadShare is what one rank sends of a checkpoint, beside the manifest, which is sent last.
struct UploadShare {
  std::string name = {};                 // upload_name() of the checkpoint, the same on all ranks
  std::vector<std::size_t> shards = {};  // indexes in the manifest
  bool sends_manifest = false;
};

// Returns the share of this rank of `ranks` where all see one directory: its own shard where this layout wrote
// the checkpoint, every `ranks`-th one where another did. Rank 0 sends the manifest.
UploadShare share_of_rank(const Manifest& manifest, int rank, int ranks);

// UploadPart is what the directory of one host has of a checkpoint that is in parts on several hosts.
struct UploadPart {
  std::string name = {};                    // upload_name() of the manifest there; empty: there is none
  std::string content = {};                 // content_of() the shards that it names
  std::uint64_t shard_count = 0;            // that it names
  std::vector<std::uint64_t> present = {};  // indexes of the shards that are here

  static void visit_fields(auto& self, auto&& visit) {
    visit("name", self.name);
    visit("content", self.content);
    visit("shard_count", self.shard_count);
    visit("present", self.present);
  }
};
// Looks for the part of the checkpoint in `directory`. What cannot be read there is none.
UploadPart find_upload_part(Env& env, const std::string& directory);
// Returns the share of each rank of a checkpoint in parts: a shard is sent from a host that has it, by the rank that
// wrote it if that is there. The manifest, which gives the checkpoint its name, is that of the first host whose shards
// can all be found. Hosts write the same manifest, but for what they know of the checkpoint before it. `parts`: by rank,
// empty but on leaders. Error: checkpoint, if some shard is nowhere. Pure.
Result<std::vector<UploadShare>> shares_of_parts(const std::vector<UploadPart>& parts,
                                                 const StorageDomains& domains);

// Returns the names of the shards and of the base files that they use (FORMAT.md), each name once.
Result<std::vector<std::string>> files_to_send(Env& env, const std::string& directory,
                                               const Manifest& manifest,
                                               const std::vector<std::size_t>& shards);

}  // namespace holdfast::save
