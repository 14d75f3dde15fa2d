#include "runtime/train/run_places.h"

#include <fmt/core.h>

#include <algorithm>

#include "parallel/agreement.h"
#include "runtime/core/durable_directory.h"
#include "runtime/core/json.h"
#include "runtime/train/run_directory.h"

namespace holdfast {
namespace {

// A file in the run directory that is there as long as this object. Its name is one that Env::replace_text
// could have left behind, so that what a kill leaves of it goes with those.
class PlaceProbe {
 public:
  PlaceProbe(Env& env, const std::string& directory) : env_(&env), directory_(directory) {}
  ~PlaceProbe() {
    if (!name_.empty()) static_cast<void>(env_->remove(path(name_)).ok());
  }
  PlaceProbe(const PlaceProbe&) = delete;
  PlaceProbe& operator=(const PlaceProbe&) = delete;

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
  std::string name_;  // empty: this rank has none
};

Error cannot_be_made(const Error& reason) {
  return fail(ExitCode::config, "run.directory cannot be used: {}. Give a directory that can be written",
              reason.message);
}

}  // namespace

std::vector<int> RunPlaces::leaders() const {
  std::vector<int> leaders;
  for (int rank = 0; rank < ranks(); ++rank) {
    if (leads(rank)) leaders.push_back(rank);
  }
  return leaders;
}

int RunPlaces::leader_of(int rank) const {
  const auto first = std::ranges::find(of_rank_, of(rank).number, &Place::number);
  return static_cast<int>(first - of_rank_.begin());
}

std::vector<int> RunPlaces::copy_keepers() const {
  const std::vector<int> leaders = this->leaders();
  std::vector<std::vector<int>> members(leaders.size());
  std::vector<std::size_t> place_of(of_rank_.size()), index_in_place(of_rank_.size());
  for (int rank = 0; rank < ranks(); ++rank) {
    const auto place =
        static_cast<std::size_t>(std::ranges::find(leaders, leader_of(rank)) - leaders.begin());
    const auto at = static_cast<std::size_t>(rank);
    place_of[at] = place;
    index_in_place[at] = members[place].size();
    members[place].push_back(rank);
  }
  std::vector<int> keepers(of_rank_.size(), -1);
  if (leaders.size() < 2) return keepers;
  for (std::size_t rank = 0; rank < keepers.size(); ++rank) {
    const std::vector<int>& next = members[(place_of[rank] + 1) % leaders.size()];
    keepers[rank] = next[index_in_place[rank] % next.size()];
  }
  return keepers;
}

Result<std::optional<RunPlaces>> find_places(const TrainInputs& inputs, const Waiter& waiter,
                                             const std::string& run_directory) {
  Communicator& communicator = inputs.communicator;
  Env& env = inputs.env;
  const int rank = communicator.rank();
  PlaceProbe probe(env, run_directory);
  const auto make_probe = [&](bool mine) -> Result<void> {
    const Result<void> made = mine ? probe.make() : Result<void>();
    return agree_on_outcome(communicator, waiter, made.ok() ? made : cannot_be_made(made.error()),
                            env.host_name());
  };
  HF_TRY_VOID(make_probe(rank == 0));
  HF_TRY(std::vector<std::string> probes, all_gather_text(communicator, waiter, probe.name()));
  const bool sees = probe.sees(probes.front());
  HF_TRY(const std::vector<std::string> told,
         all_gather_text(communicator, waiter, Json::array({sees, env.host_name()}).dump_any()));
  std::vector<std::string> hosts;
  std::vector<bool> unseeing;
  for (const std::string& text : told) {
    const Json each = Json::parse(text);
    unseeing.push_back(!each[0].get<bool>());
    hosts.push_back(each[1]);
  }
  if (std::ranges::find(unseeing, true) == unseeing.end()) return std::optional<RunPlaces>();

  // The first of each host that does not see rank 0's makes one of its own; several hosts may share it.
  bool makes_one = !sees;
  for (int other = 0; other < rank; ++other) {
    const auto at = static_cast<std::size_t>(other);
    makes_one = makes_one && !(unseeing[at] && hosts[at] == env.host_name());
  }
  HF_TRY_VOID(make_probe(makes_one));
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
  const auto number = static_cast<std::size_t>(first - probes.begin());
  HF_TRY(RunPlaces places,
         gather_places(communicator, waiter, {.number = static_cast<int>(number), .host = hosts[number]}));
  return std::optional(std::move(places));
}

Result<RunPlaces> gather_places(Communicator& communicator, const Waiter& waiter, const Place& mine) {
  HF_TRY(const std::vector<std::string> texts,
         all_gather_text(communicator, waiter, Json::array({mine.number, mine.host}).dump_any()));
  std::vector<Place> places;
  for (const std::string& text : texts) {
    const Json each = Json::parse(text);
    places.push_back({.number = each[0], .host = each[1]});
  }
  return RunPlaces(std::move(places));
}

}  // namespace holdfast
