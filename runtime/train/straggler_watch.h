// StragglerWatch looks for ranks that compute more slowly than the others (health.preset; docs/stragglers.md). Each
// rank adds up its own time of each step; now and then all of them are gathered on rank 0, which the rule
// (runtime/health/straggler_rule.h) then tells of slow ones. No bit of the training depends on it.
//
// The own time of a rank is the time of its step without that for which it waited for others while its device had
// nothing to run. When the times are gathered is for rank 0 to say, in the vote of a step, so that all ranks decide
// alike whatever their clocks say. A rank that has cost as much as a start without its host costs is followed by a
// request to the launcher to leave that host, where health.preset is guard (runtime/health/straggler_ladder.h).
//
// Off where health.preset is, for a rank alone, and on devices without a clock (Device::work_clock): GPUs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/health/health_watch.h"
#include "runtime/health/rank_times.h"
#include "runtime/health/shared_slowness.h"
#include "runtime/health/straggler_ladder.h"
#include "runtime/health/straggler_rule.h"
#include "runtime/train/progress.h"
#include "runtime/train/step.h"
#include "runtime/train/worker.h"

namespace holdfast::train {

class StragglerWatch {
 public:
  // `startup_ns`: what it took this process to come to its steps.
  StragglerWatch(Worker& worker, Progress& progress, std::int64_t startup_ns);
  ~StragglerWatch();
  StragglerWatch(const StragglerWatch&) = delete;
  StragglerWatch& operator=(const StragglerWatch&) = delete;

  // Learns which ranks there are; all ranks call it together before the first step. Errors: a peer is gone.
  Result<void> begin();
  // Both are called round a step, by every rank.
  void begin_step();
  void end_step();
  // Returns what this rank spent the time of the step that has just ended on; none where it is not measured.
  std::optional<StepTimes> last_step() const { return on() ? std::optional(last_) : std::nullopt; }
  std::int64_t last_stall_ns() const { return stall_ns_; }  // for which its update waited for a save
  // Returns what rank 0 brings to the vote of the step in hand (StepRequest::gathers_times).
  bool wants_times() const;
  // Keeps the times of the step, and gathers those of all ranks where the vote says so; all ranks call it together
  // after a step that was made. Errors: a peer is gone.
  Result<void> exchange(const StepOutcome& outcome);
  // Judges what exchange() has gathered, and tells of it.
  void judge(const StepOutcome& outcome);
  // Tells what rank 0 knows and has not told; the steps are over, or pause.
  void finish();

 private:
  // The clocks of this rank.
  struct Reading {
    std::int64_t time_ns = 0, idle_ns = 0, input_ns = 0, peers_ns = 0, stall_ns = 0;
    std::int64_t forward_ns = 0, backward_ns = 0, update_ns = 0;
  };
  // Holds what rank 0 knows of all ranks.
  struct Leader {
    Leader(Env& env, const std::string& path, const std::vector<RankPlace>& places);
    std::vector<RankPlace> ranks;
    StragglerRule rule;
    SharedSlowness shared;
    RowBuilder rows;
    std::shared_ptr<RankTimesFile> file;  // for the log's thread
    std::vector<StepTimes> of_step, sums;
    std::vector<std::uint64_t> told_step;  // by rank: step of the last event about it, while it is slow
    std::vector<HealthAnswer> answers;     // by rank: what was done about it, while it is slow
  };

  bool on() const { return sums_.has_value(); }
  Reading read() const;
  void take(std::uint64_t step, std::size_t index, std::size_t count);
  void take_shared(std::uint64_t first_step, std::uint64_t last_step);
  bool follow(const StragglerVerdict& verdict);
  void tell(const StragglerVerdict& verdict, bool is_new);
  std::string sentence_of(const StragglerVerdict& verdict) const;
  std::string shared_sentence_of(const StragglerVerdict& verdict) const;
  RunOutlook outlook() const;
  void write(std::optional<RankTimesRow> row);

  Worker& worker_;
  Progress& progress_;
  std::int64_t startup_ns_;
  std::optional<WaitSums> sums_;  // none: off
  Reading begin_;
  StepTimes last_;                  // of the step that has just ended
  std::int64_t stall_ns_ = 0;       // part of its time
  std::vector<StepTimes> pending_;  // of this rank since the last gather; its capacity is the most there are
  std::vector<StepTimes> gathered_;
  std::vector<PeerWaits> waits_;    // of all ranks since the last gather
  std::size_t gathered_count_ = 0;  // steps of gathered_ that are not judged yet
  std::int64_t gathered_ns_ = 0;    // time of the last gather
  std::optional<Leader> leader_;    // on rank 0
};

}  // namespace holdfast::train
