// ReturnWait bounds how long all ranks wait together for what none of them can read or write now, and what may come
// back (elastic.input_timeout).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <utility>

#include "parallel/comm/collectives.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"

namespace holdfast::rank {

class ReturnWait {
 public:
  static constexpr std::int64_t first_pause_ms = 250;
  struct Terms {
    Env& env;
    Communicator& communicator;
    std::int64_t timeout_ms = 0;
    std::int64_t longest_pause_ms = first_pause_ms;  // between two tries; it doubles up to that
    std::function<bool()> gives_up = {};             // asked on each rank: this one waits no longer
  };
  explicit ReturnWait(Terms terms) : terms_(std::move(terms)), begun_ns_(terms_.env.monotonic_ns()) {}

  // Returns whether an error that all ranks have got may be over at a later try.
  static bool may_return(Communicator& communicator, const Error& error) {
    return !communicator.abandoned() && error.code != ExitCode::communication &&
           (error.reach == Reach::everywhere || error.reach == Reach::minute);
  }

  // Waits, and returns whether to try again. All ranks call it together. `say`: called once, where rank 0 begins to
  // wait.
  Result<bool> again(const Waiter& waiter, const std::function<void()>& say) {
    const bool is_over = terms_.env.monotonic_ns() - begun_ns_ >= terms_.timeout_ms * 1'000'000;
    if (terms_.communicator.rank() == 0 && !is_over && !std::exchange(said_, true)) say();
    std::array<std::int64_t, 1> ends = {is_over || (terms_.gives_up && terms_.gives_up()) ? 1 : 0};
    HF_TRY_VOID(all_reduce_sum(terms_.communicator, waiter, ends));
    if (ends[0] > 0) return false;
    terms_.env.sleep_us(pause_ms_ * 1000);
    pause_ms_ = std::min(2 * pause_ms_, terms_.longest_pause_ms);
    return true;
  }

 private:
  Terms terms_;
  std::int64_t begun_ns_, pause_ms_ = first_pause_ms;
  bool said_ = false;
};

}  // namespace holdfast::rank
