// Says which links between ranks delivered other gradients than were sent, from the digests at both ends
// (parallel/data/link_digests.h), and whose hardware that is. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace holdfast::integrity {

// LinkEnd holds the digests of a rank of what it sent to another one, and of what it received from it.
struct LinkEnd {
  int peer = 0;  // global, as all ranks here
  std::uint64_t sent_sum = 0, sent_weighted = 0;
  std::uint64_t received_sum = 0, received_weighted = 0;

  static void visit_fields(auto& self, auto&& visit) {
    visit("peer", self.peer);
    visit("sent_sum", self.sent_sum);
    visit("sent_weighted", self.sent_weighted);
    visit("received_sum", self.received_sum);
    visit("received_weighted", self.received_weighted);
  }
};

struct RankEnds {
  int rank = 0;
  std::vector<LinkEnd> ends = {};  // one for each rank that it exchanges gradients with
};

struct Link {
  int source = 0, target = 0;
  auto operator<=>(const Link&) const = default;
};

// Returns the links whose two ends do not have the same digests, ascending. A peer that is not among `ranks` is
// left out.
std::vector<Link> changed_links(std::span<const RankEnds> ranks);

// Returns the rank that alone is an end of all of the links. None: there is no such rank, or there are two, as of one
// cable in one direction or in both, and nobody can tell which end it is.
std::optional<int> only_common_end(std::span<const Link> links);

}  // namespace holdfast::integrity
