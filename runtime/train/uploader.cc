#include "runtime/train/uploader.h"

#include <fmt/core.h>

#include <chrono>

namespace holdfast {
namespace {

std::string sentence_of(const CommandEnd& end, std::int64_t timeout_ms) {
  switch (end.how) {
    case CommandEnd::How::exited:
      return fmt::format("ended with exit code {}", end.code);
    case CommandEnd::How::killed:
      return fmt::format("was killed by signal {}", end.code);
    case CommandEnd::How::timed_out:
      return fmt::format("took longer than checkpoint.upload_timeout = {} s", timeout_ms / 1000);
    case CommandEnd::How::cancelled:
      return "was killed, because the run ends";
  }
  return "";
}

// In one line, for a sentence.
std::string printed(std::string output) {
  for (char& each : output) {
    if (each == '\n' || each == '\r') each = ' ';
  }
  while (output.ends_with(' ')) output.pop_back();
  return output.empty() ? "it printed nothing" : "it printed: " + output;
}

}  // namespace

Uploader::Uploader(Env& env, CheckpointStore& store, Settings settings)
    : env_(&env), store_(&store), settings_(std::move(settings)), thread_([this] { work(); }) {}

Uploader::~Uploader() {
  cancel();
}

void Uploader::offer(std::uint64_t step) {
  const std::scoped_lock lock(mutex_);
  next_ = step;
  mark_in_use();
  changed_.notify_all();
}

// What is being uploaded, and what waits for its turn.
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
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

std::vector<UploadReport> Uploader::take_reports() {
  const std::scoped_lock lock(mutex_);
  return std::exchange(reports_, {});
}

void Uploader::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return cancelled_ || next_.has_value(); });
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
  const std::int64_t begin_ns = env_->monotonic_ns();
  const std::string directory = store_->checkpoint_directory(step);
  const Command command{.line = settings_.command,
                        .variables = {{"HOLDFAST_CHECKPOINT", directory},
                                      {"HOLDFAST_STEP", fmt::format("{}", step)},
                                      {"HOLDFAST_RUN", settings_.run_id}},
                        .timeout_ms = settings_.timeout_ms,
                        .cancelled = &cancelled_};
  UploadReport report{.step = step, .outcome = {}};
  while (true) {
    ++report.attempts;
    const Result<CommandEnd> end = env_->run_command(command);
    report.duration_ns = env_->monotonic_ns() - begin_ns;
    report.outcome = {};
    if (end.ok() && end->succeeded()) return report;
    report.outcome =
        end.ok() ? fail(ExitCode::checkpoint, "checkpoint.upload_command {} (attempt {}); {}",
                        sentence_of(*end, settings_.timeout_ms), report.attempts, printed(end->output))
                 : end.error();
    const auto retries = static_cast<std::size_t>(report.attempts) - 1;
    if (retries >= settings_.retry_after_ms.size() || !rest(settings_.retry_after_ms[retries])) return report;
  }
}

bool Uploader::rest(std::int64_t milliseconds) {
  std::unique_lock lock(mutex_);
  return !changed_.wait_for(lock, std::chrono::milliseconds(milliseconds),
                            [this] { return cancelled_.load(); });
}

}  // namespace holdfast
