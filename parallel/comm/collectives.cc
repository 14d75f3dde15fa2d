#include "parallel/comm/collectives.h"

#include <algorithm>
#include <array>
#include <bitset>
#include <cstring>
#include <numeric>

namespace holdfast::parallel {
namespace {

using Request = Communicator::Request;

constexpr std::int64_t spin_ns = 30'000;
constexpr std::int64_t sleep_us_max = 1000;

// This rank's part in one collective: its number, its waits, and its span in the flight ring.
class Part {
 public:
  Part(Communicator& communicator, const Waiter& waiter, const char* name, SpanKind kind)
      : communicator_(&communicator),
        waiter_(&waiter),
        name_(name),
        number_(communicator.number_collective()),
        spans_(waiter.spans() != nullptr && waiter.spans()->in_flight() ? waiter.spans() : nullptr) {
    if (spans_ == nullptr) return;
    span_ = spans_->begin({.kind = kind, .bucket = static_cast<std::int32_t>(number_)});
  }
  ~Part() {
    if (spans_ != nullptr) spans_->end(span_);
  }
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

  int rank() const { return communicator_->rank(); }
  int size() const { return communicator_->size(); }
  // Sends one message and waits for it, as receive() does for the other direction.
  Result<void> send(std::span<const std::byte> source, int peer) {
    HF_TRY(const Request request, communicator_->send(source, peer, tag_collective));
    return wait(request, peer, source.size());
  }
  Result<void> receive(std::span<std::byte> target, int peer) {
    HF_TRY(const Request request, communicator_->receive(target, peer, tag_collective));
    return wait(request, peer, target.size());
  }

 private:
  Result<void> wait(Request request, int peer, std::size_t bytes) {
    if (span_ != nullptr) {
      span_->peer = communicator_->global_rank(peer);
      span_->bytes += bytes;
    }
    return waiter_->wait(*communicator_, request, name_, peer, number_);
  }

  Communicator* communicator_;
  const Waiter* waiter_;
  const char* name_;
  std::uint32_t number_;
  SpanRecorder* spans_;
  Span* span_ = nullptr;
};

// Broadcasts from rank 0 to all ranks by a binomial tree.
Result<void> broadcast_in(Part& part, std::span<std::byte> bytes) {
  const int rank = part.rank(), size = part.size();
  int step = 1;
  while (step < size && (rank & step) == 0) step *= 2;
  if (rank != 0) HF_TRY_VOID(part.receive(bytes, rank - step));
  for (step /= 2; step > 0; step /= 2) {
    if (rank + step >= size) continue;
    HF_TRY_VOID(part.send(bytes, rank + step));
  }
  return {};
}

Result<void> all_reduce_in(Part& part, std::span<std::int64_t> words) {
  const int rank = part.rank(), size = part.size();
  std::array<std::int64_t, 1024> buffer;
  HF_CHECK(words.size() <= buffer.size());
  const std::span<std::int64_t> received(buffer.data(), words.size());
  for (int step = 1; step < size; step *= 2) {
    if ((rank & step) != 0) {
      HF_TRY_VOID(part.send(std::as_bytes(words), rank - step));
      break;
    }
    if (rank + step >= size) continue;
    HF_TRY_VOID(part.receive(std::as_writable_bytes(received), rank + step));
    for (std::size_t i = 0; i < words.size(); ++i) {  // unsigned, because signed overflow is undefined
      words[i] = static_cast<std::int64_t>(static_cast<std::uint64_t>(words[i]) +
                                           static_cast<std::uint64_t>(received[i]));
    }
  }
  return broadcast_in(part, std::as_writable_bytes(words));
}

// Gathers on rank 0 by a binomial tree: the subtree of a rank holds neighbouring ranks, so each message is one range
// of `all`. `begin_of`: where the bytes of a rank begin there, and, for size(), where they end.
Result<void> gather_in(Part& part, std::span<const std::byte> mine, std::span<std::byte> all,
                       const std::function<std::size_t(std::size_t rank)>& begin_of) {
  const auto rank = static_cast<std::size_t>(part.rank()), size = static_cast<std::size_t>(part.size());
  HF_CHECK(all.size() == begin_of(size) && mine.size() == begin_of(rank + 1) - begin_of(rank));
  const auto ranks = [&](std::size_t first, std::size_t count) {
    const std::size_t begin = begin_of(first);
    return all.subspan(begin, begin_of(std::min(first + count, size)) - begin);
  };
  if (!mine.empty()) std::memcpy(ranks(rank, 1).data(), mine.data(), mine.size());
  for (std::size_t step = 1; step < size; step *= 2) {
    if ((rank & step) != 0) {
      HF_TRY_VOID(part.send(ranks(rank, step), static_cast<int>(rank - step)));
      break;
    }
    if (rank + step >= size) continue;
    HF_TRY_VOID(part.receive(ranks(rank + step, step), static_cast<int>(rank + step)));
  }
  return {};
}

}  // namespace

PollBackoff::PollBackoff(Env& env, std::int64_t timeout_ms, WaitListener* listener)
    : env_(&env),
      listener_(listener),
      timeout_ns_(timeout_ms * 1'000'000),
      last_move_ns_(env.monotonic_ns()) {}

PollBackoff::PollBackoff(const Waiter& waiter)
    : PollBackoff(waiter.env(), waiter.timeout_ms(), waiter.listener()) {}

void PollBackoff::reset() {
  last_move_ns_ = env_->monotonic_ns();
  notify_resume();
}

bool PollBackoff::pause_at(std::int64_t now_ns) {
  const std::int64_t idle_ns = now_ns - last_move_ns_;
  if (idle_ns > timeout_ns_) return false;
  if (idle_ns < spin_ns) return true;
  if (idle_ns < quiet_ns) {
    env_->yield();
  } else {
    env_->sleep_us(std::min(idle_ns / 16'000, sleep_us_max));
  }
  return true;
}

Result<void> Waiter::wait(Communicator& communicator, std::span<const Request> requests,
                          const char* operation, std::span<const int> peers, std::uint32_t number) const {
  constexpr std::size_t requests_max = 4096;
  HF_CHECK(requests.size() <= requests_max && peers.size() == requests.size());
  std::bitset<requests_max> done;
  PollBackoff backoff(*this);
  std::size_t first = 0;  // all requests before it are done
  std::size_t other = 0;  // takes the rest in turn, so that a slow peer does not hide a failed one
  const auto test = [&](std::size_t i) -> Result<bool> {
    if (done[i]) return false;
    HF_TRY(const bool complete, communicator.test(requests[i]));
    done[i] = complete;
    return complete;
  };
  const auto awaited = [&] { return Awaited{operation, communicator.global_rank(peers[first]), number}; };
  while (true) {
    bool moved = false;
    while (first < requests.size()) {
      HF_TRY(const bool complete, test(first));
      moved = moved || complete;
      if (!done[first]) break;
      ++first;
    }
    if (first == requests.size()) return {};
    if (++other >= requests.size()) other = first;
    HF_TRY(const bool complete, test(other));
    moved = moved || complete;
    if (!moved && background_ != nullptr) {
      const Result<bool> others = (*background_)();
      if (!others.ok()) {
        communicator.abandon();  // the memory of the requests is released
        return others.error();
      }
      moved = *others;
    }
    if (moved) {
      backoff.reset();
    } else if (!backoff.pause(awaited)) {
      communicator.abandon();
      return fail(ExitCode::communication,
                  "rank {} waited {} ms for rank {} in {}: that rank or its host hangs or is unreachable; "
                  "look at its output; where the run does not go on by itself, start it again",
                  communicator.global_rank(communicator.rank()), timeout_ms_,
                  communicator.global_rank(peers[first]), operation);
    }
  }
}

Result<void> Waiter::wait(Communicator& communicator, Request request, const char* operation, int peer,
                          std::uint32_t number) const {
  return wait(communicator, std::span(&request, 1), operation, std::span(&peer, 1), number);
}

Result<void> barrier(Communicator& communicator, const Waiter& waiter) {
  Part part(communicator, waiter, "a barrier", SpanKind::barrier);
  return all_reduce_in(part, {});
}

Result<void> broadcast(Communicator& communicator, const Waiter& waiter, std::span<std::byte> bytes) {
  Part part(communicator, waiter, "a broadcast", SpanKind::broadcast);
  return broadcast_in(part, bytes);
}

Result<void> all_reduce_sum(Communicator& communicator, const Waiter& waiter, std::span<std::int64_t> words) {
  constexpr std::size_t words_max = 1024;  // per message: the scratch memory is on the stack
  for (std::size_t offset = 0; offset < words.size(); offset += words_max) {
    Part part(communicator, waiter, "an all-reduce", SpanKind::all_reduce);
    HF_TRY_VOID(all_reduce_in(part, words.subspan(offset, std::min(words_max, words.size() - offset))));
  }
  return {};
}

Result<void> gather_on_first(Communicator& communicator, const Waiter& waiter,
                             std::span<const std::byte> mine, std::span<std::byte> all) {
  Part part(communicator, waiter, "a gather", SpanKind::all_gather);
  return gather_in(part, mine, all, [&](std::size_t rank) { return rank * mine.size(); });
}

Result<void> all_gather(Communicator& communicator, const Waiter& waiter, std::span<const std::byte> mine,
                        std::span<std::byte> all) {
  Part part(communicator, waiter, "an all-gather", SpanKind::all_gather);
  HF_TRY_VOID(gather_in(part, mine, all, [&](std::size_t rank) { return rank * mine.size(); }));
  return broadcast_in(part, all);
}

Result<std::vector<std::string>> all_gather_text(Communicator& communicator, const Waiter& waiter,
                                                 const std::string& mine) {
  const auto size = static_cast<std::size_t>(communicator.size());
  const std::uint64_t length = mine.size();
  std::vector<std::uint64_t> ends(size +
                                  1);  // where the text of a rank ends, behind those of the ranks before it
  HF_TRY_VOID(all_gather(communicator, waiter, std::as_bytes(std::span(&length, 1)),
                         std::as_writable_bytes(std::span(ends).subspan(1))));
  std::partial_sum(ends.begin(), ends.end(), ends.begin());
  std::string all(ends.back(), '\0');
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(all));
  Part part(communicator, waiter, "an all-gather", SpanKind::all_gather);
  HF_TRY_VOID(
      gather_in(part, std::as_bytes(std::span(mine)), bytes, [&](std::size_t rank) { return ends[rank]; }));
  HF_TRY_VOID(broadcast_in(part, bytes));
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < size; ++rank)
    texts.push_back(all.substr(ends[rank], ends[rank + 1] - ends[rank]));
  return texts;
}

}  // namespace holdfast::parallel
