// StateLoader gives the worker of an epoch its state: from RAM, from the disk, or made afresh, and decides which generation
// the run goes on in (checkpoint/lineage.h). All ranks of the epoch call its functions together.
#pragma once

#include <string>
#include <vector>

#include "runtime/elastic/run_journal.h"
#include "runtime/elastic/run_saves.h"

namespace holdfast::elastic {

class StateLoader {
 public:
  // All of them outlive this object.
  StateLoader(Group& group, RunSetup& setup, RecoveryInventory& known, RunJournal& journal, RunSaves& saves,
              Worker& worker)
      : group_(group), setup_(setup), known_(known), journal_(journal), saves_(saves), worker_(worker) {}

  // Loads the state that was found. Where a snapshot is damaged the next state counts.
  Result<void> load();
  // Enters the generation. One that begins is in RUN/lineage.json before any state is made in it.
  Result<void> enter_generation();

 private:
  Result<void> load_checkpoint();
  Result<void> start_afresh();
  Result<void> restore_given_weights();
  Result<bool> is_on_another_device();

  Group& group_;
  RunSetup& setup_;
  RecoveryInventory& known_;
  RunJournal& journal_;
  RunSaves& saves_;
  Worker& worker_;
};

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
