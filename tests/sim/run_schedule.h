// RunSchedule is a schedule of the protocol simulator: a run of some ranks, what happens to them in each of its starts, and how long
// messages and storage take. It follows from a seed alone, and is one line of text, which makes it again:
//
//   ranks=3 pipeline=1 spares=0 newcomers=0 ram=1 disk=4 message_us=300 storage_us=0 | step.begin@5:1=kill | ram_lost
//
// Faults are written as in HOLDFAST_FAULTS (runtime/os/fault_point.h). Besides:
//   disk.OPERATION@N:RANK=EIO, =EIO:ever   the N-th such operation of a rank on files of the run fails, or all from it on
//   disk.any@N:RANK=EIO:dies               no operation from the N-th on has any effect, and the rank dies where it waits next
//   ram_lost, damaged                      before a start no RAM snapshot is left; a bit of the newest checkpoint is another
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/result.h"

namespace holdfast::test {

// ScheduleOptions say what seeds draw from, and how often.
struct ScheduleOptions {
  int ranks_max = 4;
  int starts_max = 2;       // with faults; one without follows
  int faults_max = 3;       // of a start
  double disk_fault = 0.3;  // each of these: probability
  double disk_fault_for_ever = 0.2, death_at_disk_fault = 0.5;
  double late_messages = 0.5;
  double slow_storage = 0.3;
  double lost_ram = 0.3;  // before a start after the first
  double damaged = 0.3;   // likewise
  double newcomers = 0.3;
  double spares = 0.25;
  double pipeline = 0.25;
};

struct RunSchedule {
  int ranks = 2, pipeline = 1, spares = 0, newcomers = 0;
  int ram_every = 0, disk_every = 0;                  // steps; 0: never
  std::int64_t message_us = 0;                        // at most, of a message or the news of a death
  std::int64_t storage_us = 0;                        // of each read or sync
  std::vector<std::vector<std::string>> starts = {};  // what happens in each; one without anything follows

  std::string text() const;
  // Returns the schedule without one of the things that happen, or with something that is simpler: `way` from 0 on, as
  // long as there is one.
  bool simpler(int way, RunSchedule& result) const;
};

RunSchedule draw_schedule(std::uint64_t seed, const ScheduleOptions& options);
Result<RunSchedule> parse_schedule(const std::string& text);

}  // namespace holdfast::test
