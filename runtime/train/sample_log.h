// SampleLog writes the ledger, an audit trail of which samples every step used (data.ledger). It has one line
// per step and rank in RUN/ledger-<rank>.jsonl: {"step":7,"samples":[[source,sample,epoch],...]}. A step that
// is computed again appears again; readers take the last line of a step from the newest file that has it.
//
// Lines that cannot be written wait in memory, and training goes on (runtime/run/line_log.h). No line is
// dropped: the run ends with an error when memory has no room for more lines, or when some are still not in
// the file at the end of the run. A rank that is killed meanwhile loses its waiting lines, as a message on
// stderr has announced before: its steps then have no line of this rank.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "runtime/data/sample_order.h"
#include "runtime/os/env.h"
#include "runtime/os/line_thread.h"

namespace holdfast::train {

// SampleLog is the log of one rank, for as long as the rank takes part in the run.
class SampleLog {
 public:
  SampleLog(Env& env, const std::string& path);
  // Discards the samples of a step that was not completed.
  void begin();
  void add(std::span<const SampleId> samples);
  // Writes the samples added since the last call as those of `step`. Returns an error when there is no room
  // for its line, neither in the file nor in memory.
  Result<void> close_step(std::uint64_t step);
  // Writes all waiting lines to the file.
  Result<void> flush() { return lines_.flush(); }

 private:
  LineThread lines_;
  std::string samples_, line_;  // kept, so that steps allocate nothing once they are long enough
};

}  // namespace holdfast::train
