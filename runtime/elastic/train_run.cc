#include "runtime/elastic/train_run.h"

#include <algorithm>
#include <set>
#include <system_error>
#include <utility>

#include "parallel/comm/gather.h"
#include "runtime/core/check.h"
#include "runtime/elastic/generation.h"
#include "runtime/elastic/join.h"
#include "runtime/elastic/train_run_internal.h"
#include "runtime/os/console.h"
#include "runtime/rank/device_choice.h"
#include "runtime/rank/watch.h"
#include "runtime/run/run_directory.h"
#include "runtime/run/run_layout.h"
#include "runtime/save/save.h"

namespace holdfast::elastic {

// Runs a phase. If the system refuses a thread of the device, the standard library throws an exception; it is
// converted into an error of this rank alone.
Result<PhaseOutcome> TrainRun::run_guarded(SessionPhase phase, const Error& fault) {
  recovery_.system_refused = false;
  recovery_.joins = false;
  try {
    return run_phase(phase, fault);
  } catch (const std::system_error& error) {
    return refused(error.what());
  }
}

// Returns the error of this rank alone, of which the peers learn because this rank leaves.
Error TrainRun::refused(const std::string& what) {
  Error error =
      fail(ExitCode::config,
           "rank {} (host {}): the system refused something the run needs ({}), most likely a thread; "
           "lower threads, or raise the limit",
           launched_.communicator.rank(), launched_.env.host_name(), what);
  recovery_.system_refused = true;
  if (!others_can_go_on()) group_.world().communicator.abandon();
  return error;
}

Result<PhaseOutcome> TrainRun::run_phase(SessionPhase phase, const Error& fault) {
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
      dismiss_joiners(fault);
      return PhaseOutcome::group_fails;
    case SessionPhase::shrink:
      return shrink_to_memory();
    case SessionPhase::roll_back:
      return roll_back();
    case SessionPhase::leave:
      leave_run(fault);
      break;
    case SessionPhase::end:
      break;
  }
  return PhaseOutcome::run_fails;
}

Result<ExitCode> TrainRun::run() {
  SessionPhase phase = group_.is_joiner() ? SessionPhase::admit : SessionPhase::start;
  Error fault;  // the newest
  bool has_finished = false;
  while (phase != SessionPhase::end) {
    const Result<PhaseOutcome> ended = run_guarded(phase, fault);
    if (!ended.ok()) {
      fault = ended.error();
      follow_unfit_peers(fault);
    }
    const PhaseOutcome outcome = ended.ok() ? *ended : outcome_of_fault(fault_facts(fault));
    has_finished = outcome == PhaseOutcome::finished;
    const std::optional<SessionPhase> next = next_phase(phase, outcome);
    HF_CHECK(next.has_value(), "phase {} of a session cannot end with outcome {}", static_cast<int>(phase),
             static_cast<int>(outcome));
    phase = *next;
  }
  if (has_finished) return exit_code_;
  report_if_unfit(fault);
  return error_of_run(fault);
}

// Has this rank, which is fit, go on without those that are not: they leave, as ranks that die.
void TrainRun::follow_unfit_peers(const Error& fault) {
  if (fault.reach == Reach::peers && launched_.membership != nullptr && !recovery_.joins)
    group_.world().communicator.abandon();
}

// Returns the error that the run ends with. What is unfit on some hosts, or now, is no fault of the run's own inputs:
// another start, on other hosts or later, may go on.
Error TrainRun::error_of_run(const Error& fault) const {
  const bool is_own = fault.reach == Reach::run || (fault.reach == Reach::everywhere && !setup_.has_begun &&
                                                    recovery_.inventory.log_opened != true);
  return is_own ? fault : with_code(ExitCode::communication, fault);
}

Result<PhaseOutcome> TrainRun::start() {
  enter(launched_.watch, Phase::start_up, 0);
  if (launched_.membership != nullptr && count_hosts(launched_.membership->view()) > 1)
    growth_.on_several_hosts = true;
  HF_TRY_VOID(prepare(group_.world(),
                      {.mode = PrepareMode::start,
                       .recovers = journal_.recovery().has_value(),
                       .ranks = recovery_.inventory.launched_ranks},
                      setup_));
  const AssignmentRequest& request = setup_.request;
  HF_TRY_VOID(
      assign_coordinates({.data_max = request.data_max,
                          .data_min = journal_.recovery().has_value() ? request.data_min : request.data_max,
                          .pipeline = request.pipeline,
                          .tensor = request.tensor}));
  name_places();
  if (group_.world().communicator.rank() == 0) print_start();
  recovery_.inventory.joined = true;
  journal_.startup().join_ns = journal_.phase_ns();
  if (setup_.start.step >= static_cast<std::uint64_t>(setup_.config.training.steps)) return say_finished();
  return PhaseOutcome::ready;
}

void TrainRun::print_start() const {
  const StartPoint& start = setup_.start;
  if (!start.copy_of.empty()) {
    print_line("{} is a copy of {}, which is still there: RAM snapshots belong to that one",
               setup_.config.run.directory, start.copy_of);
  }
  if (!start.unusable.empty()) print_message("what is in RAM counts alone: {}", start.unusable);
  for (const std::string& note : start.notes) print_message("checkpoint skipped: {}", note);
  for (const std::string& change : setup_.changes.lines) print_line("resume: {}", change);
  const std::string device = setup_.device->identity(precision_of(setup_.config));
  if (!start.device.empty() && start.device != device) {
    print_line(
        "resume: made on \"{}\", now on \"{}\"  (numeric: the steps from here on may differ in their last "
        "bits)",
        start.device, device);
  }
}

// Assigns the coordinates. At a start, when no rank may be missing, the error is that of the layout, which
// says what to start instead.
Result<void> TrainRun::assign_coordinates(const AssignmentRequest& request) {
  HF_TRY(const std::vector<std::string> hosts,
         all_gather_text(group_.world().communicator, group_.waiter(), launched_.env.host_id()));
  Result<RankAssignment> assignment = assign_ranks(request, hosts);
  if (!assignment.ok() && !journal_.recovery().has_value()) {
    HF_TRY(const Mesh mesh, mesh_of(setup_.config, hosts));
    assignment = assignment_of(mesh);
  }
  return begin_epoch(std::move(assignment));
}

// Begins an epoch with an assignment. `assignment`: an error if there are too few ranks for one; then this only
// takes the lock, so that the end of the run is recorded, and returns that error.
Result<void> TrainRun::begin_epoch(Result<RankAssignment> assignment) {
  HF_TRY_VOID(group_.choose_writers(assignment));
  HF_TRY_VOID(journal_.hand_over_claim());
  if (!assignment.ok()) return assignment.error();
  group_.begin_epoch(std::move(assignment).value());
  if (journal_.recovery().has_value()) {
    journal_.recovery()->active_after = group_.assignment().shape.active();
    journal_.recovery()->spares_after = static_cast<int>(group_.assignment().spares.size());
  }
  return {};
}

Result<PhaseOutcome> TrainRun::run_epoch() {
  const bool is_active = group_.epoch()->is_active();
  if (!is_active) {
    enter(launched_.watch, Phase::spare, step());
    memory_.kept.release();  // ranks that compute may need it
    memory_.slots.forget();
  }
  const Result<EpochEnd> end = is_active ? run_active() : group_.epoch()->wait_for_end(group_.waiter());
  if (!end.ok()) follow_unfit_peers(end.error());
  if (group_.leaving().has_value()) return end.error();
  // A spare that dies now changes nothing.
  if (is_active && !group_.world().communicator.abandoned())
    static_cast<void>(group_.epoch()->inform_spares(group_.waiter(), end).ok());
  if (!end.ok()) return end.error();
  if (end->grows) return PhaseOutcome::pauses;
  if (end->shrinks) return PhaseOutcome::lacks_memory;
  if (end->rolls_back) return PhaseOutcome::rolls_back;
  if (!is_active) remove_old_snapshots({});  // of ranks that died on this host
  exit_code_ = end->code;
  return PhaseOutcome::finished;
}

// Goes on with one copy of the model less, which takes less memory of the hosts; the ranks that lose their
// coordinates become spares.
Result<PhaseOutcome> TrainRun::shrink_to_memory() {
  setup_.request.data_max = group_.assignment().shape.data - 1;
  worker_.reset();
  group_.end_epoch();
  HF_TRY_VOID(assign_coordinates(setup_.request));
  return PhaseOutcome::ready;
}

Result<EpochEnd> TrainRun::run_active() {
  if (!recovery_.inventory.log_opened.has_value()) recovery_.inventory.log_opened = false;
  enter(launched_.watch, Phase::load, step());
  if (launched_.watch != nullptr) setup_.device->count_ops_in(launched_.watch->device_ops());
  if (const Result<void> built = build_worker(); !built.ok()) {
    const int copies = group_.assignment().shape.data;
    const bool shrinks = !group_.leaving().has_value() && memory_.decision.lacks &&
                         !group_.active().communicator.abandoned() && copies > setup_.request.data_min;
    if (!shrinks) return built.error();
    if (group_.leads())
      print_message("{} of {} copies of the model go on: {}", copies - 1, copies, built.error().message);
    return EpochEnd{.shrinks = true};
  }
  journal_.startup().worker_ns = journal_.phase_ns();
  HF_TRY_VOID(load_state());
  HF_TRY_VOID(group_.agree(setup_.device->status()));
  HF_TRY_VOID(enter_generation());
  take_jump(worker_->state());
  journal_.startup().state_ns = journal_.phase_ns();
  worker_->state().shm_run_id = recovery_.inventory.shm_run_id;
  if (journal_.recovery().has_value()) {
    journal_.recovery()->load_ns += journal_.startup().worker_ns + journal_.startup().state_ns;
    journal_.recovery()->resumed_step = step();
    journal_.recovery()->resumed_from = name_of(source_of(setup_.start));
  }
  // New slots are made from the old ones (SlotPool); if there will be none, the old ones only take memory.
  if (memory_.decision.room.tiers == SnapshotTiers::none) {
    memory_.slots.forget();
    remove_old_snapshots(setup_.start.snapshot);
  }
  HF_TRY_VOID(journal_.open(*worker_, recovery_.inventory, transport_.choice));
  if (journal_.recovery().has_value()) HF_FAULT_POINT(launched_.faults, "recover.before_resume");
  return train();
}

// Removes old snapshots; called after all ranks have read. A snapshot that cannot be removed now is removed
// later; one copy of each part of `resumed` stays.
void TrainRun::remove_old_snapshots(const std::optional<SnapshotStep>& resumed) {
  if (recovery_.inventory.shm_run_id.empty()) return;
  static_cast<void>(
      remove_unneeded_snapshots(launched_.env, digest_of(recovery_.inventory.shm_run_id), resumed).ok());
}

// Returns the terms of the agreement on memory. A start that finds snapshots of the run had the tiers that
// made them; a recovery knows its tiers. If memory was lacking with more ranks, the wait is over.
MemoryTerms TrainRun::memory_terms() {
  const std::string& id =
      recovery_.inventory.shm_run_id.empty() ? setup_.start.shm_run_id : recovery_.inventory.shm_run_id;
  const bool is_launched_layout = !journal_.recovery().has_value() && !memory_.decision.lacks &&
                                  group_.world().communicator.size() == recovery_.inventory.launched_ranks;
  return {.timeout_ms = memory_.decision.lacks ? 0 : setup_.config.elastic.memory_timeout_ms,
          .had = setup_.start.snapshot.has_value() ? SnapshotTiers::all : memory_.decision.room.tiers,
          .has_all_ranks = is_launched_layout,
          .run = id.empty() ? std::nullopt : std::optional(digest_of(id)),
          .resumed = setup_.start.snapshot,
          .slots = &memory_.slots};
}

Result<void> TrainRun::build_worker() {
  HF_TRY(transport_, join_transport(group_.active(), group_.waiter(), setup_.config, *setup_.device));
  const Mesh mesh(group_.assignment().shape);
  HF_TRY(const std::vector<std::string> hosts,
         all_gather_text(group_.active().communicator, group_.waiter(), launched_.env.host_id()));
  const auto ranks_on_host = static_cast<int>(std::ranges::count(hosts, launched_.env.host_id()));
  HF_TRY(JoinedBuddies buddies, join_buddies(group_.active(), group_.waiter(), setup_.config, mesh));
  saves_.survives_host = buddies.all_cross_hosts;
  const std::uint64_t epoch = launched_.membership == nullptr ? 0 : launched_.membership->view().epoch;
  const std::string device = hardware_name(launched_.env, setup_.config, launched_.place);
  Result<std::unique_ptr<Worker>> worker = Worker::create({.env = launched_.env,
                                                           .faults = launched_.faults,
                                                           .communicator = group_.active().communicator,
                                                           .device = *setup_.device,
                                                           .config = setup_.config,
                                                           .mesh = mesh,
                                                           .buddies = std::move(buddies.of_rank),
                                                           .data = setup_.data,
                                                           .ranks_on_host = ranks_on_host,
                                                           .nccl = transport_.nccl.get(),
                                                           .gpu = transport_.gpu,
                                                           .epoch = epoch,
                                                           .watch = launched_.watch,
                                                           .ledger = journal_.samples(),
                                                           .memory = memory_terms(),
                                                           .memory_decision = &memory_.decision,
                                                           .kept = &memory_.kept,
                                                           .slots = &memory_.slots,
                                                           .secret = setup_.secret,
                                                           .sound_step = &recovery_.sound_step,
                                                           .hardware = &journal_.hardware(),
                                                           .hardware_name = device});
  // A rank may have waited for memory that a process which died still held.
  const Result<void> agreed = group_.agree(
      outcome_of(worker),
      group_.waiter().with_timeout(group_.waiter().timeout_ms() + setup_.config.elastic.memory_timeout_ms));
  group_.keep_from_driver(worker);
  HF_TRY_VOID(agreed);
  worker_ = std::move(worker).value();
  return show_slow_paths();
}

// Shows each sentence once, whichever ranks it is about, and only at the first start: ranks that come and go
// do not change it.
Result<void> TrainRun::show_slow_paths() {
  if (setup_.config.device == "cpu" || journal_.recovery().has_value()) return {};
  HF_TRY(const std::vector<std::vector<std::string>> all,
         gather(group_.active().communicator, group_.waiter(), setup_.device->slow_paths()));
  std::set<std::string> reported;
  for (const std::vector<std::string>& sentences : all) {
    for (const std::string& sentence : sentences)
      if (group_.leads() && reported.insert(sentence).second) print_message("{}", sentence);
  }
  return {};
}

Result<EpochEnd> TrainRun::train() {
  steps_ = {};
  drop_copies();
  const std::optional<ParentCheckpoint> on_all_hosts =
      saves_.store.has_value() ? saves_.store->on_all_hosts() : std::optional<ParentCheckpoint>();
  saves_.store.emplace(launched_.env, launched_.faults, setup_.config.run.directory, setup_.start.writer);
  if (on_all_hosts.has_value()) saves_.store->all_hosts_have(*on_all_hosts);
  if (setup_.claim != nullptr)
    saves_.store->fence({.epoch = setup_.claim->epoch(), .check = setup_.claim->fence()});
  HF_TRY_VOID(make_tier());
  begin_to_prove();
  if (const Result<void> begun = worker_->start_loader(); !begun.ok()) return refused(begun.error().message);
  saves_.store->keep_for_good(setup_.config.checkpoint.keep_every_steps);
  std::optional<Growth> growth = plan_growth();
  std::unique_ptr<SaveRequests> requests;
  if (group_.writes()) {
    Result<std::unique_ptr<SaveRequests>> begun =
        SaveRequests::begin(launched_.env, RunPaths{setup_.config.run.directory});
    if (!begun.ok()) return refused(begun.error().message);
    requests = std::move(begun).value();
  }
  Trainer trainer({.worker = *worker_,
                   .store = *saves_.store,
                   .progress = *journal_.progress(),
                   .stop = launched_.stop,
                   .held_out = setup_.held_out,
                   .cadence = saves_.cadence,
                   .tier = saves_.tier,
                   .requests = requests.get(),
                   .claim = setup_.claim.get(),
                   .survives_host = saves_.survives_host,
                   .writer = setup_.start.writer,
                   .started_ns = launched_.started_ns,
                   .resumed = setup_.start.snapshot,
                   .failures = journal_.failures(),
                   .saves_first = std::exchange(saves_.saves_first, false),
                   .growth = growth.has_value() ? &*growth : nullptr});
  steps_ = trainer.run();
  if (std::optional<StepsVerdict> verdict = std::move(steps_.verdict))
    follow_verdict(trainer, *std::move(verdict));
  if (steps_.how == StepsEnd::How::fault) {
    recovery_.inventory.kept_step = steps_.saves.kept_step.value_or(0);
    enter_recovery(launched_.watch, step(), setup_.config);
    if (!steps_.goes_back_together || group_.active().communicator.abandoned()) return steps_.error;
    return EpochEnd{.rolls_back = true};
  }
  const bool is_saved = steps_.how == StepsEnd::How::saved || steps_.how == StepsEnd::How::sealed;
  return EpochEnd{.code = is_saved ? ExitCode::saved : ExitCode::done,
                  .grows = steps_.how == StepsEnd::How::paused};
}

// Ends a run that is finished, which may be one whose last start died right after its last save.
Result<PhaseOutcome> TrainRun::say_finished() {
  if (!setup_.start.shm_run_id.empty())
    HF_TRY_VOID(group_.agree_among_all(
        outcome_of(remove_snapshots(launched_.env, digest_of(setup_.start.shm_run_id))), group_.waiter()));
  recovery_.step = setup_.start.step;
  HF_TRY_VOID(send_last());
  if (group_.leads()) {
    print_line("the run in {} is finished: step {} of {}", setup_.config.run.directory, step(),
               setup_.config.training.steps);
  }
  exit_code_ = ExitCode::done;
  return PhaseOutcome::finished;
}

void TrainRun::write_final_status(const RunEnd& end) {
  constexpr std::int64_t report_timeout_ms = 600'000;
  const Waiter patient = group_.waiter().with_timeout(group_.waiter().timeout_ms() + report_timeout_ms);
  enter(launched_.watch, Phase::end, step(), patient.timeout_ms());
  leave_if_awaited(end);
  journal_.end(end, step(), worker_.get());
  // The other ranks wait here, not in MPI's shutdown, which has a short deadline: a long log makes a report
  // slow.
  if (group_.world().communicator.abandoned()) return;
  static_cast<void>(
      barrier(group_.world().communicator, patient).ok());  // a peer that dies now changes nothing
}

namespace {

std::string sentence_of(ExitCode code) {
  return code == ExitCode::saved ? "saved and stopped on request; start it again to go on"
                                 : "all steps are done";
}

}  // namespace

RunEnd train_run(const TrainInputs& inputs) {
  TrainRun run(inputs);
  const Result<ExitCode> outcome = run.run();
  RunEnd end;
  end.code = outcome.ok() ? *outcome : outcome.error().code;
  end.message = outcome.ok() ? sentence_of(end.code) : outcome.error().message;
  if (outcome.ok() && run.ends_for_another_start()) end.message = another_start_reason;
  run.write_final_status(end);
  return end;
}

}  // namespace holdfast::elastic
