// Copies a shard file to the disk of another host, over a connection of its own for each file, for run
// directories that are local to each host:
//
//   source -> keeper   hello: run, start, step; the file's name and length
//   keeper -> source   go on, or why not
//   source -> keeper   the file, then its CRC32C
//   keeper -> source   durable, or damaged, or no room
//
// The keeper refuses files of another run or start. It makes each file exclusively, so an abandoned copy is
// never taken for another.
//
// Threads: both ends block; Connection::shut_down() ends them. Errors: of the connection
// (ExitCode::communication), or of the file (ExitCode::checkpoint).
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "checkpoint/manifest.h"
#include "checkpoint/paced.h"
#include "checkpoint/transfer_frames.h"
#include "runtime/core/digest.h"
#include "runtime/os/env.h"
#include "runtime/os/fault_point.h"
#include "runtime/os/network.h"

namespace holdfast::checkpoint {

// CopySource names one start of a run, whose files are copied.
struct CopySource {
  Digest run;                // digest of the run's id
  std::uint64_t writer = 0;  // StartPoint::writer
};

// Sends a copy and returns when it is durable. `directory` has the shard. `pace` is called with the bytes of
// every part.
Result<void> send_shard_copy(Connection& connection, Env& env, const CopySource& source, std::uint64_t step,
                             const std::string& directory, const ShardFile& shard, FaultPoints& faults,
                             const Pace& pace = {}, const ReplicaLimits& limits = {});

// Receives one transfer into `directory_of(step)`, which is made where it is missing. An error has been sent
// to the source, where it could still be reached.
Result<void> receive_shard_copy(Connection& connection, Env& env, const CopySource& source,
                                const std::function<std::string(std::uint64_t step)>& directory_of,
                                FaultPoints& faults, const ReplicaLimits& limits = {});

}  // namespace holdfast::checkpoint
