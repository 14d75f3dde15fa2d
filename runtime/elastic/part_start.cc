#include "runtime/elastic/part_start.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "checkpoint/names.h"
#include "checkpoint/part_inventory.h"
#include "checkpoint/store.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/gather.h"
#include "runtime/os/console.h"
#include "runtime/os/foreign_text.h"
#include "runtime/os/retry.h"
#include "runtime/rank/watch.h"
#include "runtime/run/run_directory.h"

namespace holdfast::elastic {
namespace {

// The shards of a checkpoint that a rank has verified on its host.
struct VerifiedShards {
  std::vector<std::string> sound = {};
  std::string damage = {};  // of the first that is not; empty: there is none
  bool may_pass = false;    // one that is not could not be read, and may be at another time

  static void visit_fields(auto& self, auto&& visit) {
    visit("sound", self.sound);
    visit("damage", self.damage);
    visit("may_pass", self.may_pass);
  }
};

// The shards that the manifest of a part names.
struct NamedShards {
  std::size_t inventory = 0, part = 0;  // by storage domain, and in its inventory
  std::vector<ShardFile> named = {};

  static void visit_fields(auto& self, auto&& visit) {
    visit("inventory", self.inventory);
    visit("part", self.part);
    visit("named", self.named);
  }
};

class PartsOfHosts {
 public:
  PartsOfHosts(const TrainInputs& inputs, const Waiter& waiter, const std::string& run_directory,
               const StorageDomains& domains, const ClaimCheck& check)
      : env_(inputs.env),
        faults_(inputs.faults),
        communicator_(inputs.communicator),
        waiter_(waiter.with_timeout(waiter.timeout_ms() + verify_timeout_ms)),
        run_directory_(run_directory),
        domains_(domains),
        leads_(domains.leads(communicator_.rank())),
        check_(check),
        watch_(inputs.watch),
        store_(inputs.env, inputs.faults, run_directory) {
    store_.fence({.epoch = 0, .check = check});
  }

  Result<OwnStates> run() {
    HF_TRY_VOID(gather());
    OwnStates own;
    HF_TRY(const Lineage merged, merge_lineages(inventories_));
    std::vector<FoundParts> found = find_parts(inventories_, merged);
    const std::vector<FoundParts> never_whole = take_never_whole(found, inventories_);
    own.lineage = forget(merged, never_whole, found, inventories_);
    for (const PartInventory& inventory : inventories_) {
      if (own.shm_run_id.empty()) own.shm_run_id = inventory.shm_run_id;
    }
    own.has_newest_recorded = has(own.lineage.newest_checkpoint, found);
    own.newest = choose(found);
    if (!own.newest.ok() && communicator_.abandoned()) return own.newest.error();
    if (!own.newest.ok()) return own;  // a start that is refused changes no directory
    HF_TRY_VOID(adopt(own.lineage, merged));
    HF_TRY_VOID(remove(never_whole, *own.newest));
    return own;
  }

 private:
  Result<void> may_write() const { return check_ ? check_() : Result<void>(); }
  Result<void> agree(const Result<void>& mine) {
    return agree_on_outcome(communicator_, waiter_, mine, env_.host_name());
  }

  // Returns whether the checkpoint exists on some host, whole or not.
  bool has(const std::optional<ParentCheckpoint>& newest, const std::vector<FoundParts>& found) const {
    if (!newest.has_value()) return false;
    return std::ranges::find(found, *newest, &FoundParts::state) != found.end() ||
           std::ranges::any_of(inventories_, [&](const PartInventory& inventory) {
             return std::ranges::find(inventory.unreadable, newest->step, &UnreadablePart::step) !=
                    inventory.unreadable.end();
           });
  }

  Result<PartInventory> own_inventory() {
    HF_TRY(PartInventory own, take_inventory(env_, run_directory_, domains_.of(communicator_.rank()).host));
    HF_TRY(const RunIdentity identity, identify_run(env_, RunPaths{run_directory_}));
    own.shm_run_id = identity.id;
    return own;
  }

  // Gathers the inventories by storage domain, in the order of their leaders.
  Result<void> gather() {
    Result<PartInventory> own = PartInventory{};
    if (leads_) {
      const StorageWait storage(watch_, "the checkpoints");
      own = retry_storage(env_, [&]() -> Result<PartInventory> {
        HF_TRY_VOID(store_.restore_replaced());
        return own_inventory();
      });
    }
    HF_TRY_VOID(agree(outcome_of(own)));
    std::vector<std::vector<ShardFile>> lists;  // by part of this host
    for (CheckpointPart& part : own->parts) lists.push_back(std::exchange(part.named, {}));
    HF_TRY(std::vector<PartInventory> all, parallel::gather(communicator_, waiter_, *own));
    for (const int leader : domains_.leaders())
      inventories_.push_back(std::move(all[static_cast<std::size_t>(leader)]));
    return share_lists(std::move(lists));
  }

  // Shares what manifests name. That is as much as there are ranks, so each list travels once, from the first host that
  // has it, and only its part has it then (find_parts()).
  Result<void> share_lists(std::vector<std::vector<ShardFile>> lists) {
    std::vector<NamedShards> mine;
    std::set<std::tuple<std::uint64_t, std::uint64_t, std::string>> told;
    for (std::size_t i = 0; i < inventories_.size(); ++i) {
      for (std::size_t part = 0; part < inventories_[i].parts.size(); ++part) {
        const CheckpointPart& each = inventories_[i].parts[part];
        if (!told.emplace(each.state.generation, each.state.step, each.content).second) continue;
        if (domains_.leaders()[i] == communicator_.rank())
          mine.push_back({.inventory = i, .part = part, .named = std::move(lists[part])});
      }
    }
    HF_TRY(std::vector<std::vector<NamedShards>> all, parallel::gather(communicator_, waiter_, mine));
    for (std::vector<NamedShards>& of_rank : all) {
      for (NamedShards& each : of_rank)
        inventories_[each.inventory].parts[each.part].named = std::move(each.named);
    }
    return {};
  }

  // Writes the agreed lineage on hosts that differ: a host that was absent when a generation began needs it
  // before it removes or keeps anything. `merged`: the lineage before any part of it was forgotten.
  Result<void> adopt(const Lineage& lineage, const Lineage& merged) {
    const bool differs =
        leads_ && inventories_[static_cast<std::size_t>(index_of_domain())].lineage != lineage;
    const bool is_over = lineage.run_id.empty() && !merged.run_id.empty();
    if (!differs || (lineage.run_id.empty() && !is_over)) return agree({});
    return agree(write_lineage(env_, run_directory_, lineage, check_));
  }

  // Removes parts of checkpoints that were never whole. If a host died before it had published its part of
  // one, the other hosts would keep theirs as the newest, or as parts of another run than the one that all of
  // them begin anew. These parts go if no lineage lists them; parts that are older than `chosen` do no harm,
  // and stay.
  Result<void> remove(const std::vector<FoundParts>& never_whole,
                      const std::optional<OwnCheckpoint>& chosen) {
    const auto is_older = [&](const ParentCheckpoint& state) {
      return chosen.has_value() && std::pair(state.generation, state.step) <
                                       std::pair(chosen->manifest.generation, chosen->manifest.step);
    };
    Result<void> removed;
    for (const FoundParts& parts : never_whole) {
      if (is_older(parts.state)) continue;
      if (communicator_.rank() == 0) {
        std::vector<std::string> hosts;
        for (const std::size_t host : parts.with_manifest) hosts.push_back(inventories_[host].host);
        print_message(
            "step {} is on host {} only, and is removed there: the others have not published their parts of "
            "it, or have removed them",
            parts.state.step, fmt::join(hosts, " and host "));
      }
      if (has_manifest_of(parts) && removed.ok()) removed = store_.remove(parts.state.step);
    }
    return agree(removed);
  }

  int index_of_domain() const {
    const std::vector<int> leaders = domains_.leaders();
    const auto found = std::ranges::find(leaders, communicator_.rank());
    return found == leaders.end() ? -1 : static_cast<int>(found - leaders.begin());
  }

  Result<std::optional<OwnCheckpoint>> choose(const std::vector<FoundParts>& found) {
    std::vector<std::string> skipped;
    for (const FoundParts& parts : found) {
      if (!parts.missing().empty()) {
        skipped.push_back(why_not_whole(parts));
        some_are_away_ = some_are_away_ || is_with_other_hosts(parts, inventories_);
        continue;
      }
      HF_TRY(std::string damage, verify_together(parts));
      std::optional<OwnCheckpoint> chosen;
      if (damage.empty()) {
        HF_TRY(chosen, describe(parts, damage));
      }
      if (!chosen.has_value()) {
        skipped.push_back(std::move(damage));
        continue;
      }
      chosen->skipped = std::move(skipped);
      add_unreadable(chosen->skipped, parts.state.step + 1);
      return chosen;
    }
    add_unreadable(skipped, 0);
    if (skipped.empty()) return std::optional<OwnCheckpoint>();  // none was ever published on all hosts
    std::string list;
    for (const std::string& sentence : skipped) list += "\n  " + sentence;
    return with_reach(
        some_may_be_read_ || some_are_away_ ? Reach::minute : Reach::run,
        fail(
            some_are_away_ ? ExitCode::communication : ExitCode::checkpoint,
            "{} is local to each host, and of {} checkpoint{} there none can be put together from the hosts "
            "that are here; start it with the hosts that have what is missing, or set run.resume = \"never\" "
            "and another run.directory to start from the beginning:{}",
            run_directory_, skipped.size(), skipped.size() == 1 ? "" : "s", list));
  }

  // Adds the unreadable parts of steps from `least` on.
  void add_unreadable(std::vector<std::string>& sentences, std::uint64_t least) {
    for (const PartInventory& inventory : inventories_) {
      for (const UnreadablePart& part : inventory.unreadable) {
        if (part.step < least) continue;
        sentences.push_back(fmt::format("step {} on host {}: {}", part.step, inventory.host, part.why));
        some_may_be_read_ = some_may_be_read_ || part.may_pass;
      }
    }
  }

  std::string directory_of(const FoundParts& parts) const {
    return checkpoint_names::checkpoints(run_directory_) + "/" + parts.directory_name;
  }

  bool has_manifest_of(const FoundParts& parts) const {
    const int own = index_of_domain();
    return own >= 0 &&
           std::ranges::find(parts.with_manifest, static_cast<std::size_t>(own)) != parts.with_manifest.end();
  }

  // Verifies the parts of each host. A shard counts if one copy of it is sound; another copy that is damaged
  // is removed, so that no rank reads it. Returns the damage; empty if there is none.
  Result<std::string> verify_together(const FoundParts& parts) {
    VerifiedShards mine;
    std::vector<std::string> damaged;
    if (has_manifest_of(parts)) {
      const StorageWait storage(watch_, "the checkpoint");
      for (const ShardFile& shard : parts.named) {
        const auto holders = parts.holders.find(shard.name);
        const bool is_here =
            holders != parts.holders.end() &&
            std::ranges::find(holders->second, static_cast<std::size_t>(index_of_domain())) !=
                holders->second.end();
        if (!is_here) continue;
        const Result<void> verified = retry_storage(env_, [&]() -> Result<void> {
          HF_FAILING_FAULT_POINT(faults_, load_point);
          return verify_shard(env_, directory_of(parts), shard, parts.state, parts.run_id,
                              env_.processor_count(), [&](std::uint64_t bytes) { storage.progress(bytes); });
        });
        if (verified.ok()) {
          mine.sound.push_back(shard.name);
          continue;
        }
        if (mine.damage.empty()) mine.damage = verified.error().message;
        if (verified.error().reach == Reach::run) {
          damaged.push_back(shard.name);
        } else {
          mine.may_pass = true;
        }
      }
    }
    HF_TRY(const std::vector<VerifiedShards> all, parallel::gather(communicator_, waiter_, mine));
    std::set<std::string> sound_somewhere;
    std::string reported;
    for (const VerifiedShards& each : all) {
      sound_somewhere.insert(each.sound.begin(), each.sound.end());
      if (reported.empty()) reported = each.damage;
      some_may_be_read_ = some_may_be_read_ || each.may_pass;
    }
    for (const std::string& name : damaged) {
      if (sound_somewhere.contains(name) && may_write().ok())
        static_cast<void>(env_.remove(directory_of(parts) + "/" + name).ok());
    }
    const bool whole = std::ranges::all_of(
        parts.named, [&](const ShardFile& shard) { return sound_somewhere.contains(shard.name); });
    return whole ? std::string() : reported;
  }

  // Returns the manifest of the first host that can read its copy; none if no host can, and `damage` says why.
  Result<std::optional<OwnCheckpoint>> describe(const FoundParts& parts, std::string& damage) {
    const std::string directory = directory_of(parts);
    for (const std::size_t host : parts.with_manifest) {
      Result<std::string> own = std::string();
      if (domains_.leaders()[host] == communicator_.rank()) {
        const StorageWait storage(watch_, "the checkpoint");
        own = retry_storage(env_, [&] {
          return read_text_within(env_, directory + "/" + checkpoint_names::manifest, text_limits::manifest);
        });
      }
      HF_TRY(const std::vector<std::string> texts,
             all_gather_text(communicator_, waiter_, own.ok() ? *own : std::string()));
      const std::string& text = texts[static_cast<std::size_t>(domains_.leaders()[host])];
      Result<Manifest> manifest = decode_manifest(text, directory);
      if (manifest.ok()) {
        return std::optional(OwnCheckpoint{.manifest = std::move(manifest).value(),
                                           .directory = directory,
                                           .skipped = {},
                                           .content = parts.content});
      }
      some_may_be_read_ = some_may_be_read_ || text.empty();
      damage = fmt::format("step {}: no host can read its manifest in {}{}", parts.state.step, directory,
                           text.empty() ? "" : ": " + manifest.error().message);
    }
    return std::optional<OwnCheckpoint>();
  }

  Env& env_;
  FaultPoints& faults_;
  Communicator& communicator_;
  Waiter waiter_;
  std::string run_directory_;
  const StorageDomains& domains_;
  bool leads_;
  ClaimCheck check_;
  RankWatch* watch_;
  CheckpointStore store_;  // store of this host
  std::vector<PartInventory> inventories_;
  // These say of the checkpoints that do not count:
  bool some_may_be_read_ = false;  // a part may be read at another time
  bool some_are_away_ = false;     // parts are on hosts that are not here
};

}  // namespace

Result<OwnStates> join_parts(const TrainInputs& inputs, const Waiter& waiter,
                             const std::string& run_directory, const StorageDomains& domains,
                             const ClaimCheck& check) {
  return PartsOfHosts(inputs, waiter, run_directory, domains, check).run();
}

}  // namespace holdfast::elastic
