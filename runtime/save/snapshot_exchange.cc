#include "runtime/save/snapshot_exchange.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "parallel/comm/gather.h"
#include "runtime/save/checkpoint_parts.h"

namespace holdfast::inline save {
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

// The parts that a rank sees on its host, the damaged ones among them, and whether it needs others.
struct HostParts {
  std::string host = {};
  std::vector<std::uint32_t> parts = {}, damaged = {};
  bool needs = false;

  static void visit_fields(auto& self, auto&& visit) {
    visit("host", self.host);
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

class PartExchange {
 public:
  PartExchange(StateView& view, SnapshotSet& set, std::vector<ShardSpec> wanted)
      : view_(view),
        set_(set),
        communicator_(view.rank.communicator),
        waiter_(patient_waiter(view)),
        wanted_(std::move(wanted)) {}

  Result<void> run() {
    HF_TRY(const bool needed, find_servers());
    if (!needed) return {};
    HF_TRY_VOID(share_pieces());
    std::vector<Request> mine;
    const Result<void> planned = plan(mine);
    HF_TRY(const std::vector<std::vector<Request>> requests, gather(communicator_, waiter_, mine));
    Result<void> outcome = planned;
    // Ranks make all transfers in one order, so that they do not wait in a circle.
    for (int rank = 0; rank < communicator_.size(); ++rank) {
      for (const Request& request : requests[static_cast<std::size_t>(rank)]) {
        const Result<void> moved = move(request, rank);
        if (!moved.ok() && communicator_.abandoned()) return moved;
        if (outcome.ok()) outcome = moved;
      }
    }
    return outcome;
  }

 private:
  // Decides which rank sends which part, and returns false where no rank needs any. Ranks that have the same
  // parts take turns. A part that one rank has found to be damaged is not sent by the other ranks of its
  // host.
  Result<bool> find_servers() {
    const std::vector<std::uint32_t> damaged = set_.drop_damaged(wanted_);
    HF_TRY(const std::vector<HostParts> all, gather(communicator_, waiter_,
                                                    HostParts{.host = view_.rank.env.host_id(),
                                                              .parts = set_.ranks(),
                                                              .damaged = damaged,
                                                              .needs = !set_.holds(wanted_)}));
    bool needed = false;
    std::set<std::pair<std::string, std::uint32_t>> unsound;
    for (const HostParts& each : all) {
      needed = needed || each.needs;
      for (const std::uint32_t part : each.damaged) unsound.emplace(each.host, part);
    }
    std::map<std::uint32_t, std::vector<int>> holders;
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      for (const std::uint32_t part : all[rank].parts) {
        if (!unsound.contains({all[rank].host, part})) holders[part].push_back(static_cast<int>(rank));
      }
    }
    for (const auto& [part, ranks] : holders) server_of_[part] = ranks[part % ranks.size()];
    return needed;
  }

  Result<void> share_pieces() {
    std::vector<PartContent> mine;
    for (const auto& [part, server] : server_of_) {
      if (server != communicator_.rank()) continue;
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

  // Moves one part. First comes a word that says whether the part is sound, then its bytes.
  Result<void> move(const Request& request, int target) {
    const int server = server_of_.at(request.part);
    const ShardSpec spec = spec_of(request, pieces_.at(request.part)[request.piece]);
    if (communicator_.rank() == server) return serve(request, spec, target);
    if (communicator_.rank() != target) return {};
    std::uint64_t sound = 0;
    HF_TRY_VOID(receive(std::as_writable_bytes(std::span(&sound, 1)), server));
    if (sound == 0) {
      return fail(ExitCode::checkpoint,
                  "the RAM snapshot of what was rank {} is damaged on the host of rank {}; it is skipped",
                  request.part, server);
    }
    // The memory is not filled with zeros first, and is in huge pages, because a new host waits for little
    // else here.
    Result<OwnedMemory> bytes = host_memory(MemoryKind::host_visible, spec.byte_count());
    if (!bytes.ok()) {
      communicator_.abandon();  // the server is about to send
      return bytes.error();
    }
    HF_TRY_VOID(receive({bytes->get(), spec.byte_count()}, server));
    set_.add(spec, std::move(bytes).value());
    return {};
  }

  Result<void> serve(const Request& request, const ShardSpec& spec, int target) {
    const Result<std::span<const std::byte>> piece = set_.piece(request.part, request.piece);
    const std::uint64_t sound = piece.ok() ? 1 : 0;
    HF_TRY_VOID(send(std::as_bytes(std::span(&sound, 1)), target));
    if (!piece.ok()) return piece.error();
    return send(piece->subspan(request.first_element * bytes_of(spec.dtype), spec.byte_count()), target);
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
  std::map<std::uint32_t, int> server_of_;
  std::map<std::uint32_t, std::vector<ShardSpec>> pieces_;
};

}  // namespace

Result<void> fetch_missing_parts(StateView& view, SnapshotSet& set, std::vector<ShardSpec> wanted) {
  return PartExchange(view, set, std::move(wanted)).run();
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

}  // namespace holdfast::inline save
