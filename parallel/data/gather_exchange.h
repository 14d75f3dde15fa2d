// GatherExchange: plans which messages a gather of parameters exchanges, from the owners of the buckets and the hosts
// of the ranks alone. The functions are pure; a rank's plan fits those of its peers.
//
// Flat, every owner sends its range of a bucket to all others, in one exchange for each bucket, and a range reaches a
// host once for each rank there. Where lanes are summed in blocks (LaneSchedule::block()) and the ranks of each block
// are on one host, a bucket has two stages, and a range reaches each block once:
//
//   between    every owner sends its range to the ranks of its place in the other blocks
//   inside     every rank passes on what the ranks of its place own to the others of its block; these owners stand next
//              to each other (BucketPlan::position_of), so that is one message
//
// Both move the same bytes to the same places. The second stage of a bucket shares an exchange with the first one of
// the next bucket, so that links inside hosts and between them are busy at the same time; no two ranks have the same
// block and the same place, so none has two messages for another.
#pragma once

#include <vector>

#include "parallel/data/buckets.h"
#include "parallel/data/lane_exchange.h"

namespace holdfast::parallel {

class GatherExchange {
 public:
  enum class Stage { between, inside };
  using Message = LaneExchange::Message;

  GatherExchange(const BucketPlan& buckets, const LaneExchange& lanes);

  bool has_two_stages() const { return block_ > 1; }
  // Returns the ranks that send this one something in a stage, itself left out, or that it sends something to.
  const std::vector<int>& peers(Stage stage) const {
    return stage == Stage::between ? peers_between_ : peers_inside_;
  }
  // Append the messages of this rank in one stage of a bucket, none of them empty. Flat, all are `between`.
  void incoming(Stage stage, int bucket, std::vector<Message>& messages) const;
  void outgoing(Stage stage, int bucket, std::vector<Message>& messages) const;

 private:
  // Returns what the ranks of the place of `rank` own of a bucket.
  ElementRange range_of_place(int bucket, int rank) const;

  const BucketPlan* buckets_;
  int rank_;
  int block_;  // 1: flat
  std::vector<int> peers_between_, peers_inside_;
};

}  // namespace holdfast::parallel
