#include "runtime/save/shard_uploads.h"

#include <fmt/core.h>

#include <algorithm>

#include "checkpoint/candidates.h"
#include "checkpoint/names.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/gather.h"

namespace holdfast::save {

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

// Marks the checkpoints whose files are needed. Some rank may read them until the upload is over, and a rank that
// publishes removes old checkpoints.
void ShardUploads::mark_in_use() {
  std::vector<std::uint64_t> steps;
  if (busy()) steps.push_back(uploading_);
  if (next_.has_value()) steps.push_back(*next_);
  store_->set_in_use(std::move(steps));
}

void ShardUploads::begin() {
  uploading_ = *std::exchange(next_, std::nullopt);
  begin_ns_ = env_->monotonic_ns();
  attempts_ = 0;
  if (!settings_.domains.has_value()) return begin_shards();
  phase_ = Phase::parts;
  share_.reset();
  part_ = {};
  if (!takes_part()) return;
  job_.start(*env_, "uploader", [this, directory = store_->checkpoint_directory(uploading_)] {
    part_ = find_upload_part(*env_, directory);
    return Result<int>(1);
  });
}

void ShardUploads::begin_shards() {
  phase_ = Phase::shards;
  job_.start(*env_, "uploader", [this, step = uploading_] { return send_shards(step); });
}

void ShardUploads::begin_manifest() {
  phase_ = Phase::manifest;
  if (takes_part()) job_.start(*env_, "uploader", [this, step = uploading_] { return send_manifest(step); });
}

int ShardUploads::awaited() const {
  if (phase_ == Phase::parts) return settings_.domains->count();
  return phase_ == Phase::shards ? settings_.ranks : 1;
}

bool ShardUploads::takes_part() const {
  if (phase_ == Phase::parts) return settings_.domains->leads(settings_.rank);
  return phase_ == Phase::shards || (phase_ == Phase::manifest && sends_manifest());
}

void ShardUploads::vote(SaveVotes& votes) const {
  if (!takes_part() || !job_.finished()) return;
  (job_.result().ok() ? votes.sent : votes.unsent) = 1;
}

Result<void> ShardUploads::advance(Communicator& communicator, const Waiter& waiter, const SaveVotes& sums) {
  if (!busy() || sums.sent + sums.unsent < awaited()) return {};
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
    return {};
  }
  return advance_phase(communicator, waiter);
}

// Goes to the phase after one that has succeeded on all ranks.
Result<void> ShardUploads::advance_phase(Communicator& communicator, const Waiter& waiter) {
  if (phase_ == Phase::parts) return share_out(communicator, waiter);
  if (phase_ == Phase::shards) {
    begin_manifest();
  } else {
    end({});
  }
  return {};
}

Result<void> ShardUploads::share_out(Communicator& communicator, const Waiter& waiter) {
  HF_TRY(const std::vector<UploadPart> parts, gather(communicator, waiter, part_));
  const Result<std::vector<UploadShare>> shares = shares_of_parts(parts, *settings_.domains);
  if (!shares.ok()) {
    end(shares.error());
    return {};
  }
  share_ = (*shares)[static_cast<std::size_t>(settings_.rank)];
  begin_shards();
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
  if (share_.has_value() && share_->shards.empty()) return 1;  // this host may have no manifest, either
  const std::string directory = store_->checkpoint_directory(step);
  HF_TRY(const Manifest manifest, read_manifest(*env_, directory));
  const UploadShare share =
      share_.has_value() ? *share_ : share_of_rank(manifest, settings_.rank, settings_.ranks);
  HF_TRY(const std::vector<std::string> files, files_to_send(*env_, directory, manifest, share.shards));
  int attempts = 1;
  for (const std::string& file : files) {
    HF_FAULT_POINT(*faults_, "upload.before_file");
    const CommandAttempts done = send(manifest, share.name, directory, file);
    HF_TRY_VOID(done.outcome);
    attempts = std::max(attempts, done.attempts);
  }
  return attempts;
}

Result<int> ShardUploads::send_manifest(std::uint64_t step) {
  const std::string directory = store_->checkpoint_directory(step);
  HF_TRY(const Manifest manifest, read_manifest(*env_, directory));
  HF_FAULT_POINT(*faults_, "upload.before_manifest");
  const CommandAttempts done = send(manifest, upload_name(manifest), directory, checkpoint_names::manifest);
  HF_TRY_VOID(done.outcome);
  record_upload(*env_, settings_.record, manifest, settings_.command.line);
  return done.attempts;
}

CommandAttempts ShardUploads::send(const Manifest& manifest, const std::string& name,
                                   const std::string& directory, const std::string& file) {
  if (cancelled_) return {.outcome = fail(ExitCode::checkpoint, "the run ends")};
  if (const Result<void> own = check_no_link(*env_, directory + "/" + file); !own.ok())
    return {.outcome = own.error()};
  return run_user_command(*env_, settings_.command,
                          {{"HOLDFAST_CHECKPOINT", directory},
                           {"HOLDFAST_FILE", directory + "/" + file},
                           {"HOLDFAST_NAME", name},
                           {"HOLDFAST_STEP", fmt::format("{}", manifest.step)},
                           {"HOLDFAST_RUN", manifest.run_id}},
                          cancelled_);
}

}  // namespace holdfast::save
