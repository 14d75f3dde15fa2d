// What a run tells while it goes: the console line and the events. Only rank 0's speaks; where run.directory
// is local to each host (run_places.h), one rank of each writes the events. Between its start and its end
// none of it ends the run: an event that cannot be written waits (runtime/os/events.h), a console that is
// gone hears nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "runtime/os/events.h"
#include "runtime/run/recent_steps.h"
#include "runtime/run/recovery_record.h"
#include "runtime/run/run_directory.h"
#include "runtime/save/save_cadence.h"
#include "runtime/save/save_records.h"
#include "runtime/save/uploader.h"
#include "runtime/train/step.h"

namespace holdfast::inline train {

class Progress {
 public:
  struct Setup {
    std::int64_t steps = 0;
    std::int64_t every_steps = 10;
    double flops_per_token = 0.0;
    double peak_flops = 0.0;  // all ranks together (gemm_peak.h)
    std::uint64_t tokens_per_step = 0;
    // Called when a step beats `peak_flops`, with what it reached: a peak that was measured while the machine
    // was busy is none. Steps are compared with the larger rate from then on.
    std::function<void(double flops)> peak_beaten = {};
    std::uint64_t logged_step = 0;  // newest step that the log has a line of already; 0: none
    std::string directory = {};     // of the run, for the console
    std::uint64_t first_step = 0, first_tokens = 0;  // made before; with other lanes a step has other tokens
  };
  enum class Role { silent, writes, speaks };  // who speaks writes, too
  // The log outlives it, from one epoch of the run to the next.
  Progress(Env& env, EventQueue& log, Setup setup, Role role);

  // How long this process was busy before its first step, by phase.
  struct StartupTimes {
    std::int64_t join_ns = 0;         // from the start of the program: config, data, device, start point
    std::int64_t worker_ns = 0;       // memory is planned and allocated, kernels are prepared
    std::int64_t state_ns = 0;        // initial weights, or a checkpoint
    std::int64_t gemm_peak_ns = 0;    // the yardstick of the console's "gemm"
    bool gemm_peak_recorded = false;  // by an earlier start; false: it was measured
  };
  // `resumed_from`: "ram", "disk", or empty. `transport`: how the ranks exchange the device's memory, and why
  // so. The error: no event can be written.
  Result<void> started(std::uint64_t parameters, int ranks, const std::map<std::string, int>& hosts,
                       const RunState& state, std::string_view resumed_from, const StartupTimes& times,
                       const Device& device, std::string_view transport);
  // A console line for the first step, every `every_steps` and the last; an event for every step. Returns
  // what the event says, on every rank.
  CompletedStep stepped(const StepOutcome& outcome, const Digest& data_digest, std::int64_t duration_ns);
  void evaluated(std::uint64_t step, double loss, std::int64_t duration_ns);
  void saved(const SaveReport& report, const std::string& directory);
  // How often is saved from this step on, and why.
  void chose_interval(std::uint64_t step, const IntervalChoice& choice);
  // Tells what a failure costs at most from now on.
  void told_failure_cost(std::uint64_t step, const FailureCost& cost);
  // Told on stderr and as a fault; training goes on.
  void save_failed(const SaveReport& report);
  // An event for each; on stderr when replicas begin to fail, and when they do no more.
  void replicated(const ReplicaReport& report);
  void uploaded(const UploadReport& report);
  // A fault that takes nothing from those that train. `names`: RankWatch::take_lost_spares().
  void lost_spares(std::uint64_t step, const std::string& names);
  // Ranks are gone and the others about to go on: a fault, told to people, too. The recovery itself is told
  // with the first step that is made after it, because it is over then.
  void recovering(const RecoveryRecord& record);
  // Of this rank: how its gradients left, how parameters came, and all that it sent and received.
  // The error: it cannot be written, or what waits before it.
  Result<void> finished(const RunStatus& status, const LaneReductionCounts& gradients,
                        const ParameterGatherCounts& parameters, const AxisTraffic& traffic);
  // Every event is in the file, or the error says why not: at the end of a run.
  Result<void> flush();
  // One line for people, on stdout.
  void say(std::string_view line) const;

 private:
  std::string console_line(const StepOutcome& outcome, double duration_ms, double tokens_per_sec) const;
  void recovered();
  void compare_with_peak(double flops_per_second);

  Env* env_;
  Setup setup_;
  bool speaks_, writes_;
  EventQueue* log_;
  std::optional<RecoveryRecord> recovery_;  // until its first step is made
  std::int64_t resumed_ns_ = 0;
  double smooth_step_ms_ = 0.0;  // exponential mean, for the ETA
  std::int64_t steps_seen_ = 0;  // by this process
  bool replicas_fail_ = false;   // the last one did
  bool peak_was_beaten_ = false;
};

}  // namespace holdfast::inline train
