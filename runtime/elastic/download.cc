#include "runtime/elastic/download.h"

#include <fmt/core.h>

#include <array>
#include <atomic>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "checkpoint/candidates.h"
#include "checkpoint/incoming.h"
#include "parallel/comm/agreement.h"
#include "runtime/core/units.h"
#include "runtime/elastic/join.h"
#include "runtime/interop/model_import.h"
#include "runtime/os/background_job.h"
#include "runtime/os/console.h"
#include "runtime/os/foreign_text.h"
#include "runtime/rank/watch.h"
#include "runtime/run/user_command.h"

namespace holdfast::elastic {
namespace {

Error not_kept(const std::string& what) {
  return fail(
      ExitCode::checkpoint,
      "checkpoint.download_command brought what this run cannot go on from: {}. Nothing of it is kept: "
      "repair or remove it where it came from, or set run.resume = \"never\" to start from the "
      "beginning",
      what);
}

// Checks a checkpoint as a resume does, before it is visible.
Result<void> check_is_of_run(Env& env, Config config, const DataSet& data, const Lineage& lineage,
                             const Checkpoint& checkpoint) {
  const Manifest& manifest = checkpoint.manifest();
  if (const auto source = manifest.values.find(imported_from_key); source != manifest.values.end())
    return not_kept(fmt::format("a model imported from {}, without a training state", source->second));
  if (!lineage.run_id.empty() && lineage.run_id != manifest.run_id) {
    return not_kept(fmt::format("a checkpoint of run {}, but {} is that of run {}", manifest.run_id,
                                config.run.directory, lineage.run_id));
  }
  if (lineage.discards(state_of(manifest)))
    return not_kept(fmt::format("step {} of a future that the run has left", manifest.step));
  const StartPoint brought{.checkpoint = fmt::format("the checkpoint of step {}", manifest.step),
                           .config = manifest.config};
  HF_TRY_VOID(adopt_stored_shape(env, brought, config));
  HF_TRY_VOID(resolve_shape_with_data(config, data));
  const Result<ResumeChanges> changes = compare_with_stored(env, brought, config);
  if (!changes.ok()) return not_kept(changes.error().message);
  return {};
}

// Wanted says what a download is for.
struct Wanted {
  Lineage lineage = {};                           // of the run; empty: none is known
  std::optional<std::uint64_t> before_step = {};  // brings an older checkpoint than that; none: the newest
  bool has_parts = false;                         // there are checkpoints, and none is whole
};

// Download is the download on rank 0, on a thread of its own.
class Download {
 public:
  Download(const SourceTerms& source, const DataSet& data, Wanted wanted)
      : env_(&source.inputs.env),
        faults_(&source.inputs.faults),
        config_(&source.config),
        data_(&data),
        fence_(source.check),
        wanted_(std::move(wanted)) {}
  ~Download() {
    cancelled_ = true;
    job_.wait();
  }
  Download(const Download&) = delete;
  Download& operator=(const Download&) = delete;

  Result<void> begin() {
    HF_TRY(directory_, make_incoming_directory(*env_, config_->run.directory));
    begin_ns_ = reported_ns_ = env_->monotonic_ns();
    print_line(
        "{} holds no {}checkpoint{}: checkpoint.download_command looks for one elsewhere (for at most {})",
        config_->run.directory, wanted_.has_parts ? "whole " : "",
        before_step().has_value() ? fmt::format(" of a step before {}", *before_step()) : "",
        format_duration(config_->checkpoint.download_timeout_ms));
    job_.start(*env_, "download", [this] { return bring(); });
    return {};
  }
  bool busy() const { return job_.started() && !job_.finished(); }

  void say_progress() {
    constexpr std::int64_t every_ns = 10'000'000'000;
    const std::int64_t now_ns = env_->monotonic_ns();
    if (now_ns - reported_ns_ < every_ns) return;
    reported_ns_ = now_ns;
    const IncomingSize size = size_of_incoming(*env_, directory_);
    print_line("checkpoint.download_command: {} here after {}{}", format_bytes(size.bytes), elapsed(now_ns),
               verifies_ ? ", every byte is being checked" : "");
  }

  // Returns whether a checkpoint has come.
  Result<bool> end() { return job_.take(); }

 private:
  const std::optional<std::uint64_t>& before_step() const { return wanted_.before_step; }
  std::string elapsed(std::int64_t now_ns) const {
    return format_duration((now_ns - begin_ns_) / 1'000'000'000 * 1000);
  }

  Result<void> run_command() {
    const CheckpointConfig& config = config_->checkpoint;
    std::map<std::string, std::string> variables = {{"HOLDFAST_DOWNLOAD", directory_},
                                                    {"HOLDFAST_RUN", wanted_.lineage.run_id}};
    if (before_step().has_value()) variables["HOLDFAST_BEFORE_STEP"] = std::to_string(*before_step());
    const CommandAttempts done = run_user_command(*env_,
                                                  {.key = "checkpoint.download_command",
                                                   .line = config.download_command,
                                                   .timeout_key = "checkpoint.download_timeout",
                                                   .timeout_ms = config.download_timeout_ms},
                                                  variables, cancelled_);
    if (done.outcome.ok()) return {};
    if (!done.printed.empty()) print_message("checkpoint.download_command printed: {}", done.printed);
    if (before_step().has_value()) return done.outcome.error();
    return fail_because(
        done.outcome.error(), ExitCode::communication,
        "{}. It is not known whether there is a checkpoint elsewhere, so nothing is begun: start again "
        "when the place can be reached, or set run.resume = \"never\" to start from the beginning",
        done.outcome.error().message);
  }

  Result<bool> bring() {
    HF_FAULT_POINT(*faults_, "download.before_command");
    const Result<bool> came = bring_into_pending();
    if (!came.ok() || !*came) static_cast<void>(env_->remove_tree(directory_).ok());
    return came;
  }

  Result<bool> bring_into_pending() {
    HF_TRY_VOID(run_command());
    HF_FAULT_POINT(*faults_, "download.after_command");
    const IncomingSize size = size_of_incoming(*env_, directory_);
    if (size.files == 0) return false;
    HF_TRY(const std::vector<std::string> odd, remove_all_but_files(*env_, directory_));
    for (const std::string& what : odd) say_left_out(what);
    verifies_ = true;
    const Result<Checkpoint> checkpoint = open_verified(*env_, directory_);
    if (!checkpoint.ok()) return not_kept(checkpoint.error().message);
    if (const std::uint64_t step = checkpoint->manifest().step;
        before_step().has_value() && step >= *before_step()) {
      return fail(
          ExitCode::checkpoint,
          "checkpoint.download_command brought the checkpoint of step {}, and was asked for one of a step "
          "before HOLDFAST_BEFORE_STEP = {}",
          step, *before_step());
    }
    HF_TRY_VOID(check_is_of_run(*env_, *config_, *data_, wanted_.lineage, *checkpoint));
    if (fence_) HF_TRY_VOID(fence_());
    HF_TRY(const PublishedIncoming published,
           publish_incoming(*env_, *faults_, config_->run.directory, *checkpoint));
    for (const std::string& name : published.left_out) say_left_out(name);
    print_line("downloaded the checkpoint of step {}: {} in {} files, every byte checked",
               checkpoint->manifest().step, format_bytes(size.bytes), size.files);
    return true;
  }

  static void say_left_out(const std::string& what) {
    print_message(
        "checkpoint.download_command also brought {}, which is no file of the checkpoint: it is left out",
        printable(what));
  }

  Env* env_;
  FaultPoints* faults_;
  const Config* config_;
  const DataSet* data_;
  ClaimCheck fence_;
  Wanted wanted_;
  std::string directory_;
  std::int64_t begin_ns_ = 0, reported_ns_ = 0;
  std::atomic<bool> cancelled_ = false, verifies_ = false;
  BackgroundJob<bool> job_;  // last, because its thread uses the others
};

// Returns what follows where nothing is elsewhere.
Result<void> begin_without(const Config& config, const StartPoint& start) {
  if (!start.unusable.empty()) {
    return fail_because(why_unusable(start), start.unusable_code,
                        "checkpoint.download_command finds no checkpoint elsewhere, and {}", start.unusable);
  }
  if (config.run.resume == "must") return nothing_to_resume(config.run.directory);
  print_line("there is no checkpoint elsewhere, either: the run begins");
  return {};
}

// Has all ranks vote until the download has ended.
Result<void> wait_for(const TrainInputs& inputs, const Waiter& waiter, Download& download) {
  constexpr std::int64_t pause_us = 20'000;
  while (true) {
    std::array<std::int64_t, 1> busy = {download.busy() ? 1 : 0};
    HF_TRY_VOID(all_reduce_sum(inputs.communicator, waiter, busy));
    mark(inputs.watch);  // the command has a limit of its own
    if (busy[0] == 0) return {};
    if (inputs.communicator.rank() == 0) download.say_progress();
    inputs.env.sleep_us(pause_us);
  }
}

}  // namespace

bool wants_download(const Config& config, const StartPoint& start) {
  const bool finds = config.run.resume == "auto" || config.run.resume == "must";
  if (start.lineage.goes_back_to_start()) return false;
  return finds && !config.checkpoint.download_command.empty() && start.checkpoint.empty() &&
         !start.snapshot.has_value();
}

Result<StartPoint> join_download(SourceFinder& source, const DataSet& data, const StartPoint& start) {
  const TrainInputs& inputs = source.terms().inputs;
  const Waiter& waiter = source.terms().waiter;
  const bool first = inputs.communicator.rank() == 0;
  Download download(source.terms(), data, {.lineage = start.lineage, .has_parts = !start.unusable.empty()});
  const auto agree = [&](const Result<void>& mine) {
    return agree_on_outcome(inputs.communicator, waiter, mine, inputs.env.host_name());
  };
  HF_TRY_VOID(agree(first ? download.begin() : Result<void>()));
  HF_TRY_VOID(wait_for(inputs, waiter, download));
  const Result<bool> brought = first ? download.end() : Result<bool>(false);
  std::array<std::int64_t, 1> came = {brought.ok() && *brought ? 1 : 0};
  HF_TRY_VOID(agree(first && brought.ok() && !*brought ? begin_without(source.terms().config, start)
                                                       : outcome_of(brought)));
  HF_TRY_VOID(all_reduce_sum(inputs.communicator, waiter, came));
  return came[0] == 0 ? start : source.after_download(start);
}

Result<bool> join_earlier_download(const SourceFinder& source, const DataSet& data,
                                   std::uint64_t before_step) {
  const TrainInputs& inputs = source.terms().inputs;
  const Waiter& waiter = source.terms().waiter;
  const bool first = inputs.communicator.rank() == 0;
  const Result<Lineage> lineage =
      first ? read_lineage(inputs.env, source.terms().config.run.directory) : Result<Lineage>(Lineage{});
  Download download(source.terms(), data,
                    {.lineage = lineage.ok() ? *lineage : Lineage{}, .before_step = before_step});
  Result<void> begun = outcome_of(lineage);
  if (first && begun.ok()) begun = download.begin();
  HF_TRY_VOID(wait_for(inputs, waiter, download));
  std::array<std::int64_t, 1> came = {0};
  if (first) {
    const Result<bool> brought = begun.ok() ? download.end() : Result<bool>(begun.error());
    if (!brought.ok()) print_message("{}", brought.error().message);
    came[0] = brought.ok() && *brought ? 1 : 0;
  }
  HF_TRY_VOID(all_reduce_sum(inputs.communicator, waiter, came));
  return came[0] != 0;
}

}  // namespace holdfast::elastic
