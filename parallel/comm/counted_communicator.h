// CountedCommunicator: wraps another communicator and counts its messages by axis, which follows from their
// tags.
#pragma once

#include "parallel/comm/group_communicator.h"
#include "parallel/comm/traffic.h"

namespace holdfast::parallel {

class CountedCommunicator final : public Communicator {
 public:
  // `inner` is the communicator of all ranks of the run; it outlives this object. Group communicators are
  // made from this object.
  explicit CountedCommunicator(Communicator& inner) : inner_(&inner) {}

  // Returns the traffic that was posted here so far. Messages that travel between the same ranks by another
  // way (NCCL) are added by their owner.
  AxisTraffic& traffic() { return traffic_; }

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  int global_rank(int rank) const override { return inner_->global_rank(rank); }
  Result<Request> send(std::span<const std::byte> source, int peer, int tag) override {
    HF_TRY(const Request request, inner_->send(source, peer, tag));
    traffic_.of(axis_of_tag(tag)).add_sent(source.size());
    return request;
  }
  Result<Request> receive(std::span<std::byte> target, int peer, int tag) override {
    HF_TRY(const Request request, inner_->receive(target, peer, tag));
    traffic_.of(axis_of_tag(tag)).add_received(target.size());
    return request;
  }
  Result<bool> test(Request request) override { return inner_->test(request); }
  Result<void> check_peers() override { return inner_->check_peers(); }
  Result<void> check_peers_among(std::span<const int> ranks) override {
    return inner_->check_peers_among(ranks);
  }
  void abandon() override { inner_->abandon(); }
  bool abandoned() override { return inner_->abandoned(); }

 private:
  Communicator* inner_;
  AxisTraffic traffic_;
};

}  // namespace holdfast::parallel
