// HostTransport: the Transport over any Communicator, for memory that the host can read and write: the CPU
// device's.
#pragma once

#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/comm/transport.h"

namespace holdfast::parallel {

class HostTransport final : public Transport {
 public:
  // Number of tags, which exchange numbers use in turn. Far fewer exchanges are open at once, and some MPIs
  // have few tags.
  static constexpr int tag_count = 1 << 12;

  static constexpr std::size_t open_max = 1536;  // exchanges at once, between few ranks

  // `communicator` outlives it and may have other users. `open`: number of exchanges that can be open at once, fewer
  // among many ranks; they share the requests of the communicator with its other users.
  explicit HostTransport(Communicator& communicator, std::size_t open = open_max);

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int global_rank(int rank) const override { return communicator_->global_rank(rank); }
  bool can_open() const override { return next_ - oldest_ < slots_.size(); }
  Result<Number> open(std::span<const Incoming> incoming) override;
  Result<void> send(Number number, std::span<const Outgoing> outgoing) override;
  Result<bool> advance() override;
  bool received(Number number, int peer) const override;
  Number oldest() const override { return oldest_; }
  Awaited awaited() const override;
  void abandon() override { communicator_->abandon(); }
  bool abandoned() override { return communicator_->abandoned(); }

 private:
  using Request = Communicator::Request;
  static constexpr Request no_request = -1;  // no message, or a finished one

  struct Slot {  // state of an open exchange
    bool sent = false;
    int messages_left = 0;
  };
  // Progress of the messages with one peer. They finish in the order of their numbers, so only the oldest of
  // each direction is tested: a poll costs one test per peer and direction.
  struct Peer {
    Number received = 0, taken = 0;  // number of exchanges that are done, by direction
  };

  std::size_t slot_of(Number number) const { return static_cast<std::size_t>(number % slots_.size()); }
  Request& request_of(std::vector<Request>& table, Number number, int peer) const {
    return table[slot_of(number) * static_cast<std::size_t>(size_) + static_cast<std::size_t>(peer)];
  }
  Result<bool> test(Request& request, Slot& slot);
  Result<bool> test_receives(int peer);
  Result<bool> test_sends(int peer);

  Communicator* communicator_;
  int rank_, size_;
  Number next_ = 0, oldest_ = 0;  // open exchanges: oldest_ .. next_ - 1
  std::vector<Slot> slots_;
  std::vector<Peer> peers_;
  std::vector<Request> receives_, sends_;  // [slot][peer]
};

}  // namespace holdfast::parallel
