#include "runtime/elastic/session.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include "checkpoint/ram_tier.h"
#include "kernels/product_plan.h"
#include "parallel/comm/collectives.h"
#include "parallel/comm/gather.h"
#include "runtime/core/check.h"
#include "runtime/elastic/join.h"
#include "runtime/elastic/recovery_plan.h"
#include "runtime/elastic/source.h"
#include "runtime/elastic/spare_proof.h"
#include "runtime/elastic/state_loader.h"
#include "runtime/os/console.h"
#include "runtime/os/errno_reason.h"
#include "runtime/os/retry.h"
#include "runtime/rank/device_choice.h"
#include "runtime/rank/leaving.h"
#include "runtime/rank/watch.h"
#include "runtime/run/kernel_faults.h"
#include "runtime/run/launch_record.h"
#include "runtime/run/requests.h"
#include "runtime/run/run_directory.h"
#include "runtime/run/run_layout.h"
#include "runtime/save/save.h"
#include "runtime/save/save_failure.h"

namespace holdfast::elastic {
namespace {

// Says why a run that was to go back ends, and what to do.
std::string without_a_state(std::string_view kind) {
  const bool may_go_on = kind == name_of(VerdictKind::spike) || kind == name_of(VerdictKind::drift);
  return fmt::format("; but no such state is left. {}",
                     may_go_on ? fmt::format("Set verdict.on_{} = \"tell\" to go on from here", kind)
                               : "Lower optimizer.learning_rate or start again from an older checkpoint");
}

// Tells the launcher that this rank, and so its host, is unfit: because of its device where that has failed while the
// group was lost, so that nobody has agreed on it.
void report_if_unfit(const TrainInputs& launched, const RunSetup& setup, bool group_lost,
                     const Error& fault) {
  const bool device_failed = group_lost && setup.device != nullptr && !setup.device->status().ok();
  const Error error = device_failed ? setup.device->status().error() : fault;
  if (error.reach != Reach::host) return;
  const Communicator& ranks = launched.communicator;
  report_unfit_to_launcher(launched.env, ranks.global_rank(ranks.rank()), name_of(setup.step), error);
}

void print_start(const RunSetup& setup) {
  const StartPoint& start = setup.start;
  if (!start.copy_of.empty()) {
    print_line("{} is a copy of {}, which is still there: RAM snapshots belong to that one",
               setup.config.run.directory, start.copy_of);
  }
  if (!start.unusable.empty()) print_message("what is in RAM counts alone: {}", start.unusable);
  for (const std::string& note : start.notes) print_message("checkpoint skipped: {}", note);
  for (const std::string& change : setup.changes.lines) print_line("resume: {}", change);
  const std::string device = setup.device->identity(precision_of(setup.config));
  if (changes_device(start, setup.config, device)) {
    print_line(
        "resume: made on \"{}\", now on \"{}\"  (numeric: the steps from here on may differ in their last "
        "bits)",
        start.device, device);
  }
}

// Shows each sentence once, whichever ranks it is about, and only at the first start: ranks that come and go
// do not change it.
Result<void> show_slow_paths(const Group& group, const RunSetup& setup) {
  if (setup.config.device == "cpu" || group.recovers()) return {};
  HF_TRY(const std::vector<std::vector<std::string>> all,
         gather(group.active().communicator, group.waiter(), setup.device->slow_paths()));
  std::set<std::string> reported;
  for (const std::vector<std::string>& sentences : all) {
    for (const std::string& sentence : sentences)
      if (group.leads() && reported.insert(sentence).second) print_message("{}", sentence);
  }
  return {};
}

// Returns the hosts of which no rank is left, where a launcher can start the run again on them.
std::vector<std::string> lost_hosts(Env& env, const MembershipView& before, const MembershipView& now) {
  std::vector<std::string> lost;
  if (launched_start(env).empty()) return lost;
  const std::map<std::string, int> left = ranks_by_host(now);
  for (const auto& [host, ranks] : ranks_by_host(before)) {
    if (!left.contains(host)) lost.push_back(host);
  }
  return lost;
}

// Returns whether there are others, and the run has begun.
bool others_can_go_on(const Group& group, const RecoveryInventory& known) {
  return group.launched().membership != nullptr && known.log_opened == true &&
         group.world().communicator.size() > 1;
}

// Has this rank, which is fit, go on without those that are not: they leave, as ranks that die. `joins`: joiners take
// part.
void follow_unfit_peers(const Group& group, bool joins, const Error& fault) {
  if (fault.reach == Reach::peers && group.launched().membership != nullptr && !joins)
    group.world().communicator.abandon();
}

// Returns the error that the run ends with. What is unfit on some hosts, or now, is no fault of the run's own inputs:
// another start, on other hosts or later, may go on.
Error error_of_run(const RunSetup& setup, const RecoveryInventory& known, const Error& fault) {
  const bool is_own = fault.reach == Reach::run ||
                      (fault.reach == Reach::everywhere && !setup.has_begun && known.log_opened != true);
  return is_own ? fault : with_code(ExitCode::communication, fault);
}

// Claims the run directory because the run ends, and the rank that would have recorded the end may be gone.
// If the other side may go on (lost quorum), it has the run.
void claim_for_the_dead(const Group& group, const RecoveryInventory& known, RunJournal& journal) {
  if (known.joined && !group.launched().membership->lost_quorum()) journal.claim_for_the_dead();
}

// Returns the cause of a fault, as far as this rank knows it. `hang`: the watchdog's sentence, or empty.
FaultCause cause_known(RankWatch* watch, const std::string& hang, FaultCause cause) {
  if (!hang.empty()) cause = nearer_cause(cause, FaultCause::rank_hangs);
  return watch == nullptr ? cause : nearer_cause(cause, fault_cause_named(watch->take_why_left()));
}

// Sends what this rank knows to the others, and returns what all know.
Result<std::vector<RecoveryInventory>> exchange_inventories(const Group& group, const RunSetup& setup,
                                                            const RecoveryRecord& record, std::uint64_t step,
                                                            RecoveryInventory& mine) {
  const TrainInputs& launched = group.launched();
  mine.host = launched.env.host_id();
  mine.step = step;
  mine.verdict = launched.watch == nullptr ? "" : launched.watch->take_hang();
  mine.cause = static_cast<int>(cause_known(launched.watch, mine.verdict, record.cause));
  mine.noticed = record.noticed;
  mine.noticed_us = record.noticed_us;
  mine.reported = record.reported;
  mine.number = group.is_joiner() && setup.device == nullptr ? -1 : launched.place.rank_on_host;
  // The wait is longer than a rebuild of the group may take, because another rank may wait for its given-up
  // saves.
  const Waiter patient = group.waiter().with_timeout(setup.config.parallel.timeout_ms);
  HF_TRY(std::vector<RecoveryInventory> all, gather(group.world().communicator, patient, mine));
  enter_recovery(launched.watch, step, setup.config);  // the time of other ranks does not count
  return all;
}

// Returns what is known of a fault. `facts`: those that the phase has found out.
FaultFacts fault_facts(const Group& group, const RunSetup& setup, const RecoveryInventory& known,
                       FaultFacts facts, const Error& fault) {
  facts.has_membership = group.launched().membership != nullptr;
  facts.group_lost = group.world().communicator.abandoned();
  facts.others_can_go_on = others_can_go_on(group, known);
  facts.device_lost = group.leaving().has_value();
  facts.unfit = fault.reach == Reach::host && group.world().communicator.size() > 1;
  facts.has_device = setup.device != nullptr;
  const bool asks_device = facts.has_membership && facts.group_lost && !facts.recovery_failed;
  facts.device_failed = asks_device && facts.has_device && !setup.device->status().ok();
  return facts;
}

// Adds what all ranks know to the record of a recovery.
void add_known(const Group& group, const RecoveryInventory& known, RecoveryRecord& record) {
  record.step_before = std::max(record.step_before, known.step);
  const MembershipView now = group.view();
  record.ranks_after = group.world().communicator.size();
  record.hosts_after = ranks_by_host(now);
  const std::vector<Member> lost = members_lost(record.before, now);
  record.lost = lost.empty() ? "" : name_members(lost);
  record.cause = nearer_cause(record.cause, static_cast<FaultCause>(known.cause));
  const bool lost_host = std::ranges::any_of(ranks_by_host(record.before), [&](const auto& entry) {
    return !record.hosts_after.contains(entry.first);
  });
  if (lost_host) record.cause = nearer_cause(record.cause, FaultCause::host_lost);
  if (!known.verdict.empty()) record.verdict = known.verdict;
  if (known.kernel_fault.is_valid()) record.kernel = known.kernel_fault;
  record.noticed = known.noticed;
  record.reported = known.reported;
}

// Agrees with new ranks on all that a start agrees on. What this rank had stays as it is until all have agreed.
Result<void> join_again(const Group& group, const RecoveryInventory& known, RunSetup& setup) {
  RunSetup joined = {.secret = setup.secret};
  HF_TRY_VOID(prepare(group.world(),
                      {.mode = PrepareMode::rejoin,
                       .recovers = true,
                       .ranks = known.launched_ranks,
                       .shm_run_id = known.shm_run_id,
                       .device = setup.device.get(),
                       .kernel_faults = known.kernel_faults},
                      joined));
  if (setup.device != nullptr) joined.device = std::move(setup.device);
  joined.claim = std::move(setup.claim);
  joined.domain = std::move(setup.domain);
  setup = std::move(joined);
  return {};
}

// Ends a run that is finished, which may be one whose last start died right after its last save.
Result<void> end_finished_run(Group& group, const RunSetup& setup, RunSaves& saves) {
  const StartPoint& start = setup.start;
  if (!start.shm_run_id.empty())
    HF_TRY_VOID(group.agree_among_all(
        outcome_of(remove_snapshots(group.launched().env, digest_of(start.shm_run_id))), group.waiter()));
  HF_TRY_VOID(saves.upload_last());
  if (group.leads()) {
    print_line("the run in {} is finished: step {} of {}", setup.config.run.directory, start.step,
               setup.config.training.steps);
  }
  return {};
}

std::string sentence_of(ExitCode code) {
  return code == ExitCode::saved ? "saved and stopped on request; start it again to go on"
                                 : "all steps are done";
}

}  // namespace

Session::Session(const TrainInputs& inputs)
    : group_(inputs, setup_),
      launched_(group_.launched()),
      journal_(group_, setup_),
      memory_(group_, setup_, known_),
      saves_(group_, setup_),
      rollback_(group_, setup_, journal_, saves_),
      growth_(group_, setup_, known_, journal_) {
  known_.launched_ranks = group_.is_joiner() ? 0 : inputs.communicator.size();
}

Result<ExitCode> Session::run() {
  SessionPhase phase = group_.is_joiner() ? SessionPhase::admit : SessionPhase::start;
  Error fault;  // the newest
  bool has_finished = false;
  while (phase != SessionPhase::end) {
    const Result<PhaseOutcome> ended = run_phase(phase, fault);
    if (!ended.ok()) fault = ended.error();
    const PhaseOutcome outcome =
        ended.ok() ? *ended : outcome_of_fault(fault_facts(group_, setup_, known_, facts_, fault));
    has_finished = outcome == PhaseOutcome::finished;
    const std::optional<SessionPhase> next = next_phase(phase, outcome);
    HF_CHECK(next.has_value(), "phase {} of a session cannot end with outcome {}", static_cast<int>(phase),
             static_cast<int>(outcome));
    phase = *next;
  }
  if (has_finished) return exit_code_;
  report_if_unfit(launched_, setup_, group_.world().communicator.abandoned(), fault);
  return error_of_run(setup_, known_, fault);
}

// Runs a phase. If the system refuses a thread of the device, the standard library throws an exception; it is
// converted into an error of this rank alone.
Result<PhaseOutcome> Session::run_phase(SessionPhase phase, const Error& fault) {
  facts_ = {.recovery_failed = facts_.recovery_failed};
  const auto run_one = [&]() -> Result<PhaseOutcome> {
    switch (phase) {
      case SessionPhase::start:
        return start();
      case SessionPhase::train:
        return run_epoch();
      case SessionPhase::recover:
        return recover(fault);
      case SessionPhase::grow:
        return grow();
      case SessionPhase::admit:
        return admit();
      case SessionPhase::dismiss:
        return dismiss(fault);
      case SessionPhase::shrink:
        return shrink();
      case SessionPhase::roll_back:
        return roll_back();
      case SessionPhase::leave:
        return leave(fault);
      case SessionPhase::end:
        break;
    }
    return PhaseOutcome::run_fails;
  };
  Result<PhaseOutcome> ended = PhaseOutcome::run_fails;
  try {
    ended = run_one();
  } catch (const std::system_error& error) {
    ended = refused(error.what());
  }
  if (!ended.ok()) follow_unfit_peers(group_, facts_.joins, ended.error());
  return ended;
}

// Returns the error of this rank alone, of which the peers learn because this rank leaves. Others have the threads now,
// which they may give back: where the run ends, it can be started again.
Error Session::refused(const std::string& what) {
  Error error = with_reach(
      Reach::minute,
      fail(ExitCode::communication,
           "rank {} (host {}): the system refused something the run needs ({}), most likely a thread; "
           "lower threads, or raise the limit",
           launched_.communicator.rank(), launched_.env.host_name(), what));
  facts_.system_refused = true;
  if (!others_can_go_on(group_, known_)) group_.world().communicator.abandon();
  return error;
}

Result<PhaseOutcome> Session::start() {
  enter(launched_.watch, Phase::start_up, 0);
  HF_TRY_VOID(prepare(
      group_.world(),
      {.mode = PrepareMode::start, .recovers = group_.recovers(), .ranks = known_.launched_ranks}, setup_));
  AssignmentRequest request = setup_.request;
  if (!group_.recovers()) request.data_min = request.data_max;
  HF_TRY_VOID(assign_coordinates(request));
  growth_.name_places();
  if (group_.world().communicator.rank() == 0) print_start(setup_);
  known_.joined = true;
  journal_.startup().join_ns = journal_.phase_ns();
  if (setup_.start.step < static_cast<std::uint64_t>(setup_.config.training.steps))
    return PhaseOutcome::ready;
  step_ = setup_.start.step;
  HF_TRY_VOID(end_finished_run(group_, setup_, saves_));
  return PhaseOutcome::finished;
}

// Assigns the coordinates. At a start, when no rank may be missing, the error is that of the layout, which
// says what to start instead.
Result<void> Session::assign_coordinates(const AssignmentRequest& request) {
  HF_TRY(const std::vector<std::string> hosts,
         all_gather_text(group_.world().communicator, group_.waiter(), launched_.env.host_id()));
  Result<RankAssignment> assignment = assign_ranks(request, hosts);
  if (!assignment.ok() && !group_.recovers()) {
    HF_TRY(const Mesh mesh, mesh_of(setup_.config, hosts));
    assignment = assignment_of(mesh);
  }
  return begin_epoch(std::move(assignment));
}

// Begins an epoch with an assignment. `assignment`: an error if there are too few ranks for one; then this only
// takes the claim, so that the end of the run is recorded, and returns that error.
Result<void> Session::begin_epoch(Result<RankAssignment> assignment) {
  HF_TRY_VOID(group_.choose_writers(assignment));
  HF_TRY_VOID(journal_.hand_over_claim());
  if (!assignment.ok()) return assignment.error();
  group_.begin_epoch(std::move(assignment).value());
  if (std::optional<RecoveryRecord>& record = journal_.recovery(); record.has_value()) {
    record->active_after = group_.assignment().shape.active();
    record->spares_after = static_cast<int>(group_.assignment().spares.size());
  }
  return {};
}

Result<PhaseOutcome> Session::run_epoch() {
  const bool is_active = group_.epoch()->is_active();
  if (!is_active) {
    enter(launched_.watch, Phase::spare, step());
    memory_.give_back();
  }
  LeaderFacts leader;
  const Result<EpochEnd> end =
      is_active ? run_active() : group_.epoch()->wait_for_end(group_.waiter(), leader);
  if (leader.log_opened) known_.log_opened = true;
  step_ = std::max(step_, leader.step);
  if (!end.ok()) follow_unfit_peers(group_, facts_.joins, end.error());
  if (group_.leaving().has_value()) return end.error();
  // A spare that dies now changes nothing. Where unfit ranks leave, of whom the leader may be one, the run does not end.
  const bool goes_on = !end.ok() && launched_.membership != nullptr && is_of_unfit_ranks(end.error());
  if (is_active && !goes_on && !group_.world().communicator.abandoned())
    static_cast<void>(
        group_.epoch()
            ->inform_spares(group_.waiter(), end, {.log_opened = known_.log_opened == true, .step = step()})
            .ok());
  if (!end.ok()) return may_be_unfit(end.error()) ? fault_or_unfit(group_, setup_, end.error()) : end.error();
  if (end->how != PhaseOutcome::finished) return end->how;
  if (!is_active) memory_.remove_old_snapshots({});  // of ranks that died on this host
  exit_code_ = end->code;
  return PhaseOutcome::finished;
}

// Returns whether the spares may go on where all active ranks have ended with this error, which all agree on. It is asked on
// all of them, with the same answer. A disk that is full for one is full for all, whatever little a proof writes there.
bool Session::may_be_unfit(const Error& fault) {
  const bool is_passing = fault.reach == Reach::minute || fault.reach == Reach::everywhere;
  const bool may = is_passing && !is_full_disk(fault.reason) && known_.log_opened == true &&
                   launched_.membership != nullptr && !facts_.system_refused &&
                   !group_.assignment().spares.empty() && !group_.world().communicator.abandoned();
  if (may) enter_recovery(launched_.watch, step(), setup_.config);  // the others may take a while
  return may;
}

// Goes on with one copy of the model less, which takes less memory of the hosts; the ranks that lose their
// coordinates become spares.
Result<PhaseOutcome> Session::shrink() {
  setup_.request.data_max = group_.assignment().shape.data - 1;
  worker_.reset();
  group_.end_epoch();
  HF_TRY_VOID(assign_coordinates(setup_.request));
  return PhaseOutcome::ready;
}

Result<EpochEnd> Session::run_active() {
  if (!known_.log_opened.has_value()) known_.log_opened = false;
  enter(launched_.watch, Phase::load, step());
  if (RankWatch* const watch = launched_.watch; watch != nullptr) {
    setup_.device->count_ops_in(watch->device_ops());
    setup_.device->report_plugins([watch](std::string_view kernel) { watch->runs_plugin(kernel); });
  }
  if (const Result<void> built = build_worker(); !built.ok()) {
    const int copies = group_.assignment().shape.data;
    const bool shrinks = !group_.leaving().has_value() && memory_.lacks() &&
                         !group_.active().communicator.abandoned() && copies > setup_.request.data_min;
    if (!shrinks) return built.error();
    if (group_.leads())
      print_message("{} of {} copies of the model go on: {}", copies - 1, copies, built.error().message);
    return EpochEnd{.how = PhaseOutcome::lacks_memory};
  }
  Progress::StartupTimes& times = journal_.startup();
  times.worker_ns = journal_.phase_ns();
  StateLoader loader(group_, setup_, known_, journal_, saves_, *worker_);
  HF_TRY_VOID(loader.load());
  HF_TRY_VOID(group_.agree(setup_.device->status()));
  HF_TRY_VOID(loader.enter_generation());
  take_jump(worker_->state());
  times.state_ns = journal_.phase_ns();
  worker_->state().shm_run_id = known_.shm_run_id;
  if (std::optional<RecoveryRecord>& record = journal_.recovery(); record.has_value()) {
    record->load_ns += times.worker_ns + times.state_ns;
    record->resumed_step = step();
    record->resumed_from = name_of(source_of(setup_.start));
  }
  memory_.drop_unneeded();
  HF_TRY_VOID(journal_.open(*worker_, known_, transport_.choice));
  if (group_.recovers()) HF_FAULT_POINT(launched_.faults, "recover.before_resume");
  return train();
}

Result<void> Session::build_worker() {
  const std::string warned = transport_.choice.warning;
  HF_TRY(transport_, join_transport(group_.active(), group_.waiter(), setup_.config, *setup_.device));
  if (group_.leads() && !transport_.choice.warning.empty() && transport_.choice.warning != warned)
    print_message("{}", transport_.choice.warning);
  HF_TRY(const std::vector<std::string> hosts,
         all_gather_text(group_.active().communicator, group_.waiter(), launched_.env.host_id()));
  const Mesh mesh(group_.assignment().shape, hosts);
  const auto ranks_on_host = static_cast<int>(std::ranges::count(hosts, launched_.env.host_id()));
  HF_TRY(JoinedBuddies buddies, join_buddies(group_.active(), group_.waiter(), setup_.config, mesh));
  saves_.replicas_cross_hosts(buddies.all_cross_hosts);
  setup_.replicas_cross_hosts = buddies.all_cross_hosts;
  // Lets a state that comes from another GPU of this kind go on with its bits, wherever this one can.
  setup_.device->prefer_plan(algorithms_of(setup_.start.device_plan));
  const std::uint64_t epoch = launched_.membership == nullptr ? 0 : launched_.membership->view().epoch;
  RankInputs rank = group_.active();
  rank.ranks_on_host = ranks_on_host;
  HF_TRY(JoinedProcessors processors, join_processors(group_.active(), group_.waiter(), setup_.config));
  rank.sharers = processors.sharers;
  if (group_.leads() && !group_.recovers()) {
    for (const std::string& problem : processors.problems) print_message("{}", problem);
  }
  setup_.processors = std::move(processors.ranks);
  Result<std::unique_ptr<Worker>> worker =
      Worker::create({.rank = {rank, *setup_.device, setup_.config, mesh, setup_.secret, &journal_.hardware(),
                               hardware_name(launched_.env, setup_.config, launched_.place)},
                      .buddies = std::move(buddies.of_rank),
                      .data = setup_.data,
                      .nccl = gives_up_nccl(known_) ? nullptr : transport_.nccl.get(),
                      .gpu = transport_.gpu,
                      .connects_beside = epoch > 0,
                      .epoch = epoch,
                      .ledger = journal_.samples(),
                      .memory = memory_.terms(),
                      .process_memory = &memory_.of_process()});
  // A rank may have waited for memory that a process which died still held.
  const Waiter waiter = group_.waiter();
  const Result<void> agreed = group_.agree(
      outcome_of(worker), waiter.with_timeout(waiter.timeout_ms() + setup_.config.elastic.memory_timeout_ms));
  group_.keep_from_driver(worker);
  HF_TRY_VOID(agreed);
  worker_ = std::move(worker).value();
  HF_TRY(JoinedPlans plans, join_plans(group_.active(), group_.waiter(), setup_.config, *setup_.device));
  if (group_.leads() && !plans.warning.empty()) print_message("{}", plans.warning);
  worker_->state_view().device_plan = std::move(plans.plan);
  return show_slow_paths(group_, setup_);
}

Result<EpochEnd> Session::train() {
  steps_ = {};
  HF_TRY_VOID(saves_.begin_epoch(*worker_));
  memory_.begin_to_prove(worker_->state());
  const auto patiently = [&](const char* what, auto attempt) {
    const StorageWait storage(launched_.watch, what);
    return retry_storage(launched_.env, attempt);
  };
  const Result<void> loads =
      patiently("a thread for the training data", [&] { return worker_->start_loader(); });
  if (!loads.ok()) return refused(loads.error().message);
  std::optional<Growth> growth = growth_.plan(*worker_, memory_);
  std::unique_ptr<SaveRequests> requests;
  if (group_.writes()) {
    Result<std::unique_ptr<SaveRequests>> begun = patiently("the directory of requests", [&] {
      return SaveRequests::begin(launched_.env, RunPaths{setup_.config.run.directory});
    });
    if (!begun.ok()) return refused(begun.error().message);
    requests = std::move(begun).value();
  }
  Trainer trainer({.worker = *worker_,
                   .saves = saves_.places(),
                   .progress = *journal_.progress(),
                   .stop = launched_.stop,
                   .held_out = setup_.held_out,
                   .requests = std::move(requests),
                   .claim = setup_.claim.get(),
                   .writer = setup_.start.writer,
                   .started_ns = launched_.started_ns,
                   .startup_ns = journal_.startup().before_steps_ns(),
                   .resumed = setup_.start.snapshot,
                   .failures = journal_.failures(),
                   .saves_first = saves_.take_saves_first(),
                   .growth = std::move(growth)});
  steps_ = trainer.run();
  if (std::optional<StepsVerdict> verdict = std::move(steps_.verdict)) {
    follow_verdict(trainer, *std::move(verdict));
  } else {
    saves_.give_up(std::move(steps_.saves));
  }
  if (steps_.how == StepsEnd::How::fault) {
    enter_recovery(launched_.watch, step(), setup_.config);
    if (!steps_.goes_back_together || group_.active().communicator.abandoned()) return steps_.error;
    return EpochEnd{.how = PhaseOutcome::rolls_back};
  }
  if (steps_.how == StepsEnd::How::paused) return EpochEnd{.how = PhaseOutcome::pauses};
  const bool is_saved = steps_.how == StepsEnd::How::saved || ends_for_another_start();
  return EpochEnd{.code = is_saved ? ExitCode::saved : ExitCode::done};
}

// Follows a verdict that has ended the steps. Where a rank has to leave, the others lose it like one that died; where the
// state cannot be trusted, all go back to one that can. Batches that are left out say nothing against the saves under
// way.
void Session::follow_verdict(Trainer& trainer, StepsVerdict verdict) {
  Communicator& all = worker_->rank().communicator;
  VerdictEvent& event = verdict.event;
  std::optional<Rollback>& rollback = verdict.rollback;
  const bool leaves_batches = rollback.has_value() && rollback->data_cursor.has_value();
  if (rollback.has_value() && !rollback_.decide(*worker_, *rollback, verdict.leaving_ranks, event.reason)) {
    if (leaves_batches) {
      verdict.action = VerdictAction::stop;
      event.action = name_of(verdict.action);
      event.reason += without_a_state(event.what);
    } else {
      event.reason += fmt::format("; but no state of step {} or before is left, so the newest one counts",
                                  rollback->trusted_step);
    }
    rollback.reset();
  }
  journal_.progress()->reached_verdict(event, rollback);
  const bool goes_back = rollback.has_value() && leaves_batches;
  const bool is_numerics = goes_back || ends_run(verdict.action);
  const bool together = goes_back || (!is_numerics && all.size() == 1);
  if (!is_numerics && !together) {
    // No rank gives up the group before all have the verdict. One that is given up here has it.
    static_cast<void>(barrier(all, worker_->rank().waiter).ok());
    all.abandon();
  }
  steps_ = trainer.end_by_verdict(
      fail(is_numerics ? ExitCode::numerics : ExitCode::communication, "{}", event.reason), together,
      verdict.action);
  saves_.give_up(std::move(steps_.saves));
  evicts_ = !is_numerics && !together;
  facts_.evicted = !is_numerics && !together &&
                   std::ranges::find(verdict.leaving_ranks, all.rank()) != verdict.leaving_ranks.end();
  if (rollback.has_value()) saves_.distrust(worker_->state(), rollback->trusted_step);
}

// Notes that an epoch has ended, and what this rank has reached in it, before anything is destroyed. Returns when it ended.
std::int64_t Session::note_end() {
  step_ = step();
  const std::int64_t ended_ns = std::exchange(steps_.ended_ns, 0);
  if (ended_ns == 0) return launched_.env.monotonic_ns();
  known_.kept_step = saves_.kept_step();
  return ended_ns;
}

// Notes a fault. Deaths until a step is made are one recovery, with one record.
void Session::note_fault(const Error& fault) {
  const std::int64_t ended_ns = note_end();
  const bool had_epoch = group_.epoch() != nullptr;
  // The last recovery is over if a step was made since; a spare assumes that.
  const bool was_spare = had_epoch && !group_.epoch()->is_active();
  if (was_spare) known_.kept_step = 0;  // of an epoch before this one
  std::optional<RecoveryRecord>& record = journal_.recovery();
  if (was_spare || (worker_ != nullptr && record.has_value() && step_ > record->resumed_step)) record.reset();
  int active_before = had_epoch ? group_.assignment().shape.active() : known_.launched_ranks;
  // The new ranks of a growth that failed are among the ranks before the fault.
  if (record.has_value() && record->wanted > 0) {
    if (!had_epoch) active_before = record->active_before;
    record.reset();
  }
  if (!record.has_value())
    journal_.begin_recovery(fault.message, ended_ns, active_before).reported =
        launched_.membership->reported_by_peer();
  if (std::exchange(evicts_, false)) record->cause = nearer_cause(record->cause, FaultCause::rank_evicted);
  ++record->faults;
  growth_.begin_pause();
}

Result<PhaseOutcome> Session::recover(const Error& fault) {
  note_fault(fault);
  enter_recovery(launched_.watch, step_, setup_.config);
  if (const Result<void> rebuilt = rebuild_group(); !rebuilt.ok()) {
    const Membership& membership = *launched_.membership;
    Communicator& left = group_.world().communicator;
    if (!left.abandoned() && left.rank() == 0) claim_for_the_dead(group_, known_, journal_);
    facts_.recovery_failed = true;
    // Another start may have the run directory by now.
    if (membership.lost_quorum()) setup_.claim.reset();
    if (membership.cut_off()) return rebuilt.error();
    if (!left.abandoned()) return rebuilt.error();
    // Cut off from all others, it reports the fault that was noticed first. mpirun ends all ranks at the first exit: one that
    // was told of the fault lets the one that noticed it go before.
    if (journal_.recovery()->reported) launched_.env.sleep_us(500'000);
    return fault;
  }
  HF_FAULT_POINT(launched_.faults, "recover.after_shrink");
  return plan_epoch();
}

// Rebuilds the group with the ranks that are left, and drops the objects of the epoch.
Result<void> Session::rebuild_group() {
  HF_FAILING_FAULT_POINT(launched_.faults, rebuild_point);
  const std::int64_t begin_ns = launched_.env.monotonic_ns();
  Membership& membership = *launched_.membership;
  RecoveryRecord& record = *journal_.recovery();
  const MembershipView of_epoch = membership.view();  // record.before may be older
  // The kernels of this rank end before it enters the recovery, and it frees what those of others may use after it
  // (drop_epoch): no rank comes out before all that are left have entered. The others learn first that it comes.
  membership.communicator().abandon();
  const bool used_nccl = worker_ != nullptr && worker_->rank().links.is_over_nccl();
  if (worker_ != nullptr) worker_->rank().links.stop_nccl(record.noticed);
  const Result<void> rebuilt = membership.recover(setup_.config.elastic.recovery_timeout_ms, record.noticed);
  drop_epoch(rebuilt.ok() ? &of_epoch : nullptr);
  const std::vector<Member> lost = members_lost(of_epoch, membership.view());
  known_.lost_some = !lost.empty();
  known_.used_nccl = used_nccl;
  growth_.note_lost(lost);
  note_kernel_faults(lost);
  const bool lost_rank_0 =
      !lost.empty() && lost.front().launched_rank == of_epoch.members.front().launched_rank;
  // A rank 0 that was lost earlier than that has died of something else.
  const std::int64_t starts_ns = std::exchange(steps_.starts_ranks_ns, 0);
  if (starts_ns != 0 && lost_rank_0 && begin_ns - starts_ns >= rebuild_deadline_ms(setup_.config) * 1'000'000)
    known_.lost_starter = true;
  group_.connect();
  record.shrink_ns += launched_.env.monotonic_ns() - begin_ns;
  return rebuilt;
}

// Notes the kernels of plug-ins in which ranks have ended. The guard of this host says it of its ranks; the guards of others
// write it to the run directory.
void Session::note_kernel_faults(const std::vector<Member>& lost) {
  constexpr std::int64_t guard_patience_ms = 2'000;
  if (setup_.config.kernels.plugins.empty() || lost.empty()) return;
  KernelFaults found;
  if (launched_.watch != nullptr) {
    std::vector<int> ranks;
    for (const Member& member : lost) ranks.push_back(member.launched_rank);
    found = launched_.watch->kernel_faults_of(ranks, guard_patience_ms);
  }
  if (!found.empty()) known_.kernel_fault = found.front();
  if (launched_.place.rank_on_host == 0) {
    const StorageWait storage(launched_.watch, "kernels that have failed");
    add_faults(found, read_kernel_faults(launched_.env, {setup_.config.run.directory}));
  }
  add_faults(known_.kernel_faults, found);
}

// Does without the kernels that are known to have failed, where the config says so. The device, which is the host, is dropped on
// all ranks alike, because the kernels of one do not change; the memory that is kept is not its own.
Result<void> Session::leave_out_kernels() {
  known_.kernel_fault = {};  // the record has it
  add_faults(setup_.kernel_faults, known_.kernel_faults);
  HF_TRY(const bool changes, leave_out_failed_kernels(launched_.env, setup_));
  if (!changes) return {};
  setup_.device.reset();
  return {};
}

// Makes the device that was dropped. Whoever writes keeps the reason before anything is computed without the kernels.
Result<void> Session::make_device_again() {
  if (setup_.device != nullptr) return {};
  if (group_.writes()) {
    const StorageWait storage(launched_.watch, "kernels that have failed");
    const Result<void> kept =
        keep_kernel_faults(launched_.env, {setup_.config.run.directory}, setup_.kernel_faults);
    if (!kept.ok()) print_message("{}", kept.error().message);
  }
  HF_TRY(setup_.device, join_device(group_.world(), group_.waiter(), setup_.config));
  return {};
}

// Drops the objects of the epoch, when its saves that were given up have ended. `members`: of the epoch, if those that
// are left may go on from its live state; null: nobody does.
void Session::drop_epoch(const MembershipView* members) {
  saves_.finish_given_up(step_);
  if (members != nullptr) {
    const std::optional<int> slot = saves_.take_unused_slot();
    if (worker_ != nullptr) memory_.keep_live_state(*worker_, *members, slot);
  }
  saves_.drop_copies();
  drop_worker();
  journal_.close();
  group_.end_epoch();
}

// Drops the worker. Its loader ends with the read that it is in, which takes as long as the storage does.
void Session::drop_worker() {
  {
    const StorageWait storage(launched_.watch, "training data");
    worker_.reset();
  }
  enter_recovery(launched_.watch, step_, setup_.config);
}

// Goes back to an older state with the same ranks: all have agreed that the newest ones do not count.
Result<PhaseOutcome> Session::roll_back() {
  journal_.begin_recovery(rollback_.reason(), note_end(), group_.assignment().shape.active()).goes_back =
      true;
  known_.lost_some = false;
  enter_recovery(launched_.watch, step_, setup_.config);
  HF_FAULT_POINT(launched_.faults, "rollback.begin");
  drop_epoch(nullptr);
  return plan_epoch();
}

// Plans and begins the next epoch with the ranks that are in the group, and finds its state.
Result<PhaseOutcome> Session::plan_epoch() {
  journal_.phase_ns();
  enter_recovery(launched_.watch, step_, setup_.config);
  RecoveryRecord& record = *journal_.recovery();
  HF_TRY(const std::vector<RecoveryInventory> inventories,
         exchange_inventories(group_, setup_, record, step_, known_));
  RecoveryPlan plan =
      plan_recovery(inventories, setup_.request, {.without_lost_ranks = setup_.config.elastic.in_place});
  if (gives_up_nccl(plan.known) && !gives_up_nccl(known_) && group_.leads()) {
    print_message(
        "NCCL connected the ranks and failed again {} times, and nobody died: the run goes on through host "
        "memory from step {} on; another start tries NCCL again. The last failure: {}",
        plan.known.nccl_faults, plan.known.step + 1, plan.known.noticed);
  }
  known_ = plan.known;
  add_known(group_, known_, record);
  HF_TRY_VOID(leave_out_kernels());
  if (const std::string starter = growth_.take_lost_starter(); !starter.empty())
    record.verdict += (record.verdict.empty() ? "" : "; ") + starter;
  switch (plan.action) {
    case RecoveryAction::end:
      facts_.recovery_failed = true;
      return *plan.error;
    case RecoveryAction::start_again:  // a start's choice of a generation is in no file yet
      return PhaseOutcome::not_begun;
    case RecoveryAction::admit_joiners:
      return PhaseOutcome::joiners_come;
    case RecoveryAction::ends_start:
      HF_TRY_VOID(begin_epoch(*plan.error));  // returns the error: no epoch follows
      break;
    case RecoveryAction::use_assignment:
      HF_TRY_VOID(begin_epoch(std::move(*plan.assignment)));
      HF_TRY_VOID(make_device_again());
      break;
  }
  HF_TRY_VOID(rollback_.complete(known_));
  HF_TRY(setup_.start, group_.source_of(group_.world(), journal_.claim_check())
                           .at_recovery(known_.shm_run_id, known_.lost_some));
  const std::vector<std::string> hosts = lost_hosts(launched_.env, record.before, group_.view());
  if (Result<void> kept = check_kept_state(known_, setup_.start, hosts); !kept.ok()) {
    facts_.recovery_failed = true;
    return kept.error();
  }
  HF_FAULT_POINT(launched_.faults, "recover.before_load");
  record.plan_ns += journal_.phase_ns();
  return PhaseOutcome::ready;
}

// Grows the run. All ranks of the epoch call it, between two steps; the state is sealed.
Result<PhaseOutcome> Session::grow() {
  growth_.begin_pause();
  const int wanted = growth_.ranks_wanted();
  RecoveryRecord& record = journal_.begin_recovery(
      fmt::format("{} ranks want {} more", group_.world().communicator.size(), wanted), note_end(),
      group_.assignment().shape.active());
  record.wanted = wanted;
  enter_recovery(launched_.watch, step_, setup_.config);
  HF_FAULT_POINT(launched_.faults, "grow.begin");
  drop_epoch(nullptr);
  const Result<void> grown =
      launched_.membership->grow(wanted, setup_.config.elastic.recovery_timeout_ms, record.noticed);
  group_.connect();
  record.shrink_ns += launched_.env.monotonic_ns() - record.noticed_ns;
  if (group_.world().communicator.abandoned()) return grown.error();
  if (!grown.ok()) record.not_grown = grown.error().message;
  if (grown.ok()) growth_.note_joiners(record);
  HF_FAULT_POINT(launched_.faults, "grow.after_spawn");
  return PhaseOutcome::joiners_come;
}

// Begins the next epoch with the new ranks, if there are any; they call it, too.
Result<PhaseOutcome> Session::admit() {
  if (!journal_.recovery().has_value()) {  // this rank is new
    journal_.begin_recovery({}, launched_.started_ns, 0).noticed_us = launched_.env.wall_time_us();
    if (launched_.config.ok()) setup_.config = launched_.config->config;
    group_.connect();
  }
  RecoveryRecord& record = *journal_.recovery();
  journal_.phase_ns();
  enter_recovery(launched_.watch, step_, setup_.config);
  HF_TRY(const std::vector<RecoveryInventory> inventories,
         exchange_inventories(group_, setup_, record, step_, known_));
  known_ = merge_inventories(inventories);
  add_known(group_, known_, record);
  HF_TRY_VOID(leave_out_kernels());
  if (!known_.joined) {
    facts_.joins = true;
    enter(launched_.watch, Phase::recovery, step_,  // the GPU of a new rank may be full for a while
          rebuild_deadline_ms(setup_.config) + setup_.config.elastic.memory_timeout_ms);
    HF_TRY_VOID(growth_.take_place_on_host());
    HF_TRY_VOID(join_again(group_, known_, setup_));
    known_.joined = true;
  }
  HF_TRY_VOID(assign_coordinates(setup_.request));
  HF_TRY_VOID(make_device_again());
  HF_TRY_VOID(rollback_.complete(known_));
  HF_TRY(setup_.start, group_.source_of(group_.world(), journal_.claim_check())
                           .at_recovery(known_.shm_run_id, known_.lost_some));
  HF_FAULT_POINT(launched_.faults, "grow.before_load");
  record.plan_ns += journal_.phase_ns();
  return PhaseOutcome::ready;
}

// Goes on as after a death, without the new ranks, which leave. An operation that new ranks cannot do, or do
// differently, must not end the run.
Result<PhaseOutcome> Session::dismiss(const Error& fault) {
  print_message("new ranks cannot take part: {}", fault.message);
  std::fflush(nullptr);
  known_.joined = true;
  group_.world().communicator.abandon();
  return PhaseOutcome::group_fails;
}

// Ends this process by SIGKILL, and does not return. The others can go on without this rank, so it ends like
// a rank that died: an exit code other than 0 would end them, too.
Result<PhaseOutcome> Session::leave(const Error& fault) {
  journal_.flush();
  report_if_unfit(launched_, setup_, group_.world().communicator.abandoned(), fault);
  const bool lost_device = group_.leaving().has_value();
  if (launched_.watch != nullptr &&
      (lost_device || (setup_.device != nullptr && !setup_.device->status().ok())))
    launched_.watch->leaves(name_of(FaultCause::gpu_failed));
  if (lost_device) {
    LeavingRank leaving = *group_.leaving();
    leaving.step = step();
    end_without_device(leaving, fault);
  } else if (group_.is_joiner() && setup_.device == nullptr) {
    print_message("new ranks cannot take part: {}", fault.message);
  } else {
    print_message("rank {} leaves the run, which goes on without it: {}", launched_.communicator.rank(),
                  fault.message);
  }
  std::fflush(nullptr);
  launched_.env.kill_self();
  return PhaseOutcome::run_fails;  // in a test that survives it
}

void Session::record_end(const RunEnd& end) {
  constexpr std::int64_t report_timeout_ms = 600'000;
  const Waiter patient = group_.waiter().with_timeout(group_.waiter().timeout_ms() + report_timeout_ms);
  enter(launched_.watch, Phase::end, step(), patient.timeout_ms());
  Communicator& all = group_.world().communicator;
  Membership* membership = launched_.membership;
  // The others may go on without a rank that has given up the group alone: it ends by SIGKILL, before it records that
  // the run has ended. The last of those that give up records it for all of them.
  const bool all_agree = !all.abandoned() || end.code == ExitCode::done || end.code == ExitCode::saved;
  if (membership != nullptr && !all_agree) {
    journal_.flush();
    die_if_awaited(launched_.env, *membership, launched_.watch != nullptr, end.code, end.message);
    if (!membership->cut_off()) claim_for_the_dead(group_, known_, journal_);
  }
  journal_.end(end, step(), worker_.get());
  // The other ranks wait here, not in MPI's shutdown, which has a short deadline: a long log makes a report
  // slow.
  if (!all.abandoned())
    static_cast<void>(barrier(all, patient).ok());  // a peer that dies now changes nothing
}

RunEnd train_run(const TrainInputs& inputs) {
  Session session(inputs);
  const Result<ExitCode> outcome = session.run();
  RunEnd end;
  end.code = outcome.ok() ? *outcome : outcome.error().code;
  end.message = outcome.ok() ? sentence_of(end.code) : outcome.error().message;
  if (outcome.ok() && session.ends_for_another_start()) end.message = another_start_reason;
  session.record_end(end);
  return end;
}

}  // namespace holdfast::elastic
