#include "runtime/save/uploads.h"

#include <algorithm>
#include <tuple>

#include "checkpoint/candidates.h"
#include "parallel/comm/gather.h"
#include "parallel/comm/rank_sum.h"
#include "runtime/os/foreign_text.h"
#include "runtime/run/run_directory.h"
#include "runtime/save/upload_name.h"

namespace holdfast::save {
namespace {

// UploadVotes are summed over the ranks while they wait for uploads.
struct UploadVotes {
  std::int64_t busy = 0;  // number of ranks that upload whole checkpoints
  SaveVotes saves = {};

  static constexpr void visit_words(auto& self, auto&& visit) {
    visit(self.busy);
    visit(self.saves);
  }
};

UserCommand upload_command_of(const CheckpointConfig& config) {
  const bool by_shards = !config.upload_shard_command.empty();
  return {.key = by_shards ? "checkpoint.upload_shard_command" : "checkpoint.upload_command",
          .line = by_shards ? config.upload_shard_command : config.upload_command,
          .timeout_key = "checkpoint.upload_timeout",
          .timeout_ms = config.upload_timeout_ms,
          .retry_after_ms = {1000, 10'000}};
}

}  // namespace

Uploads::Uploads(const Setup& setup)
    : env_(&setup.env),
      store_(&setup.store),
      command_(upload_command_of(setup.config.checkpoint)),
      record_(RunPaths{setup.config.run.directory}.uploaded()),
      first_(setup.rank == 0),
      looks_(setup.domains.has_value() ? setup.domains->leads(setup.rank) : first_) {
  if (!setup.config.checkpoint.upload_shard_command.empty()) {
    shards_.emplace(setup.env, setup.faults, setup.store,
                    ShardUploads::Settings{.command = command_,
                                           .record = record_,
                                           .rank = setup.rank,
                                           .ranks = setup.ranks,
                                           .domains = setup.domains});
  } else if (wanted() && first_) {
    whole_.emplace(setup.env, setup.store, Uploader::Settings{.command = command_, .record = record_});
  }
}

// Newest describes the newest checkpoint in the directory of a rank.
struct Uploads::Newest {
  bool exists = false, is_uploaded = false;
  std::uint64_t generation = 0, step = 0;

  auto age() const { return std::tuple(exists, generation, step); }
  static void visit_fields(auto& self, auto&& visit) {
    visit("exists", self.exists);
    visit("is_uploaded", self.is_uploaded);
    visit("generation", self.generation);
    visit("step", self.step);
  }
};

// Looks for the newest checkpoint. Where it is in parts, that is the newest of which all hosts have theirs, if one is
// known.
Uploads::Newest Uploads::find_newest() const {
  const std::optional<ParentCheckpoint>& whole = store_->on_all_hosts();
  const Result<Manifest> manifest = read_manifest(
      *env_, whole.has_value() ? store_->checkpoint_directory(whole->step) : store_->newest_directory());
  if (!manifest.ok()) return {};
  return {.exists = true,
          .is_uploaded = text_within_or_empty(*env_, record_, text_limits::identity) ==
                         upload_record(*manifest, command_.line),
          .generation = manifest->generation,
          .step = manifest->step};
}

Result<void> Uploads::offer_newest(Communicator& communicator, const Waiter& waiter) {
  if (!wanted()) return {};
  HF_TRY(const std::vector<Newest> all, gather(communicator, waiter, looks_ ? find_newest() : Newest{}));
  const Newest& newest = *std::ranges::max_element(all, {}, &Newest::age);
  const bool is_uploaded = std::ranges::any_of(
      all, [&](const Newest& each) { return each.is_uploaded && each.age() == newest.age(); });
  if (newest.exists && !is_uploaded) offer(newest.step);
  return {};
}

void Uploads::offer(std::uint64_t step) {
  if (whole_) whole_->offer(step);
  if (shards_) shards_->offer(step);
}

void Uploads::vote(SaveVotes& votes) const {
  if (shards_) shards_->vote(votes);
}

Result<void> Uploads::advance(Communicator& communicator, const Waiter& waiter, const SaveVotes& sums) {
  return shards_ ? shards_->advance(communicator, waiter, sums) : Result<void>();
}

void Uploads::cancel() {
  if (whole_) whole_->cancel();
  if (shards_) shards_->cancel();
}

// Waits for the uploads. All ranks leave together, so the others go on voting while one sends.
Result<void> Uploads::finish(Communicator& communicator, const Waiter& waiter,
                             const std::function<void()>& look) {
  if (!wanted()) return {};
  constexpr std::int64_t pause_us = 20'000;
  while (true) {
    UploadVotes sums{.busy = whole_ && whole_->busy() ? 1 : 0};
    vote(sums.saves);
    HF_TRY_VOID(sum_over_ranks(communicator, waiter, sums));
    HF_TRY_VOID(advance(communicator, waiter, sums.saves));
    look();
    if (sums.busy == 0 && !(shards_ && shards_->busy())) return {};
    env_->sleep_us(pause_us);
  }
}

std::vector<UploadReport> Uploads::take_reports() {
  if (whole_) return whole_->take_reports();
  return shards_ ? shards_->take_reports() : std::vector<UploadReport>();
}

}  // namespace holdfast::save
