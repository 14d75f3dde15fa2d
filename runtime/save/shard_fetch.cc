#include "runtime/save/shard_fetch.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>

#include "checkpoint/names.h"
#include "checkpoint/part_inventory.h"
#include "checkpoint/shard_file.h"
#include "checkpoint/snapshot_slot.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/gather.h"
#include "runtime/os/foreign_text.h"
#include "runtime/rank/watch.h"
#include "runtime/save/checkpoint_parts.h"

namespace holdfast::save {
namespace {

constexpr std::uint64_t fetched_at_once = std::uint64_t{4} << 20;
constexpr const char* fetch_operation = "the copying of shards between hosts";

// The shards that a rank needs, and the rank that fetches them for it.
struct ShardNeeds {
  int leader = 0;
  std::vector<std::size_t> shards = {};

  static void visit_fields(auto& self, auto&& visit) {
    visit("leader", self.leader);
    visit("shards", self.shards);
  }
};

// The pieces of a shard, and the other files that it refers to.
struct ShardContent {
  std::size_t shard = 0;
  std::string pieces = {};  // to_text() of their specs
  std::vector<BaseFile> bases = {};

  static void visit_fields(auto& self, auto&& visit) {
    visit("shard", self.shard);
    visit("pieces", self.pieces);
    visit("bases", self.bases);
  }
};

class ShardExchange {
 public:
  ShardExchange(StateView& view, const StorageDomains& domains, std::string directory, std::string content,
                ClaimCheck check)
      : view_(view),
        env_(view.rank.env),
        communicator_(view.rank.communicator),
        waiter_(patient_waiter(view)),
        leader_(domains.leader_of(communicator_.rank())),
        directory_(std::move(directory)),
        staging_(pending_of(directory_, "fetched-")),
        content_(std::move(content)),
        check_(std::move(check)) {}

  Result<void> run(const WantedOf& wanted_of) {
    HF_TRY_VOID(find_holders());
    HF_TRY_VOID(share_pieces());
    std::vector<std::size_t> needed;
    HF_TRY_VOID(agree(find_needed(wanted_of, needed)));
    HF_TRY(const std::vector<ShardNeeds> all,
           gather(communicator_, waiter_, ShardNeeds{.leader = leader_, .shards = needed}));
    std::vector<std::set<int>> needed_by(holders_.size());
    for (const ShardNeeds& each : all)
      for (const std::size_t shard : each.shards) needed_by[shard].insert(each.leader);
    std::vector<std::vector<int>> targets;
    for (const std::set<int>& leading : needed_by) targets.emplace_back(leading.begin(), leading.end());
    Result<void> outcome;
    if (leads()) outcome = begin_target(targets);
    // All ranks go in one order, so that they do not wait in a circle.
    for (const ShardFetch& fetch : plan_fetches(holders_, targets)) {
      const Result<void> moved = move(fetch);
      if (!moved.ok() && communicator_.abandoned()) return moved;
      if (outcome.ok()) outcome = moved;
    }
    if (leads() && outcome.ok()) outcome = end_target(targets);
    return agree(outcome);
  }

 private:
  static std::string pending_of(const std::string& directory, const std::string& prefix) {
    const std::size_t checkpoints = directory.find_last_of('/');
    const std::string run_directory = directory.substr(0, directory.find_last_of('/', checkpoints - 1));
    return checkpoint_names::pending(run_directory) + "/" + prefix + directory.substr(checkpoints + 1);
  }
  bool leads() const { return leader_ == communicator_.rank(); }
  Result<void> agree(const Result<void>& mine) {
    return agree_on_outcome(communicator_, waiter_, mine, env_.host_name());
  }

  // Shares the manifest of the first rank that has one, and finds which leaders have which shards.
  Result<void> find_holders() {
    const std::string own =
        text_within_or_empty(env_, directory_ + "/" + checkpoint_names::manifest, text_limits::manifest);
    const Result<Manifest> manifest = decode_manifest(own, directory_);
    has_manifest_ = manifest.ok() && content_of(manifest->shards) == content_;
    HF_TRY(const std::vector<std::string> have,
           all_gather_text(communicator_, waiter_, has_manifest_ ? "one" : ""));
    const auto first = std::ranges::find(have, "one");
    if (first == have.end()) {
      return fail(ExitCode::checkpoint,
                  "{} is on none of the hosts whose ranks compute; start with more of them", directory_);
    }
    const bool tells = first - have.begin() == communicator_.rank();
    HF_TRY(const std::vector<std::string> texts,
           all_gather_text(communicator_, waiter_, tells ? own : std::string()));
    manifest_text_ = texts[static_cast<std::size_t>(first - have.begin())];
    HF_TRY(manifest_, decode_manifest(manifest_text_, directory_));
    std::vector<std::size_t> present;
    for (std::size_t i = 0; i < manifest_.shards.size(); ++i) {
      const bool is_here = has_manifest_ && has_shard(env_, directory_, manifest_.shards[i],
                                                      state_of(manifest_), manifest_.run_id);
      here_.push_back(is_here);
      if (is_here && leads()) present.push_back(i);
    }
    HF_TRY(const std::vector<std::vector<std::size_t>> all, gather(communicator_, waiter_, present));
    holders_.resize(manifest_.shards.size());
    for (std::size_t rank = 0; rank < all.size(); ++rank)
      for (const std::size_t shard : all[rank]) holders_[shard].push_back(static_cast<int>(rank));
    return {};
  }

  // Shares the pieces of each shard and the other files that it refers to, sent by the first leader that has
  // it.
  Result<void> share_pieces() {
    std::vector<ShardContent> mine;
    Result<void> outcome;
    for (std::size_t i = 0; i < holders_.size(); ++i) {
      if (holders_[i].empty() || holders_[i].front() != communicator_.rank()) continue;
      const Result<ShardReader> reader =
          ShardReader::open(env_, directory_, manifest_.shards[i], manifest_.step, manifest_.run_id);
      if (!reader.ok()) {
        outcome = reader.error();
        continue;
      }
      std::vector<ShardSpec> specs;
      for (const IndexedPiece& piece : reader->pieces()) specs.push_back(piece.spec);
      mine.push_back({.shard = i, .pieces = to_text(specs), .bases = reader->bases()});
    }
    HF_TRY_VOID(agree(outcome));
    HF_TRY(const std::vector<std::vector<ShardContent>> all, gather(communicator_, waiter_, mine));
    pieces_.resize(holders_.size());
    bases_.resize(holders_.size());
    for (const std::vector<ShardContent>& contents : all) {
      for (const ShardContent& each : contents) {
        pieces_[each.shard] = specs_from_text(each.pieces);
        bases_[each.shard] = each.bases;
      }
    }
    return {};
  }

  // Lists the shards that this rank needs and its host does not have.
  Result<void> find_needed(const WantedOf& wanted_of, std::vector<std::size_t>& needed) {
    HF_TRY(const std::vector<ShardSpec> wanted, wanted_of(manifest_));
    std::vector<ShardSpec> existing;
    std::vector<std::size_t> shard_of;
    for (const bool local : {true, false}) {
      for (std::size_t i = 0; i < pieces_.size(); ++i) {
        if (here_[i] != local) continue;
        existing.insert(existing.end(), pieces_[i].begin(), pieces_[i].end());
        shard_of.resize(existing.size(), i);
      }
    }
    HF_TRY(const std::vector<ShardCopy> copies, plan_copies(existing, wanted));
    std::set<std::size_t> shards;
    for (const ShardCopy& copy : copies) {
      const std::size_t shard = shard_of[copy.existing_index];
      if (!here_[shard]) shards.insert(shard);
    }
    needed.assign(shards.begin(), shards.end());
    return {};
  }

  bool is_target(const std::vector<std::vector<int>>& targets) const {
    const bool needs = std::ranges::any_of(targets, [&](const std::vector<int>& leaders) {
      return std::ranges::find(leaders, communicator_.rank()) != leaders.end();
    });
    return needs || !has_manifest_;
  }

  Result<void> begin_target(const std::vector<std::vector<int>>& targets) {
    if (!is_target(targets)) return {};
    HF_TRY_VOID(env_.remove_tree(staging_));
    return env_.make_directories(staging_);
  }

  // Completes the directory of a target. A host that has a part gets the new files beside it; one that has
  // none gets the directory by one rename.
  Result<void> end_target(const std::vector<std::vector<int>>& targets) {
    if (!is_target(targets)) return {};
    HF_TRY_VOID(check_ ? check_() : Result<void>());
    if (!has_manifest_) {
      HF_TRY_VOID(env_.replace_text(staging_ + "/" + checkpoint_names::manifest, manifest_text_));
      const std::string checkpoints = directory_.substr(0, directory_.find_last_of('/'));
      HF_TRY_VOID(env_.make_directories(checkpoints));
      HF_TRY_VOID(put_aside());
      HF_TRY_VOID(env_.rename(staging_, directory_));
      return env_.sync_directory(checkpoints);
    }
    HF_TRY(const std::vector<std::string> names, env_.list(staging_));
    for (const std::string& name : names)
      HF_TRY_VOID(env_.rename(staging_ + "/" + name, directory_ + "/" + name));
    HF_TRY_VOID(env_.sync_directory(directory_));
    return env_.remove_tree(staging_);
  }

  // Moves away, at once, a directory that is in the way: another checkpoint of the step, or one without a
  // manifest.
  Result<void> put_aside() {
    HF_TRY(const FileStatus status, env_.status(directory_));
    if (!status.exists) return {};
    const std::string aside = pending_of(directory_, "removed-");
    HF_TRY_VOID(env_.remove_tree(aside));
    HF_TRY_VOID(env_.rename(directory_, aside));
    return env_.remove_tree(aside);
  }

  // Copies one shard. All ranks call it, and so know which files a target has already received with another
  // shard.
  Result<void> move(const ShardFetch& fetch) {
    const ShardFile& shard = manifest_.shards[fetch.shard];
    std::vector<BaseFile> files = {{.name = shard.name, .bytes = shard.bytes}};
    for (const BaseFile& base : bases_[fetch.shard]) {
      if (moved_bases_.insert({fetch.target, base.name}).second) files.push_back(base);
    }
    Result<void> outcome;
    for (const BaseFile& file : files) {
      Result<void> moved;
      if (communicator_.rank() == fetch.source) moved = serve(file, fetch.target);
      if (communicator_.rank() == fetch.target) moved = take(file, fetch.source);
      if (!moved.ok() && communicator_.abandoned()) return moved;
      if (outcome.ok()) outcome = moved;
    }
    return outcome;
  }

  // Receives a file. First comes a word that says whether the source can read it, then the file.
  Result<void> take(const BaseFile& wanted, int source) {
    std::uint64_t readable = 0;
    HF_TRY_VOID(receive(std::as_writable_bytes(std::span(&readable, 1)), source));
    if (readable == 0)
      return fail(ExitCode::checkpoint, "{} cannot be read on the host that has it", wanted.name);
    Result<std::unique_ptr<File>> file = env_.open(staging_ + "/" + wanted.name, OpenMode::create);
    Result<void> outcome = outcome_of(file);
    std::vector<std::byte> part;
    for (std::uint64_t done = 0; done < wanted.bytes; done += part.size()) {
      part.resize(std::min(fetched_at_once, wanted.bytes - done));
      HF_TRY_VOID(receive(part, source));
      if (outcome.ok()) outcome = (*file)->write_at(done, part);
    }
    return outcome.ok() ? (*file)->sync() : outcome;
  }

  Result<void> serve(const BaseFile& asked, int target) {
    const Result<std::unique_ptr<File>> file = env_.open(directory_ + "/" + asked.name, OpenMode::read);
    const std::uint64_t readable = file.ok() ? 1 : 0;
    HF_TRY_VOID(send(std::as_bytes(std::span(&readable, 1)), target));
    if (!file.ok()) return file.error();
    Result<void> outcome;
    std::vector<std::byte> part;
    for (std::uint64_t done = 0; done < asked.bytes; done += part.size()) {
      part.resize(std::min(fetched_at_once, asked.bytes - done));
      if (const Result<void> read = (*file)->read_at(done, part); !read.ok() && outcome.ok()) outcome = read;
      HF_TRY_VOID(send(part, target));
    }
    return outcome;
  }

  Result<void> send(std::span<const std::byte> bytes, int peer) {
    mark(view_.rank.watch);  // slow progress is still progress
    HF_TRY(const Communicator::Request request, communicator_.send(bytes, peer, tag_collective));
    return waiter_.wait(communicator_, request, fetch_operation, peer);
  }
  Result<void> receive(std::span<std::byte> bytes, int peer) {
    mark(view_.rank.watch);
    HF_TRY(const Communicator::Request request, communicator_.receive(bytes, peer, tag_collective));
    return waiter_.wait(communicator_, request, fetch_operation, peer);
  }

  StateView& view_;
  Env& env_;
  Communicator& communicator_;
  Waiter waiter_;
  int leader_;
  std::string directory_, staging_, content_;
  bool has_manifest_ = false;
  std::string manifest_text_;
  Manifest manifest_;
  std::vector<bool> here_;                             // by shard
  std::vector<std::vector<int>> holders_;              // by shard: leaders
  std::vector<std::vector<ShardSpec>> pieces_;         // by shard
  std::vector<std::vector<BaseFile>> bases_;           // by shard
  std::set<std::pair<int, std::string>> moved_bases_;  // target and name
  ClaimCheck check_;
};

}  // namespace

std::vector<ShardFetch> plan_fetches(const std::vector<std::vector<int>>& holders,
                                     const std::vector<std::vector<int>>& needed_by) {
  std::vector<ShardFetch> fetches;
  for (std::size_t shard = 0; shard < needed_by.size(); ++shard) {
    if (holders[shard].empty()) continue;
    std::size_t turn = shard;
    for (const int target : needed_by[shard]) {
      if (std::ranges::find(holders[shard], target) != holders[shard].end()) continue;
      fetches.push_back(
          {.shard = shard, .source = holders[shard][turn++ % holders[shard].size()], .target = target});
    }
  }
  return fetches;
}

Result<void> fetch_missing_shards(StateView& view, const StorageDomains& domains,
                                  const std::string& directory, const std::string& content,
                                  const WantedOf& wanted_of, const ClaimCheck& check) {
  return ShardExchange(view, domains, directory, content, check).run(wanted_of);
}

}  // namespace holdfast::save
