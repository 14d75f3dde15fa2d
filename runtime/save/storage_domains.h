// Defines storage domains: the groups of ranks that see the same run directory. Usually all ranks do, because
// it is on a file system that the hosts share. Where run.directory is another directory on each host, each is
// a storage domain of its own. One rank of a storage domain, the one with the lowest coordinate, holds the
// lock, writes the log and publishes the host's part of each checkpoint there, as rank 0 does where there is
// one directory.
//
// A file with a new random name (a nonce) tells storage domains apart: a rank that sees it sees the directory
// of the rank that made it. All ranks of a host (Env::host_id()) have to see the same directory.
//
// Manifests name hosts, so a storage domain has a name that no other storage domain of the same start has,
// and keeps it in RUN/place_name. Where a storage domain with the same name returns from an earlier start,
// one of the two gets another name.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "parallel/comm/collectives.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/rank/train_inputs.h"

namespace holdfast::save {

// StorageDomain identifies the storage domain of a rank. It does not change while the rank lives.
struct StorageDomain {
  int number = 0;    // first rank of the storage domain when the run was started
  std::string host;  // name: host of that rank, or "HOST#2" where another domain has this name
  bool operator==(const StorageDomain&) const = default;

  static void visit_fields(auto& self, auto&& visit) {
    visit("number", self.number);
    visit("host", self.host);
  }
};

// StorageDomains holds the storage domains of all ranks of a communicator, by rank.
class StorageDomains {
 public:
  explicit StorageDomains(std::vector<StorageDomain> of_rank) : of_rank_(std::move(of_rank)) {}
  const StorageDomain& of(int rank) const { return of_rank_[static_cast<std::size_t>(rank)]; }
  int ranks() const { return static_cast<int>(of_rank_.size()); }
  // Returns the ranks that lead a storage domain: the lowest of each, ascending.
  std::vector<int> leaders() const;
  int leader_of(int rank) const;
  bool leads(int rank) const { return leader_of(rank) == rank; }
  int count() const { return static_cast<int>(leaders().size()); }
  // Returns those of a group of these ranks, in its order.
  StorageDomains of_group(const std::vector<int>& group) const;
  // Returns for each rank the rank that keeps a copy of its shards on its disk, which is one of the next
  // storage domain, in turn; -1 where there is one storage domain only.
  std::vector<int> copy_keepers() const;

 private:
  std::vector<StorageDomain> of_rank_;
};

// DomainName holds the possible names of a storage domain: the one that its directory says, else its host's
// name.
struct DomainName {
  std::string remembered = {};  // empty: the directory holds no name
  std::string host = {};
};
// Returns a name for each storage domain, none twice. Where two storage domains remember one name, as with a
// copied directory, the storage domain whose host has this name keeps it. Pure.
std::vector<std::string> names_of_domains(const std::vector<DomainName>& domains);
// Writes the name of a storage domain into its directory. Called by the holder of the directory's lock.
Result<void> remember_domain_name(Env& env, const std::string& run_directory, const StorageDomain& domain);

// Finds the storage domains of all ranks, which call it together. Rank 0 has a directory that it can write;
// ranks that do not see it create their own. Returns nothing where all see one directory. Fails with
// ExitCode::config where ranks of one host do not see the same directory; where a host cannot write a directory of its own, with
// Reach::host on its first rank, and Reach::peers on the ranks that can go on without it.
Result<std::optional<StorageDomains>> find_storage_domains(const TrainInputs& inputs, const Waiter& waiter,
                                                           const std::string& run_directory);
// Gathers storage domains that are already known, for the ranks of another communicator.
Result<StorageDomains> gather_storage_domains(Communicator& communicator, const Waiter& waiter,
                                              const StorageDomain& mine);

}  // namespace holdfast::save
