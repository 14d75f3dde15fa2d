#include "tests/support/local_world.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "parallel/local/local_communicator.h"
#include "runtime/os/thread.h"

namespace holdfast::test {

struct LocalWorld::Shared {
  struct Place {
    bool alive = true;
    bool shrinking = false;  // in shrink(), for the next epoch
    int growing = 0;         // in grow(), by so many
    bool is_joiner = false;
    std::unique_ptr<Communicator> end;  // of the newest epoch, until its rank takes it
  };

  explicit Shared(Env& env) : changed(env.make_condition()) {}

  std::mutex mutex;
  const std::unique_ptr<Condition> changed;
  std::uint64_t epoch = 0;
  std::uint64_t deaths = 0;
  std::uint64_t refusals = 0;  // growths that nothing came of
  std::vector<Place> places;   // by launched rank
  StartRanks start_ranks;

  // Begins the next epoch if all remaining ranks wait for it; called with the mutex held.
  void begin_epoch_if_complete() {
    std::vector<int> members;
    for (std::size_t rank = 0; rank < places.size(); ++rank) {
      if (places[rank].alive && !places[rank].shrinking) return;
      if (places[rank].alive) members.push_back(static_cast<int>(rank));
    }
    if (members.empty()) return;
    begin_epoch(members);
  }

  void begin_epoch(const std::vector<int>& members) {
    std::vector<std::unique_ptr<Communicator>> ends = make_local_communicators(members);
    for (std::size_t i = 0; i < members.size(); ++i) {
      Place& place = places[static_cast<std::size_t>(members[i])];
      place.shrinking = false;
      place.growing = 0;
      place.end = std::move(ends[i]);
    }
    ++epoch;
    changed->notify();
  }

  // Starts the new ranks if all ranks wait for them; called with the mutex held.
  void grow_if_complete(int count) {
    std::vector<int> members;
    for (std::size_t rank = 0; rank < places.size(); ++rank) {
      if (places[rank].alive && places[rank].growing == 0) return;
      if (places[rank].alive) members.push_back(static_cast<int>(rank));
    }
    const int first = static_cast<int>(places.size());
    if (!start_ranks || !start_ranks(first, count)) {
      for (Place& place : places) place.growing = 0;
      ++refusals;
      changed->notify();
      return;
    }
    for (int i = 0; i < count; ++i) {
      places.emplace_back().is_joiner = true;
      members.push_back(first + i);
    }
    begin_epoch(members);
  }

  bool somebody_shrinks() const { return std::ranges::any_of(places, &Place::shrinking); }
};

class LocalWorld::Rank final : public ShrinkingWorld {
 public:
  Rank(std::shared_ptr<Shared> shared, int launched_rank)
      : shared_(std::move(shared)), place_(static_cast<std::size_t>(launched_rank)) {
    const std::lock_guard guard(shared_->mutex);
    epochs_.push_back(std::move(shared_->places[place_].end));
    came_later_ = shared_->places[place_].is_joiner;
  }
  ~Rank() override {
    epochs_.clear();
    const std::lock_guard guard(shared_->mutex);
    shared_->places[place_].alive = false;
    ++shared_->deaths;
    shared_->begin_epoch_if_complete();
    shared_->changed->notify();
  }

  Communicator& current() override { return *epochs_.back(); }

  Result<void> shrink(std::int64_t timeout_ms, const std::string&) override {
    current().abandon();
    std::unique_lock lock(shared_->mutex);
    const std::uint64_t before = shared_->epoch;
    Shared::Place& place = shared_->places[place_];
    place.shrinking = true;
    shared_->changed->notify();
    shared_->begin_epoch_if_complete();
    if (!shared_->changed->wait_at_most(lock, timeout_ms, [&] { return shared_->epoch > before; })) {
      place.shrinking = false;
      return fail(ExitCode::communication, "rank {} waited {} ms for the other ranks that are left", place_,
                  timeout_ms);
    }
    epochs_.push_back(std::move(place.end));
    return {};
  }

  Result<void> grow(int count, std::int64_t timeout_ms, const std::string&) override {
    HF_TRY_VOID(current().check_peers());
    std::unique_lock lock(shared_->mutex);
    const std::uint64_t epoch = shared_->epoch, refusals = shared_->refusals, deaths = shared_->deaths;
    shared_->places[place_].growing = count;
    shared_->grow_if_complete(count);
    shared_->changed->wait_at_most(lock, timeout_ms, [&] {
      return shared_->epoch > epoch || shared_->refusals > refusals || shared_->deaths > deaths ||
             shared_->somebody_shrinks();
    });
    Shared::Place& place = shared_->places[place_];
    place.growing = 0;
    if (shared_->epoch > epoch) {
      epochs_.push_back(std::move(place.end));
      return {};
    }
    if (shared_->refusals > refusals)
      return fail(ExitCode::communication, "the new ranks could not be started");
    lock.unlock();
    current().abandon();
    return fail(ExitCode::communication, "rank {} lost a rank while new ones were started", place_);
  }

  bool is_joiner() const override { return came_later_; }

 private:
  std::shared_ptr<Shared> shared_;
  std::size_t place_;
  bool came_later_ = false;
  std::vector<std::unique_ptr<Communicator>> epochs_;
};

LocalWorld::LocalWorld(int ranks, StartRanks start_ranks, Env& env) : shared_(std::make_shared<Shared>(env)) {
  shared_->start_ranks = std::move(start_ranks);
  shared_->places.resize(static_cast<std::size_t>(ranks));
  std::vector<std::unique_ptr<Communicator>> ends = make_local_communicators(ranks);
  for (std::size_t rank = 0; rank < ends.size(); ++rank) shared_->places[rank].end = std::move(ends[rank]);
}

std::unique_ptr<ShrinkingWorld> LocalWorld::join(int launched_rank) {
  return std::make_unique<Rank>(shared_, launched_rank);
}

}  // namespace holdfast::test
