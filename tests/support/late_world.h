// LateWorld: ranks of a LocalWorld between which messages and the news of a death take time, as on a network: each message
// its own, so that they overtake each other unless they have one source, target and tag. And a rank can die at once, while
// its threads still unwind: from die() on nobody gets anything from it, or writes into its memory.
//
//   auto world = std::make_unique<LateWorld>(local.join(rank), env, draw_us);
//   world->die();
//
// The clock is that of the Env. Threads: as a ShrinkingWorld; die() is for any thread of the rank, while no other one is in a
// call but those that wait for other ranks.
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

// Returns how long the next message is under way; empty: no time.
using DrawLateness = std::function<std::int64_t()>;

class LateCommunicator final : public Communicator {
 public:
  LateCommunicator(Communicator& inner, Env& env, DrawLateness draw_us)
      : inner_(&inner), env_(env), draw_us_(std::move(draw_us)), rank_(inner.rank()) {
    for (int rank = 0; rank < inner.size(); ++rank) names_.push_back(inner.global_rank(rank));
  }

  // From now on every call is an error.
  void die() { inner_ = nullptr; }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(names_.size()); }
  int global_rank(int rank) const override { return names_[static_cast<std::size_t>(rank)]; }
  Result<Request> send(std::span<const std::byte> source, int peer, int tag) override {
    if (inner_ == nullptr) return gone();
    HF_TRY(const Request request, inner_->send(source, peer, tag));
    return track(request);
  }
  Result<Request> receive(std::span<std::byte> target, int peer, int tag) override {
    if (inner_ == nullptr) return gone();
    HF_TRY(const Request request, inner_->receive(target, peer, tag));
    return track(request);
  }
  Result<bool> test(Request request) override {
    if (inner_ == nullptr) return gone();
    const auto found = pending_.find(request);
    if (found == pending_.end()) return inner_->test(request);  // abandoned
    Pending& pending = found->second;
    if (!pending.arrives_ns.has_value()) {
      HF_TRY(const bool done, inner_->test(pending.request));
      if (!done) return false;
      pending.arrives_ns = env_.monotonic_ns() + lateness_ns();
    }
    if (env_.monotonic_ns() < *pending.arrives_ns) return false;
    pending_.erase(found);
    return true;
  }
  Result<void> check_peers() override {
    if (inner_ == nullptr) return gone();
    if (hears_of_a_death_later()) return {};
    return inner_->check_peers();
  }
  Result<void> check_peers_among(std::span<const int> ranks) override {
    if (inner_ == nullptr) return gone();
    if (hears_of_a_death_later()) return {};
    return inner_->check_peers_among(ranks);
  }
  bool has_died(int rank) override { return inner_ != nullptr && inner_->has_died(rank) && !is_news(rank); }
  void abandon() override {
    pending_.clear();
    if (inner_ != nullptr) inner_->abandon();
  }
  bool abandoned() override { return inner_ == nullptr || inner_->abandoned(); }

 private:
  struct Pending {
    Request request = 0;                          // of inner_
    std::optional<std::int64_t> arrives_ns = {};  // none: inner_ has not got it
  };

  Error gone() const { return fail(ExitCode::communication, "rank {} is dead", global_rank(rank_)); }
  std::int64_t lateness_ns() { return draw_us_ ? 1'000 * draw_us_() : 0; }
  Request track(Request request) {
    while (pending_.contains(next_)) next_ = (next_ + 1) % request_count_max(size());
    pending_[next_] = {.request = request};
    return next_;
  }
  // Returns whether the death of a rank is not known here yet.
  bool is_news(int rank) {
    const std::int64_t now_ns = env_.monotonic_ns();
    const auto [known, first] = known_ns_.try_emplace(rank, 0);
    if (first) known->second = now_ns + lateness_ns();
    return now_ns < known->second;
  }
  bool hears_of_a_death_later() {
    if (inner_->abandoned()) return false;
    bool any = false;
    for (int rank = 0; rank < size(); ++rank) any = (inner_->has_died(rank) && is_news(rank)) || any;
    return any;
  }

  Communicator* inner_;  // null: the rank is dead
  Env& env_;
  const DrawLateness draw_us_;
  const int rank_;
  std::vector<int> names_;  // global_rank() by rank
  std::map<Request, Pending> pending_;
  std::map<int, std::int64_t> known_ns_;  // when the death of a rank is known, by rank
  Request next_ = 0;
};

class LateWorld final : public ShrinkingWorld {
 public:
  LateWorld(std::unique_ptr<ShrinkingWorld> inner, Env& env, DrawLateness draw_us)
      : inner_(std::move(inner)), env_(env), draw_us_(std::move(draw_us)), is_joiner_(inner_->is_joiner()) {
    current();
  }

  // The rank is dead for all others, at once or as soon as a call ends that waits for them.
  void die() {
    for (const Epoch& epoch : epochs_) epoch.late->die();
    is_dead_ = true;
    if (waiting_ == 0) inner_.reset();
  }

  Communicator& current() override {
    if (is_dead_) return *epochs_.back().late;
    Communicator& newest = inner_->current();
    if (epochs_.empty() || epochs_.back().inner != &newest)
      epochs_.push_back(
          {.inner = &newest, .late = std::make_unique<LateCommunicator>(newest, env_, draw_us_)});
    return *epochs_.back().late;
  }
  Result<void> shrink(std::int64_t timeout_ms, const std::string& why) override {
    current().abandon();
    return wait_with([&] { return inner_->shrink(timeout_ms, why); });
  }
  Result<void> grow(int count, std::int64_t timeout_ms, const std::string& why) override {
    return wait_with([&] { return inner_->grow(count, timeout_ms, why); });
  }
  bool is_joiner() const override { return is_joiner_; }

 private:
  struct Epoch {
    Communicator* inner = nullptr;
    std::unique_ptr<LateCommunicator> late;
  };

  template <typename Wait>
  Result<void> wait_with(const Wait& wait) {
    const Error dead = fail(ExitCode::communication, "the rank is dead");
    if (is_dead_) return dead;
    ++waiting_;
    const Result<void> outcome = wait();
    --waiting_;
    if (!is_dead_) return outcome;
    inner_.reset();
    return dead;
  }

  std::vector<Epoch> epochs_;              // each lives as long as this, and after inner_
  std::unique_ptr<ShrinkingWorld> inner_;  // null: the rank is dead
  Env& env_;
  const DrawLateness draw_us_;
  const bool is_joiner_;
  bool is_dead_ = false;
  int waiting_ = 0;
};

}  // namespace holdfast::test
