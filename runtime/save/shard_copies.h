// ShardCopies sends and receives the copies of shard files that ranks keep for each other on the disks of
// their hosts, where run.directory is local to each host. They keep every checkpoint complete when a host is
// lost for good (checkpoint/shard_copy.h, StorageDomains::copy_keepers()).
//
//   copies->send(step, directory, shard);     // on the thread that has written the shard
//
// Each rank has a thread that receives the files that others send it. These threads use sockets of their own
// (runtime/os/sealed_network.h), never the communicator.
//
// Threads: send() by one at a time; cancel() by any. A transfer that is cancelled is an error of send().
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/shard_copy.h"
#include "checkpoint/store.h"
#include "runtime/os/sealed_network.h"
#include "runtime/os/thread.h"
#include "runtime/rank/run_secret.h"
#include "runtime/save/state_view.h"
#include "runtime/save/storage_domains.h"

namespace holdfast::save {

class ShardCopies {
 public:
  // Starts the listener of this rank and tells the other ranks its address. All ranks call it together.
  // `store`: the store of this start, which outlives it.
  static Result<std::unique_ptr<ShardCopies>> create(StateView& view, const CheckpointStore& store,
                                                     const StorageDomains& domains, std::uint64_t writer);
  ~ShardCopies();
  ShardCopies(const ShardCopies&) = delete;
  ShardCopies& operator=(const ShardCopies&) = delete;

  // Sends a shard, and returns when it is durable on the keeper's disk; returns ok at once where no rank
  // keeps copies of this rank's shards. `pace` is called with the bytes of every part.
  Result<void> send(std::uint64_t step, const std::string& directory, const ShardFile& shard,
                    const Pace& pace);
  void cancel();

 private:
  ShardCopies(StateView& view, const CheckpointStore& store, std::uint64_t writer);
  Result<void> exchange_addresses(StateView& view, const ListenAddress& address, int keeper);
  Result<void> begin_serving(SealedNetwork network, const std::string& address);
  void serve();
  Result<std::unique_ptr<Connection>> connect();
  bool hold(Connection*& slot, Connection* connection);

  Env* env_;
  FaultPoints* faults_;
  const CheckpointStore* store_;
  CopySource source_;
  int keeper_ = -1;
  std::optional<SealedNetwork> to_keeper_;
  std::string keeper_host_;
  std::vector<NetworkAddress> addresses_;
  std::unique_ptr<Listener> listener_;
  std::mutex mutex_;  // guards the next two
  Connection* sending_ = nullptr;
  Connection* receiving_ = nullptr;
  std::atomic<bool> stopped_ = false;
  std::unique_ptr<Thread> thread_;  // the last member: it uses the others until it ends
};

}  // namespace holdfast::save
