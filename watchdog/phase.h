// Phases of a rank, as the watchdog distinguishes them: each phase has a deadline of its own.
#pragma once

#include <cstddef>
#include <cstdint>

namespace holdfast::watchdog {

enum class Phase : std::uint8_t {
  start_up,    // the program, MPI, config, data, device: until the first step can begin
  load,        // state from RAM, disk or a peer
  step,        // from the end of one vote to the next
  evaluation,  // one batch of an evaluation
  save,        // a save that training waits for
  recovery,    // after a death: regrouping and planning
  spare,       // waits for a coordinate or the end; only its heartbeats count
  end,         // report and shutdown
  count
};
const char* name_of(Phase phase);

// Kinds of work that make a step, or a batch of an evaluation, take other times than usual. Each kind has a
// history of its own (deadlines.h).
enum class WorkKind : std::uint8_t {
  usual,
  first,        // the first one after a start, recovery, scale up or re-cut: all pages are new
  beside_save,  // a snapshot is copied or sent, or a save drained, meanwhile
  count
};

}  // namespace holdfast::watchdog
