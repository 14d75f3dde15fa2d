// Defines places: the groups of ranks that see the same run directory. Usually all ranks do, because it is on
// a file system that the hosts share. Where run.directory is another directory on each host, each is a place
// of its own. One rank of a place, the one with the lowest coordinate, holds the lock, writes the log and
// publishes the host's part of each checkpoint there, as rank 0 does where there is one directory.
//
// A file with a new random name (a nonce) tells places apart: a rank that sees it sees the directory of the
// rank that made it. All ranks of a host (Env::host_id()) have to see the same directory.
//
// Manifests name hosts, so a place has a name that no other place of the same start has, and keeps it in
// RUN/place_name. Where a place with the same name returns from an earlier start, one of the two gets another
// name.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "parallel/comm/collectives.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/rank/train_inputs.h"

namespace holdfast::inline save {

// Place identifies the place of a rank. It does not change while the rank lives.
struct Place {
  int number = 0;    // first rank of the place when the run was started
  std::string host;  // names the place: host of that rank, or "HOST#2" where another place has this name
  bool operator==(const Place&) const = default;
};

// RunPlaces holds the places of all ranks of a communicator, by rank.
class RunPlaces {
 public:
  explicit RunPlaces(std::vector<Place> of_rank) : of_rank_(std::move(of_rank)) {}
  const Place& of(int rank) const { return of_rank_[static_cast<std::size_t>(rank)]; }
  int ranks() const { return static_cast<int>(of_rank_.size()); }
  // Returns the ranks that lead a place: the lowest of each, ascending.
  std::vector<int> leaders() const;
  int leader_of(int rank) const;
  bool leads(int rank) const { return leader_of(rank) == rank; }
  int count() const { return static_cast<int>(leaders().size()); }
  // Returns for each rank the rank that keeps a copy of its shards on its disk, which is one of the next
  // place, in turn; -1 where there is one place only.
  std::vector<int> copy_keepers() const;

 private:
  std::vector<Place> of_rank_;
};

// PlaceName holds the possible names of a place: the one that its directory says, else its host's name.
struct PlaceName {
  std::string remembered = {};  // empty: the directory holds no name
  std::string host = {};
};
// Returns a name for each place, none twice. Where two places remember one name, as with a copied directory,
// the place whose host has this name keeps it. Pure.
std::vector<std::string> names_of_places(const std::vector<PlaceName>& places);
// Writes the name of a place into its directory. Called by the holder of the directory's lock.
Result<void> remember_place(Env& env, const std::string& run_directory, const Place& place);

// Finds the places of all ranks, which call it together. Rank 0 has a directory that it can write; ranks that
// do not see it create their own. Returns nothing where all see one directory. Fails with ExitCode::config
// where ranks of one host do not see the same directory.
Result<std::optional<RunPlaces>> find_places(const TrainInputs& inputs, const Waiter& waiter,
                                             const std::string& run_directory);
// Gathers places that are already known, for the ranks of another communicator.
Result<RunPlaces> gather_places(Communicator& communicator, const Waiter& waiter, const Place& mine);

}  // namespace holdfast::inline save
