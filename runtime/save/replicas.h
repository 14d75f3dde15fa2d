// Replicas: the copies of RAM snapshots that ranks keep for each other, so that a host can be lost, or a slot
// be damaged, and the newest confirmed snapshot is still whole (checkpoint/replica_transfer.h,
// parallel/group/buddies.h).
//
//   replicas->send(step, slot, confirmed);     // in the background, to this rank's buddy
//   if (replicas->finished()) ... replicas->outcome()
//   ReplicaReport report = replicas->take();
//
// A rank has a thread for every rank whose replicas it keeps, and one while it sends. They use sockets of
// their own (runtime/os/sealed_network.h), never the communicator, and take what processor time others
// leave. One snapshot is sent at a time and lies in shared memory already, so no memory grows where the
// network is slow; whoever calls leaves snapshots out meanwhile.
//
// Threads: one, that of the training loop. The slots stay when the process dies.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/replica_transfer.h"
#include "runtime/os/network.h"
#include "runtime/rank/background_job.h"
#include "runtime/save/save_records.h"
#include "runtime/save/state_view.h"

namespace holdfast::inline save {

class Replicas {
 public:
  // All ranks together, of a run with buddies. Makes the memory for what this rank keeps and tells the
  // others where it listens. Errors: communication; does_not_fit and others where some host cannot, and then
  // no rank has made anything that stays.
  static Result<std::unique_ptr<Replicas>> create(StateView& view, std::uint64_t writer);
  // Ends what is under way; the other end sees a closed connection.
  ~Replicas();
  Replicas(const Replicas&) = delete;
  Replicas& operator=(const Replicas&) = delete;

  // `slot` is sealed, and stays so until take(). `confirmed`: the newest step that all ranks know to have its
  // replicas; they stay. Nothing else is under way.
  void send(const SnapshotStep& step, std::span<const std::byte> slot, const SnapshotStep& confirmed);
  bool finished() const { return job_.finished(); }
  bool succeeded() const { return job_.result().ok(); }
  // Of this rank. Waits.
  ReplicaReport take();
  // Returns the memory for what this rank keeps.
  std::vector<std::span<std::byte>> places() const;

 private:
  class Keeper;
  struct Target {
    int rank = -1;  // the buddy; -1: this rank has none
    std::string host;
    std::vector<NetworkAddress> addresses;
  };

  Replicas(StateView& view, std::uint64_t writer);
  Result<void> make_keepers();
  Result<void> exchange_addresses();
  Result<std::uint64_t> deliver(std::span<const std::byte> slot, const SnapshotStep& confirmed);
  Result<std::unique_ptr<Connection>> connect();
  bool hold(Connection* connection);

  StateView* view_;
  std::uint64_t writer_;
  std::vector<std::unique_ptr<Keeper>> keepers_;
  Target target_;
  std::uint64_t step_ = 0;
  std::int64_t begin_ns_ = 0;
  std::mutex mutex_;                  // of the next two
  Connection* connection_ = nullptr;  // that is being sent through
  // Set under the mutex; connect() reads it without, for there is nothing to shut down yet.
  std::atomic<bool> stopped_ = false;
  BackgroundJob<std::uint64_t> job_;  // how many bytes it sent
};

}  // namespace holdfast::inline save
