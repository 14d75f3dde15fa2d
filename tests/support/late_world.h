// LateWorld: ranks of a LocalWorld between which messages and the news of a death take time, as on a network: each message
// its own, so that they overtake each other unless they have one source, target and tag.
//
//   const std::unique_ptr<ShrinkingWorld> mine = std::make_unique<LateWorld>(world.join(rank), env, draw_us);
//
// The clock is that of the Env. Threads: as a ShrinkingWorld.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/group/membership.h"
#include "runtime/os/env.h"

namespace holdfast::test {

// Returns how long the next message is under way.
using DrawLateness = std::function<std::int64_t()>;

class LateCommunicator final : public Communicator {
 public:
  LateCommunicator(Communicator& inner, Env& env, DrawLateness draw_us)
      : inner_(inner), env_(env), draw_us_(std::move(draw_us)) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  int global_rank(int rank) const override { return inner_.global_rank(rank); }
  Result<Request> send(std::span<const std::byte> source, int peer, int tag) override {
    HF_TRY(const Request request, inner_.send(source, peer, tag));
    return track(request);
  }
  Result<Request> receive(std::span<std::byte> target, int peer, int tag) override {
    HF_TRY(const Request request, inner_.receive(target, peer, tag));
    return track(request);
  }
  Result<bool> test(Request request) override {
    const auto found = pending_.find(request);
    if (found == pending_.end()) return inner_.test(request);  // abandoned
    Pending& pending = found->second;
    if (!pending.arrives_ns.has_value()) {
      HF_TRY(const bool done, inner_.test(pending.request));
      if (!done) return false;
      pending.arrives_ns = env_.monotonic_ns() + 1'000 * draw_us_();
    }
    if (env_.monotonic_ns() < *pending.arrives_ns) return false;
    pending_.erase(found);
    return true;
  }
  Result<void> check_peers() override {
    if (hears_of_a_death_later()) return {};
    return inner_.check_peers();
  }
  Result<void> check_peers_among(std::span<const int> ranks) override {
    if (hears_of_a_death_later()) return {};
    return inner_.check_peers_among(ranks);
  }
  bool has_died(int rank) override { return inner_.has_died(rank) && !is_news(rank); }
  void abandon() override {
    pending_.clear();
    inner_.abandon();
  }
  bool abandoned() override { return inner_.abandoned(); }

 private:
  struct Pending {
    Request request = 0;                          // of inner_
    std::optional<std::int64_t> arrives_ns = {};  // none: inner_ has not got it
  };

  Request track(Request request) {
    while (pending_.contains(next_)) next_ = (next_ + 1) % request_count_max(size());
    pending_[next_] = {.request = request};
    return next_;
  }
  // Returns whether the death of a rank is not known here yet.
  bool is_news(int rank) {
    const std::int64_t now_ns = env_.monotonic_ns();
    const auto [known, first] = known_ns_.try_emplace(rank, 0);
    if (first) known->second = now_ns + 1'000 * draw_us_();
    return now_ns < known->second;
  }
  bool hears_of_a_death_later() {
    if (inner_.abandoned()) return false;
    bool any = false;
    for (int rank = 0; rank < size(); ++rank) any = (inner_.has_died(rank) && is_news(rank)) || any;
    return any;
  }

  Communicator& inner_;
  Env& env_;
  const DrawLateness draw_us_;
  std::map<Request, Pending> pending_;
  std::map<int, std::int64_t> known_ns_;  // when the death of a rank is known, by rank
  Request next_ = 0;
};

class LateWorld final : public ShrinkingWorld {
 public:
  LateWorld(std::unique_ptr<ShrinkingWorld> inner, Env& env, DrawLateness draw_us)
      : inner_(std::move(inner)), env_(env), draw_us_(std::move(draw_us)) {}

  Communicator& current() override {
    Communicator& newest = inner_->current();
    if (epochs_.empty() || epochs_.back().inner != &newest)
      epochs_.push_back(
          {.inner = &newest, .late = std::make_unique<LateCommunicator>(newest, env_, draw_us_)});
    return *epochs_.back().late;
  }
  Result<void> shrink(std::int64_t timeout_ms, const std::string& why) override {
    current().abandon();
    return inner_->shrink(timeout_ms, why);
  }
  Result<void> grow(int count, std::int64_t timeout_ms, const std::string& why) override {
    return inner_->grow(count, timeout_ms, why);
  }
  bool is_joiner() const override { return inner_->is_joiner(); }

 private:
  struct Epoch {
    Communicator* inner = nullptr;
    std::unique_ptr<LateCommunicator> late;
  };

  std::unique_ptr<ShrinkingWorld> inner_;
  Env& env_;
  const DrawLateness draw_us_;
  std::vector<Epoch> epochs_;  // each lives as long as this
};

}  // namespace holdfast::test
