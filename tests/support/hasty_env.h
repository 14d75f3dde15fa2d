// A machine whose clock passes faster while a thread waits for long, as for storage that fails.
#pragma once

#include <atomic>
#include <functional>

#include "tests/support/forwarding_env.h"

namespace holdfast::test {

class HastyEnv : public ForwardingEnv {
 public:
  // A wait of a tenth of a second or longer takes a tenth of its time, and `times` its time by the clock.
  explicit HastyEnv(Env& inner, std::int64_t times = 20) : ForwardingEnv(inner), times_(times) {}

  std::atomic<int> long_waits = 0;
  std::function<void(int long_waits)> at_long_wait = {};  // set before others use it

  std::int64_t monotonic_ns() override { return inner().monotonic_ns() + shift_ns_; }
  void sleep_us(std::int64_t duration_us) override {
    if (duration_us < 100'000) return inner().sleep_us(duration_us);
    shift_ns_ += times_ * duration_us * 1000;
    inner().sleep_us(duration_us / 10);
    const int waits = ++long_waits;
    if (at_long_wait) at_long_wait(waits);
  }

 private:
  std::int64_t times_;
  std::atomic<std::int64_t> shift_ns_ = 0;
};

}  // namespace holdfast::test
