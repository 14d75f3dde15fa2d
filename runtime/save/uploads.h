// Uploads copies the checkpoints of a run that are visible elsewhere, while training goes on, as its config says: whole
// by a command of rank 0 (checkpoint.upload_command), file by file by a command of every rank
// (checkpoint.upload_shard_command), or not at all.
//
//   HF_TRY_VOID(uploads.offer_newest(communicator, waiter));   // at a start
//   uploads.offer(step);                                       // all ranks: the checkpoint of this step is visible
//   run_step(worker, {.uploads = &uploads});                   // the vote carries vote()
//   HF_TRY_VOID(uploads.advance(communicator, waiter, outcome.saves));
//   HF_TRY_VOID(uploads.finish(communicator, waiter, look));   // at the end
//
// An upload has up to three phases. The ranks that do the work of one do it on a thread of their own, and report this
// in the vote of some later step:
//   parts   the first rank of each host looks which shards are there; then all share out the shards. It is only where
//           run.directory is local to each host
//   shards  every rank sends its files; not where one command sends all
//   last    when all have, one rank (rank 0 where there is one directory) sends the manifest, or the whole checkpoint.
//           Files without a manifest do not count as a checkpoint, so what is visible there is complete
// One upload is under way at a time; of the checkpoints that are offered meanwhile only the newest waits for its turn.
// A command that fails is tried again at growing intervals. An upload that fails on some rank is abandoned by all, and
// the checkpoint stays where it is.
//
// Threads: one, that of the training loop; its own threads never use the communicator. Ranks call the same functions
// in the same order, and what they do next follows from the votes alone. Errors: communication only; the outcome of an
// upload is in its report.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/store.h"
#include "parallel/comm/collectives.h"
#include "runtime/config/config.h"
#include "runtime/os/background_job.h"
#include "runtime/os/env.h"
#include "runtime/os/fault_point.h"
#include "runtime/run/user_command.h"
#include "runtime/save/save_records.h"
#include "runtime/save/storage_domains.h"

namespace holdfast::save {

struct UploadReport {
  std::uint64_t step = 0;
  Result<void> outcome;
  std::string printed = {};  // by the last attempt of a command that failed
  int attempts = 0;
  std::int64_t duration_ns = 0;  // of a whole checkpoint: time of all attempts and the waits between them
};

// Reports on stderr that an upload has failed; does nothing for one that has succeeded.
void report_upload(const UploadReport& report);

// Returns a name such as "generation-0000-step-00000100-1a2b3c4d". The greatest name is the newest checkpoint, and a
// checkpoint of other bytes has another name (the end is a checksum of the manifest), so that an upload that is under
// way never overwrites a complete one.
std::string upload_name(const Manifest& manifest);

// UploadShare is what one rank sends of a checkpoint, beside the manifest, which is sent last.
struct UploadShare {
  std::string name = {};                 // upload_name() of the checkpoint, the same on all ranks
  std::vector<std::size_t> shards = {};  // indexes in the manifest
  bool sends_manifest = false;
};

// UploadPart is what the directory of one host has of a checkpoint that is in parts on several hosts.
struct UploadPart {
  std::string name = {};                    // upload_name() of the manifest there; empty: there is none
  std::string content = {};                 // content_of() the shards that it names
  std::uint64_t shard_count = 0;            // that it names
  std::vector<std::uint64_t> present = {};  // indexes of the shards that are here

  static void visit_fields(auto& self, auto&& visit) {
    visit("name", self.name);
    visit("content", self.content);
    visit("shard_count", self.shard_count);
    visit("present", self.present);
  }
};
// Returns the share of each rank of a checkpoint in parts: a shard is sent from a host that has it, by the rank that
// wrote it if that is there. The manifest, which gives the checkpoint its name, is that of the first host whose shards
// can all be found. Hosts write the same manifest, but for what they know of the checkpoint before it. `parts`: by rank,
// empty but on leaders. Error: checkpoint, if some shard is nowhere. Pure.
Result<std::vector<UploadShare>> shares_of_parts(const std::vector<UploadPart>& parts,
                                                 const StorageDomains& domains);

class Uploads {
 public:
  struct Setup {
    Env& env;
    FaultPoints& faults;
    CheckpointStore& store;  // outlives it
    const Config& config;
    int rank = 0;
    int ranks = 1;
    std::optional<StorageDomains> domains = {};                 // of all ranks; none: all see one directory
    std::vector<std::int64_t> retry_after_ms = {1000, 10'000};  // delays before further attempts
  };
  explicit Uploads(const Setup& setup);
  // Calls cancel().
  ~Uploads();
  Uploads(const Uploads&) = delete;
  Uploads& operator=(const Uploads&) = delete;

  // Offers the newest checkpoint, unless RUN/uploaded says on some host that it is there. The processes of an earlier
  // start, or the ranks before a recovery, may not have sent it completely.
  Result<void> offer_newest(Communicator& communicator, const Waiter& waiter);
  void offer(std::uint64_t step);
  // Adds the state of this rank's part.
  void vote(SaveVotes& votes) const;
  Result<void> advance(Communicator& communicator, const Waiter& waiter, const SaveVotes& sums);
  // Returns whether an upload is under way or waits; equal on all ranks.
  bool busy() const { return upload_.phase != Phase::idle; }
  // Kills the command of this rank. What was offered and is not uploaded yet fails, and is sent by the next start.
  void cancel();
  // Votes until no upload is under way on any rank, which all ranks call together; calls `look` between two votes.
  Result<void> finish(Communicator& communicator, const Waiter& waiter, const std::function<void()>& look);
  // Returns, on every rank, the uploads that have ended, with the attempts and times of this rank.
  std::vector<UploadReport> take_reports() { return std::exchange(reports_, {}); }

 private:
  enum class Phase { idle, parts, shards, last };
  struct Upload {
    Phase phase = Phase::idle;
    std::uint64_t step = 0;
    std::int64_t begin_ns = 0;
    int attempts = 0;                       // most attempts that a file of this rank needed
    CommandAttempts sent = {};              // by the command of this rank that ended last
    UploadPart part = {};                   // of the directory that this rank looks into
    std::optional<UploadShare> share = {};  // of this rank, where the checkpoint is in parts
  };
  struct Newest;

  bool wanted() const { return !command_.line.empty(); }
  Newest find_newest() const;
  void begin();
  void begin(Phase phase);
  void end(Result<void> outcome, const std::string& printed = {});
  void mark_in_use();
  // Returns how many ranks report the end of the phase.
  int awaited() const;
  bool takes_part() const;
  Result<void> share_out(Communicator& communicator, const Waiter& waiter);
  // These run on the thread of a phase, and return the most attempts that a command needed.
  Result<int> work(Phase phase);
  Result<int> send_shards(const std::string& directory, const Manifest& manifest);
  Result<int> send_manifest(const std::string& directory, const Manifest& manifest);
  Result<int> send(const Manifest& manifest, const std::string& name, const std::string& directory,
                   const std::string& file);

  Env* env_;
  FaultPoints* faults_;
  CheckpointStore* store_;
  bool whole_;           // one command sends a whole checkpoint
  UserCommand command_;  // without a line: no uploads
  std::string record_;   // path of RUN/uploaded
  int rank_, ranks_;
  std::optional<StorageDomains> domains_;
  std::atomic<bool> cancelled_ = false;
  std::optional<std::uint64_t> next_;  // step that waits
  Upload upload_ = {};                 // that is under way, or ended last
  std::vector<UploadReport> reports_;
  BackgroundJob<int> job_;  // attempts; the last member: it uses the others
};

}  // namespace holdfast::save
