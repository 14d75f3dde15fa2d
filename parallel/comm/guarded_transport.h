// GuardedTransport: ties a transport whose messages do not travel over the host (NCCL) to the host
// communicator of the same ranks, so that the end of either is the end of the other.
//
//   a peer dies or gives up    detected over the communicator while the transport advances, which is then
//                              abandoned: NCCL's kernels would wait for the peer for ever
//   the transport fails        the communicator is abandoned: with fault tolerance all ranks learn of it
//
// An error of a step therefore means the same as where messages travel over the communicator itself.
#pragma once

#include <memory>

#include "parallel/comm/traffic.h"
#include "parallel/comm/transport.h"

namespace holdfast::parallel {

class GuardedTransport final : public Transport {
 public:
  // `control` has other users, too; messages are added to `traffic`. `control`, `env` and `traffic` outlive
  // this object.
  GuardedTransport(std::unique_ptr<Transport> transport, Communicator& control, Env& env, Traffic& traffic);

  int rank() const override { return transport_->rank(); }
  int size() const override { return transport_->size(); }
  int global_rank(int rank) const override { return control_->global_rank(rank); }
  bool can_open() const override { return transport_->can_open(); }
  Result<Number> open(std::span<const Incoming> incoming) override;
  Result<void> send(Number number, std::span<const Outgoing> outgoing) override;
  Result<bool> advance() override;
  bool received(Number number, int peer) const override { return transport_->received(number, peer); }
  Number oldest() const override { return transport_->oldest(); }
  Awaited awaited() const override { return transport_->awaited(); }
  void abandon() override;
  bool abandoned() override { return transport_->abandoned() || control_->abandoned(); }

 private:
  Result<void> look_for_peers();
  template <typename T>
  Result<T> guarded(Result<T> outcome);

  std::unique_ptr<Transport> transport_;
  Communicator* control_;
  Env* env_;
  Traffic* traffic_;
  std::int64_t next_look_ns_ = 0;
};

}  // namespace holdfast::parallel
