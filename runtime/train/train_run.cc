#include "runtime/train/train_run.h"

#include <algorithm>
#include <optional>
#include <system_error>
#include <utility>

#include "parallel/agreement.h"
#include "runtime/config/document.h"
#include "runtime/core/units.h"
#include "runtime/train/device_choice.h"
#include "runtime/train/device_loss.h"
#include "runtime/train/epoch.h"
#include "runtime/train/exchange_choice.h"
#include "runtime/train/gemm_peak.h"
#include "runtime/train/host_watch.h"
#include "runtime/train/join.h"
#include "runtime/train/kernel_choice.h"
#include "runtime/train/rank_layout.h"
#include "runtime/train/recover.h"
#include "runtime/train/report.h"
#include "runtime/train/save.h"
#include "runtime/train/trainer.h"
#include "runtime/train/watch.h"

namespace holdfast {
namespace {

// One rank's run, step by step from nothing to a trained model; each member function is one phase.
class TrainRun {
 public:
  explicit TrainRun(const TrainInputs& inputs)
      : launched_(inputs), launched_ranks_(inputs.communicator.size()), phase_begin_ns_(inputs.started_ns) {
    world_.emplace(inputs);
  }

  Result<ExitCode> run() {
    Result<ExitCode> code = run_guarded([this] { return start(); });
    while (can_recover(code)) code = run_guarded([&] { return recover(code.error()); });
    return code;
  }

  // What status.json, the event log and the report say about the end. Only the writer of the run directory
  // speaks.
  void conclude(const RunEnd& end);

 private:
  template <typename Phase>
  Result<ExitCode> run_guarded(const Phase& phase);
  bool can_recover(const Result<ExitCode>& code);
  void leave_if_broken(const Error& error);

  void record_end(const RunPaths& paths, const RunEnd& end);
  Result<ExitCode> start();
  Result<void> join();
  Result<void> take_seats(const SeatingWish& wish);
  Result<void> take_lock();
  Result<ExitCode> run_epoch();
  Result<ExitCode> run_seat();
  void remove_old_snapshots(std::optional<std::uint64_t> kept_writer);
  Result<void> build_worker();
  Result<void> load_state();
  Result<bool> load_snapshot();
  Result<void> start_afresh();
  Result<void> open_log();
  Result<void> begin_log();
  Result<void> continue_log();
  Result<ExitCode> train();
  Result<ExitCode> say_finished();
  Result<double> peak_of_all_ranks();

  Result<ExitCode> recover(const Error& fault);
  void note_fault(const Error& fault);
  Result<void> regroup();
  void record_for_the_dead();
  std::string resumed_from() const {
    return start_.snapshot.has_value() ? "ram" : start_.checkpoint.empty() ? "start" : "disk";
  }

  // All ranks that are there, and those of them that have seats.
  const TrainInputs& world() const { return *world_; }
  const TrainInputs& seats() const { return epoch_->seats(); }
  void tell_watch_epoch();
  std::uint64_t step() const { return worker_ ? worker_->state().step : step_; }
  Result<void> agree(const Result<void>& mine) { return agree_among(seats(), mine); }
  Result<void> agree_among(const TrainInputs& group, const Result<void>& mine) {
    if (device_ != nullptr && device_->lost()) {
      end_without_device({group.env, group.communicator, config_.run.directory, step()},
                         device_->status().error());
    }
    return agree_on_outcome(group.communicator, waiter(), mine, group.env.host_name());
  }
  Waiter waiter() const;
  // Since it was last called, or the program started.
  std::int64_t phase_ns() {
    const std::int64_t begin_ns = std::exchange(phase_begin_ns_, launched_.env.monotonic_ns());
    return phase_begin_ns_ - begin_ns;
  }

  TrainInputs launched_;
  int launched_ranks_;
  std::int64_t phase_begin_ns_;
  Progress::StartupTimes times_;
  Config config_;
  std::optional<TrainInputs> world_;
  std::unique_ptr<Epoch> epoch_;
  bool first_ = false;  // the leader, which writes for all
  SeatingWish wish_;
  std::unique_ptr<FileLock> lock_;
  StartPoint start_;
  std::shared_ptr<DataSet> data_;
  std::unique_ptr<Device> device_;
  JoinedExchange exchange_;
  std::optional<HeldOutSet> held_out_;
  std::unique_ptr<Worker> worker_;
  std::unique_ptr<Progress> progress_;

  Standing standing_;
  std::uint64_t step_ = 0;                  // while there is no worker
  int seats_told_ = 0;                      // to the watchdog
  bool ends_here_ = false;                  // those that are left could not come together
  std::int64_t fault_ns_ = 0;               // when the last one was noticed
  std::optional<RecoveryRecord> recovery_;  // one is under way, until a step was made
};

// A thread that the system refuses arrives as an exception of the standard library; it is told as an error of
// this rank alone, and the peers learn of it by its leaving.
template <typename Phase>
Result<ExitCode> TrainRun::run_guarded(const Phase& phase) {
  try {
    return phase();
  } catch (const std::system_error& error) {
    const Error refused =
        fail(ExitCode::config,
             "rank {} (host {}): the system refused something the run needs ({}), most likely a thread "
             "or a write to "
             "the standard output; lower threads, raise the limit, or give it a place to write to",
             launched_.communicator.rank(), launched_.env.host_name(), error.what());
    leave_if_broken(refused);
    world().communicator.abandon();
    return refused;
  }
}

// The others can go on without this rank, so it goes as the dead do: a code other than 0 would end them, too.
void TrainRun::leave_if_broken(const Error& error) {
  const bool others_can =
      launched_.membership != nullptr && standing_.log_opened == true && world().communicator.size() > 1;
  if (!others_can) return;
  fmt::print(stderr, "holdfast: rank {} leaves the run, which goes on without it: {}\n",
             launched_.communicator.rank(), error.message);
  std::fflush(nullptr);
  launched_.env.kill_self();
}

bool TrainRun::can_recover(const Result<ExitCode>& code) {
  if (code.ok() || launched_.membership == nullptr || ends_here_) return false;
  if (!world().communicator.abandoned()) return false;
  if (device_ != nullptr && !device_->status().ok()) leave_if_broken(code.error());
  return true;
}

Waiter TrainRun::waiter() const {
  std::int64_t timeout_ms = config_.parallel.timeout_ms;
  if (recovery_.has_value()) timeout_ms = std::min(timeout_ms, config_.elastic.recovery_timeout_ms);
  return {launched_.env, timeout_ms, launched_.watch};
}

Result<ExitCode> TrainRun::start() {
  enter(launched_.watch, Phase::start_up, 0);
  HF_TRY_VOID(join());
  standing_.joined = true;
  times_.join_ns = phase_ns();
  if (start_.step >= static_cast<std::uint64_t>(config_.training.steps)) return say_finished();
  return run_epoch();
}

Result<void> TrainRun::join() {
  if (launched_.config.ok()) config_.parallel.timeout_ms = launched_.config->config.parallel.timeout_ms;
  HF_TRY(config_, join_config(world(), waiter()));
  HF_TRY_VOID(join_hosts(world(), waiter(), config_.watchdog));
  if (launched_.watch != nullptr) launched_.watch->run_directory(config_.run.directory);
  HF_TRY(data_, join_data(world(), waiter(), config_));
  HF_TRY_VOID(join_device_check(world(), waiter(), config_));
  HF_TRY_VOID(join_checkpoint_io(world(), waiter(), config_));
  lock_.reset();  // of a start in which somebody died
  enter(launched_.watch, Phase::load, 0, waiter().timeout_ms() + verify_timeout_ms);
  HF_TRY(start_, join_start(world(), waiter(), config_, lock_));
  enter(launched_.watch, Phase::start_up, 0);
  HF_TRY_VOID(join_snapshot(world(), waiter(), config_, start_));
  HF_TRY_VOID(
      adopt_stored_shape(launched_.env, start_, config_));  // "auto" goes on with the device that it was
  const bool says = world().communicator.rank() == 0;
  const std::string choice = resolve_device(launched_.env, config_, launched_.rank_on_host);
  if (says && !choice.empty()) fmt::print("{}\n", choice);
  HF_TRY(device_, join_device(world(), waiter(), config_));
  // What was asked for is one thing, who is left by now another.
  HF_TRY_VOID(resolve_with_data(config_, launched_ranks_, *data_));
  wish_ = seating_wish(config_, launched_ranks_);
  HF_TRY_VOID(take_seats({.data_most = wish_.data_most,
                          .data_least = recovery_.has_value() ? wish_.data_least : wish_.data_most,
                          .pipeline = wish_.pipeline,
                          .tensor = wish_.tensor}));
  HF_TRY(const std::vector<std::string> changes, compare_with_stored(launched_.env, start_, config_));
  HF_TRY(held_out_, join_held_out(world(), waiter(), config_, *data_));
  if (!says) return {};
  for (const std::string& note : start_.notes)
    fmt::print(stderr, "holdfast: checkpoint passed over: {}\n", note);
  for (const std::string& change : changes) fmt::print("resume: {}\n", change);
  const std::string device = device_->identity(precision_of(config_));
  if (!start_.device.empty() && start_.device != device) {
    fmt::print(
        "resume: made on \"{}\", now on \"{}\"  (numeric: the steps from here on may differ in their last "
        "bits)\n",
        start_.device, device);
  }
  return {};
}

// Where nobody may be missing the error is that of the layout: what to start instead.
Result<void> TrainRun::take_seats(const SeatingWish& wish) {
  HF_TRY(const std::vector<std::string> hosts,
         all_gather_text(world().communicator, waiter(), launched_.env.host_name()));
  Result<Seating> seating = plan_seating(wish, hosts);
  if (!seating.ok() && !recovery_.has_value()) {
    HF_TRY(const Mesh mesh, mesh_of(config_, hosts));
    seating = seating_of(mesh);
  }
  // Somebody has to record why the run ends.
  first_ =
      seating.ok() ? seating->seat_of(world().communicator.rank()) == 0 : world().communicator.rank() == 0;
  HF_TRY_VOID(take_lock());
  if (!seating.ok()) return seating.error();
  epoch_ = std::make_unique<Epoch>(world(), std::move(seating).value());
  tell_watch_epoch();
  if (recovery_.has_value()) {
    recovery_->seats_after = epoch_->seating().shape.seats();
    recovery_->spares_after = static_cast<int>(epoch_->seating().spares.size());
  }
  return {};
}

// Fewer ranks have more work each.
void TrainRun::tell_watch_epoch() {
  const int seats = epoch_->seating().shape.seats();
  const int before = std::exchange(seats_told_, seats);
  if (launched_.watch == nullptr || launched_.membership == nullptr) return;
  launched_.watch->epoch(launched_.membership->view().epoch,
                         before == 0 ? 1.0 : static_cast<double>(before) / seats,
                         static_cast<std::uint32_t>(launched_.membership->view().members.size()));
}

// The leader has the run directory.
Result<void> TrainRun::take_lock() {
  if (!first_) lock_.reset();
  Result<void> outcome;
  if (first_ && lock_ == nullptr) {
    Result<std::unique_ptr<FileLock>> lock = claim_run_directory(launched_.env, {config_.run.directory});
    outcome = outcome_of(lock);
    if (lock.ok()) lock_ = std::move(lock).value();
  }
  return agree_among(world(), outcome);
}

Result<ExitCode> TrainRun::run_epoch() {
  if (!epoch_->seated()) {
    enter(launched_.watch, Phase::spare, step());
    Result<ExitCode> end = epoch_->wait_for_end(waiter());
    if (end.ok()) remove_old_snapshots({});  // of those that died on this host
    return end;
  }
  Result<ExitCode> end = run_seat();
  // A spare that dies now changes nothing.
  if (!world().communicator.abandoned()) static_cast<void>(epoch_->tell_spares(waiter(), end).ok());
  return end;
}

Result<ExitCode> TrainRun::run_seat() {
  if (!standing_.log_opened.has_value()) standing_.log_opened = false;
  enter(launched_.watch, Phase::load, step());
  HF_TRY_VOID(build_worker());
  times_.worker_ns = phase_ns();
  HF_TRY_VOID(load_state());
  HF_TRY_VOID(agree(device_->status()));
  times_.state_ns = phase_ns();
  standing_.run_id = worker_->state().run_id;
  if (recovery_.has_value()) {
    recovery_->load_ns += times_.worker_ns + times_.state_ns;
    recovery_->resumed_step = step();
    recovery_->resumed_from = resumed_from();
    const bool from_ram = start_.snapshot.has_value();
    remove_old_snapshots(from_ram ? std::optional(start_.snapshot->writer) : std::nullopt);
  }
  HF_TRY_VOID(open_log());
  if (recovery_.has_value()) HF_FAULT_POINT(launched_.faults, "recover.before_resume");
  return train();
}

// Before anybody makes new ones, and after all have read: else every death would leave a set of slots until
// the next confirmation. What cannot be removed now goes then.
void TrainRun::remove_old_snapshots(std::optional<std::uint64_t> kept_writer) {
  if (standing_.run_id.empty()) return;
  static_cast<void>(remove_snapshots(launched_.env, digest_of(standing_.run_id), kept_writer).ok());
}

Result<void> TrainRun::build_worker() {
  HF_TRY(exchange_, join_exchange(seats(), waiter(), config_, *device_));
  const Mesh mesh(epoch_->seating().shape);
  HF_TRY(std::vector<int> buddies, join_buddies(seats(), waiter(), config_, mesh));
  Result<std::unique_ptr<Worker>> worker = Worker::create({.env = launched_.env,
                                                           .faults = launched_.faults,
                                                           .communicator = seats().communicator,
                                                           .device = *device_,
                                                           .config = config_,
                                                           .mesh = mesh,
                                                           .buddies = std::move(buddies),
                                                           .data = data_,
                                                           .ranks_on_host = launched_.ranks_on_host,
                                                           .nccl = exchange_.nccl.get(),
                                                           .gpu = exchange_.gpu,
                                                           .watch = launched_.watch});
  HF_TRY_VOID(agree(outcome_of(worker)));
  worker_ = std::move(worker).value();
  return {};
}

Result<void> TrainRun::load_state() {
  worker_->state().data_fingerprint = data_->fingerprint();
  while (start_.snapshot.has_value()) {
    HF_TRY(const bool loaded, load_snapshot());
    if (loaded) return {};
    if (recovery_.has_value() && !start_.snapshot.has_value()) {
      HF_TRY(start_, join_checkpoint_of_run(seats(), waiter(), config_, standing_.run_id));
    }
  }
  if (start_.checkpoint.empty()) return start_afresh();
  if (first_) fmt::print("resuming from {} (step {})\n", start_.checkpoint, start_.step);
  return restore_checkpoint(*worker_, start_.checkpoint);
}

Result<void> TrainRun::start_afresh() {
  // What an earlier run in this directory may have left in shared memory.
  if (!start_.run_id.empty())
    HF_TRY_VOID(agree(outcome_of(remove_snapshots(launched_.env, digest_of(start_.run_id)))));
  std::string run_id = standing_.run_id;  // it had begun, and begins again
  if (first_ && run_id.empty())
    run_id = fmt::format("{:016x}{:016x}", launched_.env.random_u64(), launched_.env.random_u64());
  HF_TRY(const std::vector<std::string> ids, all_gather_text(seats().communicator, waiter(), run_id));
  worker_->state().run_id = ids.front();
  if (config_.run.initialize_from.empty()) return initialize_weights(*worker_);
  Result<std::optional<FoundCheckpoint>> found = find_checkpoint(launched_.env, config_.run.initialize_from);
  Result<void> outcome;
  if (!found.ok()) outcome = found.error();
  if (found.ok() && !found->has_value()) {
    outcome = fail(ExitCode::checkpoint,
                   "run.initialize_from: {} holds no checkpoint; expected a run directory or a checkpoint "
                   "(holdfast import makes one of a Hugging Face folder or an llm.c model)",
                   config_.run.initialize_from);
  }
  HF_TRY_VOID(agree(outcome));
  return restore_weights(*worker_, (*found)->checkpoint.directory());
}

// False: it is not sound, and the one before it counts, if there is one.
Result<bool> TrainRun::load_snapshot() {
  if (first_) fmt::print("resuming from {}\n", name_of(start_));
  const Result<void> restored = restore_snapshot(*worker_, *start_.snapshot, start_.run_id);
  if (restored.ok()) return true;
  if (restored.error().code != ExitCode::checkpoint) return restored.error();
  if (first_) fmt::print(stderr, "holdfast: RAM snapshot passed over: {}\n", restored.error().message);
  start_.passed_over.push_back(*start_.snapshot);
  start_.snapshot.reset();
  HF_TRY_VOID(join_snapshot(seats(), waiter(), config_, start_));
  return false;
}

// The best of a few short rounds: other work on the machine only ever makes a peak look lower than it is, and
// every start waits for them.
Result<double> TrainRun::peak_of_all_ranks() {
  constexpr int rounds = 4;
  constexpr std::int64_t round_ns = 6'000'000;
  Result<GemmPeak> product = GemmPeak::make(launched_.env, *device_, worker_->spec().dtype);
  HF_TRY_VOID(agree(outcome_of(product)));
  double best = 0.0;
  std::vector<double> all(static_cast<std::size_t>(seats().communicator.size()));
  for (int round = 0; round < rounds; ++round) {
    HF_TRY_VOID(barrier(seats().communicator, waiter()));
    const double mine = product->rate(round_ns);
    HF_TRY_VOID(agree(device_->status()));
    HF_TRY_VOID(all_gather(seats().communicator, waiter(), std::as_bytes(std::span(&mine, 1)),
                           std::as_writable_bytes(std::span(all))));
    double sum = 0.0;
    for (const double peak : all) sum += peak;
    best = std::max(best, sum);
  }
  return best;
}

// Measured once: a rank does not get faster.
Result<void> TrainRun::open_log() {
  const double ranks = seats().communicator.size();
  const bool opened_before = standing_.log_opened == true;
  if (!(standing_.gemm_peak > 0.0)) {
    HF_TRY(const double peak, peak_of_all_ranks());
    standing_.gemm_peak = peak / ranks;
  }
  times_.gemm_peak_ns = phase_ns();
  progress_ = std::make_unique<Progress>(
      launched_.env, RunPaths{config_.run.directory},
      Progress::Setup{.steps = config_.training.steps,
                      .every_steps = config_.log.every_steps,
                      .flops_per_token = flops_per_token(worker_->spec(), config_.training.sequence_length),
                      .peak_flops = standing_.gemm_peak * ranks,
                      .tokens_per_step = worker_->tokens_per_step()},
      first_);
  Result<void> outcome;
  if (first_) outcome = opened_before ? progress_->open() : begin_log();
  if (first_ && outcome.ok() && recovery_.has_value()) outcome = continue_log();
  HF_TRY_VOID(agree(outcome));
  standing_.log_opened = true;
  return {};
}

// Whoever left may have recorded it as the run's end.
Result<void> TrainRun::continue_log() {
  const RunPaths paths{config_.run.directory};
  if (read_status(launched_.env, paths).state != "running") {
    HF_TRY_VOID(write_status(launched_.env, paths,
                             {.state = "running", .step = step(), .exit_code = 0, .reason = {}}));
  }
  return progress_->recovering(*recovery_);
}

Result<void> TrainRun::begin_log() {
  const RunPaths paths{config_.run.directory};
  HF_TRY_VOID(launched_.env.replace_text(paths.config(), dump_config(config_, launched_.config->origin)));
  HF_TRY_VOID(launched_.env.replace_text(paths.run_id(), worker_->state().run_id));
  HF_TRY_VOID(progress_->open());
  HF_TRY_VOID(
      write_status(launched_.env, paths, {.state = "running", .step = step(), .exit_code = 0, .reason = {}}));
  const std::string from = resumed_from();
  HF_TRY_VOID(progress_->started(parameter_count(worker_->spec()), world().communicator.size(),
                                 worker_->state(), from == "start" ? "" : from, times_, *device_,
                                 exchange_.choice.description));
  const int ranks = seats().communicator.size();
  const std::int64_t stages = config_.parallel.pipeline;
  const std::size_t spares = epoch_->seating().spares.size();
  progress_->say(
      fmt::format("{} parameters, {} lanes on {} ranks x {} threads{}{} ({}), {} tokens per step, {} {}",
                  parameter_count(worker_->spec()), config_.parallel.lanes, ranks, device_->threads(),
                  stages > 1 ? fmt::format(" in {} stages", stages) : "",
                  spares == 0 ? "" : fmt::format(" and {} spare{}", spares, spares == 1 ? "" : "s"),
                  device_->description(), worker_->tokens_per_step(),
                  format_bytes(worker_->memory_plan().total_bytes() + device_->workspace_bytes()),
                  stages > 1 ? "on rank 0" : "per rank"));
  if (!device_->host_sees_memory() && ranks > 1) {
    progress_->say("exchange: " + exchange_.choice.description);
  }
  const std::string whole = why_gradients_are_whole(config_, worker_->mesh().shape().data);
  if (!whole.empty()) progress_->say(whole);
  for (const std::string& line : kernel_summary(device_->kernels())) progress_->say("kernels: " + line);
  return {};
}

Result<ExitCode> TrainRun::train() {
  CheckpointStore store(launched_.env, launched_.faults, config_.run.directory, start_.writer);
  worker_->start_loader();
  store.keep_for_good(config_.checkpoint.keep_every_steps);
  Trainer trainer({.worker = *worker_,
                   .store = store,
                   .progress = *progress_,
                   .stop = launched_.stop,
                   .held_out = held_out_,
                   .writer = start_.writer,
                   .started_ns = launched_.started_ns});
  Result<ExitCode> end = trainer.run();
  if (!end.ok()) {  // the trainer's own end may take a while
    fault_ns_ = launched_.env.monotonic_ns();
    enter(launched_.watch, Phase::recovery, step(), regroup_deadline_ms(config_));
  }
  return end;
}

// Also of one whose last start died right behind its last save.
Result<ExitCode> TrainRun::say_finished() {
  if (!start_.run_id.empty())
    HF_TRY_VOID(agree_among(world(), outcome_of(remove_snapshots(launched_.env, digest_of(start_.run_id)))));
  step_ = start_.step;
  if (first_) {
    fmt::print("the run in {} is finished: step {} of {}\n", config_.run.directory, step(),
               config_.training.steps);
  }
  return ExitCode::done;
}

// How far this rank had come is noted before anything goes.
void TrainRun::note_fault(const Error& fault) {
  step_ = step();
  // The last recovery is over when a step was made since; a spare takes that for granted.
  const bool was_spare = epoch_ != nullptr && !epoch_->seated();
  if (was_spare || (worker_ != nullptr && recovery_.has_value() && step_ > recovery_->resumed_step))
    recovery_.reset();
  if (!recovery_.has_value()) {
    recovery_.emplace();
    const std::int64_t now_ns = launched_.env.monotonic_ns();
    recovery_->noticed_ns = fault_ns_ == 0 ? now_ns : fault_ns_;
    recovery_->noticed_us = launched_.env.wall_time_us() - (now_ns - recovery_->noticed_ns) / 1000;
    recovery_->noticed = fault.message;
    recovery_->before = launched_.membership->view();
    recovery_->seats_before = epoch_ == nullptr ? launched_ranks_ : epoch_->seating().shape.seats();
  }
  ++recovery_->faults;
  fault_ns_ = 0;
}

// The threads of the trainer have ended; what is left of the epoch goes.
Result<void> TrainRun::regroup() {
  const std::int64_t begin_ns = launched_.env.monotonic_ns();
  const Result<void> regrouped =
      launched_.membership->recover(config_.elastic.recovery_timeout_ms, recovery_->noticed);
  worker_.reset();
  progress_.reset();
  epoch_.reset();
  world_.emplace(with_communicator(launched_, launched_.membership->communicator()));
  recovery_->shrink_ns += launched_.env.monotonic_ns() - begin_ns;
  return regrouped;
}

// The run ends, and who would have said so may be gone.
void TrainRun::record_for_the_dead() {
  Communicator& left = world().communicator;
  if (left.abandoned() || left.rank() != 0 || lock_ != nullptr || !standing_.joined) return;
  Result<std::unique_ptr<FileLock>> lock = claim_run_directory(launched_.env, {config_.run.directory});
  if (lock.ok()) lock_ = std::move(lock).value();
}

Result<ExitCode> TrainRun::recover(const Error& fault) {
  note_fault(fault);
  enter(launched_.watch, Phase::recovery, step_, regroup_deadline_ms(config_));
  HF_FAULT_POINT(launched_.faults, "recover.begin");
  if (Result<void> regrouped = regroup(); !regrouped.ok()) {
    record_for_the_dead();
    ends_here_ = true;
    // Another start may have the run directory by now.
    if (launched_.membership->lost_quorum()) lock_.reset();
    if (launched_.membership->cut_off()) return regrouped.error();
    // Cut off from all others: what was noticed first is what there is to say.
    return world().communicator.abandoned() ? fault : regrouped.error();
  }
  HF_FAULT_POINT(launched_.faults, "recover.after_shrink");
  phase_ns();
  enter(launched_.watch, Phase::recovery, step_, regroup_deadline_ms(config_));
  standing_.step = step_;
  standing_.verdict = launched_.watch == nullptr ? "" : launched_.watch->take_verdict();
  HF_TRY(const Standing all, join_standing(world(), waiter(), standing_));
  recovery_->step_before = std::max(recovery_->step_before, all.step);
  const MembershipView& now = launched_.membership->view();
  recovery_->ranks_after = static_cast<int>(now.members.size());
  const std::vector<Member> lost = members_lost(recovery_->before, now);
  recovery_->lost = lost.empty() ? "" : name_members(lost);
  if (!all.verdict.empty()) recovery_->verdict = all.verdict;
  standing_ = all;
  if (!all.joined) return start();
  HF_TRY_VOID(take_seats(wish_));
  HF_TRY(start_, join_recovery_point(world(), waiter(), config_, all.run_id));
  HF_FAULT_POINT(launched_.faults, "recover.before_load");
  recovery_->plan_ns += phase_ns();
  return run_epoch();
}

void TrainRun::conclude(const RunEnd& end) {
  constexpr std::int64_t report_timeout_ms = 600'000;
  enter(launched_.watch, Phase::end, step(), waiter().timeout_ms() + report_timeout_ms);
  const RunPaths paths{config_.run.directory};
  const bool begun = progress_ != nullptr;
  if (lock_ != nullptr && (begun || may_record_failure(launched_.env, paths))) record_end(paths, end);
  // The others wait here, not in MPI's end, which has a short deadline: a long log makes a report slow.
  if (world().communicator.abandoned()) return;
  const Waiter patient = waiter().with_timeout(waiter().timeout_ms() + report_timeout_ms);
  static_cast<void>(barrier(world().communicator, patient).ok());  // a peer that dies now changes nothing
}

void TrainRun::record_end(const RunPaths& paths, const RunEnd& end) {
  RunStatus status{
      .state = "failed", .step = step(), .exit_code = static_cast<int>(end.code), .reason = end.message};
  if (end.code == ExitCode::done) status.state = "finished";
  if (end.code == ExitCode::saved) status.state = "saved";
  // The run itself has ended; what cannot be told is told on stderr.
  const auto complain = [](const Result<void>& result) {
    if (!result.ok()) fmt::print(stderr, "holdfast: {}\n", result.error().message);
  };
  complain(write_status(launched_.env, paths, status));
  if (progress_ != nullptr && worker_ != nullptr)
    complain(progress_->finished(status, worker_->reduction().counts(), worker_->parameter_gather().counts(),
                                 worker_->traffic()));
  if (progress_ == nullptr && end.code != ExitCode::done) return;
  const Result<std::string> faults = write_report(launched_.env, paths);
  complain(outcome_of(faults));
  if (progress_ != nullptr && faults.ok() && !faults->empty()) progress_->say(*faults);
}

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
  run.conclude(end);
  return end;
}

}  // namespace holdfast
