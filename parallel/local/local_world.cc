#include "parallel/local/local_world.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "parallel/local/local_communicator.h"

namespace holdfast {

struct LocalWorld::Shared {
  struct Place {
    bool alive = true;
    bool shrinking = false;             // in shrink(), for the next epoch
    std::unique_ptr<Communicator> end;  // of the newest epoch, until its rank takes it
  };

  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t epoch = 0;
  std::vector<Place> places;  // by launched rank

  // With the mutex held: the next epoch, if all that are left wait for it.
  void begin_epoch_if_complete() {
    std::vector<int> members;
    for (std::size_t rank = 0; rank < places.size(); ++rank) {
      if (places[rank].alive && !places[rank].shrinking) return;
      if (places[rank].alive) members.push_back(static_cast<int>(rank));
    }
    if (members.empty()) return;
    std::vector<std::unique_ptr<Communicator>> ends = make_local_communicators(members);
    for (std::size_t i = 0; i < members.size(); ++i) {
      Place& place = places[static_cast<std::size_t>(members[i])];
      place.shrinking = false;
      place.end = std::move(ends[i]);
    }
    ++epoch;
    changed.notify_all();
  }
};

class LocalWorld::Rank final : public ShrinkingWorld {
 public:
  Rank(std::shared_ptr<Shared> shared, int launched_rank)
      : shared_(std::move(shared)), place_(static_cast<std::size_t>(launched_rank)) {
    const std::lock_guard guard(shared_->mutex);
    epochs_.push_back(std::move(shared_->places[place_].end));
  }
  ~Rank() override {
    epochs_.clear();
    const std::lock_guard guard(shared_->mutex);
    shared_->places[place_].alive = false;
    shared_->begin_epoch_if_complete();
  }

  Communicator& current() override { return *epochs_.back(); }

  Result<void> shrink(std::int64_t timeout_ms, const std::string&) override {
    current().abandon();
    std::unique_lock lock(shared_->mutex);
    const std::uint64_t before = shared_->epoch;
    Shared::Place& place = shared_->places[place_];
    place.shrinking = true;
    shared_->begin_epoch_if_complete();
    if (!shared_->changed.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                                   [&] { return shared_->epoch > before; })) {
      place.shrinking = false;
      return fail(ExitCode::communication, "rank {} waited {} ms for the other ranks that are left", place_,
                  timeout_ms);
    }
    epochs_.push_back(std::move(place.end));
    return {};
  }

 private:
  std::shared_ptr<Shared> shared_;
  std::size_t place_;
  std::vector<std::unique_ptr<Communicator>> epochs_;
};

LocalWorld::LocalWorld(int ranks) : shared_(std::make_shared<Shared>()) {
  shared_->places.resize(static_cast<std::size_t>(ranks));
  std::vector<std::unique_ptr<Communicator>> ends = make_local_communicators(ranks);
  for (std::size_t rank = 0; rank < ends.size(); ++rank) shared_->places[rank].end = std::move(ends[rank]);
}

std::unique_ptr<ShrinkingWorld> LocalWorld::join(int launched_rank) {
  return std::make_unique<Rank>(shared_, launched_rank);
}

}  // namespace holdfast
