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
#include "runtime/train/exchange_choice.h"
#include "runtime/train/gemm_peak.h"
#include "runtime/train/join.h"
#include "runtime/train/kernel_choice.h"
#include "runtime/train/report.h"
#include "runtime/train/save.h"
#include "runtime/train/trainer.h"

namespace holdfast {
namespace {

// One rank's run, step by step from nothing to a trained model; each member function is one phase.
class TrainRun {
 public:
  explicit TrainRun(const TrainInputs& inputs)
      : inputs_(inputs), first_(inputs.communicator.rank() == 0), phase_begin_ns_(inputs.started_ns) {}

  // A thread that the system refuses arrives as an exception of the standard library; it is told as an error
  // of this rank alone, and the peers learn of it by its leaving.
  Result<ExitCode> run_guarded() {
    try {
      return run();
    } catch (const std::system_error& error) {
      inputs_.communicator.abandon();
      return fail(ExitCode::config,
                  "rank {} (host {}): the system refused something the run needs ({}), most likely a thread "
                  "or a write to "
                  "the standard output; lower threads, raise the limit, or give it a place to write to",
                  inputs_.communicator.rank(), inputs_.env.host_name(), error.what());
    }
  }

  Result<ExitCode> run() {
    HF_TRY_VOID(join());
    times_.join_ns = phase_ns();
    if (start_.step >= static_cast<std::uint64_t>(config_.training.steps)) return say_finished();
    HF_TRY_VOID(build_worker());
    times_.worker_ns = phase_ns();
    HF_TRY_VOID(load_state());
    HF_TRY_VOID(agree(device_->status()));
    times_.state_ns = phase_ns();
    HF_TRY_VOID(open_log());
    return train();
  }

  // What status.json, the event log and the report say about the end. Only the writer of the run directory
  // speaks.
  void conclude(const RunEnd& end);

 private:
  void record_end(const RunPaths& paths, const RunEnd& end);
  Result<void> join();
  Result<void> build_worker();
  Result<void> load_state();
  Result<bool> load_snapshot();
  Result<void> open_log();
  Result<ExitCode> train();
  Result<ExitCode> say_finished();
  Result<double> peak_of_all_ranks();
  std::uint64_t step() const { return worker_ ? worker_->state().step : start_.step; }
  Result<void> agree(const Result<void>& mine) {
    if (device_ != nullptr && device_->lost()) {
      end_without_device({inputs_.env, inputs_.communicator, config_.run.directory, step()},
                         device_->status().error());
    }
    return agree_on_outcome(inputs_.communicator, waiter(), mine, inputs_.env.host_name());
  }
  Waiter waiter() const { return {inputs_.env, config_.parallel.timeout_ms}; }
  // Since it was last called, or the program started.
  std::int64_t phase_ns() {
    const std::int64_t begin_ns = std::exchange(phase_begin_ns_, inputs_.env.monotonic_ns());
    return phase_begin_ns_ - begin_ns;
  }

  TrainInputs inputs_;
  bool first_;
  std::int64_t phase_begin_ns_;
  Progress::StartupTimes times_;
  Config config_;
  std::unique_ptr<FileLock> lock_;
  StartPoint start_;
  std::shared_ptr<DataSet> data_;
  std::unique_ptr<Device> device_;
  std::optional<Mesh> mesh_;
  JoinedExchange exchange_;
  std::optional<HeldOutSet> held_out_;
  std::unique_ptr<Worker> worker_;
  std::unique_ptr<Progress> progress_;
};

Result<void> TrainRun::join() {
  if (inputs_.config.ok()) config_.parallel.timeout_ms = inputs_.config->config.parallel.timeout_ms;
  HF_TRY(config_, join_config(inputs_, waiter()));
  HF_TRY(data_, join_data(inputs_, waiter(), config_));
  HF_TRY_VOID(join_device_check(inputs_, waiter(), config_));
  HF_TRY_VOID(join_checkpoint_io(inputs_, waiter(), config_));
  HF_TRY(start_, join_start(inputs_, waiter(), config_, lock_));
  HF_TRY_VOID(join_snapshot(inputs_, waiter(), config_, start_));
  HF_TRY_VOID(
      adopt_stored_shape(inputs_.env, start_, config_));  // "auto" goes on with the device that it was
  const std::string choice = resolve_device(inputs_.env, config_, inputs_.rank_on_host);
  if (first_ && !choice.empty()) fmt::print("{}\n", choice);
  HF_TRY(device_, join_device(inputs_, waiter(), config_));
  HF_TRY_VOID(resolve_with_data(config_, inputs_.communicator.size(), *data_));
  HF_TRY(mesh_, join_mesh(inputs_, waiter(), config_));
  HF_TRY(const std::vector<std::string> changes, compare_with_stored(inputs_.env, start_, config_));
  if (!first_) return {};
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

Result<void> TrainRun::build_worker() {
  HF_TRY(held_out_, join_held_out(inputs_, waiter(), config_, *data_));
  HF_TRY(exchange_, join_exchange(inputs_, waiter(), config_, *device_));
  Result<std::unique_ptr<Worker>> worker = Worker::create({.env = inputs_.env,
                                                           .faults = inputs_.faults,
                                                           .communicator = inputs_.communicator,
                                                           .device = *device_,
                                                           .config = config_,
                                                           .mesh = *mesh_,
                                                           .data = data_,
                                                           .ranks_on_host = inputs_.ranks_on_host,
                                                           .nccl = exchange_.nccl.get(),
                                                           .gpu = exchange_.gpu});
  HF_TRY_VOID(agree(outcome_of(worker)));
  worker_ = std::move(worker).value();
  return {};
}

Result<void> TrainRun::load_state() {
  worker_->state().data_fingerprint = data_->fingerprint();
  if (start_.snapshot.has_value()) {
    HF_TRY(const bool loaded, load_snapshot());
    if (loaded) return {};
  }
  if (!start_.checkpoint.empty()) {
    if (first_) fmt::print("resuming from {} (step {})\n", start_.checkpoint, start_.step);
    return restore_checkpoint(*worker_, start_.checkpoint);
  }
  // What an earlier run in this directory may have left in shared memory.
  if (!start_.run_id.empty())
    HF_TRY_VOID(agree(outcome_of(remove_snapshots(inputs_.env, digest_of(start_.run_id)))));
  std::string run_id;
  if (first_) run_id = fmt::format("{:016x}{:016x}", inputs_.env.random_u64(), inputs_.env.random_u64());
  HF_TRY(const std::vector<std::string> ids, all_gather_text(inputs_.communicator, waiter(), run_id));
  worker_->state().run_id = ids.front();
  if (config_.run.initialize_from.empty()) return initialize_weights(*worker_);
  Result<std::optional<FoundCheckpoint>> found = find_checkpoint(inputs_.env, config_.run.initialize_from);
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

// False: it is not sound, and what was known before it counts.
Result<bool> TrainRun::load_snapshot() {
  if (first_) fmt::print("resuming from {}\n", name_of(start_));
  const Result<void> restored = restore_snapshot(*worker_, *start_.snapshot, start_.run_id);
  if (restored.ok()) return true;
  if (restored.error().code != ExitCode::checkpoint) return restored.error();
  if (first_) fmt::print(stderr, "holdfast: RAM snapshot passed over: {}\n", restored.error().message);
  start_.snapshot.reset();
  return false;
}

// The best of a few rounds: other work on the machine only ever makes a peak look lower than it is.
Result<double> TrainRun::peak_of_all_ranks() {
  constexpr int rounds = 4;
  double best = 0.0;
  std::vector<double> all(static_cast<std::size_t>(inputs_.communicator.size()));
  for (int round = 0; round < rounds; ++round) {
    HF_TRY_VOID(barrier(inputs_.communicator, waiter()));
    const Result<double> measured = measure_gemm_peak(inputs_.env, *device_, worker_->spec().dtype);
    HF_TRY_VOID(agree(outcome_of(measured)));
    const double mine = *measured;
    HF_TRY_VOID(all_gather(inputs_.communicator, waiter(), std::as_bytes(std::span(&mine, 1)),
                           std::as_writable_bytes(std::span(all))));
    double sum = 0.0;
    for (const double peak : all) sum += peak;
    best = std::max(best, sum);
  }
  return best;
}

Result<void> TrainRun::open_log() {
  HF_TRY(const double peak, peak_of_all_ranks());
  times_.gemm_peak_ns = phase_ns();
  const RunPaths paths{config_.run.directory};
  progress_ = std::make_unique<Progress>(
      inputs_.env, paths,
      Progress::Setup{.steps = config_.training.steps,
                      .every_steps = config_.log.every_steps,
                      .flops_per_token = flops_per_token(worker_->spec(), config_.training.sequence_length),
                      .peak_flops = peak,
                      .tokens_per_step = worker_->tokens_per_step()},
      first_);
  Result<void> outcome;
  if (first_) {
    outcome = inputs_.env.replace_text(paths.config(), dump_config(config_, inputs_.config->origin));
    if (outcome.ok()) outcome = inputs_.env.replace_text(paths.run_id(), worker_->state().run_id);
    if (outcome.ok()) outcome = progress_->open();
    if (outcome.ok())
      outcome = write_status(inputs_.env, paths,
                             {.state = "running", .step = step(), .exit_code = 0, .reason = {}});
    if (outcome.ok()) {
      outcome =
          progress_->started(parameter_count(worker_->spec()), inputs_.communicator.size(), worker_->state(),
                             start_.snapshot.has_value() ? "ram"
                             : start_.checkpoint.empty() ? ""
                                                         : "disk",
                             times_, *device_, exchange_.choice.description);
    }
    const std::int64_t stages = config_.parallel.pipeline;
    progress_->say(
        fmt::format("{} parameters, {} lanes on {} ranks x {} threads{} ({}), {} tokens per step, {} {}",
                    parameter_count(worker_->spec()), config_.parallel.lanes, inputs_.communicator.size(),
                    device_->threads(), stages > 1 ? fmt::format(" in {} stages", stages) : "",
                    device_->description(), worker_->tokens_per_step(),
                    format_bytes(worker_->memory_plan().total_bytes() + device_->workspace_bytes()),
                    stages > 1 ? "on rank 0" : "per rank"));
    if (!device_->host_sees_memory() && inputs_.communicator.size() > 1) {
      progress_->say("exchange: " + exchange_.choice.description);
    }
    const std::string whole = why_gradients_are_whole(config_, worker_->mesh().shape().data);
    if (!whole.empty()) progress_->say(whole);
    for (const std::string& line : kernel_summary(device_->kernels())) progress_->say("kernels: " + line);
  }
  return agree(outcome);
}

Result<ExitCode> TrainRun::train() {
  CheckpointStore store(inputs_.env, inputs_.faults, config_.run.directory, start_.writer);
  worker_->start_loader();
  store.keep_for_good(config_.checkpoint.keep_every_steps);
  Trainer trainer({.worker = *worker_,
                   .store = store,
                   .progress = *progress_,
                   .stop = inputs_.stop,
                   .held_out = held_out_,
                   .writer = start_.writer,
                   .started_ns = inputs_.started_ns});
  return trainer.run();
}

// Also of one whose last start died right behind its last save.
Result<ExitCode> TrainRun::say_finished() {
  if (!start_.run_id.empty())
    HF_TRY_VOID(agree(outcome_of(remove_snapshots(inputs_.env, digest_of(start_.run_id)))));
  if (first_) {
    fmt::print("the run in {} is finished: step {} of {}\n", config_.run.directory, step(),
               config_.training.steps);
  }
  return ExitCode::done;
}

void TrainRun::conclude(const RunEnd& end) {
  const RunPaths paths{config_.run.directory};
  const bool begun = progress_ != nullptr;
  if (lock_ != nullptr && (begun || may_record_failure(inputs_.env, paths))) record_end(paths, end);
  // The others wait here, not in MPI's end, which has a short deadline: a long log makes a report slow.
  if (inputs_.communicator.abandoned()) return;
  constexpr std::int64_t report_timeout_ms = 600'000;
  const Waiter patient = waiter().with_timeout(waiter().timeout_ms() + report_timeout_ms);
  static_cast<void>(barrier(inputs_.communicator, patient).ok());  // a peer that dies now changes nothing
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
  complain(write_status(inputs_.env, paths, status));
  if (progress_ != nullptr)
    complain(progress_->finished(status, worker_->reduction().counts(), worker_->parameter_gather().counts(),
                                 worker_->traffic()));
  if (progress_ == nullptr && end.code != ExitCode::done) return;
  complain(write_report(inputs_.env, paths));
}

std::string sentence_of(ExitCode code) {
  return code == ExitCode::saved ? "saved and stopped on request; start it again to go on"
                                 : "all steps are done";
}

}  // namespace

RunEnd train_run(const TrainInputs& inputs) {
  TrainRun run(inputs);
  const Result<ExitCode> outcome = run.run_guarded();
  RunEnd end;
  end.code = outcome.ok() ? *outcome : outcome.error().code;
  end.message = outcome.ok() ? sentence_of(end.code) : outcome.error().message;
  run.conclude(end);
  return end;
}

}  // namespace holdfast
