// The check of links: which links between ranks delivered other gradients than were sent, from the digests at both ends
// (parallel/data/link_digests.h), and whose hardware that is. It comes before the checks of the numbers that ranks
// compute: sums of changed gradients are no rank's fault.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/integrity/check_record.h"

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

struct Link {
  int source = 0, target = 0;
  auto operator<=>(const Link&) const = default;
};

// Returns the rank that alone is an end of all of the links. None: there is no such rank, or there are two, as of one
// cable in one direction or in both, and nobody can tell which end it is. Pure.
std::optional<int> only_common_end(std::span<const Link> links);

// LinkEnds holds what one rank knows of its links in an attempt.
struct LinkEnds {
  std::vector<LinkEnd> ends = {};  // one for each rank that it exchanges gradients with

  static void visit_fields(auto& self, auto&& visit) { visit("ends", self.ends); }
};

using LinkRecords = CheckRecords<LinkEnds>;

// Returns the links whose two ends do not have the same digests, ascending. A peer that is not among `records` is
// left out.
std::vector<Link> changed_links(const LinkRecords& records);

// Attributes links that changed gradients to the rank that is an end of all of them. Where it may be either of two,
// nobody is a suspect. `verified_step`: the newest step that was made. Pure.
Finding attribute(const LinkRecords& records, std::span<const Link> changed, bool lasts,
                  std::uint64_t verified_step);

// Checks a step in which some link changed gradients: makes it again, and where every link then delivers what is sent,
// the second attempt counts. All ranks call it together, before the update. Errors: those of
// StepAccess::attempt_again().
Result<CheckedStep> check_links(const StepAccess& step, const Attempt& first);

}  // namespace holdfast::integrity
