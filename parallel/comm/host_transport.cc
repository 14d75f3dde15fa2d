#include "parallel/comm/host_transport.h"

#include <algorithm>

namespace holdfast::parallel {
namespace {

static_assert(HostTransport::tag_count > HostTransport::open_max);

// Returns how many exchanges of all ranks with all others the requests of a group suffice for.
constexpr std::size_t exchanges_max(std::size_t size) {
  return std::max<std::size_t>(2, HostTransport::open_max / size);
}
static_assert([] {
  for (int size = 1; size <= Transport::ranks_max; ++size) {
    const auto ranks = static_cast<std::size_t>(size);
    if (2 * ranks * exchanges_max(ranks) + 1024 >
        static_cast<std::size_t>(Communicator::request_count_max(size)))
      return false;
  }
  return true;
}());

int tag_of(Transport::Number number) {
  return tag_exchange + static_cast<int>(number % HostTransport::tag_count);
}

}  // namespace

HostTransport::HostTransport(Communicator& communicator, std::size_t open)
    : communicator_(&communicator), rank_(communicator.rank()), size_(communicator.size()) {
  HF_CHECK(size_ <= ranks_max, "{} ranks in one group", size_);
  const auto size = static_cast<std::size_t>(size_);
  slots_.resize(std::min(open, exchanges_max(size)));
  peers_.resize(size);
  receives_.resize(slots_.size() * size, no_request);
  sends_.resize(slots_.size() * size, no_request);
}

Result<Transport::Number> HostTransport::open(std::span<const Incoming> incoming) {
  HF_CHECK(can_open());
  const Number number = next_++;
  slots_[slot_of(number)] = Slot{.messages_left = static_cast<int>(incoming.size())};
  for (const Incoming& message : incoming) {
    HF_CHECK(!message.target.empty());
    Request& request = request_of(receives_, number, message.peer);
    HF_TRY(request, communicator_->receive(message.target, message.peer, tag_of(number)));
  }
  return number;
}

Result<void> HostTransport::send(Number number, std::span<const Outgoing> outgoing) {
  HF_CHECK(oldest_ <= number && number < next_ && !slots_[slot_of(number)].sent, "exchange {}", number);
  Slot& slot = slots_[slot_of(number)];
  slot.sent = true;
  slot.messages_left += static_cast<int>(outgoing.size());
  for (const Outgoing& message : outgoing) {
    HF_CHECK(!message.source.empty());
    Request& request = request_of(sends_, number, message.peer);
    HF_TRY(request, communicator_->send(message.source, message.peer, tag_of(number)));
  }
  return {};
}

Result<bool> HostTransport::test(Request& request, Slot& slot) {
  if (request == no_request) return true;
  HF_TRY(const bool complete, communicator_->test(request));
  if (complete) {
    request = no_request;
    --slot.messages_left;
  }
  return complete;
}

Result<bool> HostTransport::test_receives(int peer) {
  Number& received = peers_[static_cast<std::size_t>(peer)].received;
  const Number before = received;
  for (; received < next_; ++received) {
    HF_TRY(const bool complete, test(request_of(receives_, received, peer), slots_[slot_of(received)]));
    if (!complete) break;
  }
  return received > before;
}

Result<bool> HostTransport::test_sends(int peer) {
  Number& taken = peers_[static_cast<std::size_t>(peer)].taken;
  const Number before = taken;
  for (; taken < next_ && slots_[slot_of(taken)].sent; ++taken) {
    HF_TRY(const bool complete, test(request_of(sends_, taken, peer), slots_[slot_of(taken)]));
    if (!complete) break;
  }
  return taken > before;
}

Result<bool> HostTransport::advance() {
  bool moved = false;
  Number finished = next_;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    HF_TRY(const bool arrived, test_receives(peer));
    HF_TRY(const bool taken, test_sends(peer));
    moved = moved || arrived || taken;
    const Peer& state = peers_[static_cast<std::size_t>(peer)];
    finished = std::min({finished, state.received, state.taken});
  }
  for (; oldest_ < finished && slots_[slot_of(oldest_)].sent; ++oldest_) {
    HF_CHECK(slots_[slot_of(oldest_)].messages_left == 0);
    moved = true;
  }
  return moved;
}

bool HostTransport::received(Number number, int peer) const {
  return peers_[static_cast<std::size_t>(peer)].received > number;
}

Transport::Awaited HostTransport::awaited() const {
  for (int peer = 0; peer < size_; ++peer) {
    const Peer& state = peers_[static_cast<std::size_t>(peer)];
    const bool receiving = state.received == oldest_;
    if (peer == rank_ || oldest_ == next_ || (!receiving && state.taken > oldest_)) continue;
    return {.number = oldest_, .peer = peer, .receiving = receiving};
  }
  return {.number = oldest_};
}

}  // namespace holdfast::parallel
