#include "runtime/elastic/train_run_internal.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "parallel/comm/gather.h"
#include "runtime/config/document.h"
#include "runtime/core/units.h"
#include "runtime/measure/gemm_peak.h"
#include "runtime/os/console.h"
#include "runtime/os/foreign_text.h"
#include "runtime/rank/kernel_choice.h"
#include "runtime/rank/rank_layout.h"
#include "runtime/rank/watch.h"
#include "runtime/report/report.h"
#include "runtime/run/launch_record.h"
#include "runtime/run/numbers_log.h"
#include "runtime/run/requests.h"
#include "runtime/run/run_directory.h"
#include "runtime/run/run_history.h"

namespace holdfast::elastic {

// Returns the rate of all ranks together in the best of a few short rounds: other work on the machine only
// ever makes a peak look lower than it is, and every start waits for the rounds.
Result<double> TrainRun::measure_peak() {
  constexpr int rounds = 4;
  constexpr std::int64_t round_ns = 3'000'000;
  Result<GemmPeak> product = GemmPeak::make(launched_.env, *setup_.device, worker_->workload().spec.dtype);
  const Result<void> made = group_.agree(outcome_of(product));
  group_.keep_from_driver(product);
  HF_TRY_VOID(made);
  std::vector<double> rates(static_cast<std::size_t>(group_.active().communicator.size()));
  double best = 0.0;
  for (int round = 0; round < rounds; ++round) {
    HF_TRY_VOID(barrier(group_.active().communicator, group_.waiter()));
    const double mine = product->rate(round_ns);
    const Result<void> measured = group_.agree(setup_.device->status());
    group_.keep_from_driver(product);
    HF_TRY_VOID(measured);
    HF_TRY_VOID(all_gather(group_.active().communicator, group_.waiter(), std::as_bytes(std::span(&mine, 1)),
                           std::as_writable_bytes(std::span(rates))));
    best = std::max(best, std::accumulate(rates.begin(), rates.end(), 0.0));
  }
  return best;
}

// Opens the log. The peak is only measured once, because a rank does not get faster.
Result<void> TrainRun::open_log() {
  const double ranks = group_.active().communicator.size();
  const bool opened_before = recovery_.inventory.log_opened == true;
  if (!(recovery_.inventory.gemm_peak > 0.0)) {
    HF_TRY(const double peak, measure_peak());
    recovery_.inventory.gemm_peak = peak / ranks;
  }
  clock_.startup.gemm_peak_ns = phase_ns();
  if (log_.queue == nullptr)
    log_.queue = std::make_unique<EventQueue>(
        launched_.env, RunPaths{setup_.config.run.directory}.events(),
        static_cast<std::uint64_t>(setup_.config.log.rotate_bytes),
        [&faults = launched_.faults] { HF_FAULT_POINT(faults, "log.before_line"); },
        [gate = log_.gate] { return gate->is_open(); });
  log_.queue->others_have_written();
  if (recovery_.record.has_value())
    log_.newest_step = std::max(log_.newest_step, recovery_.record->step_before);
  if (group_.writes() && !opened_before)
    log_.newest_step =
        std::max(log_.newest_step, newest_logged_step(launched_.env, RunPaths{setup_.config.run.directory}));
  if (group_.writes() && !std::exchange(log_.gap_noted, true)) note_gap();
  log_.progress = std::make_unique<Progress>(
      launched_.env, *log_.queue,
      Progress::Setup{.steps = setup_.config.training.steps,
                      .every_steps = setup_.config.log.every_steps,
                      .flops_per_token =
                          flops_per_token(worker_->workload().spec, setup_.config.training.sequence_length),
                      .peak_flops = recovery_.inventory.gemm_peak * ranks,
                      .tokens_per_step = worker_->workload().tokens_per_step(),
                      .peak_beaten =
                          [this, ranks](double flops) {
                            recovery_.inventory.gemm_peak =
                                std::max(recovery_.inventory.gemm_peak, flops / ranks);
                          },
                      .logged_step = log_.newest_step,
                      .directory = setup_.config.run.directory,
                      .faults = launched_.faults.specification(),
                      .first_step = step(),
                      .first_tokens = worker_->state().data_cursor *
                                      static_cast<std::uint64_t>(setup_.config.training.sequence_length),
                      .write_hardware_record = [this] { write_hardware_record(); }},
      group_.leads()    ? Progress::Role::speaks
      : group_.writes() ? Progress::Role::writes
                        : Progress::Role::silent);
  Result<void> outcome;
  if (group_.writes() && !opened_before) outcome = begin_log();
  if (group_.writes() && outcome.ok() && recovery_.record.has_value()) outcome = continue_log();
  HF_TRY_VOID(group_.agree(outcome));
  recovery_.inventory.log_opened = true;
  tell_changed_links();
  return share_hardware_record();
}

// Tells of the links that changed what the state was loaded from. No change is left in it.
void TrainRun::tell_changed_links() {
  if (log_.changed_links.empty()) return;
  std::ranges::sort(log_.changed_links);
  const auto [repeated, end] = std::ranges::unique(log_.changed_links);
  log_.changed_links.erase(repeated, end);
  log_.progress->judged(
      {.step = step(),
       .what = std::string(name_of(VerdictKind::corruption)),
       .action = std::string(name_of(VerdictAction::redo)),
       .of = std::string(name_of(VerdictSubject::links)),
       .reason = fmt::format(
           "parts of a RAM snapshot have changed on {}: what arrived otherwise than it was sent was "
           "requested again, and not used; test the cable, the card or the switch",
           fmt::join(log_.changed_links, ", "))},
      {});
  log_.changed_links.clear();
}

// Gives every rank what any of them knows about the hardware: one that is new knows nothing, and the writer
// before may have died before its file was written.
Result<void> TrainRun::share_hardware_record() {
  if (group_.writes() && !std::exchange(log_.hardware_read, true)) {
    HardwareFile file = read_hardware_record(launched_.env, {setup_.config.run.directory});
    if (!file.damage.empty()) print_message("{}", file.damage);
    log_.hardware.merge(file.record);
    log_.hardware_text = std::move(file.text);
  }
  HF_TRY(const std::vector<HardwareRecord> all,
         gather(group_.active().communicator, group_.waiter(), log_.hardware));
  for (const HardwareRecord& known : all) log_.hardware.merge(known);
  if (group_.writes()) write_hardware_record();
  return {};
}

// Writes the record where it is not what the file has, on the log's thread. It is written anew at the next finding
// if that fails.
void TrainRun::write_hardware_record() {
  std::string text = log_.hardware.text();
  if (text == log_.hardware_text) return;
  log_.hardware_text = text;
  const RunPaths paths{setup_.config.run.directory};
  post([&env = launched_.env, path = paths.hardware(), text = std::move(text)] {
    static_cast<void>(env.replace_text(path, text).ok());
  });
}

// Tells of the lines that the leader before may not have written before it died. The log's thread reads the
// file, because the disk may stall.
void TrainRun::note_gap() {
  if (step() == 0) return;
  log_.queue->post([&env = launched_.env, paths = RunPaths{setup_.config.run.directory},
                    step = step()](LineSink& log) { note_missing_steps(env, paths, step, log); });
}

// Counts a failure; several deaths until a step is made are one failure.
void TrainRun::count_failure() {
  if (recovery_.record->faults == 0 || log_.failure_counted_us == recovery_.record->noticed_us) return;
  const RunPaths paths{setup_.config.run.directory};
  log_.failure_counted_us = recovery_.record->noticed_us;
  log_.failures.take_over(launched_.env, paths);
  log_.failures.count_failure();
  post(log_.failures.writing(launched_.env, paths));
}

// Continues the log. A rank that has left may have recorded its own end as the end of the run.
Result<void> TrainRun::continue_log() {
  const RunPaths paths{setup_.config.run.directory};
  HF_TRY_VOID(check_claim());
  if (read_status(launched_.env, paths).state != "running") {
    HF_TRY_VOID(write_status(launched_.env, paths,
                             {.state = "running", .step = step(), .exit_code = 0, .reason = {}}));
  }
  count_failure();
  log_.progress->recovering(*recovery_.record);
  return {};
}

Result<void> TrainRun::begin_log() {
  const RunPaths paths{setup_.config.run.directory};
  HF_TRY_VOID(check_claim());
  HF_TRY_VOID(
      launched_.env.replace_text(paths.config(), record_config(setup_.config, launched_.config->origin)));
  forget_answered_requests(launched_.env, paths);
  HF_TRY_VOID(record_identity(launched_.env, paths, worker_->state().shm_run_id));
  if (const std::string note = log_.failures.begin_start(launched_.env, paths);
      !note.empty() && group_.leads())
    print_message("{}", note);
  post(log_.failures.writing(launched_.env, paths));
  HF_TRY_VOID(
      write_status(launched_.env, paths, {.state = "running", .step = step(), .exit_code = 0, .reason = {}}));
  const std::string from = resumed_from();
  std::map<std::string, int> hosts;
  if (launched_.membership != nullptr) {
    hosts = ranks_by_host(launched_.membership->view());
  } else if (!launched_start(launched_.env).empty() && group_.world().communicator.size() == 1) {
    hosts[launched_.env.host_name()] = 1;  // by this its launcher sees how many more there could be
  }
  const ModelSpec& spec = worker_->workload().spec;
  HF_TRY_VOID(log_.progress->started(parameter_count(spec), group_.world().communicator.size(), hosts,
                                     worker_->state(), from == "start" ? "" : from, clock_.startup,
                                     *setup_.device, transport_.choice.description));
  const int ranks = group_.active().communicator.size();
  const std::int64_t stages = setup_.config.parallel.pipeline;
  const std::size_t spares = group_.assignment().spares.size();
  log_.progress->say(fmt::format(
      "{} parameters{}, {} lanes on {} ranks x {} threads{}{} ({}), {} tokens per step, {} {}",
      parameter_count(spec),
      setup_.config.model.freeze.empty() ? "" : fmt::format(" ({} trained)", trained_parameter_count(spec)),
      setup_.config.parallel.lanes, ranks, setup_.device->threads(),
      stages > 1 ? fmt::format(" in {} stages", stages) : "",
      spares == 0 ? "" : fmt::format(" and {} spare{}", spares, spares == 1 ? "" : "s"),
      setup_.device->description(), worker_->workload().tokens_per_step(),
      format_bytes(worker_->memory_plan().total_bytes() + setup_.device->workspace_bytes()),
      stages > 1 ? "on rank 0" : "per rank"));
  if (!setup_.device->host_sees_memory() && ranks > 1) {
    log_.progress->say("exchange: " + transport_.choice.description);
  }
  const std::string whole = why_gradients_are_whole(setup_.config, worker_->rank().mesh.shape().data);
  if (!whole.empty()) log_.progress->say(whole);
  for (const std::string& line : kernel_summary(setup_.device->kernels()))
    log_.progress->say("kernels: " + line);
  warn_of_doors(paths);
  return {};
}

// Says what the user may not know: a variable left from a test, and who else can write the run.
void TrainRun::warn_of_doors(const RunPaths& paths) const {
  if (!group_.leads()) return;
  if (const std::string& faults = launched_.faults.specification(); !faults.empty()) {
    print_message(
        "HOLDFAST_FAULTS is set, so this run makes these faults itself: {}. Unset it, unless this is a test",
        printable(faults));
  }
  if (const std::string note = who_else_may_write(launched_.env, paths); !note.empty())
    print_message("{}", note);
}

// A start that is refused leaves nothing: neither a record of its end, nor the run directory that it has made.
void TrainRun::remove_new_directory(const RunPaths& paths) {
  if (setup_.makes_directory && remove_unused_directory(launched_.env, paths)) setup_.claim.reset();
}

void TrainRun::write_final_status(const RunEnd& end) {
  constexpr std::int64_t report_timeout_ms = 600'000;
  enter(launched_.watch, Phase::end, step(), group_.waiter().timeout_ms() + report_timeout_ms);
  const RunPaths paths{setup_.config.run.directory};
  leave_if_awaited(end);
  const bool begun = log_.progress != nullptr;
  // A claim that another writer has taken over is the only reason to record nothing; a file that cannot be
  // read may be repaired.
  if (const Result<void> mine = check_claim(); !mine.ok() && mine.error().code == ExitCode::communication)
    setup_.claim.reset();
  const bool refused = setup_.claim != nullptr && !begun && is_refusal(end.code);
  if (refused) remove_new_directory(paths);
  if (setup_.claim != nullptr && (begun || may_record_failure(launched_.env, paths))) record_end(paths, end);
  // The other ranks wait here, not in MPI's shutdown, which has a short deadline: a long log makes a report
  // slow.
  if (group_.world().communicator.abandoned()) return;
  const Waiter patient = group_.waiter().with_timeout(group_.waiter().timeout_ms() + report_timeout_ms);
  static_cast<void>(
      barrier(group_.world().communicator, patient).ok());  // a peer that dies now changes nothing
}

void TrainRun::record_end(const RunPaths& paths, const RunEnd& end) {
  RunStatus status{
      .state = "failed", .step = step(), .exit_code = static_cast<int>(end.code), .reason = end.message};
  if (end.code == ExitCode::done) status.state = "finished";
  if (end.code == ExitCode::saved) status.state = "saved";
  // The run itself has ended; a record that cannot be written is reported on stderr, where the reason of the
  // end is written anyhow.
  const auto complain = [&](const Result<void>& result) {
    if (!result.ok() && result.error().message != end.message) print_message("{}", result.error().message);
  };
  complain(write_status(launched_.env, paths, status));
  if (log_.progress != nullptr) {
    log_.failures.end(status.state == "failed", launched_.env.wall_time_us());
    post(log_.failures.writing(launched_.env, paths));
  }
  if (log_.progress != nullptr && worker_ != nullptr)
    complain(log_.progress->finished(status, worker_->reduction().counts(),
                                     worker_->parameter_gather().counts(), worker_->links().traffic()));
  if (log_.progress == nullptr && end.code != ExitCode::done) return;
  const Result<std::string> summary = write_report(launched_.env, paths);
  complain(outcome_of(summary));
  if (log_.progress != nullptr && summary.ok() && !summary->empty()) log_.progress->say(*summary);
}

}  // namespace holdfast::elastic
