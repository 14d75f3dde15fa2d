#include "runtime/elastic/run_journal.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "parallel/comm/gather.h"
#include "runtime/config/document.h"
#include "runtime/core/units.h"
#include "runtime/elastic/recovery_plan.h"
#include "runtime/measure/gemm_peak.h"
#include "runtime/metrics/metrics_sink.h"
#include "runtime/os/console.h"
#include "runtime/os/foreign_text.h"
#include "runtime/os/parse_address.h"
#include "runtime/os/paths.h"
#include "runtime/os/retry.h"
#include "runtime/rank/kernel_choice.h"
#include "runtime/rank/rank_layout.h"
#include "runtime/rank/watch.h"
#include "runtime/report/report.h"
#include "runtime/run/launch_record.h"
#include "runtime/run/numbers_log.h"
#include "runtime/run/requests.h"
#include "runtime/run/run_directory.h"
#include "runtime/run/run_history.h"
#include "runtime/save/save_failure.h"
#include "runtime/text/source_tokens.h"

namespace holdfast::elastic {

namespace {

// Makes the paths of plug-ins mean the same files wherever the config is read.
Config with_absolute_plugins(Config config) {
  const std::string folder = working_directory();
  for (std::string& path : config.kernels.plugins) {
    if (!folder.empty() && !path.starts_with('/')) path = fmt::format("{}/{}", folder, path);
  }
  return config;
}

std::vector<EventSource> sources_of(const Config& config, const DataSet& data) {
  std::vector<EventSource> sources;
  const std::vector<std::uint64_t> samples = data.samples_of_sources();
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const SourceConfig& source = config.data.sources[i];
    sources.push_back({.path = source.path, .samples = samples[i], .weight = source.weight});
  }
  return sources;
}

// Returns the rate of all ranks together in the best of a few short rounds: other work on the machine only
// ever makes a peak look lower than it is, and every start waits for the rounds.
Result<double> measure_peak(Group& group, Device& device, const Worker& worker) {
  constexpr int rounds = 4;
  constexpr std::int64_t round_ns = 3'000'000;
  Result<GemmPeak> product = GemmPeak::make(group.launched().env, device, worker.workload().spec.dtype);
  const Result<void> made = group.agree(outcome_of(product));
  group.keep_from_driver(product);
  HF_TRY_VOID(made);
  std::vector<double> rates(static_cast<std::size_t>(group.active().communicator.size()));
  double best = 0.0;
  for (int round = 0; round < rounds; ++round) {
    HF_TRY_VOID(barrier(group.active().communicator, group.waiter()));
    const double mine = product->rate(round_ns);
    const Result<void> measured = group.agree(device.status());
    group.keep_from_driver(product);
    HF_TRY_VOID(measured);
    HF_TRY_VOID(all_gather(group.active().communicator, group.waiter(), std::as_bytes(std::span(&mine, 1)),
                           std::as_writable_bytes(std::span(rates))));
    best = std::max(best, std::accumulate(rates.begin(), rates.end(), 0.0));
  }
  return best;
}

}  // namespace

Result<void> RunJournal::take_claim(const LeaseTerms& terms) {
  const StorageWait storage(group_.launched().watch, "the lock of the run directory");
  HF_TRY(setup_.claim, claim_run_directory(env(), paths(), terms));
  gate_->use(setup_.claim->loose_fence());
  return {};
}

Result<void> RunJournal::hand_over_claim() {
  const bool writes = group_.writes();
  if (!writes) gap_noted_ = false;
  if (!group_.leads()) {
    if (notifier_ != nullptr) notifier_->finish({}, /*patience_ms=*/0);  // the next one tells the rest
    notifier_.reset();
    server_.reset();
  }
  if (!writes && setup_.claim != nullptr) {
    flush();  // so that the lines of the next writer come after these
    setup_.claim.reset();
    gate_->use([] { return false; });  // lines that still wait are not written after those
  }
  Result<void> outcome;
  if (setup_.claim != nullptr) {
    gate_->use(setup_.claim->loose_fence());
  } else if (writes) {
    outcome = retry_storage(env(), [&] { return take_claim(recovery_lease); });
  }
  const std::int64_t claim_ms = recovery_lease.patience_ms + recovery_lease.lease_ms + storage_patience_ms;
  const Waiter patient = group_.waiter().with_timeout(group_.waiter().timeout_ms() + claim_ms);
  const Result<void> agreed = group_.agree_among_all(outcome, patient);
  if (group_.leaving().has_value()) return agreed;
  // Where the next writer cannot make its claim, all try what that takes.
  return agree_on_trial(group_.world(), patient, agreed, outcome,
                        [&] { return try_to_write_run(group_.world(), setup_.config.run.directory); });
}

void RunJournal::claim_for_the_dead() {
  if (setup_.claim == nullptr) static_cast<void>(take_claim({}).ok());
}

RecoveryRecord& RunJournal::begin_recovery(const std::string& noticed, std::int64_t noticed_ns,
                                           int active_before) {
  group_.begin_recovery();
  recovery_.emplace();
  recovery_->noticed_ns = noticed_ns;
  recovery_->noticed_us = env().wall_time_us() - (env().monotonic_ns() - noticed_ns) / 1000;
  recovery_->noticed = noticed;
  recovery_->before = group_.view();
  recovery_->active_before = active_before;
  return *recovery_;
}

std::int64_t RunJournal::phase_ns() {
  const std::int64_t begin_ns = std::exchange(clock_.phase_begin_ns, env().monotonic_ns());
  return clock_.phase_begin_ns - begin_ns;
}

SampleLog* RunJournal::samples() {
  if (setup_.config.data.ledger && samples_ == nullptr) {
    Communicator& all = group_.world().communicator;
    samples_ = std::make_unique<SampleLog>(env(), paths().ledger(all.global_rank(all.rank())));
  }
  return samples_.get();
}

// Passes the writing of a file of the run to the log's thread, which runs it while this start is the run's writer.
void RunJournal::post(std::function<void()> work) {
  queue_->post([gate = gate_, work = std::move(work)](LineSink&) {
    if (gate->is_open()) work();
  });
}

void RunJournal::flush() {
  if (queue_ != nullptr) static_cast<void>(queue_->flush(LineThread::short_patience_ms).ok());
}

Result<void> RunJournal::open(Worker& worker, RecoveryInventory& known, const TransportChoice& transport) {
  const bool opened_before = known.log_opened == true;
  const double ranks = group_.active().communicator.size();
  // Before the products that follow, whose size, and so their scratch memory, depends on how fast the machine is just now.
  const std::uint64_t rank_bytes = worker.memory_plan().total_bytes() + setup_.device->workspace_bytes();
  if (!(known.gemm_peak > 0.0)) {
    HF_TRY(const double peak, measure_peak(group_, *setup_.device, worker));
    known.gemm_peak = peak / ranks;
  }
  clock_.times.gemm_peak_ns = phase_ns();
  begin_epoch(worker, known, ranks);
  const std::uint64_t step = worker.state().step;
  const std::vector<Protection> before = std::exchange(protections_, protections(worker));
  Result<void> outcome;
  if (group_.writes() && !opened_before) outcome = begin_log(worker, transport, rank_bytes);
  if (group_.writes() && outcome.ok() && recovery_.has_value()) outcome = continue_log(step);
  HF_TRY_VOID(group_.agree(outcome));
  for (const std::string& line : armed_news(before, protections_)) progress_->say(line);
  // A spare that leads now has known nothing of what was on.
  if (before.empty() && recovery_.has_value()) tell_armed();
  known.log_opened = true;
  begin_listening();
  tell_changed_links(step);
  return share_hardware_record();
}

// Begins to run notify.command, before the log has a line of this start.
void RunJournal::begin_notices() {
  const NotifyConfig& notify = setup_.config.notify;
  const bool is_here = group_.leads() && launched_start(env()).empty();
  if (notify.command.empty() || !is_here || notifier_ != nullptr) return;
  notifier_ = std::make_unique<Notifier>(
      env(), Notifier::Settings{.paths = paths(),
                                .command = notify.command,
                                .timeout_ms = notify.timeout_ms,
                                .mind = {.at_most = notify.at_most, .heartbeat_ms = notify.heartbeat_ms}});
}

// Shows the metrics where metrics.listen says. Where that cannot be, the run goes on without.
void RunJournal::begin_listening() {
  if (page_ == nullptr || !group_.leads() || server_ != nullptr || listening_failed_) return;
  const auto listen = [&]() -> Result<std::string> {
    HF_TRY(NetworkAddress address, listen_address_of(setup_.config.metrics.listen));
    const bool is_on_all = address.host.empty() && setup_.config.network.interface.empty();
    if (address.host.empty() && !is_on_all) {
      HF_TRY(const std::vector<std::string> own,
             env().network().own_addresses(setup_.config.network.interface));
      address.host = own.front();
    }
    const bool is_open = is_loopback(address.host);
    std::string token;
    if (!is_open) {
      HF_TRY(token, metrics_token(env(), paths()));
    }
    HF_TRY(server_, MetricsServer::listen(env(), address, std::move(token), page_));
    std::string host = is_on_all ? env().host_name() : address.host;
    if (host.find(':') != std::string::npos) host = "[" + host + "]";
    const std::string url = fmt::format("http://{}:{}/metrics", host, server_->port());
    HF_TRY_VOID(env().replace_text(paths().metrics_address(), url + "\n"));
    return url + (is_open ? ""
                          : fmt::format(", for those who have the token of `holdfast metrics {} --token`",
                                        paths().directory));
  };
  const Result<std::string> where = listen();
  if (where.ok()) return progress_->say("metrics: " + *where);
  stop_listening();
  listening_failed_ = true;
  print_message("metrics.listen: {}. The run goes on, and RUN/metrics.prom has the metrics",
                where.error().message);
}

// Leaves no address behind at which nobody answers.
void RunJournal::stop_listening() {
  server_.reset();
  static_cast<void>(env().remove(paths().metrics_address()).ok());
}

// Puts before the log what counts its lines, unless that is off.
std::unique_ptr<LineSink> RunJournal::with_metrics(std::unique_ptr<LineSink> log) {
  const MetricsConfig& metrics = setup_.config.metrics;
  if (!metrics.listen.empty()) page_ = std::make_shared<MetricsPage>();
  if (metrics.every_ms == 0 && !metrics.tensorboard && page_ == nullptr) return log;
  return std::make_unique<MetricsSink>(
      env(), std::move(log),
      MetricsSink::Settings{.paths = paths(),
                            .every_ms = metrics.every_ms,
                            .tensorboard = metrics.tensorboard,
                            .page = page_,
                            .may_write = [gate = gate_] { return gate->is_open(); }});
}

// Makes the reporter of the epoch.
void RunJournal::begin_epoch(Worker& worker, RecoveryInventory& known, double ranks) {
  FaultPoints& faults = group_.launched().faults;
  const bool writes = group_.writes();
  const std::uint64_t step = worker.state().step;
  const std::int64_t sequence_length = setup_.config.training.sequence_length;
  if (queue_ == nullptr)
    queue_ = std::make_unique<EventQueue>(
        env(), paths().events(), static_cast<std::uint64_t>(setup_.config.log.rotate_bytes),
        [&faults] { HF_FAULT_POINT(faults, "log.before_line"); }, [gate = gate_] { return gate->is_open(); },
        [this](std::unique_ptr<LineSink> log) { return with_metrics(std::move(log)); });
  begin_notices();
  queue_->others_have_written();
  if (recovery_.has_value()) newest_step_ = std::max(newest_step_, recovery_->step_before);
  if (writes && known.log_opened != true)
    newest_step_ = std::max(newest_step_, newest_logged_step(env(), paths()));
  if (writes && !std::exchange(gap_noted_, true)) note_gap(step);
  if (!source_counts_.has_value()) source_counts_.emplace(worker.data().order(setup_.config.run.seed));
  progress_ = std::make_unique<Progress>(
      env(), *queue_,
      Progress::Setup{
          .steps = setup_.config.training.steps,
          .every_steps = setup_.config.log.every_steps,
          .flops_per_token = flops_per_token(worker.workload().spec, sequence_length),
          .peak_flops = known.gemm_peak * ranks,
          .tokens_per_step = worker.workload().tokens_per_step(),
          .peak_beaten =
              [&known, ranks](double flops) { known.gemm_peak = std::max(known.gemm_peak, flops / ranks); },
          .logged_step = newest_step_,
          .directory = setup_.config.run.directory,
          .faults = faults.specification(),
          .device_plan = worker.state_view().device_plan,
          .cost = setup_.config.cost,
          .tokens_per_sample = static_cast<std::uint64_t>(sequence_length),
          .sources = sources_of(setup_.config, worker.data()),
          .source_counts = &*source_counts_,
          .write_hardware_record = [this] { write_hardware_record(); },
          .post = [this](std::function<void()> writing) { post(std::move(writing)); }},
      group_.leads() ? Progress::Role::speaks
      : writes       ? Progress::Role::writes
                     : Progress::Role::silent);
}

// Tells of the links that changed what the state was loaded from. No change is left in it.
void RunJournal::tell_changed_links(std::uint64_t step) {
  if (changed_links_.empty()) return;
  std::ranges::sort(changed_links_);
  const auto [repeated, end] = std::ranges::unique(changed_links_);
  changed_links_.erase(repeated, end);
  progress_->reached_verdict(
      {.step = step,
       .what = std::string(name_of(VerdictKind::corruption)),
       .action = std::string(name_of(VerdictAction::redo)),
       .of = std::string(name_of(VerdictSubject::links)),
       .reason = fmt::format(
           "parts of a RAM snapshot have changed on {}: what arrived otherwise than it was sent was "
           "requested again, and not used; test the cable, the card or the switch",
           fmt::join(changed_links_, ", "))},
      {});
  changed_links_.clear();
}

// Gives every rank what any of them knows about the hardware: one that is new knows nothing, and the writer
// before may have died before its file was written.
Result<void> RunJournal::share_hardware_record() {
  if (group_.writes() && !std::exchange(hardware_read_, true)) {
    HardwareFile file = read_hardware_record(env(), paths());
    if (!file.damage.empty()) print_message("{}", file.damage);
    hardware_.record.merge(file.record);
    hardware_.text = std::move(file.text);
  }
  HF_TRY(const std::vector<HardwareRecord> all,
         gather(group_.active().communicator, group_.waiter(), hardware_.record));
  for (const HardwareRecord& known : all) hardware_.record.merge(known);
  if (group_.writes()) write_hardware_record();
  return {};
}

// Writes the record where it is not what the file has, on the log's thread. It is written anew at the next finding
// if that fails.
void RunJournal::write_hardware_record() {
  std::string text = hardware_.record.text();
  if (text == hardware_.text) return;
  hardware_.text = text;
  post([&env = env(), path = paths().hardware(), text = std::move(text)] {
    static_cast<void>(env.replace_text(path, text).ok());
  });
}

// Tells of the lines that the leader before may not have written before it died. The log's thread reads the
// file, because the disk may stall.
void RunJournal::note_gap(std::uint64_t step) {
  if (step == 0) return;
  queue_->post(
      [&env = env(), paths = paths(), step](LineSink& log) { note_missing_steps(env, paths, step, log); });
}

// Counts a failure, and from when on other ranks train; several deaths until a step is made are one failure.
void RunJournal::count_failure() {
  failures_.go_on(env(), paths(), group_.active().communicator.size());
  if (recovery_->faults > 0 &&
      std::exchange(failure_counted_us_, recovery_->noticed_us) != recovery_->noticed_us)
    failures_.count_failure();
  post(failures_.writing(env(), paths()));
}

// Continues the log. A rank that has left may have recorded its own end as the end of the run.
Result<void> RunJournal::continue_log(std::uint64_t step) {
  HF_TRY_VOID(check_claim());
  if (read_status(env(), paths()).state != "running") {
    HF_TRY_VOID(
        write_status(env(), paths(), {.state = "running", .step = step, .exit_code = 0, .reason = {}}));
  }
  count_failure();
  recovery_->armed_after = protections_by_name(protections_, true);
  recovery_->unarmed_after = protections_by_name(protections_, false);
  progress_->recovering(*recovery_);
  tell_left_out(step);
  return {};
}

// Returns nothing where nobody knows.
std::map<std::string, int> RunJournal::ranks_on_hosts() const {
  if (group_.launched().membership != nullptr) return ranks_by_host(group_.launched().membership->view());
  // By this the launcher of a single rank sees how many more there could be.
  if (launched_start(env()).empty() || group_.world().communicator.size() > 1) return {};
  return {{env().host_name(), 1}};
}

std::vector<Protection> RunJournal::protections(Worker& worker) const {
  const SnapshotPlan& snapshots = worker.state_view().snapshots;
  const TrainInputs& launched = group_.launched();
  return protections_of(setup_.config, {.ranks = group_.active().communicator.size(),
                                        .copies = worker.rank().mesh.shape().data,
                                        .spares = static_cast<int>(group_.assignment().spares.size()),
                                        .hosts = std::max(static_cast<int>(ranks_on_hosts().size()), 1),
                                        .has_membership = launched.membership != nullptr,
                                        .has_launcher = !launched_start(env()).empty(),
                                        .is_watched = launched.watch != nullptr,
                                        .measures_ranks = worker.rank().device.work_clock() != nullptr,
                                        .has_buddies = !snapshots.buddies().empty(),
                                        .replicas_cross_hosts = setup_.replicas_cross_hosts,
                                        .tiers = snapshots.decision().room.tiers,
                                        .lacks_memory = snapshots.decision().warning,
                                        .audit_every_steps = worker.workload().audit_every_steps});
}

Result<void> RunJournal::begin_log(Worker& worker, const TransportChoice& transport,
                                   std::uint64_t rank_bytes) {
  HF_TRY_VOID(check_claim());
  HF_TRY_VOID(env().replace_text(paths().config(), record_config(with_absolute_plugins(setup_.config),
                                                                 group_.launched().config->origin)));
  HF_TRY_VOID(keep_tokenizer(env(), setup_.config, paths().directory));
  forget_answered_requests(env(), paths());
  HF_TRY_VOID(record_identity(env(), paths(), worker.state().shm_run_id));
  if (const std::string note = failures_.begin_start(env(), paths(), group_.active().communicator.size());
      !note.empty() && group_.leads())
    print_message("{}", note);
  post(failures_.writing(env(), paths()));
  HF_TRY_VOID(write_status(env(), paths(),
                           {.state = "running", .step = worker.state().step, .exit_code = 0, .reason = {}}));
  const StateSource source = source_of(setup_.start);
  const ModelSpec& spec = worker.workload().spec;
  HF_TRY_VOID(progress_->started(
      parameter_count(spec), group_.world().communicator.size(), ranks_on_hosts(), worker.state(),
      source == StateSource::start ? "" : name_of(source), clock_.times, *setup_.device,
      transport.description, setup_.processors,
      {.on = protections_by_name(protections_, true), .off = protections_by_name(protections_, false)}));
  const int ranks = group_.active().communicator.size();
  const std::int64_t stages = setup_.config.parallel.pipeline;
  const std::size_t spares = group_.assignment().spares.size();
  progress_->say(
      fmt::format("{} parameters{}, {} lanes on {} ranks x {} threads{}{} ({}), {} tokens per step, {} {}",
                  parameter_count(spec),
                  trained_parameter_count(spec) == parameter_count(spec)
                      ? ""
                      : fmt::format(" ({} trained)", trained_parameter_count(spec)),
                  setup_.config.parallel.lanes, ranks, setup_.device->threads(),
                  stages > 1 ? fmt::format(" in {} stages", stages) : "",
                  spares == 0 ? "" : fmt::format(" and {} spare{}", spares, spares == 1 ? "" : "s"),
                  setup_.device->description(), worker.workload().tokens_per_step(), format_bytes(rank_bytes),
                  stages > 1 ? "on rank 0" : "per rank"));
  if (!setup_.device->host_sees_memory() && ranks > 1) {
    progress_->say("exchange: " + transport.description);
  }
  for (const auto& [processors, on_these] : setup_.processors)
    progress_->say(
        fmt::format("processors: {} rank{} on {}", on_these, on_these == 1 ? "" : "s", processors));
  const std::string whole = why_gradients_are_whole(setup_.config, worker.rank().mesh.shape().data);
  if (!whole.empty()) progress_->say(whole);
  for (const std::string& line : kernel_summary(setup_.device->kernels())) progress_->say("kernels: " + line);
  tell_left_out(worker.state().step);
  tell_armed();
  warn_of_doors();
  return {};
}

// Says which kernels the run does without: at length where that is new, else at each start.
void RunJournal::tell_left_out(std::uint64_t step) const {
  for (const KernelFault& each : setup_.left_out_anew) progress_->left_out(step, each);
  if (group_.recovers()) return;
  for (const KernelFault& each : setup_.left_out) {
    if (std::ranges::find(setup_.left_out_anew, each) == setup_.left_out_anew.end())
      progress_->say(fmt::format("kernels: left out: {}", text_of(each)));
  }
}

void RunJournal::tell_armed() const {
  for (const bool is_on : {true, false}) progress_->say(armed_line(protections_, is_on));
}

// Says what the user may not know: a variable left from a test, and who else can write the run.
void RunJournal::warn_of_doors() const {
  if (!group_.leads()) return;
  if (const std::string& faults = group_.launched().faults.specification(); !faults.empty()) {
    print_message(
        "HOLDFAST_FAULTS is set, so this run makes these faults itself: {}. Unset it, unless this is a test",
        printable(faults));
  }
  if (const std::string note = who_else_may_write(env(), paths()); !note.empty()) print_message("{}", note);
}

void RunJournal::end(const RunEnd& end, std::uint64_t step, Worker* worker) {
  const bool begun = progress_ != nullptr;
  // A claim that another writer has taken over is the only reason to record nothing; a file that cannot be
  // read may be repaired.
  if (const Result<void> mine = check_claim(); !mine.ok() && mine.error().code == ExitCode::communication)
    setup_.claim.reset();
  // A start that is refused leaves nothing: neither a record of its end, nor the run directory that it has made.
  const bool refused = setup_.claim != nullptr && !begun && is_refusal(end.code);
  if (refused && setup_.makes_directory && remove_unused_directory(env(), paths())) setup_.claim.reset();
  if (setup_.claim != nullptr && (begun || may_record_failure(env(), paths()))) record_end(end, step, worker);
  if (notifier_ != nullptr) notifier_->finish({});
  if (server_ != nullptr) stop_listening();
}

void RunJournal::record_end(const RunEnd& end, std::uint64_t step, Worker* worker) {
  RunStatus status{
      .state = "failed", .step = step, .exit_code = static_cast<int>(end.code), .reason = end.message};
  if (end.code == ExitCode::done) status.state = "finished";
  if (end.code == ExitCode::saved) status.state = "saved";
  // The run itself has ended; a record that cannot be written is reported on stderr, where the reason of the
  // end is written anyhow.
  const auto complain = [&](const Result<void>& result) {
    if (!result.ok() && result.error().message != end.message) print_message("{}", result.error().message);
  };
  complain(write_status(env(), paths(), status));
  if (progress_ != nullptr) {
    failures_.end(status.state == "failed", env().wall_time_us());
    post(failures_.writing(env(), paths()));
  }
  if (progress_ != nullptr && worker != nullptr)
    complain(progress_->finished(status, worker->reduction().counts(), worker->parameter_gather().counts(),
                                 worker->rank().links.traffic(), worker->state()));
  if (progress_ == nullptr && end.code != ExitCode::done) return;
  const Result<std::string> summary = write_report(env(), paths());
  complain(outcome_of(summary));
  if (progress_ != nullptr && summary.ok() && !summary->empty()) progress_->say(*summary);
}

}  // namespace holdfast::elastic
