// TiedExchange: an exchange whose messages travel elsewhere than the host's (NCCL), tied to the host
// communicator of the same ranks, so that the end of either is the end of the other.
//
//   a peer dies, or gives up   seen over the communicator while the exchange is moved on, and the exchange is
//                              abandoned: NCCL's kernels would wait for the peer for ever
//   the exchange fails         the communicator is abandoned: with fault tolerance all ranks learn of it
//
// So an error of a step means what it means where messages travel over the communicator itself.
#pragma once

#include <memory>

#include "parallel/comm/exchange.h"
#include "parallel/comm/traffic.h"

namespace holdfast {

class TiedExchange final : public Exchange {
 public:
  // `control`, which has other users beside it, `env` and `traffic`, to which its messages are added, outlive
  // it.
  TiedExchange(std::unique_ptr<Exchange> exchange, Communicator& control, Env& env, Traffic& traffic);

  int rank() const override { return exchange_->rank(); }
  int size() const override { return exchange_->size(); }
  int global_rank(int rank) const override { return control_->global_rank(rank); }
  bool can_open() const override { return exchange_->can_open(); }
  Result<Number> open(std::span<const Incoming> incoming) override;
  Result<void> send(Number number, std::span<const Outgoing> outgoing) override;
  Result<bool> advance() override;
  bool received(Number number, int peer) const override { return exchange_->received(number, peer); }
  Number oldest() const override { return exchange_->oldest(); }
  Awaited awaited() const override { return exchange_->awaited(); }
  void abandon() override;
  bool abandoned() override { return exchange_->abandoned() || control_->abandoned(); }

 private:
  Result<void> look_for_peers();
  template <typename T>
  Result<T> tied(Result<T> outcome);

  std::unique_ptr<Exchange> exchange_;
  Communicator* control_;
  Env* env_;
  Traffic* traffic_;
  std::int64_t next_look_ns_ = 0;
};

}  // namespace holdfast
