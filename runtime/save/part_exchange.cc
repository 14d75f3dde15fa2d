#include "runtime/save/part_exchange.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <set>
#include <utility>

#include "checkpoint/incoming.h"
#include "checkpoint/names.h"
#include "checkpoint/part_inventory.h"
#include "checkpoint/shard_file.h"
#include "checkpoint/snapshot_slot.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/gather.h"
#include "runtime/core/crc32c.h"
#include "runtime/os/foreign_text.h"
#include "runtime/os/retry.h"
#include "runtime/rank/watch.h"
#include "runtime/save/checkpoint_parts.h"

namespace holdfast::save {
namespace {

// Request asks a rank for a range of a piece. A part is the slot of the rank that its state was copied from, and has
// pieces of state; or it is a shard, and its pieces are files, the shard itself the first.
struct Request {
  int source = 0;
  std::size_t part = 0, piece = 0;
  std::uint64_t first_element = 0, element_count = 0;  // of a piece of state; of a file all is sent

  static void visit_fields(auto& self, auto&& visit) {
    visit("source", self.source);
    visit("part", self.part);
    visit("piece", self.piece);
    visit("first_element", self.first_element);
    visit("element_count", self.element_count);
  }
};

// RankRequests holds what a rank still needs, and the links that have changed what came to it, each as a clause.
struct RankRequests {
  std::vector<Request> requests = {};
  std::vector<std::string> changed_links = {};

  static void visit_fields(auto& self, auto&& visit) {
    visit("requests", self.requests);
    visit("changed_links", self.changed_links);
  }
};

// The pieces of state in a part, and the other files that a shard refers to.
struct PartContent {
  std::size_t part = 0;
  std::string pieces = {};  // to_text() of their specs
  std::vector<BaseFile> bases = {};

  static void visit_fields(auto& self, auto&& visit) {
    visit("part", self.part);
    visit("pieces", self.pieces);
    visit("bases", self.bases);
  }
};

// The parts that a rank sees on its host, the damaged ones among them, and whether it needs others.
struct HostParts {
  std::string host = {}, host_name = {};
  std::vector<std::uint32_t> parts = {}, damaged = {};
  bool needs = false;

  static void visit_fields(auto& self, auto&& visit) {
    visit("host", self.host);
    visit("host_name", self.host_name);
    visit("parts", self.parts);
    visit("damaged", self.damaged);
    visit("needs", self.needs);
  }
};

// Returns the text of the first rank that has one, on all ranks; empty where none has.
Result<std::string> text_of_first(Communicator& communicator, const Waiter& waiter, const std::string& mine) {
  HF_TRY(const std::vector<std::string> has,
         all_gather_text(communicator, waiter, mine.empty() ? "" : "one"));
  const auto first = std::ranges::find(has, "one");
  if (first == has.end()) return std::string();
  const bool tells = first - has.begin() == communicator.rank();
  HF_TRY(const std::vector<std::string> texts,
         all_gather_text(communicator, waiter, tells ? mine : std::string()));
  return texts[static_cast<std::size_t>(first - has.begin())];
}

// PartExchange moves parts between ranks: those of a RAM snapshot, or the shards of a checkpoint.
class PartExchange {
 protected:
  static constexpr std::uint64_t slice_bytes = std::uint64_t{4}
                                               << 20;  // of a transfer, with a message of its own

  PartExchange(StateView& view, const char* operation)
      : view_(view),
        communicator_(view.rank.communicator),
        waiter_(patient_waiter(view)),
        operation_(operation) {}
  ~PartExchange() = default;

  // Sends what a rank has requested from this one; take() receives it from its source, and may request it again.
  virtual Result<void> serve(const Request& request, int target) = 0;
  virtual Result<void> take(const Request& request, RankRequests& again) = 0;

  Result<void> agree(const Result<void>& mine) {
    return agree_on_outcome(communicator_, waiter_, mine, view_.rank.env.host_name());
  }

  // Shares what is in each part, sent by the first rank that has it.
  Result<void> share_contents(const std::function<Result<PartContent>(std::size_t part)>& content_of) {
    std::vector<PartContent> mine;
    Result<void> outcome;
    for (std::size_t part = 0; part < holders_.size(); ++part) {
      if (holders_[part].empty() || holders_[part].front() != communicator_.rank()) continue;
      Result<PartContent> content = content_of(part);
      if (content.ok()) {
        mine.push_back(std::move(content).value());
      } else {
        outcome = content.error();
      }
    }
    HF_TRY_VOID(agree(outcome));
    HF_TRY(const std::vector<std::vector<PartContent>> all, gather(communicator_, waiter_, mine));
    pieces_.resize(holders_.size());
    bases_.resize(holders_.size());
    for (const std::vector<PartContent>& contents : all) {
      for (const PartContent& each : contents) {
        pieces_[each.part] = specs_from_text(each.pieces);
        bases_[each.part] = each.bases;
      }
    }
    return {};
  }

  // Returns the requests of what is wanted and not here, each to the first rank that has it.
  Result<std::vector<Request>> plan(const std::vector<ShardSpec>& wanted) const {
    std::vector<ShardSpec> existing;
    std::vector<Request> places;
    for (const bool here : {true, false}) {
      for (std::size_t part = 0; part < pieces_.size(); ++part) {
        if (here_[part] != here) continue;
        for (std::size_t piece = 0; piece < pieces_[part].size(); ++piece) {
          existing.push_back(pieces_[part][piece]);
          places.push_back({.part = part, .piece = piece});
        }
      }
    }
    HF_TRY(const std::vector<ShardCopy> copies, plan_copies(existing, wanted));
    std::vector<Request> requests;
    for (const ShardCopy& copy : copies) {
      const Request& place = places[copy.existing_index];
      if (here_[place.part]) continue;
      requests.push_back({.source = holders_[place.part].front(),
                          .part = place.part,
                          .piece = place.piece,
                          .first_element = copy.existing_offset,
                          .element_count = copy.element_count});
    }
    return requests;
  }

  // Makes the transfers in rounds, the last of which nobody requests anything in. `outcome`: of what this rank did
  // before; the first error after it is returned. Adds the changed links of all ranks to `changed_links`.
  Result<void> move_all(RankRequests mine, Result<void> outcome, std::vector<std::string>& changed_links) {
    while (true) {
      HF_TRY(const std::vector<RankRequests> all, gather(communicator_, waiter_, mine));
      for (const RankRequests& each : all)
        changed_links.insert(changed_links.end(), each.changed_links.begin(), each.changed_links.end());
      if (std::ranges::all_of(all, [](const RankRequests& each) { return each.requests.empty(); }))
        return outcome;
      mine = {};
      // Ranks make all transfers in one order, so that they do not wait in a circle.
      for (int target = 0; target < communicator_.size(); ++target) {
        for (const Request& request : all[static_cast<std::size_t>(target)].requests) {
          Result<void> moved;
          if (communicator_.rank() == request.source) moved = serve(request, target);
          if (communicator_.rank() == target) moved = take(request, mine);
          if (!moved.ok() && communicator_.abandoned()) return moved;
          if (outcome.ok()) outcome = moved;
        }
      }
    }
  }

  // Sends slice after slice of so many bytes, which slice_of(at, bytes) returns; use(slice) is called while it is under
  // way.
  template <typename SliceOf, typename Use>
  Result<void> send_slices(std::uint64_t bytes, int peer, SliceOf slice_of, Use use) {
    for (std::uint64_t at = 0; at < bytes; at += slice_bytes) {
      const std::span<const std::byte> slice = slice_of(at, std::min(bytes - at, slice_bytes));
      HF_TRY(const Communicator::Request request, communicator_.send(slice, peer, tag_collective));
      use(slice);
      HF_TRY_VOID(wait(request, peer));
    }
    return {};
  }
  // Receives into the slices that slice_of(at, bytes) returns; use(slice) is called for one that has arrived while the
  // next one comes, so there are two at a time.
  template <typename SliceOf, typename Use>
  Result<void> receive_slices(std::uint64_t bytes, int peer, SliceOf slice_of, Use use) {
    std::span<const std::byte> arrived;
    for (std::uint64_t at = 0; at < bytes; at += slice_bytes) {
      const std::span<std::byte> slice = slice_of(at, std::min(bytes - at, slice_bytes));
      HF_TRY(const Communicator::Request request, communicator_.receive(slice, peer, tag_collective));
      if (!arrived.empty()) use(arrived);
      HF_TRY_VOID(wait(request, peer));
      arrived = slice;
    }
    if (!arrived.empty()) use(arrived);
    return {};
  }

  template <typename Word>
  Result<void> send(Word word, int peer) {
    HF_TRY(const Communicator::Request request,
           communicator_.send(std::as_bytes(std::span(&word, 1)), peer, tag_collective));
    return wait(request, peer);
  }
  template <typename Word>
  Result<Word> receive(int peer) {
    Word word{};
    HF_TRY(const Communicator::Request request,
           communicator_.receive(std::as_writable_bytes(std::span(&word, 1)), peer, tag_collective));
    HF_TRY_VOID(wait(request, peer));
    return word;
  }
  // A rank tells another yes or no by all bits of a word, so that one that is flipped on the way changes nothing.
  Result<void> answer(bool yes, int peer) { return send(yes ? ~std::uint64_t{0} : std::uint64_t{0}, peer); }
  Result<bool> receive_answer(int peer) {
    HF_TRY(const std::uint64_t word, receive<std::uint64_t>(peer));
    return std::popcount(word) > 32;
  }
  Result<void> wait(const Communicator::Request& request, int peer) {
    mark(view_.rank.watch);  // slow progress is still progress
    return waiter_.wait(communicator_, request, operation_, peer);
  }

  StateView& view_;
  Communicator& communicator_;
  Waiter waiter_;  // a rank may verify or send much while others wait
  const char* operation_;
  // Part i of each of these is about part i of the exchange.
  std::vector<std::vector<int>> holders_;  // ranks that send it, the first one first
  std::vector<bool> here_;                 // on this host
  std::vector<std::vector<ShardSpec>> pieces_;
  std::vector<std::vector<BaseFile>> bases_;
};

class SnapshotExchange final : public PartExchange {
 public:
  SnapshotExchange(StateView& view, SnapshotSet& set, const std::vector<ShardSpec>& wanted)
      : PartExchange(view, "the moving of a RAM snapshot between hosts"), set_(set), wanted_(wanted) {}

  Result<void> run(std::vector<std::string>& changed_links) {
    HF_TRY(const bool needed, find_holders());
    if (!needed) return {};
    HF_TRY_VOID(share_contents([&](std::size_t part) -> Result<PartContent> {
      return PartContent{.part = part, .pieces = to_text(set_.pieces_of(static_cast<std::uint32_t>(part)))};
    }));
    Result<std::vector<Request>> requests = plan(wanted_);
    Result<void> outcome = outcome_of(requests);
    if (!outcome.ok() && !set_.damages().empty())
      outcome = fail(ExitCode::checkpoint, "{}", set_.damages().front());
    RankRequests mine;
    if (requests.ok()) mine.requests = std::move(requests).value();
    return move_all(std::move(mine), outcome, changed_links);
  }

 private:
  static constexpr int attempts_max = 3;  // at one transfer from one rank

  // Decides which ranks send which part, in which order, and returns false where no rank needs any. Ranks that
  // have the same parts take turns; those of other hosts than the first come next, because another link leads
  // to them. A part that one rank has found to be damaged is not sent by the other ranks of its host.
  Result<bool> find_holders() {
    const std::vector<std::uint32_t> damaged = set_.drop_damaged(wanted_);
    HF_TRY(hosts_, gather(communicator_, waiter_,
                          HostParts{.host = view_.rank.env.host_id(),
                                    .host_name = view_.rank.env.host_name(),
                                    .parts = set_.ranks(),
                                    .damaged = damaged,
                                    .needs = !set_.holds(wanted_)}));
    bool needed = false;
    std::set<std::pair<std::string, std::uint32_t>> unsound;
    for (const HostParts& each : hosts_) {
      needed = needed || each.needs;
      for (const std::uint32_t part : each.damaged) unsound.emplace(each.host, part);
    }
    for (std::size_t rank = 0; rank < hosts_.size(); ++rank) {
      for (const std::uint32_t part : hosts_[rank].parts) {
        if (holders_.size() <= part) holders_.resize(part + std::size_t{1});
        if (!unsound.contains({hosts_[rank].host, part})) holders_[part].push_back(static_cast<int>(rank));
      }
    }
    here_.resize(holders_.size());
    for (const std::uint32_t part : set_.ranks()) here_[part] = true;
    for (std::size_t part = 0; part < holders_.size(); ++part) {
      std::vector<int>& ranks = holders_[part];
      if (ranks.empty()) continue;
      std::ranges::rotate(ranks, ranks.begin() + static_cast<std::ptrdiff_t>(part % ranks.size()));
      std::stable_partition(ranks.begin() + 1, ranks.end(), [&, first = ranks.front()](int rank) {
        return host_of(rank).host != host_of(first).host;
      });
    }
    return needed;
  }

  const HostParts& host_of(int rank) const { return hosts_[static_cast<std::size_t>(rank)]; }
  std::string name_of(int rank) const {
    return fmt::format("rank {} (host {})", communicator_.global_rank(rank), host_of(rank).host_name);
  }

  ShardSpec spec_of(const Request& request) const {
    HF_CHECK(request.first_element % block_elements == 0);
    ShardSpec spec = pieces_[request.part][request.piece];
    spec.first_block += request.first_element / block_elements;
    spec.block_count = (request.element_count + block_elements - 1) / block_elements;
    return spec;
  }

  // Receives one part. First come answers that say whether the part is sound and its block digests are known, then its
  // bytes, the digests and the checksum of both until this side answers that they have arrived as they were sent.
  // Else the part is requested from the next rank that has it.
  Result<void> take(const Request& request, RankRequests& again) override {
    HF_TRY(const std::optional<Error> failed, fetch(request, again.changed_links));
    if (!failed.has_value()) return {};
    const std::vector<int>& holders = holders_[request.part];
    const auto next = std::ranges::find(holders, request.source) + 1;
    if (next == holders.end()) return *failed;
    again.requests.push_back(request);
    again.requests.back().source = *next;
    return {};
  }

  // Returns why the part has not come; nothing if it has.
  Result<std::optional<Error>> fetch(const Request& request, std::vector<std::string>& changed_links) {
    const int server = request.source;
    const ShardSpec spec = spec_of(request);
    HF_TRY(const bool sound, receive_answer(server));
    if (!sound) {
      return std::optional(
          fail(ExitCode::checkpoint,
               "the RAM snapshot of what was rank {} is damaged on the host of rank {}; it is skipped",
               request.part, server));
    }
    // The memory is not filled with zeros first, and is in huge pages, because a new host waits for little
    // else here.
    Result<OwnedMemory> bytes = host_memory(MemoryKind::host_visible, spec.byte_count());
    if (!bytes.ok()) {
      communicator_.abandon();  // the server is about to send
      return bytes.error();
    }
    const std::string link =
        fmt::format("the link from {} to {}", name_of(server), name_of(communicator_.rank()));
    HF_TRY(const bool has_digests, receive_answer(server));
    std::vector<std::byte> digests(has_digests ? spec.block_count * sizeof(std::uint64_t) : 0);
    for (int attempt = 1; attempt <= attempts_max; ++attempt) {
      std::uint32_t arrived = 0;
      for (const std::span<std::byte> target :
           {std::span(bytes->get(), spec.byte_count()), std::span(digests)}) {
        HF_TRY_VOID(receive_slices(
            target.size(), server,
            [&](std::uint64_t at, std::uint64_t size) { return target.subspan(at, size); },
            [&](std::span<const std::byte> slice) { arrived = crc32c(slice, arrived); }));
      }
      HF_TRY(const auto sent, receive<std::uint32_t>(server));
      HF_TRY_VOID(answer(arrived == sent, server));
      if (arrived == sent) {
        set_.add(spec, std::move(bytes).value(), std::move(digests));
        return std::optional<Error>();
      }
      if (std::ranges::find(changed_links, link) == changed_links.end()) changed_links.push_back(link);
    }
    return std::optional(
        fail(ExitCode::checkpoint,
             "the RAM snapshot of what was rank {} has changed on the way each of {} times, on {}; "
             "it is skipped",
             request.part, attempts_max, link));
  }

  // A part that turns out to be damaged is not this rank's error: the other one may get it elsewhere.
  Result<void> serve(const Request& request, int target) override {
    const ShardSpec spec = spec_of(request);
    const auto part = static_cast<std::uint32_t>(request.part);
    const Result<std::span<const std::byte>> piece = set_.piece(part, request.piece);
    HF_TRY_VOID(answer(piece.ok(), target));
    if (!piece.ok()) return {};
    const std::span<const std::byte> bytes =
        piece->subspan(request.first_element * bytes_of(spec.dtype), spec.byte_count());
    std::span<const std::byte> digests = set_.digests(part, request.piece);
    HF_TRY_VOID(answer(!digests.empty(), target));
    if (!digests.empty()) {
      digests = digests.subspan(request.first_element / block_elements * sizeof(std::uint64_t),
                                spec.block_count * sizeof(std::uint64_t));
    }
    for (int attempt = 1; attempt <= attempts_max; ++attempt) {
      std::uint32_t sent = 0;
      for (const std::span<const std::byte> source : {bytes, digests}) {
        HF_TRY_VOID(send_slices(
            source.size(), target,
            [&](std::uint64_t at, std::uint64_t size) { return source.subspan(at, size); },
            [&](std::span<const std::byte> slice) { sent = crc32c(slice, sent); }));
      }
      HF_TRY_VOID(send(sent, target));
      HF_TRY(const bool arrived, receive_answer(target));
      if (arrived) return {};
    }
    return {};
  }

  SnapshotSet& set_;
  const std::vector<ShardSpec>& wanted_;
  std::vector<HostParts> hosts_;  // by rank
};

class ShardExchange final : public PartExchange {
 public:
  ShardExchange(StateView& view, const StorageDomains& domains, const std::string& directory,
                const std::string& content, const ClaimCheck& check)
      : PartExchange(view, "the copying of shards between hosts"),
        env_(view.rank.env),
        domains_(domains),
        directory_(directory),
        run_directory_(directory.substr(0, directory.find_last_of('/', directory.find_last_of('/') - 1))),
        staging_(checkpoint_names::pending(run_directory_) + "/fetched-" +
                 directory.substr(directory.find_last_of('/') + 1)),
        content_(content),
        check_(check) {}

  Result<void> run(const WantedOf& wanted_of) {
    HF_TRY_VOID(find_holders());
    HF_TRY_VOID(share_contents([&](std::size_t shard) { return content_of_shard(shard); }));
    std::vector<std::size_t> needed;
    HF_TRY_VOID(agree(find_needed(wanted_of, needed)));
    HF_TRY(const std::vector<std::vector<std::size_t>> all, gather(communicator_, waiter_, needed));
    std::vector<std::vector<int>> needed_by(holders_.size());
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      const int leader = domains_.leader_of(static_cast<int>(rank));
      for (const std::size_t shard : all[rank])
        if (std::ranges::find(needed_by[shard], leader) == needed_by[shard].end())
          needed_by[shard].push_back(leader);
    }
    RankRequests mine{.requests = requests_of(plan_fetches(holders_, needed_by))};
    const bool is_target = leads() && (!mine.requests.empty() || !has_manifest_);
    std::vector<std::string> no_links;
    Result<void> outcome = move_all(std::move(mine), is_target ? make_staging() : Result<void>(), no_links);
    if (!outcome.ok() && communicator_.abandoned()) return outcome;
    if (is_target && outcome.ok()) outcome = complete();
    return agree(outcome);
  }

 private:
  bool leads() const { return domains_.leads(communicator_.rank()); }

  // Returns the manifest of this host, or nothing where there is none: one that cannot be read is not gone.
  Result<std::string> own_manifest() const {
    const std::string path = directory_ + "/" + checkpoint_names::manifest;
    const StorageWait storage(view_.rank.watch, "the checkpoint");
    return retry_storage(env_, [&]() -> Result<std::string> {
      HF_TRY(const FileStatus status, env_.status(path));
      return status.exists ? read_text_within(env_, path, text_limits::manifest) : std::string();
    });
  }

  // Shares the manifest of the first rank that has one, and finds which leaders have which shards.
  Result<void> find_holders() {
    const Result<std::string> own = own_manifest();
    HF_TRY_VOID(agree_on_fitness(communicator_, waiter_, outcome_of(own), env_.host_name(), Examined::own));
    const Result<Manifest> manifest = decode_manifest(*own, directory_);
    has_manifest_ = manifest.ok() && content_of(manifest->shards) == content_;
    HF_TRY(manifest_text_, text_of_first(communicator_, waiter_, has_manifest_ ? *own : std::string()));
    if (manifest_text_.empty()) {
      return fail(ExitCode::checkpoint,
                  "{} is on none of the hosts whose ranks compute; start with more of them", directory_);
    }
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

  Result<PartContent> content_of_shard(std::size_t shard) const {
    HF_TRY(const ShardReader reader,
           ShardReader::open(env_, directory_, manifest_.shards[shard], manifest_.step, manifest_.run_id));
    std::vector<ShardSpec> specs;
    for (const IndexedPiece& piece : reader.pieces()) specs.push_back(piece.spec);
    return PartContent{.part = shard, .pieces = to_text(specs), .bases = reader.bases()};
  }

  // Lists the shards that this rank needs and its host does not have.
  Result<void> find_needed(const WantedOf& wanted_of, std::vector<std::size_t>& needed) const {
    HF_TRY(const std::vector<ShardSpec> wanted, wanted_of(manifest_));
    HF_TRY(const std::vector<Request> requests, plan(wanted));
    std::set<std::size_t> shards;
    for (const Request& request : requests) shards.insert(request.part);
    needed.assign(shards.begin(), shards.end());
    return {};
  }

  // Returns the requests of this rank. A file that several shards refer to comes once.
  std::vector<Request> requests_of(const std::vector<ShardFetch>& fetches) const {
    std::vector<Request> requests;
    std::set<std::string> names;
    for (const ShardFetch& fetch : fetches) {
      if (fetch.target != communicator_.rank()) continue;
      for (std::size_t file = 0; file <= bases_[fetch.shard].size(); ++file) {
        const Request request{.source = fetch.source, .part = fetch.shard, .piece = file};
        if (names.insert(file_of(request).name).second) requests.push_back(request);
      }
    }
    return requests;
  }

  BaseFile file_of(const Request& request) const {
    const ShardFile& shard = manifest_.shards[request.part];
    if (request.piece == 0) return {.name = shard.name, .bytes = shard.bytes};
    return bases_[request.part][request.piece - 1];
  }

  Result<void> make_staging() {
    HF_TRY_VOID(env_.remove_tree(staging_));
    return env_.make_directories(staging_);
  }

  // Completes the directory of a host that something has come to. A host that has a part gets the new files beside it;
  // one that has none gets the directory by one rename, in place of another checkpoint of the step or one without a
  // manifest.
  Result<void> complete() {
    HF_TRY_VOID(check_ ? check_() : Result<void>());
    if (!has_manifest_) {
      HF_TRY_VOID(env_.replace_text(staging_ + "/" + checkpoint_names::manifest, manifest_text_));
      const std::string checkpoints = checkpoint_names::checkpoints(run_directory_);
      HF_TRY_VOID(env_.make_directories(checkpoints));
      HF_TRY(const std::string aside, put_aside(env_, run_directory_, directory_));
      HF_TRY_VOID(env_.rename(staging_, directory_));
      HF_TRY_VOID(env_.sync_directory(checkpoints));
      return aside.empty() ? Result<void>() : env_.remove_tree(aside);
    }
    HF_TRY(const std::vector<std::string> names, env_.list(staging_));
    for (const std::string& name : names)
      HF_TRY_VOID(env_.rename(staging_ + "/" + name, directory_ + "/" + name));
    HF_TRY_VOID(env_.sync_directory(directory_));
    return env_.remove_tree(staging_);
  }

  // Receives a file. First comes an answer that says whether the source can read it.
  Result<void> take(const Request& request, RankRequests&) override {
    const BaseFile wanted = file_of(request);
    HF_TRY(const bool readable, receive_answer(request.source));
    if (!readable)
      return fail(ExitCode::checkpoint, "{} cannot be read on the host that has it", wanted.name);
    Result<std::unique_ptr<File>> file = env_.open(staging_ + "/" + wanted.name, OpenMode::create);
    Result<void> outcome = outcome_of(file);
    std::array<std::vector<std::byte>, 2> slices;
    std::uint64_t written = 0;
    HF_TRY_VOID(receive_slices(
        wanted.bytes, request.source,
        [&](std::uint64_t at, std::uint64_t bytes) {
          std::vector<std::byte>& slice = slices[at / slice_bytes % 2];
          slice.resize(bytes);
          return std::span(slice);
        },
        [&](std::span<const std::byte> slice) {
          if (outcome.ok()) outcome = (*file)->write_at(written, slice);
          written += slice.size();
        }));
    return outcome.ok() ? (*file)->sync() : outcome;
  }

  Result<void> serve(const Request& request, int target) override {
    const BaseFile asked = file_of(request);
    const Result<std::unique_ptr<File>> file = env_.open(directory_ + "/" + asked.name, OpenMode::read);
    HF_TRY_VOID(answer(file.ok(), target));
    if (!file.ok()) return file.error();
    Result<void> outcome;
    std::vector<std::byte> slice;
    HF_TRY_VOID(send_slices(
        asked.bytes, target,
        [&](std::uint64_t at, std::uint64_t bytes) {
          slice.resize(bytes);
          if (const Result<void> read = (*file)->read_at(at, slice); !read.ok() && outcome.ok())
            outcome = read;
          return std::span<const std::byte>(slice);
        },
        [](std::span<const std::byte>) {}));
    return outcome;
  }

  Env& env_;
  const StorageDomains& domains_;
  std::string directory_, run_directory_, staging_, content_;
  bool has_manifest_ = false;
  std::string manifest_text_;
  Manifest manifest_;
  ClaimCheck check_;
};

}  // namespace

Result<void> fetch_missing_parts(StateView& view, SnapshotSet& set, const std::vector<ShardSpec>& wanted,
                                 std::vector<std::string>& changed_links) {
  return SnapshotExchange(view, set, wanted).run(changed_links);
}

Result<std::string> share_manifest(StateView& view, const SnapshotSet& set) {
  return text_of_first(view.rank.communicator, patient_waiter(view),
                       set.empty() ? std::string() : encode_manifest(set.manifest()));
}

Result<void> fetch_missing_shards(StateView& view, const StorageDomains& domains,
                                  const std::string& directory, const std::string& content,
                                  const WantedOf& wanted_of, const ClaimCheck& check) {
  return ShardExchange(view, domains, directory, content, check).run(wanted_of);
}

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

}  // namespace holdfast::save
