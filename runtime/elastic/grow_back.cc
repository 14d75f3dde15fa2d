#include "runtime/elastic/grow_back.h"

#include <fmt/core.h>

#include <algorithm>
#include <span>
#include <utility>

#include "parallel/comm/gather.h"
#include "runtime/core/check.h"
#include "runtime/elastic/new_rank.h"
#include "runtime/os/console.h"
#include "runtime/os/machine_facts.h"
#include "runtime/rank/device_choice.h"
#include "runtime/rank/watch.h"
#include "runtime/run/launch_record.h"
#include "runtime/save/snapshot.h"
#include "watchdog/growing_pauses.h"

namespace holdfast::elastic {

// Returns whether the run has fewer ranks than it was started with, and may have more.
bool GrowBack::wants_ranks() const {
  return group_.launched().membership != nullptr && setup_.config.elastic.grow == "auto" && missing() > 0;
}

// Returns whether a new rank on this host would get hardware that computes wrong. It would be found out, and leave,
// again and again, and what the run has done since with it each time.
bool GrowBack::host_computes_wrong() const {
  return journal_.hardware().computes_wrong(
      group_.launched().env.host_name(), machine_identity(group_.launched().env),
      group_.launched().env.wall_time_us(), setup_.config.verdict.findings_window_ms);
}

// Returns when the leader may ask for new ranks, in a run on one host that wants some; 0: never. On several
// hosts Open MPI 5.0 starts them wherever it likes, and cannot connect them on a host that has lost all of
// its ranks (open-mpi/ompi #13427). PRRTE, up to 3.0.14, spoils the memory of mpirun and of its daemons when
// it connects processes of two hosts: connect_release() in pmix_server_dyn.c makes room for one value, and
// reads and frees two. So such a run grows by another start, for which its launcher asks.
std::int64_t GrowBack::grow_at_ns() const {
  if (!wants_ranks() || known_.lost_starter || on_several_hosts_) return 0;
  const GrowthPlan plan = places(missing());
  if (plan.wanted == 0) return 0;
  const std::int64_t since_ns = disturbed_ns_ == 0 ? group_.launched().env.monotonic_ns() : disturbed_ns_;
  return std::max(since_ns + setup_.config.elastic.grow_after_ms * 1'000'000, plan.not_before_ns);
}

void GrowBack::begin_pause() {
  disturbed_ns_ = group_.launched().env.monotonic_ns();
}

GrowthPlan GrowBack::places(int missing) const {
  return plan_growth_places(known_.places, known_.numbers, known_.joiners, missing, setup_.config.elastic);
}

int GrowBack::missing() const {
  return known_.launched_ranks - group_.world().communicator.size();
}

void GrowBack::name_places() {
  std::vector<std::string>& places = known_.places;
  places.clear();
  const Membership* membership = group_.launched().membership;
  if (membership != nullptr && count_hosts(membership->view()) > 1) on_several_hosts_ = true;
  if (membership == nullptr || on_several_hosts_) return;
  const std::vector<std::string> gpus = gpus_of_host();
  if (gpus.empty()) {
    for (int number = 0; number < known_.launched_ranks; ++number)
      places.push_back(fmt::format("place {}", number));
    return;
  }
  const auto room = gpus.size() * static_cast<std::size_t>(setup_.config.parallel.ranks_per_gpu);
  const auto wanted = std::max(static_cast<std::size_t>(known_.launched_ranks), gpus.size());
  for (std::size_t number = 0; number < std::min(wanted, room); ++number)
    places.push_back(gpus[number % gpus.size()]);
}

// Returns the names of the GPUs of this host; none if each rank sees others of them, or none.
std::vector<std::string> GrowBack::gpus_of_host() const {
  if (setup_.config.device != "cuda") return {};
  const Result<CudaPresence> cuda = find_cuda(group_.launched().env);
  if (!cuda.ok()) return {};
  std::vector<std::string> names;
  for (const CudaFacts& gpu : cuda->devices) names.push_back(hardware_name(gpu));
  const bool sees_all = std::ranges::all_of(
      setup_.gpus, [&](const std::string& gpu) { return std::ranges::find(names, gpu) != names.end(); });
  return sees_all ? names : std::vector<std::string>();
}

void GrowBack::note_joiners(const RecoveryRecord& growth) {
  const GrowthPlan plan = places(growth.wanted);
  const std::vector<std::string>& places = known_.places;
  auto next = plan.numbers.begin();
  auto beyond = static_cast<int>(places.size());
  for (const Member& member : group_.launched().membership->view().members) {
    if (std::ranges::find(growth.before.members, member.launched_rank, &Member::launched_rank) !=
        growth.before.members.end())
      continue;
    const int number = next == plan.numbers.end() ? beyond++ : *next++;
    const auto index = static_cast<std::size_t>(number);
    const Joiner joiner{.launched_rank = member.launched_rank,
                        .number = number,
                        .place = index < places.size() ? places[index] : fmt::format("place {}", number),
                        .came_ns = group_.launched().env.monotonic_ns()};
    merge_joiners(known_.joiners, std::span(&joiner, 1));
  }
}

void GrowBack::note_lost(const std::vector<Member>& lost) {
  for (Joiner& joiner : known_.joiners) {
    if (joiner.lost_ns == 0 &&
        std::ranges::find(lost, joiner.launched_rank, &Member::launched_rank) != lost.end())
      joiner.lost_ns = group_.launched().env.monotonic_ns();
  }
}

void GrowBack::show_places_left_alone(std::uint64_t step) {
  for (const std::string& place : places(missing()).left_alone) {
    if (std::ranges::find(left_alone_, place) != left_alone_.end()) continue;
    left_alone_.push_back(place);
    journal_.progress()->excluded(
        {.step = step,
         .host = group_.launched().env.host_name(),
         .place = place,
         .reason =
             fmt::format("no more ranks are started at {} of host {}: {} ranks in a row died soon after "
                         "they had joined there; look at the GPU and the memory, the next start uses it "
                         "again",
                         place, group_.launched().env.host_name(), GrowingPauses::max_failures)});
  }
}

std::optional<Growth> GrowBack::plan(Worker& worker, EpochMemory& memory) {
  const bool nobody_asks = on_several_hosts_ && launched_start(group_.launched().env).empty();
  if (nobody_asks && group_.leads() && wants_ranks() && !std::exchange(explained_, true)) {
    print_message(
        "{} of {} ranks go on until the next start: on several hosts it takes holdfast launch to get them "
        "back",
        group_.world().communicator.size(), known_.launched_ranks);
  }
  const std::int64_t at_ns = grow_at_ns();
  if (at_ns != 0 && host_computes_wrong()) {
    if (group_.leads() && !std::exchange(explained_, true)) {
      print_message(
          "no new ranks are started on host {}, whose hardware computed wrong numbers again and again ({})",
          group_.launched().env.host_name(), RunPaths{setup_.config.run.directory}.hardware());
    }
    return std::nullopt;
  }
  if (wants_ranks()) show_places_left_alone(worker.state().step);
  const bool starts_ahead = group_.assignment().coordinate_of(0) >= 0;
  const bool decides = starts_ahead ? group_.world().communicator.rank() == 0 : group_.leads();
  if (at_ns == 0 || !decides) return std::nullopt;
  Growth::Terms terms{.at_ns = at_ns};
  if (starts_ahead) {
    constexpr std::int64_t min_retry_ms = 1'000;
    Membership& membership = *group_.launched().membership;
    const ElasticConfig& elastic = setup_.config.elastic;
    terms.retry_ns = std::max(elastic.grow_after_ms, min_retry_ms) * 1'000'000;
    terms.patience_ns = (elastic.memory_timeout_ms + elastic.recovery_timeout_ms) * 1'000'000;
    terms.settle_ns = elastic.memory_timeout_ms * 1'000'000;
    terms.start = [this, &worker, &memory] { return start_new_ranks(worker, memory); };
    terms.obstacle = [&membership] { return membership.why_none_can_start(); };
    terms.state = [&membership] { return membership.new_rank_state(); };
    terms.dismiss = [&membership] { membership.dismiss_new_ranks(); };
  }
  return Growth(std::move(terms));
}

namespace {

// Returns the bytes that the ranks of this host hold beyond the need of each after the ranks of `planned`
// have joined. All ranks are assumed to be as large as this one.
std::uint64_t bytes_given_back(const NewRankTask& planned, Worker& worker, const EpochMemory& memory) {
  const std::uint64_t now = memory.kept().bytes() + worker.state_view().snapshots.shared_bytes();
  const std::uint64_t then =
      planned.device_bytes + planned.host_bytes + SnapshotMemory::shared_slots * planned.slot_bytes;
  return static_cast<std::uint64_t>(worker.rank().ranks_on_host) * (now - std::min(now, then));
}

}  // namespace

// Starts new ranks ahead. The others begin their next step meanwhile, and wait for this rank there.
Result<void> GrowBack::start_new_ranks(Worker& worker, EpochMemory& memory) const {
  const TrainInputs& launched = group_.launched();
  const Config& config = setup_.config;
  enter_recovery(launched.watch, worker.state().step, config);
  const MeshShape& shape = group_.assignment().shape;
  std::string task;
  if (shape.data < setup_.request.data_max) {  // the new ranks have coordinates
    HF_TRY(NewRankTask planned, plan_new_rank(worker.rank(), setup_.request.data_max));
    planned.timeout_ms = config.elastic.memory_timeout_ms;
    planned.given_back_bytes = bytes_given_back(planned, worker, memory);
    planned.shm_run_id = known_.shm_run_id;
    if (!memory.has_snapshots()) planned.slot_bytes = 0;
    if (planned.device_bytes + planned.host_bytes > 0) task = record_to_text(planned);
  }
  return launched.membership->start_new_ranks(ranks_wanted(), task, config.elastic.recovery_timeout_ms);
}

std::string GrowBack::take_lost_starter() {
  if (!known_.lost_starter || std::exchange(told_lost_starter_, true)) return "";
  return "a rank was lost while it started new ones, so no more are started before the next start";
}

Result<void> GrowBack::take_place_on_host() {
  const std::string host = group_.launched().env.host_id();
  HF_TRY(const std::vector<std::string> hosts,
         all_gather_text(group_.world().communicator, group_.waiter(), host));
  if (setup_.device != nullptr) return {};
  const int mine = group_.world().communicator.global_rank(group_.world().communicator.rank());
  const std::vector<Joiner>& joiners = known_.joiners;
  const auto found = std::ranges::find(joiners, mine, &Joiner::launched_rank);
  HF_CHECK(found != joiners.end(), "no rank knows the place of rank {}", mine);
  const bool is_gpu = found->place.starts_with("GPU-");
  group_.take_place({.rank_on_host = found->number, .gpu = is_gpu ? found->place : std::string()},
                    static_cast<int>(std::ranges::count(hosts, host)));
  return {};
}

}  // namespace holdfast::elastic
