// For the tests of this folder.
#pragma once

#include <fmt/core.h>
#include <unistd.h>

#include <string>

#include "tests/support/forwarding_env.h"
#include "watchdog/board.h"

namespace holdfast::test {

// A clock that stands still but for sleeps, an identity to choose, and a name for a board that goes
// with the object.
class WatchEnv final : public ForwardingEnv {
 public:
  WatchEnv() : ForwardingEnv(posix_env()) {}
  ~WatchEnv() override { static_cast<void>(remove_shared_memory(board).ok()); }
  std::int64_t monotonic_ns() override { return now_ns; }
  void sleep_us(std::int64_t microseconds) override {
    posix_env().sleep_us(microseconds / 50);
    now_ns += 1'000 * microseconds;
  }
  std::int64_t process_id() override { return own_id; }

  std::int64_t now_ns = 1'000'000'000'000;
  std::int64_t own_id = getpid();
  const std::string board = fmt::format("holdfast-test-{}-{:016x}", getpid(), posix_env().random_u64());
};

// Number 0: there is none.
inline Notice newest_notice(const BoardNotices& notices) {
  const std::vector<Notice> all = read_notices(notices);
  return all.empty() ? Notice() : all.back();
}

}  // namespace holdfast::test
