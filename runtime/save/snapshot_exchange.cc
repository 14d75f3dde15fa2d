#include "runtime/save/snapshot_exchange.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "parallel/comm/gather.h"
#include "runtime/core/crc32c.h"
#include "runtime/save/checkpoint_parts.h"

namespace holdfast::save {
namespace {

// Request is a range of a piece in the slot of `part`, the rank that the state was copied from.
struct Request {
  std::uint32_t part = 0;
  std::size_t piece = 0;
  std::uint64_t first_element = 0;  // first element within the piece
  std::uint64_t element_count = 0;

  static void visit_fields(auto& self, auto&& visit) {
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

struct PartContent {
  std::uint32_t part = 0;
  std::string pieces = {};  // to_text() of their specs

  static void visit_fields(auto& self, auto&& visit) {
    visit("part", self.part);
    visit("pieces", self.pieces);
  }
};

ShardSpec spec_of(const Request& request, ShardSpec spec) {
  HF_CHECK(request.first_element % block_elements == 0);
  spec.first_block += request.first_element / block_elements;
  spec.block_count = (request.element_count + block_elements - 1) / block_elements;
  return spec;
}

// A rank tells another yes or no by all bits of a word, so that one that is flipped on the way changes nothing.
struct Answer {
  std::uint64_t word = 0;
  static Answer of(bool yes) { return {yes ? ~std::uint64_t{0} : 0}; }
  bool yes() const { return std::popcount(word) > 32; }
};

class PartExchange {
 public:
  PartExchange(StateView& view, SnapshotSet& set, std::vector<ShardSpec> wanted,
               std::vector<std::string>& changed_links)
      : view_(view),
        set_(set),
        communicator_(view.rank.communicator),
        waiter_(patient_waiter(view)),
        wanted_(std::move(wanted)),
        changed_links_(changed_links) {}

  // Makes the transfers in rounds. In each, what did not come in the one before is requested from the next
  // rank that has it.
  Result<void> run() {
    HF_TRY(const bool needed, find_holders());
    if (!needed) return {};
    HF_TRY_VOID(share_pieces());
    RankRequests mine;
    Result<void> outcome = plan(mine.requests);
    for (std::size_t round = 0;; ++round) {
      HF_TRY(const std::vector<RankRequests> all, gather(communicator_, waiter_, mine));
      for (const RankRequests& each : all)
        changed_links_.insert(changed_links_.end(), each.changed_links.begin(), each.changed_links.end());
      if (std::ranges::all_of(all, [](const RankRequests& each) { return each.requests.empty(); }))
        return outcome;
      mine = {};
      // Ranks make all transfers in one order, so that they do not wait in a circle.
      for (int rank = 0; rank < communicator_.size(); ++rank) {
        for (const Request& request : all[static_cast<std::size_t>(rank)].requests) {
          const Result<void> moved = move(request, rank, round, mine);
          if (!moved.ok() && communicator_.abandoned()) return moved;
          if (outcome.ok()) outcome = moved;
        }
      }
    }
  }

 private:
  static constexpr int attempts_max = 3;  // at one transfer from one rank
  static constexpr std::size_t slice_bytes = std::size_t{4}
                                             << 20;  // of a transfer, with a message of its own

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
        if (!unsound.contains({hosts_[rank].host, part})) holders_[part].push_back(static_cast<int>(rank));
      }
    }
    for (auto& [part, ranks] : holders_) {
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

  Result<void> share_pieces() {
    std::vector<PartContent> mine;
    for (const auto& [part, ranks] : holders_) {
      if (ranks.front() != communicator_.rank()) continue;
      mine.push_back({.part = part, .pieces = to_text(set_.pieces_of(part))});
    }
    HF_TRY(const std::vector<std::vector<PartContent>> all, gather(communicator_, waiter_, mine));
    for (const std::vector<PartContent>& contents : all)
      for (const PartContent& each : contents) pieces_[each.part] = specs_from_text(each.pieces);
    return {};
  }

  // Plans this rank's requests. Parts on this host are used first; the others are requested from their
  // servers.
  Result<void> plan(std::vector<Request>& requests) {
    std::vector<ShardSpec> existing;
    std::vector<std::pair<std::uint32_t, std::size_t>> slots;
    const std::vector<std::uint32_t> here = set_.ranks();
    for (const auto& [part, specs] : pieces_) {
      for (std::size_t i = 0; i < specs.size(); ++i) {
        existing.push_back(specs[i]);
        slots.emplace_back(part, i);
      }
    }
    const Result<std::vector<ShardCopy>> copies = plan_copies(existing, wanted_);
    if (!copies.ok() && !set_.damages().empty())
      return fail(ExitCode::checkpoint, "{}", set_.damages().front());
    if (!copies.ok()) return copies.error();
    for (const ShardCopy& copy : *copies) {
      const auto [part, piece] = slots[copy.existing_index];
      if (std::ranges::binary_search(here, part)) continue;
      requests.push_back({.part = part,
                          .piece = piece,
                          .first_element = copy.existing_offset,
                          .element_count = copy.element_count});
    }
    return {};
  }

  // Moves one part. First come answers that say whether the part is sound and its block digests are known, then its
  // bytes, the digests and the checksum of both until the other side answers that they have arrived as they were sent.
  Result<void> move(const Request& request, int target, std::size_t round, RankRequests& again) {
    const std::vector<int>& holders = holders_.at(request.part);
    const int server = holders[round];
    const ShardSpec spec = spec_of(request, pieces_.at(request.part)[request.piece]);
    if (communicator_.rank() == server) return serve(request, spec, target);
    if (communicator_.rank() != target) return {};
    HF_TRY(const std::optional<Error> failed, fetch(request, spec, server, again.changed_links));
    if (!failed.has_value()) return {};
    if (round + 1 == holders.size()) return *failed;
    again.requests.push_back(request);
    return {};
  }

  // Returns why the part has not come; nothing if it has.
  Result<std::optional<Error>> fetch(const Request& request, const ShardSpec& spec, int server,
                                     std::vector<std::string>& changed_links) {
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
      HF_TRY(std::uint32_t arrived, receive_slices({bytes->get(), spec.byte_count()}, server));
      HF_TRY(arrived, receive_slices(digests, server, arrived));
      std::uint32_t sent = 0;
      HF_TRY_VOID(receive(std::as_writable_bytes(std::span(&sent, 1)), server));
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
  Result<void> serve(const Request& request, const ShardSpec& spec, int target) {
    const Result<std::span<const std::byte>> piece = set_.piece(request.part, request.piece);
    HF_TRY_VOID(answer(piece.ok(), target));
    if (!piece.ok()) return {};
    const std::span<const std::byte> bytes =
        piece->subspan(request.first_element * bytes_of(spec.dtype), spec.byte_count());
    std::span<const std::byte> digests = set_.digests(request.part, request.piece);
    HF_TRY_VOID(answer(!digests.empty(), target));
    if (!digests.empty()) {
      digests = digests.subspan(request.first_element / block_elements * sizeof(std::uint64_t),
                                spec.block_count * sizeof(std::uint64_t));
    }
    for (int attempt = 1; attempt <= attempts_max; ++attempt) {
      HF_TRY(std::uint32_t sent, send_slices(bytes, target));
      HF_TRY(sent, send_slices(digests, target, sent));
      HF_TRY_VOID(send(std::as_bytes(std::span(&sent, 1)), target));
      HF_TRY(const bool arrived, receive_answer(target));
      if (arrived) return {};
    }
    return {};
  }

  // Returns the checksum `crc` of what came before continued by the bytes, which is computed beside the messages: of a slice that is sent while it
  // is under way, and of one that has arrived while the next one comes.
  Result<std::uint32_t> send_slices(std::span<const std::byte> bytes, int peer, std::uint32_t crc = 0) {
    while (!bytes.empty()) {
      const std::span<const std::byte> slice = bytes.first(std::min(bytes.size(), slice_bytes));
      HF_TRY(const Communicator::Request request, communicator_.send(slice, peer, tag_collective));
      crc = crc32c(slice, crc);
      HF_TRY_VOID(waiter_.wait(communicator_, request, operation, peer));
      bytes = bytes.subspan(slice.size());
    }
    return crc;
  }
  Result<std::uint32_t> receive_slices(std::span<std::byte> bytes, int peer, std::uint32_t crc = 0) {
    std::span<const std::byte> arrived;
    while (!bytes.empty()) {
      const std::span<std::byte> slice = bytes.first(std::min(bytes.size(), slice_bytes));
      HF_TRY(const Communicator::Request request, communicator_.receive(slice, peer, tag_collective));
      crc = crc32c(arrived, crc);
      HF_TRY_VOID(waiter_.wait(communicator_, request, operation, peer));
      arrived = slice;
      bytes = bytes.subspan(slice.size());
    }
    return crc32c(arrived, crc);
  }

  Result<void> answer(bool yes, int peer) {
    const Answer mine = Answer::of(yes);
    return send(std::as_bytes(std::span(&mine.word, 1)), peer);
  }
  Result<bool> receive_answer(int peer) {
    Answer theirs;
    HF_TRY_VOID(receive(std::as_writable_bytes(std::span(&theirs.word, 1)), peer));
    return theirs.yes();
  }
  Result<void> send(std::span<const std::byte> bytes, int peer) {
    HF_TRY(const Communicator::Request request, communicator_.send(bytes, peer, tag_collective));
    return waiter_.wait(communicator_, request, operation, peer);
  }
  Result<void> receive(std::span<std::byte> bytes, int peer) {
    HF_TRY(const Communicator::Request request, communicator_.receive(bytes, peer, tag_collective));
    return waiter_.wait(communicator_, request, operation, peer);
  }

  static constexpr const char* operation = "the moving of a RAM snapshot between hosts";
  StateView& view_;
  SnapshotSet& set_;
  Communicator& communicator_;
  Waiter waiter_;  // a rank may verify or send much while others wait
  std::vector<ShardSpec> wanted_;
  std::vector<std::string>& changed_links_;
  std::vector<HostParts> hosts_;                       // by rank
  std::map<std::uint32_t, std::vector<int>> holders_;  // by part: the ranks that send it, the first one first
  std::map<std::uint32_t, std::vector<ShardSpec>> pieces_;
};

}  // namespace

Result<void> fetch_missing_parts(StateView& view, SnapshotSet& set, std::vector<ShardSpec> wanted,
                                 std::vector<std::string>& changed_links) {
  return PartExchange(view, set, std::move(wanted), changed_links).run();
}

Result<std::string> share_manifest(StateView& view, const SnapshotSet& set) {
  Communicator& communicator = view.rank.communicator;
  const Waiter waiter = patient_waiter(view);
  HF_TRY(const std::vector<std::string> has, all_gather_text(communicator, waiter, set.empty() ? "" : "one"));
  const auto first = std::ranges::find_if(has, [](const std::string& one) { return !one.empty(); });
  if (first == has.end()) return std::string();
  const bool tells = first - has.begin() == communicator.rank();
  HF_TRY(const std::vector<std::string> texts,
         all_gather_text(communicator, waiter, tells ? encode_manifest(set.manifest()) : std::string()));
  return texts[static_cast<std::size_t>(first - has.begin())];
}

}  // namespace holdfast::save
