// Decides which generation a start or a recovery goes on in (checkpoint/lineage.h), when the state is loaded.
#pragma once

#include <string>
#include <vector>

#include "runtime/elastic/resume.h"
#include "runtime/save/run_state.h"

namespace holdfast::elastic {

struct GenerationChoice {
  std::uint64_t generation = 0;
  Lineage lineage = {};
  bool begins = false;  // `lineage` has a new generation, which the file gets before the first step
  std::vector<DataJump> jumps = {};  // those of the state, and of roll-backs since
};

// Chooses the generation. The state goes on in its own generation unless the future changes here: the start
// says so (StartPoint::begins), or `numeric` names settings that differ from those that the state was saved
// with. A state older than the current generation goes on in the current one only if that generation began at
// this state, with the same `settings` (numeric_settings), or is a roll-back to it or to a later one: then the
// same bits are computed again. Otherwise a new generation begins. Pure.
GenerationChoice choose_generation(const StartPoint& start, const RunState& state, const std::string& numeric,
                                   const std::string& settings);

}  // namespace holdfast::elastic
