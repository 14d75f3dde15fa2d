#include "runtime/save/storage_domains.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <set>

#include "parallel/comm/agreement.h"
#include "parallel/comm/gather.h"
#include "runtime/os/foreign_text.h"
#include "runtime/os/paths.h"
#include "runtime/os/retry.h"
#include "runtime/rank/watch.h"
#include "runtime/run/run_directory.h"

namespace holdfast::save {
namespace {

// DomainProbe is a file in the run directory that exists as long as this object. Its name is one that
// Env::replace_text could have left, so that a file that remains after a kill is removed with those.
class DomainProbe {
 public:
  DomainProbe(Env& env, const std::string& directory) : env_(&env), directory_(directory) {}
  ~DomainProbe() {
    if (!name_.empty()) static_cast<void>(env_->remove(path(name_)).ok());
  }
  DomainProbe(const DomainProbe&) = delete;
  DomainProbe& operator=(const DomainProbe&) = delete;

  Result<void> make() {
    HF_TRY_VOID(make_durable_directories(*env_, directory_));
    name_ = fmt::format(".tmp.{:016x}", env_->random_u64());
    HF_TRY(const std::unique_ptr<File> file, env_->open(path(name_), OpenMode::create));
    return {};
  }
  const std::string& name() const { return name_; }
  bool sees(const std::string& name) const {
    const Result<FileStatus> status = env_->status(path(name));
    return !name.empty() && status.ok() && status->exists;
  }

 private:
  std::string path(const std::string& name) const { return RunPaths{directory_}.run_place() + name; }
  Env* env_;
  std::string directory_;
  std::string name_;  // empty: this rank has no probe
};

// Returns the name that the directory holds, where it is a valid name; else an empty string.
std::string remembered_name(Env& env, const std::string& run_directory) {
  std::string name = text_within_or_empty(env, RunPaths{run_directory}.place_name(), text_limits::identity);
  const bool is_name = std::ranges::all_of(name, [](char each) { return each > ' ' && each <= '~'; });
  return is_name ? name : std::string();
}

// The run directory of a rank: the storage domain that it is in, and the possible names of that.
struct NamedDirectory {
  int number = 0;
  std::string remembered = {}, host = {};

  static void visit_fields(auto& self, auto&& visit) {
    visit("number", self.number);
    visit("remembered", self.remembered);
    visit("host", self.host);
  }
};

struct ProbeSight {
  bool sees = false;      // the probe of rank 0
  std::string host = {};  // Env::host_id()

  static void visit_fields(auto& self, auto&& visit) {
    visit("sees", self.sees);
    visit("host", self.host);
  }
};

bool is_called_after(const DomainName& domain) {
  return domain.remembered == domain.host || domain.remembered.starts_with(domain.host + "#");
}

// Gathers the storage domains and names them. Each rank knows the number of its own storage domain.
Result<StorageDomains> name_domains(Communicator& communicator, const Waiter& waiter, Env& env,
                                    const std::string& run_directory, int number) {
  HF_TRY(const std::vector<NamedDirectory> all,
         gather(communicator, waiter,
                NamedDirectory{.number = number,
                               .remembered = remembered_name(env, run_directory),
                               .host = env.host_name()}));
  std::map<int, DomainName> by_number;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const NamedDirectory& each = all[rank];
    if (each.number == static_cast<int>(rank))
      by_number[each.number] = {.remembered = each.remembered, .host = each.host};
  }
  std::vector<DomainName> asked;
  for (const auto& [first, name] : by_number) asked.push_back(name);
  const std::vector<std::string> names = names_of_domains(asked);
  std::vector<StorageDomain> domains;
  for (const NamedDirectory& each : all) {
    const auto at = std::distance(by_number.begin(), by_number.find(each.number));
    domains.push_back({.number = each.number, .host = names[static_cast<std::size_t>(at)]});
  }
  return StorageDomains(std::move(domains));
}

Error cannot_be_made(const Error& reason) {
  return fail_because(reason, ExitCode::config,
                      "run.directory cannot be used: {}. Give a directory that can be written",
                      reason.message);
}

}  // namespace

std::vector<int> StorageDomains::leaders() const {
  std::vector<int> leaders;
  for (int rank = 0; rank < ranks(); ++rank) {
    if (leads(rank)) leaders.push_back(rank);
  }
  return leaders;
}

int StorageDomains::leader_of(int rank) const {
  const auto first = std::ranges::find(of_rank_, of(rank).number, &StorageDomain::number);
  return static_cast<int>(first - of_rank_.begin());
}

StorageDomains StorageDomains::of_group(const std::vector<int>& group) const {
  std::vector<StorageDomain> of_rank;
  for (const int rank : group) of_rank.push_back(of(rank));
  return StorageDomains(std::move(of_rank));
}

std::vector<int> StorageDomains::copy_keepers() const {
  const std::vector<int> leaders = this->leaders();
  std::vector<std::vector<int>> members(leaders.size());
  std::vector<std::size_t> domain_of(of_rank_.size()), index_in_place(of_rank_.size());
  for (int rank = 0; rank < ranks(); ++rank) {
    const auto domain =
        static_cast<std::size_t>(std::ranges::find(leaders, leader_of(rank)) - leaders.begin());
    const auto at = static_cast<std::size_t>(rank);
    domain_of[at] = domain;
    index_in_place[at] = members[domain].size();
    members[domain].push_back(rank);
  }
  std::vector<int> keepers(of_rank_.size(), -1);
  if (leaders.size() < 2) return keepers;
  for (std::size_t rank = 0; rank < keepers.size(); ++rank) {
    const std::vector<int>& next = members[(domain_of[rank] + 1) % leaders.size()];
    keepers[rank] = next[index_in_place[rank] % next.size()];
  }
  return keepers;
}

Result<std::optional<StorageDomains>> find_storage_domains(const TrainInputs& inputs, const Waiter& waiter,
                                                           const std::string& run_directory) {
  Communicator& communicator = inputs.communicator;
  Env& env = inputs.env;
  const int rank = communicator.rank();
  const Waiter patient = waiter.with_timeout(waiter.timeout_ms() + storage_patience_ms);
  DomainProbe probe(env, run_directory);
  const auto make_probe = [&](bool mine) -> Result<void> {
    if (!mine) return {};
    const StorageWait storage(inputs.watch, "the run directory");
    const Result<void> made = retry_storage(env, [&] { return probe.make(); });
    return made.ok() ? made : cannot_be_made(made.error());
  };
  HF_TRY_VOID(agree_on_outcome(communicator, patient, make_probe(rank == 0), env.host_name()));
  HF_TRY(std::vector<std::string> probes, all_gather_text(communicator, waiter, probe.name()));
  const bool sees = probe.sees(probes.front());
  HF_TRY(const std::vector<ProbeSight> sights,
         gather(communicator, waiter, ProbeSight{.sees = sees, .host = env.host_id()}));
  const bool all_see = std::ranges::all_of(sights, &ProbeSight::sees);
  if (all_see) return std::optional<StorageDomains>();

  // The first rank of each host that does not see rank 0's probe makes one of its own; several hosts may
  // share it. The disk of a host is its own, so one that fails is no reason for the others to end.
  const bool is_first = std::ranges::find(sights, env.host_id(), &ProbeSight::host) - sights.begin() == rank;
  Result<void> own = make_probe(is_first && !sees);
  if (!own.ok()) own = with_reach(Reach::host, own.error());
  HF_TRY_VOID(agree_on_fitness(communicator, patient, own, env.host_name(), Examined::own));
  HF_TRY(probes, all_gather_text(communicator, waiter, probe.name()));
  const auto first = std::ranges::find_if(probes, [&](const std::string& name) { return probe.sees(name); });
  Result<void> found;
  if (first == probes.end()) {
    found = fail(
        ExitCode::config,
        "run.directory {} is not the one that another rank of host {} sees; give a directory that is the "
        "same for all ranks of a host",
        run_directory, env.host_name());
  }
  HF_TRY_VOID(agree_on_outcome(communicator, waiter, found, env.host_name()));
  HF_TRY(StorageDomains domains,
         name_domains(communicator, waiter, env, run_directory, static_cast<int>(first - probes.begin())));
  return std::optional(std::move(domains));
}

std::vector<std::string> names_of_domains(const std::vector<DomainName>& domains) {
  std::vector<std::string> names(domains.size());
  std::set<std::string> taken;
  for (const bool is_own : {true, false}) {
    for (std::size_t i = 0; i < domains.size(); ++i) {
      const DomainName& domain = domains[i];
      const bool counts = !domain.remembered.empty() && is_called_after(domain) == is_own;
      if (counts && taken.insert(domain.remembered).second) names[i] = domain.remembered;
    }
  }
  for (std::size_t i = 0; i < domains.size(); ++i) {
    for (int number = 1; names[i].empty(); ++number) {
      std::string name = number == 1 ? domains[i].host : fmt::format("{}#{}", domains[i].host, number);
      if (taken.insert(name).second) names[i] = std::move(name);
    }
  }
  return names;
}

Result<void> remember_domain_name(Env& env, const std::string& run_directory, const StorageDomain& domain) {
  if (remembered_name(env, run_directory) == domain.host) return {};
  return env.replace_text(RunPaths{run_directory}.place_name(), domain.host);
}

Result<StorageDomains> gather_storage_domains(Communicator& communicator, const Waiter& waiter,
                                              const StorageDomain& mine) {
  HF_TRY(std::vector<StorageDomain> domains, gather(communicator, waiter, mine));
  return StorageDomains(std::move(domains));
}

}  // namespace holdfast::save
