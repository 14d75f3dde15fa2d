// Replicas are the copies of RAM snapshots that ranks keep for each other. They keep the newest confirmed
// snapshot complete when a host is lost or a slot is damaged (checkpoint/replica_transfer.h,
// parallel/group/buddies.h).
//
//   replicas->send(step, slot, confirmed);     // in the background, to this rank's buddy
//   if (replicas->finished()) ... replicas->outcome()
//   ReplicaReport report = replicas->take();
//
// A rank has one thread for every rank whose replicas it keeps, and one more while it sends. These threads
// use sockets of their own (runtime/os/sealed_network.h), never the communicator, and take the processor time
// that others leave. One snapshot is sent at a time and lies in shared memory already, so a slow network does
// not make memory grow; meanwhile the caller skips snapshots.
//
// Threads: one, that of the training loop. The slots remain when the process dies.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/replica_transfer.h"
#include "runtime/os/background_job.h"
#include "runtime/os/network.h"
#include "runtime/save/save_records.h"
#include "runtime/save/state_view.h"

namespace holdfast::save {

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
  std::mutex mutex_;                  // guards the next two
  Connection* connection_ = nullptr;  // connection in use
  // Set under the mutex. connect() reads it without the mutex, because there is nothing to shut down yet.
  std::atomic<bool> stopped_ = false;
  BackgroundJob<std::uint64_t> job_;  // result: number of bytes sent
};

}  // namespace holdfast::save
