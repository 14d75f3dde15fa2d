// Progress reports a run while it goes on: console lines and events. Only rank 0 prints to the console. Where
// run.directory is local to each host (storage_domains.h), one rank of each host writes the events. Between
// its start and its end, no error of the output ends the run: an event that cannot be written waits
// (runtime/run/event_log.h), and lines for a console that is gone are dropped.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/data/sample_order.h"
#include "runtime/health/step_times.h"
#include "runtime/run/event_log.h"
#include "runtime/run/failure_record.h"
#include "runtime/run/run_directory.h"
#include "runtime/save/save_cadence.h"
#include "runtime/save/save_records.h"
#include "runtime/save/uploads.h"
#include "runtime/train/step.h"

namespace holdfast::train {

class Progress {
 public:
  struct Setup {
    std::int64_t steps = 0;
    std::int64_t every_steps = 10;  // between console lines, or auto (log.every_steps)
    double flops_per_token = 0.0;
    double peak_flops = 0.0;  // peak rate of all ranks together (gemm_peak.h)
    std::uint64_t tokens_per_step = 0;
    // Called with the rate of a step that exceeds `peak_flops`. A peak that was measured while the machine
    // was busy is too low; from then on steps are compared with the larger rate.
    std::function<void(double flops)> peak_beaten = {};
    std::uint64_t logged_step = 0;  // newest step that already has a line in the log; 0: none
    std::string directory = {};     // run directory, for the console
    std::string faults = {};        // specification of faults that will be made (fault_point.h); empty: none
    std::string device_plan = {};   // StateView::device_plan
    CostConfig cost = {};
    std::uint64_t tokens_per_sample = 0;
    std::vector<EventSource> sources = {};  // of the data
    SourceCounts* source_counts = nullptr;  // of their order; outlives this object. Null: none
    // Called after each verdict on a rank that writes: it may have changed the record of findings about the
    // hardware.
    std::function<void()> write_hardware_record = {};
    // Passes the writing of a file of the run to the log's thread.
    std::function<void(std::function<void()>)> post = {};
  };
  enum class Role { silent, writes, speaks };  // a rank that speaks also writes
  // Builds the reporter of one membership epoch. The log outlives it and is shared by all epochs of the run.
  Progress(Env& env, EventQueue& log, Setup setup, Role role);

  // Durations of the phases of this process before its first step.
  struct StartupTimes {
    std::int64_t join_ns = 0;       // from the start of the program: config, data, device, start point
    std::int64_t worker_ns = 0;     // memory is planned and allocated, kernels are prepared
    std::int64_t state_ns = 0;      // initial weights, or a checkpoint
    std::int64_t gemm_peak_ns = 0;  // measuring the peak that MFU refers to

    std::int64_t before_steps_ns() const { return join_ns + worker_ns + state_ns + gemm_peak_ns; }
  };
  // Protections that are on, with their numbers, and those that are off, and why, by name.
  struct Armed {
    std::map<std::string, std::string> on = {}, off = {};
  };
  // Reports the start of training. `resumed_from`: "ram", "disk", or empty. `transport`: how the ranks
  // exchange device memory, and why. `processors`: JoinedProcessors::ranks. Returns an error when no event can be
  // written.
  Result<void> started(std::uint64_t parameters, int ranks, const std::map<std::string, int>& hosts,
                       const RunState& state, std::string_view resumed_from, const StartupTimes& times,
                       const Device& device, std::string_view transport,
                       const std::map<std::string, int>& processors, Armed armed);
  // StepSpending is what this rank spent time on in a step and before it, as far as it is known.
  struct StepSpending {
    std::int64_t saving_ns = 0;  // since the step before
    std::int64_t stall_ns = 0;   // the update waited for a save
    std::optional<StepTimes> own = {};
  };
  // Prints a console line for the first step, every `every_steps` and the last one, and writes an event for
  // every step.
  // `state`: after the step.
  void stepped(const StepOutcome& outcome, const RunState& state, std::int64_t duration_ns,
               const StepSpending& spending);
  // Reports suspicious numbers, on the console and as an event. `rollback`: where the run goes back.
  void reached_verdict(VerdictEvent verdict, const std::optional<Rollback>& rollback);
  // Reports a slow rank as an event, and on the console if it is `news` to people.
  void found_straggler(StragglerEvent straggler, bool news);
  // Makes the log's thread write a file of the run.
  void post(std::function<void()> writing);
  void evaluated(std::uint64_t step, double loss, std::int64_t duration_ns);
  // Tells what kernels.shadow has found in a step: an event for each result, and a line for each op and kernel.
  void compared_kernels(std::uint64_t step, const std::vector<ShadowResult>& results);
  void saved(const SaveReport& report, const std::string& directory);
  // Reports the save interval that is used from this step on, and why it was chosen.
  void chose_interval(std::uint64_t step, const IntervalChoice& choice);
  // Reports what a failure costs at most from now on.
  void set_failure_cost(std::uint64_t step, const FailureCost& cost);
  // Reports a failed save on stderr and as a fault; training goes on. `unsaved`: what is in no checkpoint; none: not
  // known.
  void save_failed(const SaveReport& report, const std::optional<UnsavedWork::Size>& unsaved);
  // Reports in the same way that the last save has failed, and that the run waits `limit_ms` at most for another try.
  void last_save_failed(const SaveReport& report, const std::optional<UnsavedWork::Size>& unsaved,
                        std::int64_t limit_ms);
  // Writes an event for each replica report, and a line on stderr when replicas begin to fail and when they
  // succeed again.
  void replicated(const ReplicaReport& report);
  void uploaded(const UploadReport& report);
  // Reports spares that were lost, a fault that costs the active ranks nothing. `names`:
  // RankWatch::take_lost_spares().
  void lost_spares(std::uint64_t step, const std::string& names);
  // Reports that the run goes on from a step without a kernel of a plug-in.
  void left_out(std::uint64_t step, const KernelFault& fault);
  // Reports that a place of a host is not used any more.
  void excluded(ExcludeEvent excluded);
  // Reports, as a fault and on the console, that ranks are gone and the others are about to go on. The
  // recovery itself is reported with the first step after it, because it is over then.
  void recovering(const RecoveryRecord& record);
  // Reports the end of the run with this rank's counts: how its gradients were sent, how parameters arrived,
  // and all that it sent and received, and with what the steps up to `state` have used of the data. Returns an
  // error when the event, or an earlier one that waits, cannot be written.
  Result<void> finished(const RunStatus& status, const LaneReductionCounts& gradients,
                        const ParameterGatherCounts& parameters, const AxisTraffic& traffic,
                        const RunState& state);
  // Writes every waiting event to the file, or returns the error that prevents it. Called at the end of a
  // run.
  Result<void> flush();
  // Prints one line for people on stdout.
  void say(std::string_view line) const;

 private:
  bool count_sources(const RunState& state);
  std::string console_line(const StepOutcome& outcome, double duration_ms, double tokens_per_sec) const;
  bool is_shown(std::uint64_t step);
  void recovered();
  void tell_failed_save(const SaveReport& report, const std::optional<UnsavedWork::Size>& unsaved,
                        const std::string& consequence);
  void compare_with_peak(double flops_per_second);

  Env* env_;
  Setup setup_;
  bool speaks_, writes_;
  EventQueue* log_;
  std::optional<RecoveryRecord> recovery_;  // set until the first step after the recovery is made
  std::int64_t resumed_ns_ = 0;
  double smooth_step_ms_ = 0.0;                // exponential mean, for the ETA
  std::int64_t steps_seen_ = 0;                // steps made by this process
  std::optional<std::int64_t> shown_ns_ = {};  // time of the newest console line of a step
  std::vector<std::uint64_t> source_samples_ =
      {};                       // of count_sources(); kept, so that a step allocates nothing
  bool replicas_fail_ = false;  // the last replica report was a failure
  bool peak_was_beaten_ = false;
};

}  // namespace holdfast::train
