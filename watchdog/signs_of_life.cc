#include "watchdog/signs_of_life.h"

#include <algorithm>
#include <utility>

namespace holdfast::watchdog {
namespace {

constexpr std::int64_t sample_ns = 250'000'000, late_sample_ns = 1'000'000'000;
constexpr std::int64_t looks_per_deadline = 8;
// Between two looks.
constexpr std::uint64_t faults_min = 16, resident_min = 1'048'576, bytes_min = 16'384;

}  // namespace

std::int64_t death_patience_ns(std::int64_t min_ns, std::uint64_t resident_bytes_when_killed,
                               std::uint64_t resident_bytes_now) {
  constexpr std::int64_t dying_min_ns = 60'000'000'000;
  constexpr double ns_per_byte = 1e9 / (1 << 30);
  const std::int64_t patience_ns =
      min_ns + static_cast<std::int64_t>(static_cast<double>(resident_bytes_when_killed) * ns_per_byte);
  return resident_bytes_when_killed > 0 && resident_bytes_now == 0 ? std::max(patience_ns, dying_min_ns)
                                                                   : patience_ns;
}

void SignsOfLife::look_at_board(const SlotView& slot, std::int64_t now_ns) {
  const bool grew = slot.spans_opened != spans_ || slot.device_ops != ops_ || slot.moved_bytes != bytes_;
  spans_ = slot.spans_opened;
  ops_ = slot.device_ops;
  bytes_ = slot.moved_bytes;
  if (std::exchange(knows_board_, true) && grew) last_ns_ = now_ns;
}

bool SignsOfLife::wants_process_look(const SlotView& slot, std::int64_t now_ns) const {
  if (slot.deadline_ns <= 0 || slot.phase == Phase::spare) return false;
  const std::int64_t quiet_ns = now_ns - std::max(slot.begun_ns, last_ns_);
  const bool waits = slot.wait_begun_ns > 0;
  const std::int64_t unseen_ns = waits ? std::min(quiet_ns, now_ns - slot.heartbeat_ns) : quiet_ns;
  const bool may_be_stopped = slot.floor_ns > 0 && unseen_ns > slot.floor_ns;
  const bool may_work =
      !waits && (quiet_ns > slot.deadline_ns / 2 ||
                 (slot.storage_begun_ns > 0 && now_ns - slot.storage_begun_ns > late_sample_ns));
  return (may_be_stopped || may_work) &&
         now_ns - process_look_ns_ >= std::min(sample_ns, slot.deadline_ns / looks_per_deadline);
}

void SignsOfLife::look_at_process(const ProcessWork& work, std::int64_t now_ns, bool waits) {
  const ProcessWork before = std::exchange(process_, work);
  const std::int64_t since_ns = std::exchange(process_look_ns_, now_ns);
  const bool late = since_ns == 0 || now_ns - since_ns > late_sample_ns;
  if (!work.stopped || !before.stopped || late) stopped_since_ns_ = work.stopped ? now_ns : 0;
  if (late || waits) return;
  const bool moved = work.minor_faults >= before.minor_faults + faults_min ||
                     work.major_faults > before.major_faults ||
                     work.resident_bytes >= before.resident_bytes + resident_min ||
                     work.io_bytes >= before.io_bytes + bytes_min;
  if (moved) last_ns_ = now_ns;
}

}  // namespace holdfast::watchdog
