// SignsOfLife: when one rank was last seen to get anything done, from counters that only grow. Pure.
//
// A rank that begins spans, has ops done by its device, moves bytes or faults pages is slow, not stuck.
// Processor time is no sign: a livelock uses it, too. The counters of the board are read in every tick at no
// cost; those of the kernel take a read of two files of /proc, so they are read only while the board has
// shown nothing for half of the rank's deadline, or for the floor of all deadlines (wants_process_look).
//
// A few faults and a few bytes do not count: threads that have nothing to do with training make some now and
// then.
#pragma once

#include <cstdint>

#include "watchdog/board.h"

namespace holdfast::watchdog {

// Work of a process since it started.
struct ProcessWork {
  std::uint64_t minor_faults = 0, major_faults = 0;
  std::uint64_t resident_bytes = 0;  // at present; one fault may bring a huge page
  std::uint64_t io_bytes = 0;        // read and written by system calls, and what came from disks
  bool stopped = false;              // state T of /proc, at present
};

// Returns how long a process that was killed may take to die before the system is said to hold it: `min_ns`
// and a second for each GiB that it had. The kernel takes its memory away first, as a whole, and frees it
// after that, so a process without memory is dying: it has at least a minute (pinned and GPU memory is slow).
std::int64_t death_patience_ns(std::int64_t min_ns, std::uint64_t resident_bytes_when_killed,
                               std::uint64_t resident_bytes_now);

class SignsOfLife {
 public:
  // Takes in the present counters of the rank's slot.
  void look_at_board(const SlotView& slot, std::int64_t now_ns);
  bool wants_process_look(const SlotView& slot, std::int64_t now_ns) const;
  // Takes in the counters of the process. A look that came late only sets the base values: it is not known
  // when the counters grew. Of a rank that `waits` for another one, what grew is no sign.
  void look_at_process(const ProcessWork& work, std::int64_t now_ns, bool waits = false);
  std::int64_t last_ns() const { return last_ns_; }  // 0: never
  // Returns since when all looks at the process have found it stopped; 0: the last one did not.
  std::int64_t stopped_since_ns() const { return stopped_since_ns_; }

 private:
  std::uint64_t spans_ = 0, ops_ = 0, bytes_ = 0;
  bool knows_board_ = false;
  ProcessWork process_;
  std::int64_t process_look_ns_ = 0;  // 0: none yet
  std::int64_t last_ns_ = 0;
  std::int64_t stopped_since_ns_ = 0;
};

}  // namespace holdfast::watchdog
