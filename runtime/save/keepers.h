// Keepers: ranks keep copies of what each of them saves, so that no lost host costs any of it. There are two kinds
// (checkpoint/transfer.h): Replicas of RAM snapshots, in the memory of a buddy (parallel/group/buddies.h), and
// ShardCopies, on the disk of another host where run.directory is local to each (StorageDomains::copy_keepers()).
//
//   replicas->send(step, slot, confirmed);        // in the background, to this rank's buddy
//   if (replicas->finished()) ... replicas->outcome()
//   ReplicaReport report = replicas->take();
//
//   copies->send(step, directory, shard, pace);   // on the thread that has written the shard
//
// A rank has one thread for every rank whose replicas it keeps, one for all whose shards it keeps, and one more while it
// sends a replica. These threads use sockets of their own (runtime/os/sealed_network.h), never the communicator, and
// take the processor time that others leave. One snapshot is sent at a time and lies in shared memory already, so a
// slow network does not make memory grow; meanwhile the caller skips snapshots.
//
// Threads: one, that of the training loop; ShardCopies::send() by one at a time, cancel() by any. The slots of replicas
// remain when the process dies.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/store.h"
#include "checkpoint/transfer.h"
#include "runtime/os/background_job.h"
#include "runtime/save/save_records.h"
#include "runtime/save/state_view.h"
#include "runtime/save/storage_domains.h"

namespace holdfast::save {

class KeeperService;
class KeeperLink;

class Replicas {
 public:
  // Makes the memory for the replicas that this rank keeps, and tells the other ranks where it listens. All
  // ranks of a run with buddies call it together. Errors: communication; does_not_fit and others where some
  // host cannot make its memory, and then no rank has made anything that stays.
  static Result<std::unique_ptr<Replicas>> create(StateView& view, std::uint64_t writer);
  // Ends transfers that are under way; the other end sees a closed connection.
  ~Replicas();
  Replicas(const Replicas&) = delete;
  Replicas& operator=(const Replicas&) = delete;

  // Sends `slot`, which is sealed and stays so until take(), to the buddy. `confirmed`: the newest step whose
  // replicas all ranks know to be complete; they stay. Nothing else may be under way.
  void send(const SnapshotStep& step, std::span<const std::byte> slot, const SnapshotStep& confirmed);
  bool finished() const { return job_.finished(); }
  bool succeeded() const { return job_.result().ok(); }
  // Waits for the transfer and returns this rank's report.
  ReplicaReport take();
  // Returns the memory of the replicas that this rank keeps.
  std::vector<std::span<std::byte>> slots() const;

 private:
  class Keeper;

  explicit Replicas(StateView& view);

  StateView* view_;
  std::vector<std::unique_ptr<Keeper>> keepers_;
  std::unique_ptr<KeeperLink> buddy_;  // null: this rank has none
  std::uint64_t step_ = 0;
  std::int64_t begin_ns_ = 0;
  BackgroundJob<std::uint64_t> job_;  // result: number of bytes sent; the last member: it uses the others
};

class ShardCopies {
 public:
  // Starts the listener of this rank and tells the other ranks its address. All ranks call it together.
  // `store`: the store of this start, which outlives it.
  static Result<std::unique_ptr<ShardCopies>> create(StateView& view, const CheckpointStore& store,
                                                     const StorageDomains& domains, std::uint64_t writer);

  // Sends a shard, and returns when it is durable on the keeper's disk; returns ok at once where no rank
  // keeps copies of this rank's shards. `pace` is called with the bytes of every part. A transfer that is cancelled
  // is an error.
  Result<void> send(std::uint64_t step, const std::string& directory, const ShardFile& shard,
                    const Pace& pace);
  void cancel();
  ~ShardCopies();
  ShardCopies(const ShardCopies&) = delete;
  ShardCopies& operator=(const ShardCopies&) = delete;

 private:
  ShardCopies(StateView& view, std::uint64_t writer);

  Env* env_;
  FaultPoints* faults_;
  TransferSource source_;
  std::unique_ptr<KeeperLink> keeper_;  // null: there is none
  std::unique_ptr<KeeperService> service_;
};

}  // namespace holdfast::save
