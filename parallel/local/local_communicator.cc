#include "parallel/local/local_communicator.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <numeric>
#include <optional>

#include "runtime/os/thread.h"

namespace holdfast::parallel {
namespace {

using Request = Communicator::Request;

enum class State : std::uint8_t { pending, done, peer_left, length_differs };

// One request. The state is what the owner's thread polls; all else is guarded by the mutex of the channel.
struct Slot {
  std::atomic<State> state{State::pending};
  std::span<const std::byte> source;  // of a send
  std::span<std::byte> target;        // of a receive
  int peer = 0;
  int tag = 0;
};

// The posted and unmatched requests of one (source, target); one of the two lists has no request of a given
// tag.
struct Channel {
  std::mutex mutex;
  std::vector<Slot*> sends, receives;  // in the order posted
  bool source_left = false, target_left = false;
};

struct Hub {
  explicit Hub(std::vector<int> ranks)
      : size(static_cast<int>(ranks.size())),
        names(std::move(ranks)),
        channels(std::make_unique<Channel[]>(names.size() * names.size())) {
    if (size > sizes_of_quiet_channels) return;
    for (int source = 0; source < size; ++source) {
      for (int target = 0; target < size; ++target) {
        channel(source, target).sends.reserve(256);
        channel(source, target).receives.reserve(256);
      }
    }
  }
  Channel& channel(int source, int target) {
    return channels[static_cast<std::size_t>(source) * static_cast<std::size_t>(size) +
                    static_cast<std::size_t>(target)];
  }

  static constexpr int nobody = -1;
  static constexpr int sizes_of_quiet_channels = 64;  // up to which a message allocates nothing

  int size;
  std::vector<int> names;                 // of the ranks, in sentences
  std::atomic<int> abandoned_by{nobody};  // the first rank that abandoned it alive
  std::unique_ptr<Channel[]> channels;
};

Slot* take(std::vector<Slot*>& posted, int tag) {
  const auto found =
      std::find_if(posted.begin(), posted.end(), [&](const Slot* slot) { return slot->tag == tag; });
  if (found == posted.end()) return nullptr;
  Slot* slot = *found;
  posted.erase(found);
  return slot;
}

// Done by whichever side comes second; the release store hands the bytes (and the sender's buffer) back.
void transfer(Slot& send, Slot& receive) {
  const bool fits = send.source.size() == receive.target.size();
  if (fits && !send.source.empty())
    std::memcpy(receive.target.data(), send.source.data(), send.source.size());
  const State state = fits ? State::done : State::length_differs;
  send.state.store(state, std::memory_order_release);
  receive.state.store(state, std::memory_order_release);
}

void fail_all(std::vector<Slot*>& posted) {
  for (Slot* slot : posted) slot->state.store(State::peer_left, std::memory_order_release);
  posted.clear();
}

class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<Hub> hub, int rank)
      : hub_(std::move(hub)), rank_(rank), slots_(static_cast<std::size_t>(request_count_max(hub_->size))) {
    free_.reserve(slots_.size());
    for (auto request = static_cast<Request>(slots_.size()); request-- > 0;) free_.push_back(request);
  }
  ~LocalCommunicator() override { leave(); }

  int rank() const override { return rank_; }
  int size() const override { return hub_->size; }
  int global_rank(int rank) const override { return hub_->names[static_cast<std::size_t>(rank)]; }

  Result<Request> send(std::span<const std::byte> source, int peer, int tag) override {
    HF_TRY(const Request request, new_request(peer, tag));
    Slot& slot = slots_[static_cast<std::size_t>(request)];
    slot.source = source;
    Channel& channel = hub_->channel(rank_, peer);
    const std::lock_guard guard(channel.mutex);
    if (Slot* receive = take(channel.receives, tag)) {
      transfer(slot, *receive);
    } else if (channel.target_left) {
      slot.state.store(State::peer_left, std::memory_order_relaxed);
    } else {
      channel.sends.push_back(&slot);
    }
    return request;
  }

  Result<Request> receive(std::span<std::byte> target, int peer, int tag) override {
    HF_TRY(const Request request, new_request(peer, tag));
    Slot& slot = slots_[static_cast<std::size_t>(request)];
    slot.target = target;
    Channel& channel = hub_->channel(peer, rank_);
    const std::lock_guard guard(channel.mutex);
    if (Slot* send = take(channel.sends, tag)) {
      transfer(*send, slot);
    } else if (channel.source_left) {
      slot.state.store(State::peer_left, std::memory_order_relaxed);
    } else {
      channel.receives.push_back(&slot);
    }
    return request;
  }

  Result<bool> test(Request request) override {
    HF_CHECK(0 <= request && request < std::ssize(slots_));
    if (abandoned_) return gone();
    const Slot& slot = slots_[static_cast<std::size_t>(request)];
    switch (slot.state.load(std::memory_order_acquire)) {
      case State::pending:
        return false;
      case State::done:
        free_.push_back(request);
        return true;
      case State::peer_left:
        abandon();
        return fail(ExitCode::communication,
                    "rank {} lost rank {} (message tag {}): its process or thread ended; its own output says "
                    "why; start the run "
                    "again",
                    name(), global_rank(slot.peer), slot.tag);
      case State::length_differs:
        break;
    }
    abandon();
    return fail(ExitCode::communication,
                "ranks {} and {} disagree on the length of a message (tag {}): they run different programs "
                "or configs",
                name(), global_rank(slot.peer), slot.tag);
  }

  Result<void> check_peers() override {
    if (abandoned_) return gone();
    for (int peer = 0; peer < hub_->size; ++peer) {
      if (has_left(peer)) return lost(peer);
    }
    return check_revoked();
  }
  Result<void> check_peers_among(std::span<const int> ranks) override {
    if (abandoned_) return gone();
    for (const int peer : ranks) {
      if (has_left(peer)) return lost(peer);
    }
    return check_revoked();
  }

  bool has_died(int rank) override { return has_left(rank); }
  bool abandoned() override { return abandoned_; }

  void abandon() override {
    if (abandoned_) return;
    leave();
    int nobody = Hub::nobody;
    hub_->abandoned_by.compare_exchange_strong(nobody, rank_);
  }

 private:
  int name() const { return global_rank(rank_); }
  Error gone() const {
    if (lost_.has_value()) return *lost_;
    return fail(ExitCode::communication, "rank {} has left its group after an error: start the run again",
                name());
  }
  bool has_left(int peer) {
    if (peer == rank_) return false;
    Channel& channel = hub_->channel(peer, rank_);
    const std::lock_guard guard(channel.mutex);
    return channel.source_left;
  }
  Error lost(int peer) {
    abandon();
    lost_ = fail(ExitCode::communication,
                 "rank {} lost rank {}: its process or thread ended; its own output says why; start the run "
                 "again",
                 name(), global_rank(peer));
    return *lost_;
  }
  Result<void> check_revoked() {
    const int by = hub_->abandoned_by.load(std::memory_order_acquire);
    if (by == Hub::nobody) return {};
    return lost(by);
  }

  // Fails the requests of the peers, as the death of this rank does, and lets go of its own.
  void leave() {
    if (std::exchange(abandoned_, true)) return;
    for (int peer = 0; peer < hub_->size; ++peer) {
      if (peer == rank_) continue;
      {
        Channel& channel = hub_->channel(rank_, peer);
        const std::lock_guard guard(channel.mutex);
        channel.source_left = true;
        channel.sends.clear();
        fail_all(channel.receives);
      }
      Channel& channel = hub_->channel(peer, rank_);
      const std::lock_guard guard(channel.mutex);
      channel.target_left = true;
      channel.receives.clear();
      fail_all(channel.sends);
    }
  }

  Result<Request> new_request(int peer, int tag) {
    HF_CHECK(0 <= peer && peer < hub_->size && peer != rank_, "peer {} of rank {} in {}", peer, rank_,
             hub_->size);
    if (abandoned_) return gone();
    HF_CHECK(!free_.empty(), "more than {} requests at once", slots_.size());
    const Request request = free_.back();
    free_.pop_back();
    Slot& slot = slots_[static_cast<std::size_t>(request)];
    slot.state.store(State::pending, std::memory_order_relaxed);
    slot.peer = peer;
    slot.tag = tag;
    return request;
  }

  std::shared_ptr<Hub> hub_;
  int rank_;
  std::vector<Slot> slots_;
  std::vector<Request> free_;
  bool abandoned_ = false;
  std::optional<Error> lost_;  // what a check of the peers found
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_local_communicators(int size) {
  HF_CHECK(size >= 1);
  std::vector<int> names(static_cast<std::size_t>(size));
  std::iota(names.begin(), names.end(), 0);
  return make_local_communicators(names);
}

std::vector<std::unique_ptr<Communicator>> make_local_communicators(const std::vector<int>& names) {
  const auto hub = std::make_shared<Hub>(names);
  std::vector<std::unique_ptr<Communicator>> ends;
  for (int rank = 0; rank < hub->size; ++rank) ends.push_back(std::make_unique<LocalCommunicator>(hub, rank));
  return ends;
}

Result<void> run_local_ranks(int size, const std::function<Result<void>(Communicator&)>& body, Env& env) {
  std::vector<std::unique_ptr<Communicator>> ends = make_local_communicators(size);
  std::vector<Result<void>> outcomes(static_cast<std::size_t>(size));
  std::vector<std::unique_ptr<Thread>> threads;
  for (std::size_t rank = 0; rank < ends.size(); ++rank) {
    Result<std::unique_ptr<Thread>> thread = env.start_thread("rank", [&, rank] {
      const std::unique_ptr<Communicator> end =
          std::move(ends[rank]);  // gone with its thread, as a process would be
      outcomes[rank] = body(*end);
    });
    if (thread.ok()) {
      threads.push_back(std::move(thread).value());
    } else {
      outcomes[rank] = thread.error();
      ends[rank].reset();  // as if it had died
    }
  }
  threads.clear();  // waits for all
  for (Result<void>& outcome : outcomes) {
    if (!outcome.ok()) return outcome.error();
  }
  return {};
}

}  // namespace holdfast::parallel
