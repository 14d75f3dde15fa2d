// The ledger: an audit trail of which samples every step used (data.ledger). One line per step and rank in
// RUN/ledger-<rank>.jsonl: {"step":7,"samples":[[source,sample,epoch],...]}. A step that is computed again
// appears again; readers take the last line of a step from the newest file that has it.
//
// Lines that cannot be written wait in memory, and training goes on (runtime/os/line_log.h). None of them
// is dropped: when memory has no room for more, or at the end of the run some are not in the file, the run
// ends with that error. A rank that is killed meanwhile takes those that wait along, as it has said on stderr
// before: its steps have no line of this rank then.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "runtime/data/sample_order.h"
#include "runtime/os/env.h"
#include "runtime/os/line_thread.h"

namespace holdfast::inline train {

// Of one rank, for all the time that it takes part.
class SampleLog {
 public:
  SampleLog(Env& env, const std::string& path);
  // What was added of a step that did not come to its end is forgotten.
  void begin();
  void add(std::span<const SampleId> samples);
  // The samples that were added since the last call are those of `step`. The error: there is no room for its
  // line, neither in the file nor in memory.
  Result<void> close_step(std::uint64_t step);
  // All lines are in the file.
  Result<void> flush() { return lines_.flush(); }

 private:
  LineThread lines_;
  std::string samples_, line_;  // kept, so that a step allocates nothing once they are long enough
};

}  // namespace holdfast::inline train
