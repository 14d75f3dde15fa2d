#include "runtime/save/uploads.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "checkpoint/candidates.h"
#include "checkpoint/names.h"
#include "checkpoint/part_inventory.h"
#include "checkpoint/shard_file.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/gather.h"
#include "parallel/comm/rank_sum.h"
#include "runtime/core/crc32c.h"
#include "runtime/core/digest.h"
#include "runtime/os/console.h"
#include "runtime/os/foreign_text.h"
#include "runtime/run/run_directory.h"

namespace holdfast::save {
namespace {

UserCommand upload_command_of(const CheckpointConfig& config, std::vector<std::int64_t> retry_after_ms) {
  const bool by_shards = !config.upload_shard_command.empty();
  return {.key = by_shards ? "checkpoint.upload_shard_command" : "checkpoint.upload_command",
          .line = by_shards ? config.upload_shard_command : config.upload_command,
          .timeout_key = "checkpoint.upload_timeout",
          .timeout_ms = config.upload_timeout_ms,
          .retry_after_ms = std::move(retry_after_ms)};
}

// Returns the text of RUN/uploaded, which says that this command line has sent this checkpoint completely.
std::string upload_record(const Manifest& manifest, const std::string& command) {
  return fmt::format("{}\n{}\n", upload_name(manifest), to_hex(digest_of(command)));
}

// Checks that a file is no link, which an upload command may follow to what is no part of the checkpoint. Whoever may
// write the directory can put one there. Error: checkpoint.
Result<void> check_no_link(Env& env, const std::string& path) {
  HF_TRY(const FileStatus status, env.status(path));
  if (!status.link) return {};
  return fail(ExitCode::checkpoint, "{} is a link, and a file that is sent must be there itself", path);
}

// Looks for the part of the checkpoint in `directory`. What cannot be read there is none.
UploadPart find_upload_part(Env& env, const std::string& directory) {
  const Result<Manifest> manifest = read_manifest(env, directory);
  if (!manifest.ok()) return {};
  UploadPart part{.name = upload_name(*manifest),
                  .content = content_of(manifest->shards),
                  .shard_count = manifest->shards.size()};
  for (std::uint64_t shard = 0; shard < part.shard_count; ++shard) {
    if (has_shard(env, directory, manifest->shards[shard], state_of(*manifest), manifest->run_id))
      part.present.push_back(shard);
  }
  return part;
}

// Shares out the checkpoint by the manifest on the host of `leader`.
Result<std::vector<UploadShare>> shares_by_manifest_of(int leader, const std::vector<UploadPart>& parts,
                                                       const StorageDomains& domains) {
  const UploadPart& manifest = parts[static_cast<std::size_t>(leader)];
  std::vector<std::vector<int>> readers(manifest.shard_count);  // by shard: the ranks whose host has it
  for (const int first : domains.leaders()) {
    const UploadPart& part = parts[static_cast<std::size_t>(first)];
    if (part.content != manifest.content) continue;
    for (int rank = first; rank < domains.ranks(); ++rank) {
      if (domains.leader_of(rank) != first) continue;
      for (const std::uint64_t shard : part.present) readers[shard].push_back(rank);
    }
  }
  std::vector<UploadShare> shares(parts.size(), UploadShare{.name = manifest.name});
  const auto shards_of = [&](int rank) -> std::vector<std::size_t>& {
    return shares[static_cast<std::size_t>(rank)].shards;
  };
  for (std::size_t shard = 0; shard < readers.size(); ++shard) {
    const std::vector<int>& able = readers[shard];
    if (able.empty())
      return fail(ExitCode::checkpoint, "no host that is here has {} of it",
                  CheckpointStore::shard_name(static_cast<int>(shard)));
    const auto writer = std::ranges::find(able, static_cast<int>(shard % parts.size()));
    const auto least = std::ranges::min_element(able, {}, [&](int rank) { return shards_of(rank).size(); });
    shards_of(writer != able.end() ? *writer : *least).push_back(shard);
  }
  shares[static_cast<std::size_t>(leader)].sends_manifest = true;
  return shares;
}

// Returns the share of this rank of `ranks` where all see one directory: its own shard where this layout wrote the
// checkpoint, every `ranks`-th one where another did.
UploadShare share_of_rank(const Manifest& manifest, int rank, int ranks) {
  UploadShare share{.name = upload_name(manifest)};
  const auto first = static_cast<std::size_t>(rank), stride = static_cast<std::size_t>(ranks);
  for (std::size_t shard = first; shard < manifest.shards.size(); shard += stride)
    share.shards.push_back(shard);
  return share;
}

// Returns the names of the shards and of the base files that they use (FORMAT.md), each name once.
Result<std::vector<std::string>> files_to_send(Env& env, const std::string& directory,
                                               const Manifest& manifest,
                                               const std::vector<std::size_t>& shards) {
  std::vector<std::string> files;
  const auto add = [&](const std::string& name) {
    if (std::ranges::find(files, name) == files.end()) files.push_back(name);
  };
  for (const std::size_t shard : shards) {
    const ShardFile& file = manifest.shards[shard];
    HF_TRY(const ShardReader reader, ShardReader::open(env, directory, file, manifest.step, manifest.run_id));
    for (const BaseFile& base : reader.bases()) add(base.name);
    add(file.name);
  }
  return files;
}

}  // namespace

void report_upload(const UploadReport& report) {
  if (report.outcome.ok()) return;
  print_message("the checkpoint of step {} was not uploaded: {}. It stays where it is", report.step,
                report.printed.empty() ? report.outcome.error().message
                                       : with_printed(report.outcome.error().message, report.printed));
}

std::string upload_name(const Manifest& manifest) {
  const std::string text = encode_manifest(manifest);
  return fmt::format("generation-{:04}-step-{:08}-{:08x}", manifest.generation, manifest.step,
                     crc32c(std::as_bytes(std::span(text))));
}

Result<std::vector<UploadShare>> shares_of_parts(const std::vector<UploadPart>& parts,
                                                 const StorageDomains& domains) {
  std::optional<Error> reason;  // of the first host that has a manifest
  for (const int leader : domains.leaders()) {
    if (parts[static_cast<std::size_t>(leader)].name.empty()) continue;
    Result<std::vector<UploadShare>> shares = shares_by_manifest_of(leader, parts, domains);
    if (shares.ok()) return shares;
    if (!reason.has_value()) reason = shares.error();
  }
  return reason.has_value() ? *reason
                            : fail(ExitCode::checkpoint, "no host that is here has a manifest of it");
}

Uploads::Uploads(const Setup& setup)
    : env_(&setup.env),
      faults_(&setup.faults),
      store_(&setup.store),
      whole_(setup.config.checkpoint.upload_shard_command.empty()),
      command_(upload_command_of(setup.config.checkpoint, setup.retry_after_ms)),
      record_(RunPaths{setup.config.run.directory}.uploaded()),
      rank_(setup.rank),
      ranks_(setup.ranks),
      domains_(setup.domains) {}

Uploads::~Uploads() {
  cancel();
}

void Uploads::cancel() {
  cancelled_ = true;
  job_.wait();
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
  const bool looks = domains_.has_value() ? domains_->leads(rank_) : rank_ == 0;
  HF_TRY(const std::vector<Newest> all, gather(communicator, waiter, looks ? find_newest() : Newest{}));
  const Newest& newest = *std::ranges::max_element(all, {}, &Newest::age);
  const bool is_uploaded = std::ranges::any_of(
      all, [&](const Newest& each) { return each.is_uploaded && each.age() == newest.age(); });
  if (newest.exists && !is_uploaded) offer(newest.step);
  return {};
}

void Uploads::offer(std::uint64_t step) {
  if (!wanted()) return;
  next_ = step;
  if (!busy()) begin();
  mark_in_use();
}

// Marks the checkpoints whose files are needed. Some rank may read them until the upload is over, and a rank that
// publishes removes old checkpoints.
void Uploads::mark_in_use() {
  std::vector<std::uint64_t> steps;
  if (busy()) steps.push_back(upload_.step);
  if (next_.has_value()) steps.push_back(*next_);
  store_->set_in_use(std::move(steps));
}

void Uploads::begin() {
  upload_ = {.step = *std::exchange(next_, std::nullopt), .begin_ns = env_->monotonic_ns()};
  begin(whole_ ? Phase::last : domains_.has_value() ? Phase::parts : Phase::shards);
}

void Uploads::begin(Phase phase) {
  upload_.phase = phase;
  if (takes_part()) job_.start(*env_, "uploader", [this, phase] { return work(phase); });
}

int Uploads::awaited() const {
  if (upload_.phase == Phase::parts) return domains_->count();
  return upload_.phase == Phase::shards ? ranks_ : 1;
}

bool Uploads::takes_part() const {
  if (upload_.phase == Phase::parts) return domains_->leads(rank_);
  if (upload_.phase == Phase::last)
    return upload_.share.has_value() ? upload_.share->sends_manifest : rank_ == 0;
  return upload_.phase == Phase::shards;
}

void Uploads::vote(SaveVotes& votes) const {
  if (!takes_part() || !job_.finished()) return;
  (job_.result().ok() ? votes.sent : votes.unsent) = 1;
}

Result<void> Uploads::advance(Communicator& communicator, const Waiter& waiter, const SaveVotes& sums) {
  if (!busy() || sums.sent + sums.unsent < awaited()) return {};
  Result<void> outcome;
  if (takes_part()) {
    const Result<int> attempts = job_.take();
    outcome = outcome_of(attempts);
    if (attempts.ok()) upload_.attempts = std::max(upload_.attempts, *attempts);
  }
  if (sums.unsent > 0) {
    const Result<void> agreed = agree_on_outcome(communicator, waiter, outcome, env_->host_name());
    HF_CHECK(!agreed.ok());
    if (communicator.abandoned()) return agreed;
    HF_TRY(const std::vector<std::string> printed,
           all_gather_text(communicator, waiter, outcome.ok() ? std::string() : upload_.sent.printed));
    std::string text;
    for (std::size_t rank = 0; rank < printed.size() && text.empty(); ++rank) {
      if (!printed[rank].empty())
        text =
            whole_ || printed.size() == 1 ? printed[rank] : fmt::format("rank {}: {}", rank, printed[rank]);
    }
    end(whole_ && !outcome.ok() ? outcome : agreed, text);  // nobody asks which rank sends a whole checkpoint
    return {};
  }
  if (upload_.phase == Phase::parts) return share_out(communicator, waiter);
  if (upload_.phase == Phase::shards) {
    begin(Phase::last);
  } else {
    end({});
  }
  return {};
}

Result<void> Uploads::share_out(Communicator& communicator, const Waiter& waiter) {
  HF_TRY(const std::vector<UploadPart> parts, gather(communicator, waiter, upload_.part));
  const Result<std::vector<UploadShare>> shares = shares_of_parts(parts, *domains_);
  if (!shares.ok()) {
    end(shares.error());
    return {};
  }
  upload_.share = (*shares)[static_cast<std::size_t>(rank_)];
  begin(Phase::shards);
  return {};
}

void Uploads::end(Result<void> outcome, const std::string& printed) {
  reports_.push_back(
      {.step = upload_.step,
       .outcome = std::move(outcome),
       .printed = printed,
       .attempts = whole_ ? upload_.sent.attempts : upload_.attempts,
       .duration_ns = whole_ ? upload_.sent.duration_ns : env_->monotonic_ns() - upload_.begin_ns});
  upload_.phase = Phase::idle;
  if (next_.has_value()) begin();
  mark_in_use();
}

// Votes until all uploads are over. All ranks leave together, so the others go on voting while one sends.
Result<void> Uploads::finish(Communicator& communicator, const Waiter& waiter,
                             const std::function<void()>& look) {
  if (!wanted()) return {};
  constexpr std::int64_t pause_us = 20'000;
  while (true) {
    SaveVotes sums;
    vote(sums);
    HF_TRY_VOID(sum_over_ranks(communicator, waiter, sums));
    HF_TRY_VOID(advance(communicator, waiter, sums));
    look();
    if (!busy()) return {};
    env_->sleep_us(pause_us);
  }
}

Result<int> Uploads::work(Phase phase) {
  const std::string directory = store_->checkpoint_directory(upload_.step);
  if (phase == Phase::parts) {
    upload_.part = find_upload_part(*env_, directory);
    return 1;
  }
  // A host from which nothing is sent may have no manifest, either.
  if (phase == Phase::shards && upload_.share.has_value() && upload_.share->shards.empty()) return 1;
  HF_TRY(const Manifest manifest, read_manifest(*env_, directory));
  return phase == Phase::shards ? send_shards(directory, manifest) : send_manifest(directory, manifest);
}

Result<int> Uploads::send_shards(const std::string& directory, const Manifest& manifest) {
  const UploadShare share =
      upload_.share.has_value() ? *upload_.share : share_of_rank(manifest, rank_, ranks_);
  HF_TRY(const std::vector<std::string> files, files_to_send(*env_, directory, manifest, share.shards));
  int attempts = 1;
  for (const std::string& file : files) {
    HF_FAULT_POINT(*faults_, "upload.before_file");
    HF_TRY_VOID(check_no_link(*env_, directory + "/" + file));
    HF_TRY(const int needed, send(manifest, share.name, directory, file));
    attempts = std::max(attempts, needed);
  }
  return attempts;
}

// Sends the manifest; or all files, where one command does that. RUN/uploaded says so then: where it cannot be written,
// the checkpoint is sent once more at the next start.
Result<int> Uploads::send_manifest(const std::string& directory, const Manifest& manifest) {
  std::vector<std::string> files = {checkpoint_names::manifest};
  if (whole_) {
    HF_TRY(files, env_->list(directory));
  } else {
    HF_FAULT_POINT(*faults_, "upload.before_manifest");
  }
  for (const std::string& file : files) HF_TRY_VOID(check_no_link(*env_, directory + "/" + file));
  HF_TRY(const int attempts,
         send(manifest, upload_name(manifest), directory, whole_ ? "" : checkpoint_names::manifest));
  static_cast<void>(env_->replace_text(record_, upload_record(manifest, command_.line)).ok());
  return attempts;
}

// Runs the command. `file`: empty where it sends all.
Result<int> Uploads::send(const Manifest& manifest, const std::string& name, const std::string& directory,
                          const std::string& file) {
  if (cancelled_) return fail(ExitCode::checkpoint, "the run ends");
  std::map<std::string, std::string> variables = {{"HOLDFAST_CHECKPOINT", directory},
                                                  {"HOLDFAST_NAME", name},
                                                  {"HOLDFAST_STEP", fmt::format("{}", manifest.step)},
                                                  {"HOLDFAST_RUN", manifest.run_id}};
  if (!file.empty()) variables["HOLDFAST_FILE"] = directory + "/" + file;
  upload_.sent = run_user_command(*env_, command_, variables, cancelled_);
  HF_TRY_VOID(upload_.sent.outcome);
  return upload_.sent.attempts;
}

}  // namespace holdfast::save
