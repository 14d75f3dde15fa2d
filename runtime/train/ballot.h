// Ballot: what the ranks sum to reach one verdict on a step. It holds exact sums and integers only, so that
// the order of summation cannot matter. Something new on which all ranks must decide alike at a step is a
// member here, and a line of visit_words().
#pragma once

#include <cstddef>
#include <cstdint>

#include "parallel/comm/rank_sum.h"
#include "runtime/core/digest.h"
#include "runtime/core/exact_sum.h"
#include "runtime/integrity/step_access.h"
#include "runtime/save/save_records.h"

namespace holdfast::train {

struct Ballot {
  ExactSum loss = {};
  ExactSum square_norm = {};
  Digest data = {};
  std::int64_t counted_targets = 0;
  std::int64_t stops = 0;
  std::int64_t failures = 0;
  // Rank 0 sets these alone: the run pauses for a resize, starts new ranks beside the next step, ends for
  // another start, and leaves so many hosts (0 to 2).
  std::int64_t grows = 0, starts_ranks = 0, restarts = 0, hosts_leaving = 0;
  std::int64_t due_to_disk = 0, due_to_ram = 0;  // set by rank 0 alone
  std::int64_t gathers_times = 0;  // likewise: rank 0 wants the times of all ranks (step_clock.h)
  std::int64_t due_asked_for = 0;
  SaveVotes saves = {};
  CheckVotes checks = {};

  static constexpr void visit_words(auto& self, auto&& visit) {
    visit(self.loss);
    visit(self.square_norm);
    visit(self.data);
    visit(self.counted_targets);
    visit(self.stops);
    visit(self.failures);
    visit(self.grows);
    visit(self.starts_ranks);
    visit(self.restarts);
    visit(self.hosts_leaving);
    visit(self.due_to_disk);
    visit(self.due_to_ram);
    visit(self.gathers_times);
    visit(self.due_asked_for);
    visit(self.saves);
    visit(self.checks);
  }
};

// Number of 64-bit words that the vote of a step sums.
inline constexpr std::size_t ballot_words = count_words<Ballot>();

}  // namespace holdfast::train
