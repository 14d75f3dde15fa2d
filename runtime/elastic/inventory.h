// RecoveryInventory: what a rank knows of its run when ranks come together after a death or with new ones,
// and tells the others by gather() (parallel/comm/gather.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace holdfast::inline elastic {

struct RecoveryInventory {
  std::string host = {};                // Env::host_id() of the rank; of none when merged
  int launched_ranks = 0;               // at the start; the most that anyone knows
  bool joined = false;                  // the config is agreed on, the data is open, the device is made
  std::optional<bool> log_opened = {};  // and the start is in the event log; a spare does not know
  std::uint64_t step = 0;               // the furthest
  double gemm_peak = 0.0;               // of an active rank, as measured at the start
  std::string shm_run_id = {};          // empty: not yet known to anybody
  std::string verdict = {};             // of the watchdog on any host, a line
  bool lost_some = false;               // of those that trained in the epoch before this one
  bool lost_starter = false;            // a rank, while it started new ones: no more are started
  // Step that was given up last though nobody was lost, and how often in succession.
  std::uint64_t redone_step = 0;
  int redone = 0;
  // When the fault was noticed first, by the wall clocks, and how; of the ranks that noticed more than that
  // another one gave up, if any did.
  std::int64_t noticed_us = 0;
  bool told = false;
  std::string noticed = {};

  static void visit_fields(auto& self, auto&& visit) {
    visit("host", self.host);
    visit("launched_ranks", self.launched_ranks);
    visit("joined", self.joined);
    visit("log_opened", self.log_opened);
    visit("step", self.step);
    visit("gemm_peak", self.gemm_peak);
    visit("shm_run_id", self.shm_run_id);
    visit("verdict", self.verdict);
    visit("lost_some", self.lost_some);
    visit("lost_starter", self.lost_starter);
    visit("redone_step", self.redone_step);
    visit("redone", self.redone);
    visit("noticed_us", self.noticed_us);
    visit("told", self.told);
    visit("noticed", self.noticed);
  }
};

}  // namespace holdfast::inline elastic
