// Names a checkpoint at the place that it is uploaded to, and decides which rank sends which of its files.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"

namespace holdfast::inline save {

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

// Returns the names of the files that this rank of `ranks` sends: its own shard where this layout wrote the
// checkpoint, every `ranks`-th one where another did, and the base files of each (FORMAT.md), each name once.
// The manifest is not among the names of any rank.
Result<std::vector<std::string>> files_to_send(Env& env, const std::string& directory,
                                               const Manifest& manifest, int rank, int ranks);

}  // namespace holdfast::inline save
