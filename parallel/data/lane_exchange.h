// LaneExchange: plans which messages a lane reduction exchanges, from the order of the lanes, the buckets and the
// hosts of the ranks alone. The functions are pure; a rank's plan fits those of its peers.
//
// Flat, each lane goes to the owner of each range, in one exchange for each bucket. Where the ranks of a group are on
// several hosts, a block of lanes (LaneSchedule::block()) that one wave computes on ranks of one host is summed inside
// that host first, so that one message leaves the host where there would be one for each lane. Each of these ranks sums
// the block for an equal share of the owners, who stand next to each other (BucketPlan::position_of): a
// reduce-scatter. A bucket then has two stages:
//
//   inside     the ranks of a block send each other their lane's part of what the other sums
//   to_owners  sums of blocks, and lanes of other blocks, go to the owners
//
// The owner adds up the same either way (LaneSum), so every bit is the same. The second stage of a bucket comes with
// the first one of the next bucket, so that links inside hosts and between them are busy at the same time. They share
// an exchange where no two ranks then have two messages for each other, which is so where each rank of a block sums
// what it owns itself: where blocks divide the degree. Else each stage has an exchange of its own.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/data/buckets.h"
#include "parallel/group/mesh.h"

namespace holdfast::parallel {

// Neighbouring lanes of a wave that reach an owner as one message: a block whose sum is made on its host, or one lane.
struct LanePart {
  int first = 0;  // rank of the group that computes the first of the lanes
  int count = 1;  // ranks and lanes
  bool is_block() const { return count > 1; }
  int end() const { return first + count; }
  bool has(int rank) const { return first <= rank && rank < end(); }
};

class LaneExchange {
 public:
  enum class Stage { inside, to_owners };
  // Buckets whose messages one exchange of a wave has, by stage; -1: none.
  struct Exchange {
    int inside = -1, to_owners = -1;
    int of(Stage stage) const { return stage == Stage::inside ? inside : to_owners; }
  };
  // Message of an exchange: gradients of this range of the flat buffer go to or come from a peer.
  struct Message {
    int peer = 0;
    ElementRange range = {};
  };

  // `rank`: of the group; `hosts`: number of the host of each rank of the group; empty: all are on one.
  LaneExchange(const BucketPlan& buckets, const LaneSchedule& schedule, int rank,
               std::vector<int> hosts = {});

  const LaneSchedule& schedule() const { return schedule_; }
  int rank() const { return rank_; }
  bool same_host(int peer) const {
    return hosts_.empty() || hosts_[index_of(peer)] == hosts_[index_of(rank_)];
  }
  // Returns whether the ranks are of several hosts and of whole blocks, each on one host.
  bool has_blocks_on_hosts() const;
  // Returns whether blocks are summed inside hosts in any wave.
  bool sums_blocks() const { return sums_blocks_; }
  // Returns the part that a rank's lane belongs to in a wave in which it has one.
  LanePart part_of(int wave, int rank) const;
  // Fills in the parts of a wave, in the order of their lanes.
  void parts(int wave, std::vector<LanePart>& parts) const;
  // Returns the rank that sends a part to an owner; it may be the owner itself.
  int source_of(const LanePart& part, int owner) const {
    return part.first + positions_[index_of(owner)] * part.count / ranks_;
  }
  // Returns the range of a bucket that a rank of a block sums for its owners.
  ElementRange summed_range(int bucket, const LanePart& block, int rank) const;
  const ElementRange& owned(int rank, int bucket) const {
    return ranges_[index_of(rank) * index_of(bucket_count_) + index_of(bucket)];
  }

  // Return the exchanges of a wave, in the order in which all ranks open them: their number, one of them, and the
  // positions of the exchanges of a bucket's first and last stage.
  int count(int wave) const;
  Exchange at(int wave, int position) const;
  int first_position(int wave, int bucket) const;
  int last_position(int wave, int bucket) const;
  // Append the messages of this rank in one stage of a bucket, none of them empty. Each rank begins with another peer.
  void incoming(int wave, Stage stage, int bucket, std::vector<Message>& messages) const;
  void outgoing(int wave, Stage stage, int bucket, std::vector<Message>& messages) const;
  // Append those of an exchange, each peer once.
  void incoming(int wave, const Exchange& exchange, std::vector<Message>& messages) const;
  void outgoing(int wave, const Exchange& exchange, std::vector<Message>& messages) const;

 private:
  enum class Order { flat, apart, together };  // of the stages of a wave
  static std::size_t index_of(int number) { return static_cast<std::size_t>(number); }
  Order order(int wave) const { return orders_[index_of(wave)]; }
  Order order_of(const std::vector<LanePart>& parts) const;
  bool on_one_host(int first, int count) const;
  int first_owner(const LanePart& part, int rank) const;

  LaneSchedule schedule_;
  int rank_, ranks_, bucket_count_;
  std::vector<int> hosts_;
  bool on_several_hosts_;
  std::vector<int> owners_, positions_;  // rank by position, and position by rank
  std::vector<ElementRange> ranges_;     // [rank * buckets + bucket]
  std::vector<Order> orders_;            // by wave
  bool sums_blocks_ = false;
};

}  // namespace holdfast::parallel
