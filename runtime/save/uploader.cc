#include "runtime/save/uploader.h"

#include <fmt/core.h>

#include "checkpoint/candidates.h"
#include "runtime/os/console.h"
#include "runtime/save/upload_name.h"

namespace holdfast::save {

void report_upload(const UploadReport& report) {
  if (report.outcome.ok()) return;
  print_message("the checkpoint of step {} was not uploaded: {}. It stays where it is", report.step,
                report.outcome.error().message);
}

Uploader::Uploader(Env& env, CheckpointStore& store, Settings settings)
    : env_(&env), store_(&store), settings_(std::move(settings)), changed_(env.make_condition()) {}

Uploader::~Uploader() {
  cancel();
}

void Uploader::offer(std::uint64_t step) {
  const std::scoped_lock lock(mutex_);
  if (thread_ == nullptr) {
    Result<std::unique_ptr<Thread>> thread = env_->start_thread("uploader", [this] { work(); });
    if (!thread.ok()) {
      reports_.push_back({.step = step, .outcome = thread.error()});
      return;
    }
    thread_ = std::move(thread).value();
  }
  next_ = step;
  mark_in_use();
  changed_->notify();
}

// Reports to the store which checkpoints are in use: the one that is being uploaded, and the one that waits.
void Uploader::mark_in_use() {
  std::vector<std::uint64_t> steps;
  for (const std::optional<std::uint64_t>& step : {uploading_, next_}) {
    if (step.has_value()) steps.push_back(*step);
  }
  store_->set_in_use(std::move(steps));
}

bool Uploader::busy() {
  const std::scoped_lock lock(mutex_);
  return uploading_.has_value() || next_.has_value();
}

void Uploader::cancel() {
  {
    const std::scoped_lock lock(mutex_);
    cancelled_ = true;
    changed_->notify();
  }
  if (thread_ != nullptr) thread_->wait();
}

std::vector<UploadReport> Uploader::take_reports() {
  const std::scoped_lock lock(mutex_);
  return std::exchange(reports_, {});
}

void Uploader::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_->wait(lock, [this] { return cancelled_ || next_.has_value(); });
    if (!next_.has_value()) return;
    const std::uint64_t step = *std::exchange(next_, std::nullopt);
    if (cancelled_) {
      reports_.push_back({.step = step, .outcome = fail(ExitCode::checkpoint, "the run ends")});
      return;
    }
    uploading_ = step;
    mark_in_use();
    lock.unlock();
    UploadReport report = upload(step);
    lock.lock();
    uploading_.reset();
    mark_in_use();
    reports_.push_back(std::move(report));
  }
}

UploadReport Uploader::upload(std::uint64_t step) {
  const std::string directory = store_->checkpoint_directory(step);
  UploadReport report{.step = step, .outcome = {}};
  const Result<Manifest> manifest = read_manifest(*env_, directory);
  report.outcome = outcome_of(manifest);
  if (report.outcome.ok()) report.outcome = check_no_links_in(*env_, directory);
  if (!report.outcome.ok()) return report;
  CommandAttempts done = run_user_command(*env_, settings_.command,
                                          {{"HOLDFAST_CHECKPOINT", directory},
                                           {"HOLDFAST_NAME", upload_name(*manifest)},
                                           {"HOLDFAST_STEP", fmt::format("{}", step)},
                                           {"HOLDFAST_RUN", manifest->run_id}},
                                          cancelled_);
  if (done.outcome.ok()) record_upload(*env_, settings_.record, *manifest, settings_.command.line);
  report.outcome = std::move(done.outcome);
  report.attempts = done.attempts;
  report.duration_ns = done.duration_ns;
  return report;
}

}  // namespace holdfast::save
