// Decides when new ranks of a run are started, so that it does not pause for their start. The leader
// starts them between two steps; they take the memory of their plan, which can take seconds, while the others
// go on; and only when they are ready all pause to take them in.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "parallel/group/membership.h"
#include "runtime/core/result.h"

namespace holdfast::inline train {

// Object of the leader that decides when new ranks are started, and when they are taken in; for one epoch.
class Growth {
 public:
  struct Terms {
    std::int64_t at_ns = 0;        // earliest time; Env::monotonic_ns()
    std::int64_t retry_ns = 0;     // after new ranks that were lost
    std::int64_t patience_ns = 0;  // longest wait for their preparation
    std::int64_t settle_ns = 0;    // longest wait for ranks that still take memory
    // Functions that call those of Membership; all empty where the leader cannot start any ahead.
    std::function<Result<void>()> start = {};
    std::function<std::string()> obstacle = {};  // empty: none, as far as is known
    std::function<NewRankState()> state = {};
    std::function<void()> dismiss = {};
  };
  // State of the saves of the ranks that there are.
  struct Saves {
    bool is_settled = true;  // they take no more memory, so that what new ranks find free is free
    // Steps of the saves to disk that are under way or due after the next step, the oldest first: those that
    // pause wait for them.
    std::vector<std::uint64_t> under_way = {};
  };
  explicit Growth(Terms terms) : terms_(std::move(terms)) {}

  // Returns whether to pause for a resize after the next step, and starts new ranks when it is time, one step
  // after announces() has said so. Called between steps. It returns true, too, where none could be started:
  // then Membership::grow() says why. Steps go on while the saves are made that were under way when the new
  // ranks were ready, however slow the disk is.
  bool due(std::int64_t now_ns, const Saves& saves);
  // Returns whether the next call starts new ranks. A start cannot be given up, and a rank that never comes
  // back from it is lost; so the vote of the step between tells the others, who then start none any more.
  bool announces() const { return announces_; }

  // Returns whether the new ranks were ready at the last call of due(): a save to disk that may be made later
  // is then not begun, because all would pause for it.
  bool ready() const { return is_ready_; }

 private:
  bool may_pause_for_resize(std::int64_t now_ns, bool is_settled);
  bool give_up(std::int64_t now_ns, const std::string& why);
  void put_off(std::int64_t now_ns, const std::string& why);

  Terms terms_;
  std::int64_t started_ns_ = 0;  // 0: not by this object
  bool announces_ = false;
  std::optional<std::uint64_t> awaited_save_;
  bool is_ready_ = false;
};

}  // namespace holdfast::inline train
