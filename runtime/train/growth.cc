#include "runtime/train/growth.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/os/console.h"

namespace holdfast::train {

bool Growth::due(std::int64_t now_ns, const Saves& saves) {
  is_ready_ = may_pause_for_resize(now_ns, saves.is_settled);
  if (!is_ready_) {
    awaited_save_.reset();
    return false;
  }
  if (saves.under_way.empty()) return true;
  if (!awaited_save_.has_value()) awaited_save_ = saves.under_way.back();
  return saves.under_way.front() > *awaited_save_;
}

bool Growth::may_pause_for_resize(std::int64_t now_ns, bool is_settled) {
  if (!terms_.start) return now_ns >= terms_.at_ns;
  NewRankState state = terms_.state();
  if (state == NewRankState::none) {
    if (now_ns < terms_.at_ns || (!is_settled && now_ns < terms_.at_ns + terms_.settle_ns)) return false;
    if (const std::string why = terms_.obstacle ? terms_.obstacle() : ""; !why.empty()) {
      announces_ = false;
      put_off(now_ns, fmt::format("are not started: {}", why));
      return false;
    }
    announces_ = !announces_;
    if (announces_) return false;
    if (!terms_.start().ok()) return true;
    started_ns_ = now_ns;
    state = terms_.state();
    if (state == NewRankState::none) return true;  // Membership::grow() starts them in this case
  }
  if (started_ns_ == 0) started_ns_ = now_ns;  // they were started in the epoch before
  switch (state) {
    case NewRankState::none:
      return true;
    case NewRankState::ready:
      return now_ns >= terms_.at_ns;
    case NewRankState::lost:
      return give_up(now_ns, "died while they prepared themselves");
    case NewRankState::preparing:
      break;
  }
  if (now_ns - started_ns_ < terms_.patience_ns) return false;
  return give_up(now_ns, fmt::format("were not ready after {} s", terms_.patience_ns / 1'000'000'000));
}

bool Growth::give_up(std::int64_t now_ns, const std::string& why) {
  terms_.dismiss();
  started_ns_ = 0;
  put_off(now_ns, why);
  constexpr std::int64_t longest_retry_ns = 3'600'000'000'000;
  terms_.retry_ns = std::max(terms_.retry_ns, std::min(2 * terms_.retry_ns, longest_retry_ns));
  return false;
}

void Growth::put_off(std::int64_t now_ns, const std::string& why) {
  terms_.at_ns = now_ns + terms_.retry_ns;
  print_message("new ranks {}; others are started in {} s", why, terms_.retry_ns / 1'000'000'000);
}

}  // namespace holdfast::train
