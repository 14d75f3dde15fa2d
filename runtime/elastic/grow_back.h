// GrowBack gets a run on one host the ranks back that it was started with: whether it wants any, when and on which places
// new ones may be started (growth_places.h has the plan), and what is known of those that have joined. The phases that
// take them in are those of the session.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/elastic/epoch_memory.h"
#include "runtime/elastic/run_journal.h"
#include "runtime/train/growth.h"

namespace holdfast::elastic {

class GrowBack {
 public:
  // All of them outlive this object. `known`: gets the places of the host, and the ranks that have joined.
  GrowBack(Group& group, const RunSetup& setup, RecoveryInventory& known, RunJournal& journal)
      : group_(group), setup_(setup), known_(known), journal_(journal) {}

  // Names the places of this host at the start, while its devices can still be asked.
  void name_places();
  // Lets the pause before the next growth begin now: there was a fault, or an attempt to grow.
  void begin_pause();
  int ranks_wanted() const { return places(missing()).wanted; }
  // Plans the growth on the rank that decides when the run grows: rank 0 of all, which can start new ranks
  // ahead, or, if that is a spare, the leader. None: this rank does not decide, or no ranks are wanted.
  std::optional<Growth> plan(Worker& worker, EpochMemory& memory);
  // Gives the ranks that have come since `growth` began their places.
  void note_joiners(const RecoveryRecord& growth);
  void note_lost(const std::vector<Member>& lost);
  // Gives a new rank the local rank that the others have chosen for it, because the launcher only counted the ranks
  // that were started together with it. Collective.
  Result<void> take_place_on_host();
  // Returns, once, a clause that the run does not grow any more because a rank was lost that started new ones.
  std::string take_lost_starter();

 private:
  GrowthPlan places(int missing) const;
  int missing() const;  // ranks that the run would like to have
  bool wants_ranks() const;
  bool host_computes_wrong() const;
  std::int64_t grow_at_ns() const;
  std::vector<std::string> gpus_of_host() const;
  void show_places_left_alone(std::uint64_t step);
  Result<void> start_new_ranks(Worker& worker, EpochMemory& memory) const;

  Group& group_;
  const RunSetup& setup_;
  RecoveryInventory& known_;
  RunJournal& journal_;
  bool on_several_hosts_ = false;        // the run was on several hosts at its start
  bool explained_ = false;               // a message has said that the run does not grow by itself
  std::vector<std::string> left_alone_;  // places that a message has named
  std::int64_t disturbed_ns_ = 0;        // time of the last fault or attempt to grow; 0: none so far
  bool told_lost_starter_ = false;
};

}  // namespace holdfast::elastic
