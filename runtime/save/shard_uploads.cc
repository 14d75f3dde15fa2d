#include "runtime/save/shard_uploads.h"

#include <fmt/core.h>

#include <algorithm>

#include "checkpoint/candidates.h"
#include "checkpoint/names.h"
#include "parallel/comm/agreement.h"
#include "runtime/save/upload_name.h"

namespace holdfast::inline save {

ShardUploads::ShardUploads(Env& env, FaultPoints& faults, CheckpointStore& store, Settings settings)
    : env_(&env), faults_(&faults), store_(&store), settings_(std::move(settings)) {}

ShardUploads::~ShardUploads() {
  cancel();
}

void ShardUploads::cancel() {
  cancelled_ = true;
  job_.wait();
}

void ShardUploads::offer(std::uint64_t step) {
  next_ = step;
  if (phase_ == Phase::idle) begin();
  mark_in_use();
}

// Marks the checkpoints whose files are needed. Some rank may read them until the upload is over, and rank 0
// removes old checkpoints.
void ShardUploads::mark_in_use() {
  std::vector<std::uint64_t> steps;
  if (busy()) steps.push_back(uploading_);
  if (next_.has_value()) steps.push_back(*next_);
  if (is_first()) store_->set_in_use(std::move(steps));
}

void ShardUploads::begin() {
  phase_ = Phase::shards;
  uploading_ = *std::exchange(next_, std::nullopt);
  begin_ns_ = env_->monotonic_ns();
  attempts_ = 0;
  job_.start(*env_, "uploader", [this, step = uploading_] { return send_shards(step); });
}

void ShardUploads::vote(SaveVotes& votes) const {
  if (!takes_part() || !job_.finished()) return;
  (job_.result().ok() ? votes.sent : votes.unsent) = 1;
}

Result<void> ShardUploads::advance(Communicator& communicator, const Waiter& waiter, const SaveVotes& sums) {
  const std::int64_t awaited = phase_ == Phase::shards ? settings_.ranks : 1;
  if (!busy() || sums.sent + sums.unsent < awaited) return {};
  Result<void> outcome;
  if (takes_part()) {
    const Result<int> attempts = job_.take();
    outcome = outcome_of(attempts);
    if (attempts.ok()) attempts_ = std::max(attempts_, *attempts);
  }
  if (sums.unsent > 0) {
    outcome = agree_on_outcome(communicator, waiter, outcome, env_->host_name());
    HF_CHECK(!outcome.ok());
    if (communicator.abandoned()) return outcome;
    end(std::move(outcome));
  } else if (phase_ == Phase::manifest) {
    end({});
  } else {
    phase_ = Phase::manifest;
    if (is_first()) job_.start(*env_, "uploader", [this, step = uploading_] { return send_manifest(step); });
  }
  return {};
}

void ShardUploads::end(Result<void> outcome) {
  reports_.push_back({.step = uploading_,
                      .outcome = std::move(outcome),
                      .attempts = attempts_,
                      .duration_ns = env_->monotonic_ns() - begin_ns_});
  phase_ = Phase::idle;
  if (next_.has_value()) begin();
  mark_in_use();
}

// Sends the shards. It runs on a thread of its own, as send_manifest() does; both return the most attempts
// that a file needed.
Result<int> ShardUploads::send_shards(std::uint64_t step) {
  const std::string directory = store_->checkpoint_directory(step);
  HF_TRY(const Manifest manifest, read_manifest(*env_, directory));
  HF_TRY(const std::vector<std::string> files,
         files_to_send(*env_, directory, manifest, settings_.rank, settings_.ranks));
  int attempts = 1;
  for (const std::string& file : files) {
    HF_FAULT_POINT(*faults_, "upload.before_file");
    const CommandAttempts done = send(manifest, directory, file);
    HF_TRY_VOID(done.outcome);
    attempts = std::max(attempts, done.attempts);
  }
  return attempts;
}

Result<int> ShardUploads::send_manifest(std::uint64_t step) {
  const std::string directory = store_->checkpoint_directory(step);
  HF_TRY(const Manifest manifest, read_manifest(*env_, directory));
  HF_FAULT_POINT(*faults_, "upload.before_manifest");
  const CommandAttempts done = send(manifest, directory, checkpoint_names::manifest);
  HF_TRY_VOID(done.outcome);
  record_upload(*env_, settings_.record, manifest, settings_.command.line);
  return done.attempts;
}

CommandAttempts ShardUploads::send(const Manifest& manifest, const std::string& directory,
                                   const std::string& file) {
  if (cancelled_) return {.outcome = fail(ExitCode::checkpoint, "the run ends")};
  if (const Result<void> own = check_no_link(*env_, directory + "/" + file); !own.ok())
    return {.outcome = own.error()};
  return run_user_command(*env_, settings_.command,
                          {{"HOLDFAST_CHECKPOINT", directory},
                           {"HOLDFAST_FILE", directory + "/" + file},
                           {"HOLDFAST_NAME", upload_name(manifest)},
                           {"HOLDFAST_STEP", fmt::format("{}", manifest.step)},
                           {"HOLDFAST_RUN", manifest.run_id}},
                          cancelled_);
}

}  // namespace holdfast::inline save
