// Decides when new ranks of a run are started, so that the run does not pause for their start. The leader
// starts them between two steps. They allocate the memory of their plan, which can take seconds, while the
// others go on. Only when they are ready do all ranks pause to take them in.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "parallel/group/membership.h"
#include "runtime/core/result.h"

namespace holdfast::train {

// Growth is used by the leader only and decides when new ranks are started and when they are taken in. It
// lives for one membership epoch.
class Growth {
 public:
  struct Terms {
    std::int64_t at_ns = 0;        // earliest time; Env::monotonic_ns()
    std::int64_t retry_ns = 0;     // delay of the next try after new ranks were lost; it doubles each time
    std::int64_t patience_ns = 0;  // longest wait for the preparation of new ranks
    std::int64_t settle_ns = 0;    // longest wait for ranks that still allocate memory
    // Functions that call those of Membership. All are empty where the leader cannot start ranks ahead.
    std::function<Result<void>()> start = {};
    std::function<std::string()> obstacle = {};  // returns an empty string when no obstacle is known
    std::function<NewRankState()> state = {};
    std::function<void()> dismiss = {};
  };
  // State of the saves of the ranks that are already in the run.
  struct Saves {
    bool is_settled = true;  // ranks allocate no more memory, so that what new ranks find free stays free
    // Steps of the saves to disk that are under way or due after the next step, oldest first. A pause of the
    // run waits for them.
    std::vector<std::uint64_t> under_way = {};
  };
  explicit Growth(Terms terms) : terms_(std::move(terms)) {}

  // Returns whether to pause for a resize after the next step, and starts new ranks when it is time, one step
  // after announces() has returned true. Called between steps. It returns true as well where no rank could be
  // started; Membership::grow() then says why. However slow the disk is, steps go on while the saves are
  // written that were under way when the new ranks were ready.
  bool due(std::int64_t now_ns, const Saves& saves);
  // Returns whether the next call of due() starts new ranks. A start cannot be cancelled, and a rank that
  // never returns from it is lost. The vote of the step before therefore informs the other ranks, which then
  // start none any more.
  bool announces() const { return announces_; }

  // Returns whether the new ranks were ready at the last call of due(). A save to disk that may be made later
  // is then not begun, because all ranks would pause for it.
  bool ready() const { return is_ready_; }

 private:
  bool may_pause_for_resize(std::int64_t now_ns, bool is_settled);
  bool give_up(std::int64_t now_ns, const std::string& why);
  void put_off(std::int64_t now_ns, const std::string& why);

  Terms terms_;
  std::int64_t started_ns_ = 0;  // 0: this object has started none
  bool announces_ = false;
  std::optional<std::uint64_t> awaited_save_;
  bool is_ready_ = false;
};

}  // namespace holdfast::train
