// UnsavedWork says what of a run is in no checkpoint, and when a save is worth a try again where saves fail.
// Pure: the caller has the clock.
#pragma once

#include <algorithm>
#include <cstdint>

namespace holdfast::save {

class UnsavedWork {
 public:
  static constexpr std::int64_t first_pause_ns = 10'000'000'000, longest_pause_ns = 600'000'000'000;

  // Begins with a run of which nothing is saved.
  explicit UnsavedWork(std::int64_t now_ns) : saved_ns_(now_ns) {}

  // Records that there is a checkpoint of this step, whose save was begun then.
  void saved(std::uint64_t step, std::int64_t begun_ns) {
    step_ = std::max(step_, step);
    saved_ns_ = std::max(saved_ns_, begun_ns);
    forget_failures();
  }
  // Records that a save has failed. After the first in a row the next one that is due is another try; each further
  // one doubles the pause before it.
  void failed(std::int64_t now_ns) {
    pause_ns_ = failures_ == 0 ? 0 : std::clamp(2 * pause_ns_, first_pause_ns, longest_pause_ns);
    until_ns_ = now_ns + pause_ns_;
    ++failures_;
  }
  void forget_failures() { failures_ = pause_ns_ = until_ns_ = 0; }
  bool may_try(std::int64_t now_ns) const { return now_ns >= until_ns_; }

  struct Size {
    std::uint64_t steps = 0;       // made since the newest checkpoint
    std::int64_t duration_ns = 0;  // since its save was begun, or since this process was started
    std::int64_t pause_ns = 0;     // before the next try; 0: none
  };
  Size size(std::uint64_t step, std::int64_t now_ns) const {
    return {
        .steps = step > step_ ? step - step_ : 0, .duration_ns = now_ns - saved_ns_, .pause_ns = pause_ns_};
  }

 private:
  std::uint64_t step_ = 0;
  std::int64_t saved_ns_;
  std::int64_t failures_ = 0, pause_ns_ = 0, until_ns_ = 0;
};

}  // namespace holdfast::save
