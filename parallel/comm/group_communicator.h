// GroupCommunicator: a subset of another communicator's ranks, renumbered, for example those of one axis of
// the mesh. Its messages have tags of their own, so messages of groups that share ranks are never mixed up,
// and neither are those of a group and its parent.
//
// Threads and errors are those of the parent: an error of one abandons both. check_peers() checks only the
// members where the parent can tell their deaths from others, else all ranks of the parent.
#pragma once

#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/comm/traffic.h"

namespace holdfast::parallel {

// Tag space of a group. Groups that share two ranks have different ones.
enum class TagGroup : int {
  data = 1,
  activations,  // between two neighbouring stages
  gradients,
  wrapped_activations,  // from the last stage to the first
  wrapped_gradients,
  tied_weights,
  tensor,
  active,  // all active ranks, parent of the groups above: a bit that is combined with theirs
};
// Returns the axis that a message serves, by its tag in the communicator of all ranks. Control messages of
// any group belong to Axis::control.
Axis axis_of_tag(int tag);

class GroupCommunicator final : public Communicator {
 public:
  // `members` are ranks of `parent`, this one among them; the list is the same on each of them. `parent`
  // outlives it.
  GroupCommunicator(Communicator& parent, std::vector<int> members, TagGroup tags);

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  int global_rank(int member) const override { return parent_->global_rank(members_[index(member)]); }
  Result<Request> send(std::span<const std::byte> source, int peer, int tag) override {
    return parent_->send(source, members_[index(peer)], tag_base_ + tag);
  }
  Result<Request> receive(std::span<std::byte> target, int peer, int tag) override {
    return parent_->receive(target, members_[index(peer)], tag_base_ + tag);
  }
  Result<bool> test(Request request) override { return parent_->test(request); }
  Result<void> check_peers() override { return parent_->check_peers_among(members_); }
  void abandon() override { parent_->abandon(); }
  bool abandoned() override { return parent_->abandoned(); }

 private:
  static std::size_t index(int member) { return static_cast<std::size_t>(member); }

  Communicator* parent_;
  std::vector<int> members_;
  int rank_;
  int tag_base_;
};

// CountedCommunicator: wraps another communicator and counts its messages by axis, which follows from their
// tags.
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
