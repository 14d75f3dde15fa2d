// The copying of a sealed snapshot slot to a rank that keeps its replica, over a connection of its own for
// each snapshot:
//
//   source -> keeper   hello: run, start, step, rank; which step is confirmed; how many bytes
//   keeper -> source   go on, or why not
//   source -> keeper   the slot behind its first page; then that page, without which nothing is sealed
//   keeper -> source   sealed, after every checksum was found right, or damaged
//
// What says that it is of another run, start or rank is refused, as is a step that is not newer than what the
// keeper has: nobody who is late, or strange, takes the place of a replica. Frames have checksums, and the
// processor's numbers.
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

namespace holdfast::inline checkpoint {

// `slot` is sealed and stays so; it is of the snapshot `step`. Returns when the replica is sealed.
// `confirmed`: the step whose replica the keeper must not touch; all zero: none is.
Result<void> send_replica(Connection& connection, std::span<const std::byte> slot,
                          const SnapshotStep& confirmed, FaultPoints& faults,
                          const ReplicaLimits& limits = {});

// The replicas of one rank's snapshots. Two places, so that the confirmed one stays while the next arrives.
class ReplicaKeeper {
 public:
  static constexpr std::size_t places = 2;
  // `run`, `writer`, `rank` and `ranks`: what the source says of itself. The memory outlives it.
  struct Source {
    Digest run;
    std::uint64_t writer = 0;
    std::uint32_t rank = 0, ranks = 0;
  };
  ReplicaKeeper(const Source& source, const Digest& host,
                const std::array<std::span<std::byte>, places>& memory, FaultPoints& faults);

  // One transfer. Its error has been told to the source, where there was somebody to tell.
  Result<SnapshotStep> receive(Connection& connection, const ReplicaLimits& limits = {});

 private:
  struct Place {
    SnapshotReplica replica;
    std::optional<SnapshotStep> sealed;
  };
  Place& place_for(const SnapshotStep& confirmed);
  Result<void> fill(Place& place, const SnapshotIdentity& announced, Connection& connection,
                    const ReplicaLimits& limits);

  Source source_;
  Digest host_;
  std::string name_;  // for sentences
  std::array<Place, places> places_;
  FaultPoints* faults_;
};

}  // namespace holdfast::inline checkpoint
