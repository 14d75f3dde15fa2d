// Inputs of a run on one rank, before anything is agreed on, and the source of requests to stop or to
// save.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "kernels/nccl_library.h"
#include "parallel/comm/communicator.h"
#include "parallel/group/membership.h"
#include "runtime/config/loader.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/os/fault_point.h"
#include "watchdog/rank_watch.h"

namespace holdfast::inline elastic {
struct PreparedRank;  // runtime/elastic/new_rank.h
}  // namespace holdfast::inline elastic

namespace holdfast::inline rank {

// Asked between steps what somebody wants of this rank.
class StopSource {
 public:
  virtual ~StopSource() = default;
  virtual bool stop_requested() = 0;               // save and stop
  virtual bool save_requested() { return false; }  // save and go on; true until it is answered
  // The state that is there now is being saved, which answers this rank; `asked_for`: some rank was asked.
  virtual void save_begun(bool asked_for) { static_cast<void>(asked_for); }
  // run.directory is local to each host, so nobody on another host reads what is written there.
  virtual void directory_is_local() {}
};

struct TrainInputs {
  Env& env;
  FaultPoints& faults;
  Communicator& communicator;
  StopSource& stop;
  const Result<LoadedConfig>& config;  // as this rank loaded it
  std::string build;                   // facts of the binary that must be equal on all ranks
  int ranks_on_host = 1;
  int rank_on_host = 0;  // which of them this is: they share the GPUs of the host in turn
  std::int64_t started_ns =
      0;  // Env::monotonic_ns() when the program started: run.stop_after counts from there
  // Where NCCL comes from if it is wanted; empty: from the CUDA module.
  std::function<Result<std::unique_ptr<NcclLibrary>>()> load_nccl = {};
  // Membership whose communicator the one above is; it outlives the run. Null: a death ends the run.
  Membership* membership = nullptr;
  // Memory that this process prepared before it was taken in (runtime/elastic/new_rank.h); outlives the run.
  // Null: nothing.
  PreparedRank* prepared = nullptr;
  RankWatch* watch = nullptr;  // is told what this rank is at; null: nobody looks after it
  // For tests: memory that is used again holds no sensible numbers (KeptMemory::spoil_reused).
  bool spoil_kept_memory = false;
};

}  // namespace holdfast::inline rank
