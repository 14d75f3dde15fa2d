// Transfers: a rank has a copy of what it saves kept by another rank, over a connection of its own for each copy. Kinds
// of copies are the replica of a sealed snapshot slot, in shared memory, and the copy of a shard file, on a disk, for
// run directories that are local to each host:
//
//   source -> keeper   hello: which kind; run, start, rank and step; how many bytes; a file's name, or the step of the
//                      confirmed snapshot
//   keeper -> source   go on, or why not
//   source -> keeper   the content in parts, then its seal: the first page of a slot, or the CRC32C of a file
//   keeper -> source   kept: every checksum was found right, and a file is durable. Or why not
//
// Frames are structs that begin with a magic and end with a checksum, in the processor's byte order, because both ends
// run one program. A keeper refuses what is of another kind, run, start or rank, and a snapshot that is not newer than
// what it has: a late or foreign source cannot overwrite a replica. It makes each file exclusively, so an abandoned
// copy is never taken for another.
//
// Threads: both ends block, so each is for a thread that has nothing else to do; Connection::shut_down() ends it.
// Errors: of the connection (ExitCode::communication), or of the slot or file (ExitCode::checkpoint). A keeper has sent
// its error to the source, where that could still be reached.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "checkpoint/manifest.h"
#include "checkpoint/paced.h"
#include "checkpoint/ram_tier.h"
#include "checkpoint/snapshot_slot.h"
#include "runtime/core/digest.h"
#include "runtime/os/env.h"
#include "runtime/os/fault_point.h"
#include "runtime/os/network.h"

namespace holdfast::checkpoint {

// Limits how long one end waits for the other.
struct TransferLimits {
  std::int64_t answer_timeout_ms = 20'000;  // of a keeper, and of a source's hello
  std::int64_t part_timeout_ms = 20'000;    // of a MiB
};

// TransferSource names one start of a run whose copies are kept and, for replicas, the rank.
struct TransferSource {
  Digest run;                // digest of the run's id, or of that of its shared memory
  std::uint64_t writer = 0;  // StartPoint::writer
  std::uint32_t rank = 0, ranks = 0;
};

// Sends a slot and returns when the replica is sealed. `slot` is sealed and stays so; it is of the snapshot
// `step`. `confirmed`: the step whose replica the keeper must not touch; all zero: none is.
Result<void> send_replica(Connection& connection, std::span<const std::byte> slot,
                          const SnapshotStep& confirmed, FaultPoints& faults,
                          const TransferLimits& limits = {});

// ReplicaKeeper: the replicas of one rank's snapshots. It has two slots, so that the confirmed one stays
// while the next arrives.
class ReplicaKeeper {
 public:
  static constexpr std::size_t slots = 2;
  // `source`: the identity that the source must have. The memory outlives the keeper.
  ReplicaKeeper(const TransferSource& source, const Digest& host,
                const std::array<std::span<std::byte>, slots>& memory, FaultPoints& faults);

  // Receives one transfer.
  Result<SnapshotStep> receive(Connection& connection, const TransferLimits& limits = {});

 private:
  struct Slot {
    SnapshotReplica replica;
    std::optional<SnapshotStep> sealed;
  };
  Slot& slot_for(const SnapshotStep& confirmed);

  TransferSource source_;
  Digest host_;
  std::string name_;  // for error messages
  std::array<Slot, slots> slots_;
  FaultPoints* faults_;
};

// Sends the copy of a shard and returns when it is durable. `directory` has the shard. `pace` is called with the bytes
// of every part.
Result<void> send_shard_copy(Connection& connection, Env& env, const TransferSource& source,
                             std::uint64_t step, const std::string& directory, const ShardFile& shard,
                             FaultPoints& faults, const Pace& pace = {}, const TransferLimits& limits = {});

// Receives one shard into `directory_of(step)`, which is made where it is missing.
Result<void> receive_shard_copy(Connection& connection, Env& env, const TransferSource& source,
                                const std::function<std::string(std::uint64_t step)>& directory_of,
                                FaultPoints& faults, const TransferLimits& limits = {});

}  // namespace holdfast::checkpoint
