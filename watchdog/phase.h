// What a rank is at, as the watchdog tells it apart: each phase has a deadline of its own.
#pragma once

#include <cstddef>
#include <cstdint>

namespace holdfast::inline watchdog {

enum class Phase : std::uint8_t {
  start_up,    // the program, MPI, config, data, device: until the first step can begin
  load,        // state from RAM, disk or a peer
  step,        // from one vote's end to the next
  evaluation,  // a batch of it
  save,        // one that training waits for
  recovery,    // after a death: coming together and planning
  spare,       // waits for a coordinate or the end; only its beats count
  end,         // report and farewell
  count
};
const char* name_of(Phase phase);

// What makes a step, or a batch of an evaluation, take other times than usual. Each kind has a history of its
// own (deadlines.h).
enum class WorkKind : std::uint8_t {
  usual,
  first,        // the first one after a start, a recovery, a growth or a re-cut: all pages are new
  beside_save,  // a snapshot is copied or sent, or a save drained, meanwhile
  count
};

}  // namespace holdfast::inline watchdog
