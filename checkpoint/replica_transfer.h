// Copies a sealed snapshot slot to a rank that keeps its replica, over a connection of its own for each
// snapshot:
//
//   source -> keeper   hello: run, start, step, rank; which step is confirmed; how many bytes
//   keeper -> source   go on, or why not
//   source -> keeper   the slot after its first page; then that page, without which nothing is sealed
//   keeper -> source   sealed, after every checksum was found right, or damaged
//
// The keeper refuses a transfer of another run, start or rank, and a step that is not newer than what it has:
// a late or foreign source cannot overwrite a replica. Frames have checksums, and the processor's numbers.
//
// Threads: both ends block, so each is for a thread that has nothing else to do; Connection::shut_down() ends
// it. Errors: of the connection (ExitCode::communication), or of the slot (ExitCode::checkpoint).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "checkpoint/ram_tier.h"
#include "checkpoint/snapshot_slot.h"
#include "checkpoint/transfer_frames.h"
#include "runtime/os/fault_point.h"
#include "runtime/os/network.h"

namespace holdfast::checkpoint {

// Sends a slot and returns when the replica is sealed. `slot` is sealed and stays so; it is of the snapshot
// `step`. `confirmed`: the step whose replica the keeper must not touch; all zero: none is.
Result<void> send_replica(Connection& connection, std::span<const std::byte> slot,
                          const SnapshotStep& confirmed, FaultPoints& faults,
                          const ReplicaLimits& limits = {});

// ReplicaKeeper: the replicas of one rank's snapshots. It has two slots, so that the confirmed one stays
// while the next arrives.
class ReplicaKeeper {
 public:
  static constexpr std::size_t slots = 2;
  // Identity that the source must have: `run`, `writer`, `rank` and `ranks`. The memory outlives the keeper.
  struct Source {
    Digest run;
    std::uint64_t writer = 0;
    std::uint32_t rank = 0, ranks = 0;
  };
  ReplicaKeeper(const Source& source, const Digest& host,
                const std::array<std::span<std::byte>, slots>& memory, FaultPoints& faults);

  // Receives one transfer. An error has been sent to the source, where it could still be reached.
  Result<SnapshotStep> receive(Connection& connection, const ReplicaLimits& limits = {});

 private:
  struct Slot {
    SnapshotReplica replica;
    std::optional<SnapshotStep> sealed;
  };
  Slot& slot_for(const SnapshotStep& confirmed);
  Result<void> fill(Slot& slot, const SnapshotIdentity& announced, Connection& connection,
                    const ReplicaLimits& limits);

  Source source_;
  Digest host_;
  std::string name_;  // for error messages
  std::array<Slot, slots> slots_;
  FaultPoints* faults_;
};

}  // namespace holdfast::checkpoint
