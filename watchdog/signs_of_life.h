// SignsOfLife: when one rank was last seen to get anything done, from counters that only grow. Pure.
//
// A rank that begins spans, has ops done by its device, moves bytes or faults pages is slow, not stuck.
// Processor time is no sign: a livelock burns it, too. What the board counts is looked at in every tick and
// costs nothing; what only the kernel knows takes a read of two files of /proc, so it is looked at only while
// the board has shown nothing for half of the rank's deadline (wants_process_look).
//
// Few faults and few bytes are none: threads that have nothing to do with training make some now and then.
#pragma once

#include <cstdint>

#include "watchdog/board.h"

namespace holdfast::inline watchdog {

// Since the process started.
struct ProcessWork {
  std::uint64_t minor_faults = 0, major_faults = 0;
  std::uint64_t resident_bytes = 0;  // now; one fault may bring a huge page
  std::uint64_t io_bytes = 0;        // read and written by system calls, and what came from disks
};

// How long a process that was killed may take to die, before the system is said to hold it: `min_ns` and a
// second for each GiB that it had. The kernel takes its memory away first, as a whole, and gives it back
// after that, so one that has none any more obeys: it has at least a minute (pinned and GPU memory is slow).
std::int64_t death_patience_ns(std::int64_t min_ns, std::uint64_t resident_bytes_when_killed,
                               std::uint64_t resident_bytes_now);

class SignsOfLife {
 public:
  // The counters of its slot now.
  void look_at_board(const SlotView& slot, std::int64_t now_ns);
  bool wants_process_look(const SlotView& slot, std::int64_t now_ns) const;
  // A look that came late only says where the counters stand: when they grew nobody knows.
  void look_at_process(const ProcessWork& work, std::int64_t now_ns);
  std::int64_t last_ns() const { return last_ns_; }  // 0: never

 private:
  std::uint64_t spans_ = 0, ops_ = 0, bytes_ = 0;
  bool knows_board_ = false;
  ProcessWork process_;
  std::int64_t process_look_ns_ = 0;  // 0: none yet
  std::int64_t last_ns_ = 0;
};

}  // namespace holdfast::inline watchdog
