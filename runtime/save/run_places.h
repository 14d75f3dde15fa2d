// Places: which ranks see the same run directory. Usually all do, because it is on a file system that the
// hosts share. Where run.directory is another directory on each host, each is a place of its own: one rank of
// a place, that with the lowest coordinate, holds the lock, writes the log and publishes the host's part of
// each checkpoint there, as rank 0 does where there is one directory.
//
// A file with a name that nobody has looked up before (a nonce) tells them apart: who sees it sees the
// directory of the rank that made it. All ranks of a host (Env::host_id()) have to see the same one.
//
// Manifests name hosts, so a place has a name that no other one of the same start has, and keeps it:
// RUN/place_name. Where one with the same name comes back from before, one of the two gets another.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "parallel/comm/collectives.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/rank/train_inputs.h"

namespace holdfast::inline save {

// The place of a rank. It does not change while the rank lives.
struct Place {
  int number = 0;    // the first rank of it when the run was started
  std::string host;  // names the place: that rank's host, or "HOST#2" where another has this name
  bool operator==(const Place&) const = default;
};

// RunPlaces holds the places of all ranks of a communicator, by rank.
class RunPlaces {
 public:
  explicit RunPlaces(std::vector<Place> of_rank) : of_rank_(std::move(of_rank)) {}
  const Place& of(int rank) const { return of_rank_[static_cast<std::size_t>(rank)]; }
  int ranks() const { return static_cast<int>(of_rank_.size()); }
  // Ranks that lead a place: the lowest of each, ascending.
  std::vector<int> leaders() const;
  int leader_of(int rank) const;
  bool leads(int rank) const { return leader_of(rank) == rank; }
  int count() const { return static_cast<int>(leaders().size()); }
  // Returns who keeps a copy of each rank's shards on its disk: a rank of the next place, in turn; -1 where
  // there is one place only.
  std::vector<int> copy_keepers() const;

 private:
  std::vector<Place> of_rank_;
};

// PlaceName is what a place is to be called: as its directory says, and else by its host's name.
struct PlaceName {
  std::string remembered = {};  // empty: the directory says nothing
  std::string host = {};
};
// Returns a name for each, none twice. Of two that remember one name, as a copied directory does, it is that
// of the host which is called so. Pure.
std::vector<std::string> names_of_places(const std::vector<PlaceName>& places);
// Writes the name of a place into its directory. Called by the holder of its lock.
Result<void> remember_place(Env& env, const std::string& run_directory, const Place& place);

// All ranks together. Rank 0 has the directory, which it can write; others make theirs where they do not see
// that one. Returns nothing where all see one directory. ExitCode::config where ranks of one host do not see
// the same.
Result<std::optional<RunPlaces>> find_places(const TrainInputs& inputs, const Waiter& waiter,
                                             const std::string& run_directory);
// Gathers places that are known, for the ranks of another communicator.
Result<RunPlaces> gather_places(Communicator& communicator, const Waiter& waiter, const Place& mine);

}  // namespace holdfast::inline save
