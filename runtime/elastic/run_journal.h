// RunJournal holds what this rank writes about the run, and whether it may: the claim of the run directory, the event log
// with the reporter of each epoch, status.json, the failures and the findings about the hardware that its files count,
// the samples that were taken, and the facts about a recovery that is under way. Lines that could not be written yet are
// kept from one epoch to the next. A rank that does not write keeps what it would need if it had to.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/elastic/armed.h"
#include "runtime/elastic/group.h"
#include "runtime/elastic/inventory.h"
#include "runtime/elastic/train_run.h"
#include "runtime/metrics/metrics_server.h"
#include "runtime/metrics/notifier.h"
#include "runtime/rank/transport_choice.h"
#include "runtime/run/failure_record.h"
#include "runtime/run/hardware_record.h"
#include "runtime/train/progress.h"
#include "runtime/train/sample_log.h"
#include "runtime/train/worker.h"

namespace holdfast::elastic {

// StartupClock measures the phases of this process before its first step.
struct StartupClock {
  std::int64_t phase_begin_ns = 0;
  Progress::StartupTimes times = {};
};

class RunJournal {
 public:
  // `setup`: has the config, and holds the claim; outlives this object, as `group` does.
  RunJournal(Group& group, RunSetup& setup)
      : group_(group), setup_(setup), clock_{.phase_begin_ns = group.launched().started_ns} {}

  // Claims the run directory on a rank that writes in the coming epoch, and gives it up on the others. The writer before
  // may be gone with its host: then the others wait for the lease, too.
  Result<void> hand_over_claim();
  // Claims the run directory because the run ends, and the rank that would have recorded the end may be gone.
  void claim_for_the_dead();
  // Returns the check that this rank, if it is the writer, still is; called before it writes for all.
  ClaimCheck claim_check() const { return setup_.claim == nullptr ? ClaimCheck() : setup_.claim->fence(); }
  Result<void> check_claim() const {
    return setup_.claim == nullptr ? Result<void>() : setup_.claim->check();
  }

  // Opens the log for an epoch whose state is loaded, on all its ranks. The peak of the device is only measured once,
  // because a rank does not get faster.
  Result<void> open(Worker& worker, RecoveryInventory& known, const TransportChoice& transport);
  Progress* progress() const { return progress_.get(); }  // of this epoch; null: it has none yet
  void close() { progress_.reset(); }
  // Writes the log lines that can be written soon, before this process ends or another rank takes the log over.
  void flush();

  // Begins the record of a recovery, or of a growth. `noticed`: what this rank has noticed, and when.
  RecoveryRecord& begin_recovery(const std::string& noticed, std::int64_t noticed_ns, int active_before);
  // Returns the newest record, for facts to be added.
  std::optional<RecoveryRecord>& recovery() { return recovery_; }
  // Returns the time since its last call, or since the program started.
  std::int64_t phase_ns();
  // Returns the durations of the phases before the first step, which are to be filled in.
  Progress::StartupTimes& startup() { return clock_.times; }

  // Returns where a rank notes its samples; null unless data.ledger.
  SampleLog* samples();
  HardwareRecord& hardware() { return hardware_.record; }
  // Returns the links that changed parts of snapshots, until the log has them.
  std::vector<std::string>& changed_links() { return changed_links_; }
  FailureHistory failures() const { return failures_.so_far(group_.launched().env.wall_time_us()); }

  // Writes what status.json, the event log and the report say about the end, on the rank that has the claim. `worker`:
  // null where there is none.
  void end(const RunEnd& end, std::uint64_t step, Worker* worker);

 private:
  Env& env() const { return group_.launched().env; }
  RunPaths paths() const { return {setup_.config.run.directory}; }
  Result<void> take_claim(const LeaseTerms& terms);
  void post(std::function<void()> work);
  void begin_notices();
  void begin_listening();
  void stop_listening();
  std::unique_ptr<LineSink> with_metrics(std::unique_ptr<LineSink> log);
  void begin_epoch(Worker& worker, RecoveryInventory& known, double ranks);
  Result<void> begin_log(Worker& worker, const TransportChoice& transport, std::uint64_t rank_bytes);
  std::map<std::string, int> ranks_on_hosts() const;
  std::vector<Protection> protections(Worker& worker) const;
  Result<void> continue_log(std::uint64_t step);
  void count_failure();
  void note_gap(std::uint64_t step);
  void tell_changed_links(std::uint64_t step);
  Result<void> share_hardware_record();
  void write_hardware_record();
  void tell_armed() const;
  void tell_left_out(std::uint64_t step) const;
  void warn_of_doors() const;
  void record_end(const RunEnd& end, std::uint64_t step, Worker* worker);

  Group& group_;
  RunSetup& setup_;
  std::shared_ptr<ClaimGate> gate_ = std::make_shared<ClaimGate>();  // for the writes of the queue's thread
  std::unique_ptr<EventQueue> queue_;
  std::shared_ptr<MetricsPage> page_;      // null: metrics.listen is not given
  std::unique_ptr<MetricsServer> server_;  // on the rank that leads
  bool listening_failed_ = false;          // which has been said
  std::unique_ptr<Notifier> notifier_;     // on the rank that leads; null where a launcher tells, or nobody
  std::unique_ptr<SampleLog> samples_;
  std::optional<SourceCounts> source_counts_;  // outlives the epochs, so that none begins to count anew
  std::unique_ptr<Progress> progress_;
  bool gap_noted_ = false;  // this rank writes the log, and has told what was lost with the writer before
  std::uint64_t newest_step_ = 0;        // newest step with a line in the log
  FailureTally failures_;                // failures that the leader counts
  std::int64_t failure_counted_us_ = 0;  // when the newest of them was noticed
  HardwareFile
      hardware_;  // findings about the hardware of all ranks, and the text that this rank has read or written
  bool hardware_read_ = false;  // this rank has read the file, because it writes it
  std::vector<std::string> changed_links_;
  std::optional<RecoveryRecord> recovery_;  // of the newest recovery or growth of this process
  std::vector<Protection> protections_;     // of this epoch
  StartupClock clock_;
};

}  // namespace holdfast::elastic
