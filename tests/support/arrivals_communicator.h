// ArrivalsCommunicator shows a test the messages that arrive at a rank, and lets it change them as a bad link
// would. With `as_mpi` what is pending also fails once the group is revoked, as MPI's does.
#pragma once

#include <functional>
#include <map>
#include <utility>

#include "parallel/comm/communicator.h"

namespace holdfast::test {

class ArrivalsCommunicator final : public Communicator {
 public:
  struct Arrival {
    std::span<std::byte> bytes;
    int source = 0, target = 0;  // ranks of `inner`
    int tag = 0;
  };
  using Happens = std::function<void(const Arrival&)>;  // called on the thread of the rank

  ArrivalsCommunicator(Communicator& inner, Happens happens, bool as_mpi = false)
      : inner_(inner), happens_(std::move(happens)), as_mpi_(as_mpi) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  int global_rank(int rank) const override { return inner_.global_rank(rank); }
  Result<Request> send(std::span<const std::byte> source, int peer, int tag) override {
    return inner_.send(source, peer, tag);
  }
  Result<Request> receive(std::span<std::byte> target, int peer, int tag) override {
    HF_TRY(const Request request, inner_.receive(target, peer, tag));
    pending_[request] = {.bytes = target, .source = peer, .target = rank(), .tag = tag};
    return request;
  }
  Result<bool> test(Request request) override {
    HF_TRY(const bool done, inner_.test(request));
    if (!done && as_mpi_) HF_TRY_VOID(inner_.check_peers_among({}));
    const auto found = pending_.find(request);
    if (!done || found == pending_.end()) return done;
    happens_(found->second);
    pending_.erase(found);
    return true;
  }
  Result<void> check_peers() override { return inner_.check_peers(); }
  Result<void> check_peers_among(std::span<const int> ranks) override {
    return inner_.check_peers_among(ranks);
  }
  void abandon() override { inner_.abandon(); }
  bool abandoned() override { return inner_.abandoned(); }

 private:
  Communicator& inner_;
  Happens happens_;
  bool as_mpi_;
  std::map<Request, Arrival> pending_;
};

}  // namespace holdfast::test
