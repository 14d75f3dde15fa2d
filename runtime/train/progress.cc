#include "runtime/train/progress.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/core/units.h"
#include "runtime/integrity/verdict_policy.h"
#include "runtime/os/console.h"
#include "runtime/rank/kernel_choice.h"
#include "runtime/run/event_reading.h"
#include "runtime/run/failure_record.h"

namespace holdfast::train {
namespace {

double milliseconds(std::int64_t duration_ns) {
  return static_cast<double>(duration_ns) / 1e6;
}

std::string rate(double per_second) {
  if (per_second >= 1e6) return fmt::format("{:.2f}M", per_second / 1e6);
  if (per_second >= 1e4) return fmt::format("{:.1f}k", per_second / 1e3);
  return fmt::format("{:.0f}", per_second);
}

// Returns the number with so many decimals, or a dash where it is not finite.
std::string decimal(double value, int decimals) {
  return std::isfinite(value) ? fmt::format("{:.{}f}", value, decimals) : "-";
}

// Adds what the time of the step was spent on. What is next to nothing would only make the log longer.
void put_spending(const StepOutcome& outcome, const Progress::StepSpending& spending, StepEvent& event) {
  constexpr std::int64_t least_ns = 100'000;
  if (spending.saving_ns >= least_ns) event.save_ms = milliseconds(spending.saving_ns);
  if (spending.stall_ns >= least_ns) event.stall_ms = milliseconds(spending.stall_ns);
  if (outcome.again_ns > 0) event.again_ms = milliseconds(outcome.again_ns);
  if (!spending.own.has_value()) return;
  const auto spent_ms = [&](StepPhase phase) {
    return static_cast<double>(spending.own->spent_ms[static_cast<std::size_t>(phase)]);
  };
  const double data_ms = spent_ms(StepPhase::input);
  event.compute_ms = spending.own->own_ms() - data_ms - spent_ms(StepPhase::host);
  event.waited_ms = static_cast<double>(spending.own->waited_ms);
  if (data_ms > 0.0) event.data_ms = data_ms;
}

bool is_skipped(const StepOutcome& outcome) {
  return outcome.action == VerdictAction::skip;
}

}  // namespace

Progress::Progress(Env& env, EventQueue& log, Setup setup, Role role)
    : env_(&env),
      setup_(std::move(setup)),
      speaks_(role == Role::speaks),
      writes_(role != Role::silent),
      log_(&log) {}

Result<void> Progress::flush() {
  return log_->flush();
}

void Progress::say(std::string_view line) const {
  if (!speaks_) return;
  print_line("{}", line);
}

Result<void> Progress::started(std::uint64_t parameters, int ranks, const std::map<std::string, int>& hosts,
                               const RunState& state, std::string_view resumed_from,
                               const StartupTimes& times, const Device& device, std::string_view transport,
                               const std::map<std::string, int>& processors, Armed armed) {
  if (!writes_) return {};
  StartEvent event{.time_us = env_->wall_time_us(),
                   .run = state.run_id,
                   .parameters = parameters,
                   .ranks = ranks,
                   .steps = setup_.steps,
                   .flops_per_token = setup_.flops_per_token,
                   .generation = state.generation,
                   .join_ms = milliseconds(times.join_ns),
                   .worker_ms = milliseconds(times.worker_ns),
                   .state_ms = milliseconds(times.state_ns),
                   .gemm_peak_ms = milliseconds(times.gemm_peak_ns),
                   .gemm_peak_flops = setup_.peak_flops,
                   .device = device.description(),
                   .exchange = std::string(transport),
                   .kernels = kernels_in_use(device.kernels())};
  event.armed = std::move(armed.on);
  event.unarmed = std::move(armed.off);
  if (setup_.cost.per_rank_hour > 0.0) {
    event.cost_per_rank_hour = setup_.cost.per_rank_hour;
    event.cost_currency = setup_.cost.currency;
  }
  if (!hosts.empty()) event.hosts = hosts;
  if (!processors.empty()) event.processors = processors;
  if (!setup_.faults.empty()) event.faults = setup_.faults;
  event.schema = event_schema_version;
  if (!setup_.sources.empty()) event.sources = setup_.sources;
  if (!resumed_from.empty()) {
    event.resumed_from_step = {state.step};
    event.resumed_from = resumed_from;
  }
  if (!setup_.device_plan.empty()) event.device_plan = setup_.device_plan;
  return log_->insist(event);
}

std::string Progress::console_line(const StepOutcome& outcome, double duration_ms,
                                   double tokens_per_sec) const {
  const auto done = static_cast<double>(outcome.step);
  const double remaining_ms = smooth_step_ms_ * (static_cast<double>(setup_.steps) - done);
  const double share =
      setup_.peak_flops > 0.0 ? setup_.flops_per_token * tokens_per_sec / setup_.peak_flops : 0.0;
  return fmt::format(
      "step {}/{}  {:.1f}%  loss {}{}  gn {}  lr {:.2e}  {:.0f} ms  {} tok/s  mfu {:.0f}%  eta {}",
      outcome.step, setup_.steps, 100.0 * done / static_cast<double>(setup_.steps), decimal(outcome.loss, 4),
      is_skipped(outcome) ? " (skipped)" : "", decimal(outcome.grad_norm, 3), outcome.learning_rate,
      duration_ms, rate(tokens_per_sec), 100.0 * share,
      format_duration(static_cast<std::int64_t>(remaining_ms / 1000.0) * 1000));
}

// Returns whether the step gets a line on the console.
bool Progress::is_shown(std::uint64_t step) {
  constexpr std::int64_t auto_steps = 10, auto_ns = 1'000'000'000;
  const auto every_steps = static_cast<std::uint64_t>(
      setup_.every_steps == CheckpointConfig::interval_auto ? auto_steps : setup_.every_steps);
  const bool is_end = step == 1 || step == static_cast<std::uint64_t>(setup_.steps);
  if (!is_end && (every_steps == 0 || step % every_steps != 0)) return false;
  const std::int64_t now_ns = env_->monotonic_ns();
  const bool is_by_clock = setup_.every_steps == CheckpointConfig::interval_auto && !is_end;
  if (is_by_clock && shown_ns_.has_value() && now_ns - *shown_ns_ < auto_ns) return false;
  shown_ns_ = now_ns;
  return true;
}

// Counts the samples of each source that the steps up to a state have used. Returns false where that is not known.
bool Progress::count_sources(const RunState& state) {
  if (setup_.source_counts == nullptr) return false;
  // More than a step adds, so that they are known some steps after a start.
  const std::uint64_t positions =
      SourceCounts::positions_per_call + 2 * setup_.tokens_per_step / setup_.tokens_per_sample;
  const std::span<const std::uint64_t> used =
      setup_.source_counts->used_before(state.data_cursor, state.left_out, positions);
  source_samples_.assign(used.begin(), used.end());
  return !used.empty();
}

void Progress::stepped(const StepOutcome& outcome, const RunState& state, std::int64_t duration_ns,
                       const StepSpending& spending) {
  if (!writes_) return;
  const double duration_ms = milliseconds(duration_ns);
  const double tokens_per_sec = static_cast<double>(setup_.tokens_per_step) / (duration_ms / 1e3);
  constexpr double memory = 0.95;
  // The mean restarts at each of the first two steps, because the first step of a process is slow.
  const bool warm = ++steps_seen_ > 2;
  smooth_step_ms_ = warm ? memory * smooth_step_ms_ + (1.0 - memory) * duration_ms : duration_ms;
  StepEvent event{.time_us = env_->wall_time_us(),
                  .step = outcome.step,
                  .loss = outcome.loss,
                  .grad_norm = outcome.grad_norm,
                  .learning_rate = outcome.learning_rate,
                  .tokens = used_samples(state) * setup_.tokens_per_sample,
                  .step_duration_ms = duration_ms,
                  .tokens_per_sec = tokens_per_sec,
                  .data_digest = state.data_digest};
  if (setup_.peak_flops > 0.0) event.mfu = setup_.flops_per_token * tokens_per_sec / setup_.peak_flops;
  put_spending(outcome, spending, event);
  if (outcome.step <= setup_.logged_step) event.recomputed = true;
  if (count_sources(state)) event.source_samples = std::move(source_samples_);
  log_->write(event);
  if (event.source_samples.has_value()) source_samples_ = *std::move(event.source_samples);
  if (recovery_.has_value()) recovered();
  compare_with_peak(setup_.flops_per_token * tokens_per_sec);
  if (is_shown(outcome.step)) say(console_line(outcome, duration_ms, tokens_per_sec));
}

void Progress::compare_with_peak(double flops_per_second) {
  if (!(setup_.peak_flops > 0.0) || flops_per_second <= setup_.peak_flops) return;
  if (!std::exchange(peak_was_beaten_, true)) {
    say(fmt::format(
        "mfu: this step reaches {:.3g} GFLOP/s, more than the {:.3g} of large products that were measured, "
        "probably while the machine was busy; 100 % is now the most that a step reached",
        flops_per_second * 1e-9, setup_.peak_flops * 1e-9));
  }
  setup_.peak_flops = flops_per_second;
  if (setup_.peak_beaten) setup_.peak_beaten(flops_per_second);
}

void Progress::reached_verdict(VerdictEvent verdict, const std::optional<Rollback>& rollback) {
  if (!writes_) return;
  if (rollback.has_value()) verdict.back_to_step = rollback->trusted_step;
  // The end of a run says its reason itself.
  if (speaks_ && verdict.action != name_of(VerdictAction::stop) &&
      verdict.action != name_of(VerdictAction::save_and_stop))
    print_message("{}", verdict.reason);
  verdict.time_us = env_->wall_time_us();
  log_->write(verdict);
  if (setup_.write_hardware_record) setup_.write_hardware_record();
}

void Progress::found_straggler(StragglerEvent straggler, bool news) {
  if (!speaks_) return;
  if (news) print_message("{}", straggler.reason);
  straggler.time_us = env_->wall_time_us();
  log_->write(straggler);
}

void Progress::post(std::function<void()> writing) {
  if (setup_.post) setup_.post(std::move(writing));
}

void Progress::evaluated(std::uint64_t step, double loss, std::int64_t duration_ns) {
  if (!writes_) return;
  say(fmt::format("step {}/{}  held-out loss {:.4f}", step, setup_.steps, loss));
  log_->write(EvaluationEvent{
      .time_us = env_->wall_time_us(), .step = step, .loss = loss, .duration_ms = milliseconds(duration_ns)});
}

void Progress::compared_kernels(std::uint64_t step, const std::vector<ShadowResult>& results) {
  if (!writes_) return;
  std::vector<ShadowResult> of_ops;
  for (const ShadowResult& each : results) {
    KernelShadowEvent event{.time_us = env_->wall_time_us(),
                            .step = step,
                            .op = each.op,
                            .kernel = each.kernel,
                            .chosen = each.chosen,
                            .calls = each.calls,
                            .ulp_max = each.ulp_max,
                            .ulp_mean = each.ulp_mean(),
                            .worst = each.worst,
                            .nonfinite = each.wrong_kind,
                            .chosen_ms = milliseconds(each.chosen_ns),
                            .shadow_ms = milliseconds(each.shadow_ns)};
    if (each.layer >= 0) event.layer = {each.layer};
    log_->write(event);
    const auto found = std::ranges::find_if(
        of_ops, [&each](const ShadowResult& one) { return one.op == each.op && one.kernel == each.kernel; });
    if (found == of_ops.end()) {
      of_ops.push_back(each);
    } else {
      if (each.ulp_max > found->ulp_max || found->worst.empty()) found->layer = each.layer;
      found->add(each);
    }
  }
  for (const ShadowResult& each : of_ops) {
    if (each.calls == 0) {
      say(fmt::format("step {}/{}  shadow {} of {}: it supports none of the calls, which {} computes", step,
                      setup_.steps, each.kernel, each.op, each.chosen));
      continue;
    }
    const std::string where =
        each.worst.empty() ? ""
                           : fmt::format(" ({}{})", each.worst,
                                         each.layer >= 0 ? fmt::format(" in layer {}", each.layer) : "");
    say(fmt::format(
        "step {}/{}  shadow {} of {}: at most {:.3g} ULP from {}{}, {:.3g} in the mean{}; {:.3g} of "
        "its time, in {} calls",
        step, setup_.steps, each.kernel, each.op, each.ulp_max, each.chosen, where, each.ulp_mean(),
        each.wrong_kind > 0 ? fmt::format(", {} numbers not finite in one alone", each.wrong_kind) : "",
        static_cast<double>(each.shadow_ns) / static_cast<double>(std::max<std::int64_t>(1, each.chosen_ns)),
        each.calls));
  }
}

void Progress::saved(const SaveReport& report, const std::string& directory) {
  if (!writes_) return;
  log_->write(CheckpointEvent{.time_us = env_->wall_time_us(),
                              .step = report.step,
                              .directory = directory,
                              .bytes = report.bytes,
                              .duration_ms = milliseconds(report.duration_ns),
                              .stall_ms = milliseconds(report.stall_ns),
                              .copy_ms = milliseconds(report.copy_ns),
                              .drain_ms = milliseconds(report.drain_ns),
                              .publish_ms = milliseconds(report.publish_ns),
                              .processor_ms = milliseconds(report.processor_ns),
                              .durable_ms = milliseconds(report.durable_ns)});
}

void Progress::chose_interval(std::uint64_t step, const IntervalChoice& choice) {
  if (!speaks_) return;
  const SaveTimes& times = choice.times;
  say(describe(choice));
  IntervalEvent event{.time_us = env_->wall_time_us(),
                      .step = step,
                      .tier = choice.to_disk ? "disk" : "ram",
                      .every_steps = choice.every_steps,
                      .cost_ms = times.cost_seconds * 1e3,
                      .step_ms = times.step_seconds * 1e3};
  if (choice.to_disk) event.durable_ms = times.durable_seconds * 1e3;
  if (choice.mtbf_seconds > 0.0) event.mtbf_ms = choice.mtbf_seconds * 1e3;
  log_->write(event);
}

void Progress::set_failure_cost(std::uint64_t step, const FailureCost& cost) {
  if (!speaks_) return;
  const auto reported = [](const std::optional<double>& seconds) {
    return seconds.has_value() ? fmt::format("up to {} of work", format_seconds(*seconds))
                               : std::string("all of its work");
  };
  if (cost.is_news) {
    const std::string promise =
        cost.exceeds_promise()
            ? fmt::format(
                  "; checkpoint.lose_at_most = {} cannot be kept for all of them: a "
                  "snapshot counts after up to three steps, a checkpoint when it is written",
                  format_duration(cost.lose_at_most_ms))
            : std::string();
    say(fmt::format("a lost process costs {}, a lost host {}, a lost job {}{}",
                    reported(cost.process_seconds), reported(cost.host_seconds), reported(cost.job_seconds),
                    promise));
  }
  const auto milliseconds_of = [](const std::optional<double>& seconds) {
    return seconds.has_value() ? std::optional(*seconds * 1e3) : std::nullopt;
  };
  FailureCostEvent event{.time_us = env_->wall_time_us(),
                         .step = step,
                         .process_ms = milliseconds_of(cost.process_seconds),
                         .host_ms = milliseconds_of(cost.host_seconds),
                         .job_ms = milliseconds_of(cost.job_seconds)};
  if (cost.lose_at_most_ms > 0) event.lose_at_most_ms = static_cast<double>(cost.lose_at_most_ms);
  log_->write(event);
}

void Progress::save_failed(const SaveReport& report, const std::optional<UnsavedWork::Size>& unsaved) {
  const bool pauses = unsaved.has_value() && unsaved->pause_ns > 0;
  tell_failed_save(report, unsaved,
                   pauses ? fmt::format("Training goes on, and the next save that is due in {} or later is "
                                        "another try",
                                        format_duration(unsaved->pause_ns / 1'000'000))
                          : "Training goes on, and the next save that is due is another try");
}

void Progress::last_save_failed(const SaveReport& report, const std::optional<UnsavedWork::Size>& unsaved,
                                std::int64_t limit_ms) {
  tell_failed_save(report, unsaved,
                   fmt::format("It is the last one, so the run waits until it can be saved, at most {} "
                               "(elastic.input_timeout)",
                               format_duration(limit_ms)));
}

void Progress::tell_failed_save(const SaveReport& report, const std::optional<UnsavedWork::Size>& unsaved,
                                const std::string& consequence) {
  if (!writes_) return;
  const std::string& reason = report.outcome.error().message;
  FaultEvent fault{.time_us = env_->wall_time_us(),
                   .step = report.step,
                   .what = FaultEvent::save,
                   .cause = std::string(name_of(FaultCause::save_failed)),
                   .reason = reason};
  std::string work;
  if (unsaved.has_value()) {
    fault.unsaved_steps = unsaved->steps;
    fault.unsaved_ms = static_cast<double>(unsaved->duration_ns) / 1e6;
    work = fmt::format(" {} {} ({:.1f} s) {} in no checkpoint.", unsaved->steps,
                       unsaved->steps == 1 ? "step" : "steps", *fault.unsaved_ms / 1e3,
                       unsaved->steps == 1 ? "is" : "are");
  }
  if (speaks_) print_message("step {} could not be saved: {}.{} {}", report.step, reason, work, consequence);
  log_->write(fault);
}

void Progress::replicated(const ReplicaReport& report) {
  if (!writes_) return;
  const bool failed = !report.outcome.ok();
  const bool failed_before = std::exchange(replicas_fail_, failed);
  if (failed) {
    const std::string& reason = report.outcome.error().message;
    if (!failed_before && speaks_) {
      print_message(
          "the snapshot of step {} has not all its replicas: {}. Training goes on with the last one that "
          "has, "
          "and the next one that is due is another try",
          report.step, reason);
    }
    log_->write(FaultEvent{.time_us = env_->wall_time_us(),
                           .step = report.step,
                           .what = FaultEvent::replica,
                           .cause = std::string(name_of(FaultCause::replica_failed)),
                           .reason = reason});
    return;
  }
  if (failed_before && speaks_)
    print_message("the snapshot of step {} has all its replicas again", report.step);
  log_->write(SnapshotEvent{.time_us = env_->wall_time_us(),
                            .step = report.step,
                            .bytes_sent = report.bytes,
                            .duration_ms = milliseconds(report.duration_ns)});
}

void Progress::uploaded(const UploadReport& report) {
  if (!writes_) return;
  const double duration_ms = milliseconds(report.duration_ns);
  if (report.outcome.ok()) {
    log_->write(UploadEvent{.time_us = env_->wall_time_us(),
                            .step = report.step,
                            .attempts = report.attempts,
                            .duration_ms = duration_ms});
    return;
  }
  report_upload(report);
  FaultEvent fault{.time_us = env_->wall_time_us(),
                   .step = report.step,
                   .what = FaultEvent::upload,
                   .cause = std::string(name_of(FaultCause::upload_failed)),
                   .reason = report.outcome.error().message,
                   .attempts = report.attempts,
                   .duration_ms = duration_ms};
  if (!report.printed.empty()) fault.printed = report.printed;
  log_->write(fault);
}

void Progress::lost_spares(std::uint64_t step, const std::string& names) {
  if (!writes_) return;
  const std::string reason = fmt::format("lost {}, which was not active", names);
  say(fmt::format("{}, at step {}: training goes on", reason, step));
  log_->write(FaultEvent{.time_us = env_->wall_time_us(),
                         .step = step,
                         .what = FaultEvent::spare,
                         .cause = std::string(name_of(FaultCause::spare_died)),
                         .lost = names,
                         .reason = reason});
}

void Progress::excluded(ExcludeEvent excluded) {
  if (!speaks_) return;
  print_message("{}", excluded.reason);
  excluded.time_us = env_->wall_time_us();
  log_->write(excluded);
}

void Progress::left_out(std::uint64_t step, const KernelFault& fault) {
  if (!writes_) return;
  const std::string reason = fmt::format(
      "{}: the run goes on from step {} without it, and so does every later start (kernels.on_failure; "
      "numeric: the steps from here on differ from the run as it was)",
      text_of(fault), step);
  say("kernels: " + reason);
  log_->write(KernelLeftOutEvent{.time_us = env_->wall_time_us(),
                                 .step = step,
                                 .op = fault.kernel.op,
                                 .kernel = fault.kernel.implementation,
                                 .library = fault.kernel.library,
                                 .digest = fault.kernel.digest,
                                 .how = name_of(fault.how),
                                 .rank = fault.rank,
                                 .host = fault.host,
                                 .failed_after_step = fault.step,
                                 .reason = reason});
}

void Progress::recovering(const RecoveryRecord& record) {
  recovery_ = record;
  resumed_ns_ = env_->monotonic_ns();
  const bool grew = record.wanted > 0;
  const bool goes_back = record.goes_back && record.faults == 0;
  say(fmt::format("{}: {}", grew ? "growth" : goes_back ? "rollback" : "recovery", sentence_of(record)));
  if (goes_back) return;  // the verdict says why
  if (!grew && !record.lost.empty() && !setup_.directory.empty())
    say(fmt::format("recovery: holdfast flight {} shows what each rank was doing", setup_.directory));
  if (grew && record.not_grown.empty()) return;
  const std::string& reason = grew                     ? record.not_grown
                              : record.verdict.empty() ? record.noticed
                                                       : record.verdict;
  FaultEvent event{.time_us = env_->wall_time_us(),
                   .step = record.step_before,
                   .what = grew ? FaultEvent::growth : FaultEvent::rank,
                   .cause = std::string(name_of(grew ? FaultCause::growth_failed : record.cause)),
                   .lost = record.lost,
                   .noticed_us = record.noticed_us,
                   .reason = reason};
  event.put_kernel(record.kernel.kernel);
  log_->write(event);
}

void Progress::recovered() {
  const RecoveryRecord& record = *recovery_;
  if (record.faults == 0 && !record.not_grown.empty()) {  // the fault says everything
    recovery_.reset();
    return;
  }
  const std::int64_t now_ns = env_->monotonic_ns();
  const RecoveryEvent event{
      .time_us = env_->wall_time_us(),
      .reason = record.faults > 0  ? RecoveryEvent::loss
                : record.goes_back ? RecoveryEvent::rollback
                                   : RecoveryEvent::growth,
      .level = RecoveryEvent::in_place,
      .ranks_before = record.goes_back ? record.ranks_after : static_cast<int>(record.before.members.size()),
      .ranks_after = record.ranks_after,
      .hosts = record.hosts_after,
      .seats_before = record.active_before,
      .seats_after = record.active_after,
      .spares = record.spares_after,
      .lost_steps = record.step_before - std::min(record.step_before, record.resumed_step),
      .resumed_from_step = record.resumed_step,
      .resumed_from = record.resumed_from,
      .faults = record.faults,
      .duration_ms = milliseconds(now_ns - record.noticed_ns),
      .shrink_ms = milliseconds(record.shrink_ns),
      .plan_ms = milliseconds(record.plan_ns),
      .load_ms = milliseconds(record.load_ns),
      .replay_ms = milliseconds(now_ns - resumed_ns_),
      .armed = record.armed_after,
      .unarmed = record.unarmed_after};
  recovery_.reset();
  log_->write(event);
}

Result<void> Progress::finished(const RunStatus& status, const LaneReductionCounts& gradients,
                                const ParameterGatherCounts& parameters, const AxisTraffic& traffic,
                                const RunState& state) {
  if (!writes_) return {};
  // Ranks that were asked to stop during a recovery have saved their state without making another step.
  if (recovery_.has_value() && status.state != "failed") recovered();
  std::optional<std::vector<SourceUse>> sources;
  if (count_sources(state))
    sources = uses_of(setup_.sources, source_samples_, used_samples(state) * setup_.tokens_per_sample);
  const Traffic &control = traffic.of(Axis::control), &data = traffic.of(Axis::data),
                &pipeline = traffic.of(Axis::pipeline), &tensor = traffic.of(Axis::tensor);
  return log_->insist(
      FinishEvent{.time_us = env_->wall_time_us(),
                  .state = status.state,
                  .step = status.step,
                  .exit_code = status.exit_code,
                  // Share of rank 0's gradient exchange that overlapped with the backward pass.
                  .gradient_bytes_sent = gradients.bytes_sent,
                  .gradient_bytes_sent_to_other_hosts = gradients.bytes_sent_to_other_hosts,
                  .gradient_buckets_sent = gradients.buckets_sent,
                  .gradient_bytes_sent_during_backward = gradients.bytes_sent_before_backward_ended,
                  .gradient_buckets_sent_during_backward = gradients.buckets_sent_before_backward_ended,
                  .gradient_exposed_ms = static_cast<double>(gradients.exposed_us) / 1e3,
                  // Share of the all-gather of parameters that overlapped with the next forward.
                  .parameter_bytes_sent_to_other_hosts = parameters.bytes_sent_to_other_hosts,
                  .parameter_buckets_gathered = parameters.buckets,
                  .parameter_buckets_awaited = parameters.buckets_awaited,
                  .parameter_gather_ms = static_cast<double>(parameters.gather_us) / 1e3,
                  .parameter_exposed_ms = static_cast<double>(parameters.exposed_us) / 1e3,
                  .control_bytes_sent = control.bytes_sent,
                  .control_bytes_received = control.bytes_received,
                  .data_bytes_sent = data.bytes_sent,
                  .data_bytes_received = data.bytes_received,
                  .pipeline_bytes_sent = pipeline.bytes_sent,
                  .pipeline_bytes_received = pipeline.bytes_received,
                  .tensor_bytes_sent = tensor.bytes_sent,
                  .tensor_bytes_received = tensor.bytes_received,
                  .reason = status.reason,
                  .sources = std::move(sources)});
}

}  // namespace holdfast::train
