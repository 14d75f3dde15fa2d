// Names a checkpoint where it is uploaded to, and says who sends which of its files.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"

namespace holdfast::inline save {

// "generation-0000-step-00000100-1a2b3c4d": the greatest name is the newest checkpoint, and one of other
// bytes has another name (the end is a checksum of the manifest), so that an upload that is under way never
// writes over what is whole there.
std::string upload_name(const Manifest& manifest);

// Text of RUN/uploaded, which says that this checkpoint was sent by this command line, to its end.
std::string upload_record(const Manifest& manifest, const std::string& command);
// Writes it. Where that fails the checkpoint is sent once more at the next start. An empty path: does
// nothing.
void record_upload(Env& env, const std::string& path, const Manifest& manifest, const std::string& command);

// Names of the files that this rank of `ranks` sends: its own shard where this layout wrote the checkpoint,
// every `ranks`-th one where another did, and the base files of each (FORMAT.md), each name once. The
// manifest is nobody's.
Result<std::vector<std::string>> files_to_send(Env& env, const std::string& directory,
                                               const Manifest& manifest, int rank, int ranks);

}  // namespace holdfast::inline save
