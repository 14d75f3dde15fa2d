// Incoming checkpoint: one that is brought into a run directory from elsewhere. It is in RUN/.pending, where
// nothing takes it for a checkpoint, until every byte of it was verified and is durable; then one rename
// makes it visible.
//
//   HF_TRY(const std::string directory, make_incoming_directory(env, run_directory));
//   ... the caller puts manifest.json and the files beside it there ...
//   HF_TRY(const std::vector<std::string> left_out, remove_all_but_files(env, directory));
//   HF_TRY(const Checkpoint checkpoint, open_verified(env, directory));
//   HF_TRY(const PublishedIncoming published, publish_incoming(env, faults, run_directory, checkpoint));
//
// The caller holds the run directory's lock. Threads: any, one at a time. Errors: ExitCode::checkpoint.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/store.h"
#include "runtime/os/env.h"
#include "runtime/os/fault_point.h"

namespace holdfast::checkpoint {

// Makes an empty directory with a name that none had before, because processes that were started by a killed
// one may still write into an older one. Removes older ones as far as that is possible now.
Result<std::string> make_incoming_directory(Env& env, const std::string& run_directory);

// Moves away what is in the place of a checkpoint, and returns where to; empty: there is nothing. The next writer puts
// it back if nothing takes the place (CheckpointStore::restore_replaced()).
Result<std::string> put_aside(Env& env, const std::string& run_directory, const std::string& target);

struct IncomingSize {
  int files = 0;
  std::uint64_t bytes = 0;
};
// Counts what is in `directory` now, without what is in directories below it.
IncomingSize size_of_incoming(Env& env, const std::string& directory);

// Removes links and directories, before anything is opened there: whoever reads or uploads the checkpoint would
// follow them out of it. Returns a text for each that was there, such as "latest (a link)".
Result<std::vector<std::string>> remove_all_but_files(Env& env, const std::string& directory);

struct PublishedIncoming {
  std::string directory;
  std::vector<std::string> left_out;  // names of files that no part of the checkpoint names, which are gone
};
// Makes the files of the checkpoint durable, then the checkpoint visible, without anything else that is beside
// them. A directory of the same step, such as a part of it, is replaced. `checkpoint` was opened in its incoming directory and verified. On error nothing is visible, and the
// directory stays where it was.
Result<PublishedIncoming> publish_incoming(Env& env, FaultPoints& faults, const std::string& run_directory,
                                           const Checkpoint& checkpoint);

}  // namespace holdfast::checkpoint
