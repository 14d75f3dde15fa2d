// RecoveryInventory holds what a rank knows of its run when the ranks rebuild their group after a death or
// with joiners. It is sent to the others by gather() (parallel/comm/gather.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/core/kernel_fault.h"
#include "runtime/elastic/growth_places.h"

namespace holdfast::elastic {

struct RecoveryInventory {
  std::string host = {};                // Env::host_id() of the rank; empty when merged
  int launched_ranks = 0;               // number at the start; the largest that a rank knows
  bool joined = false;                  // config agreed on, data open, device made
  std::optional<bool> log_opened = {};  // the start is in the event log; unknown to a spare
  std::uint64_t step = 0;               // newest step of the rank
  std::uint64_t kept_step = 0;  // newest step that was whole in RAM with all ranks of the epoch; 0: none was
  double gemm_peak = 0.0;       // FLOP/s of an active rank, measured at the start
  std::string shm_run_id = {};  // empty: not yet known to any rank
  std::string verdict = {};     // verdict of the watchdog on any host, a line
  int cause = 0;                // FaultCause, as far as this rank knows it
  bool lost_some = false;       // ranks of the epoch before this one were lost
  bool lost_starter = false;    // a rank was lost while it started new ones: no more are started
  // Step that was given up last although no rank was lost, and how often in succession.
  std::uint64_t redone_step = 0;
  int redone = 0;
  // The epoch before this one exchanged by NCCL; and recoveries from faults of such epochs that cost no rank, each soon
  // after the one before, with the step of the newest.
  bool used_nccl = false;
  int nccl_faults = 0;
  std::uint64_t nccl_fault_step = 0;
  // Time at which the fault was first noticed, by the wall clocks, and what was noticed. A rank that noticed
  // more than that another rank gave up (`reported` is false) takes precedence.
  std::int64_t noticed_us = 0;
  bool reported = false;
  std::string noticed = {};
  // Kernel of a plug-in in which a rank of this host was lost (without a name: none was), and all faults of kernels that
  // this rank knows of.
  KernelFault kernel_fault = {};
  KernelFaults kernel_faults = {};
  // For growth on one host: local rank of this rank (-1: a joiner without one), and, merged, those of all ranks
  // that were launched; the names of all places of the host; and all ranks that have joined.
  int number = -1;
  std::vector<int> numbers = {};
  std::vector<std::string> places = {};
  std::vector<Joiner> joiners = {};

  static void visit_fields(auto& self, auto&& visit) {
    visit("host", self.host);
    visit("launched_ranks", self.launched_ranks);
    visit("joined", self.joined);
    visit("log_opened", self.log_opened);
    visit("step", self.step);
    visit("kept_step", self.kept_step);
    visit("gemm_peak", self.gemm_peak);
    visit("shm_run_id", self.shm_run_id);
    visit("verdict", self.verdict);
    visit("cause", self.cause);
    visit("lost_some", self.lost_some);
    visit("lost_starter", self.lost_starter);
    visit("redone_step", self.redone_step);
    visit("redone", self.redone);
    visit("used_nccl", self.used_nccl);
    visit("nccl_faults", self.nccl_faults);
    visit("nccl_fault_step", self.nccl_fault_step);
    visit("noticed_us", self.noticed_us);
    visit("reported", self.reported);
    visit("noticed", self.noticed);
    visit("kernel_fault", self.kernel_fault);
    visit("kernel_faults", self.kernel_faults);
    visit("number", self.number);
    visit("places", self.places);
    visit("joiners", self.joiners);
  }
};

}  // namespace holdfast::elastic
