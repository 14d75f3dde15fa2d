#include <fmt/core.h>

#include <algorithm>
#include <span>

#include "parallel/comm/gather.h"
#include "runtime/core/check.h"
#include "runtime/elastic/new_rank.h"
#include "runtime/elastic/train_run_internal.h"
#include "runtime/os/console.h"
#include "runtime/os/machine_facts.h"
#include "runtime/rank/device_choice.h"
#include "runtime/rank/watch.h"
#include "runtime/run/launch_record.h"
#include "runtime/save/snapshot.h"
#include "runtime/train/growth.h"
#include "watchdog/growing_pauses.h"

namespace holdfast::elastic {
// Returns whether the run has fewer ranks than it was started with, and may have more.
bool TrainRun::wants_ranks() const {
  return launched_.membership != nullptr && setup_.config.elastic.grow == "auto" &&
         group_.world().communicator.size() < recovery_.inventory.launched_ranks;
}

// Returns whether a new rank on this host would get hardware that computes wrong. It would be found out, and leave,
// again and again, and what the run has done since with it each time.
bool TrainRun::host_computes_wrong() {
  return journal_.hardware().computes_wrong(launched_.env.host_name(), machine_identity(launched_.env),
                                            launched_.env.wall_time_us(),
                                            setup_.config.verdict.findings_window_ms);
}

// Returns when the leader may ask for new ranks, in a run on one host that wants some; 0: never. On several
// hosts Open MPI 5.0 starts them wherever it likes, and cannot connect them on a host that has lost all of
// its ranks (open-mpi/ompi #13427). PRRTE, up to 3.0.14, spoils the memory of mpirun and of its daemons when
// it connects processes of two hosts: connect_release() in pmix_server_dyn.c makes room for one value, and
// reads and frees two. So such a run grows by another start, for which its launcher asks.
std::int64_t TrainRun::grow_at_ns() const {
  if (!wants_ranks() || recovery_.inventory.lost_starter || growth_.on_several_hosts) return 0;
  const GrowthPlan plan = growth_places();
  if (plan.wanted == 0) return 0;
  const std::int64_t since_ns =
      recovery_.disturbed_ns == 0 ? launched_.env.monotonic_ns() : recovery_.disturbed_ns;
  return std::max(since_ns + setup_.config.elastic.grow_after_ms * 1'000'000, plan.not_before_ns);
}

GrowthPlan TrainRun::growth_places() const {
  const RecoveryInventory& known = recovery_.inventory;
  return plan_growth_places(known.places, known.numbers, known.joiners,
                            recovery_.inventory.launched_ranks - group_.world().communicator.size(),
                            setup_.config.elastic);
}

// Names the places of this host at the start, while its devices can still be asked.
void TrainRun::name_places() {
  std::vector<std::string>& places = recovery_.inventory.places;
  places.clear();
  if (launched_.membership == nullptr || growth_.on_several_hosts) return;
  const std::vector<std::string> gpus = gpus_of_host();
  if (gpus.empty()) {
    for (int number = 0; number < recovery_.inventory.launched_ranks; ++number)
      places.push_back(fmt::format("place {}", number));
    return;
  }
  const auto room = gpus.size() * static_cast<std::size_t>(setup_.config.parallel.ranks_per_gpu);
  const auto wanted = std::max(static_cast<std::size_t>(recovery_.inventory.launched_ranks), gpus.size());
  for (std::size_t number = 0; number < std::min(wanted, room); ++number)
    places.push_back(gpus[number % gpus.size()]);
}

// Returns the names of the GPUs of this host; none if each rank sees others of them, or none.
std::vector<std::string> TrainRun::gpus_of_host() const {
  if (setup_.config.device != "cuda") return {};
  const Result<CudaPresence> cuda = find_cuda(launched_.env);
  if (!cuda.ok()) return {};
  std::vector<std::string> names;
  for (const CudaFacts& gpu : cuda->devices) names.push_back(hardware_name(gpu));
  const bool sees_all = std::ranges::all_of(
      setup_.gpus, [&](const std::string& gpu) { return std::ranges::find(names, gpu) != names.end(); });
  return sees_all ? names : std::vector<std::string>();
}

// Gives the ranks that have just joined their places.
void TrainRun::note_joiners(const MembershipView& before) {
  const GrowthPlan plan =
      plan_growth_places(recovery_.inventory.places, recovery_.inventory.numbers, recovery_.inventory.joiners,
                         journal_.recovery()->wanted, setup_.config.elastic);
  const std::vector<std::string>& places = recovery_.inventory.places;
  auto next = plan.numbers.begin();
  auto beyond = static_cast<int>(places.size());
  for (const Member& member : launched_.membership->view().members) {
    if (std::ranges::find(before.members, member.launched_rank, &Member::launched_rank) !=
        before.members.end())
      continue;
    const int number = next == plan.numbers.end() ? beyond++ : *next++;
    const auto index = static_cast<std::size_t>(number);
    const Joiner joiner{.launched_rank = member.launched_rank,
                        .number = number,
                        .place = index < places.size() ? places[index] : fmt::format("place {}", number),
                        .came_ns = launched_.env.monotonic_ns()};
    merge_joiners(recovery_.inventory.joiners, std::span(&joiner, 1));
  }
}

void TrainRun::note_lost_joiners(const std::vector<Member>& lost) {
  for (Joiner& joiner : recovery_.inventory.joiners) {
    if (joiner.lost_ns == 0 &&
        std::ranges::find(lost, joiner.launched_rank, &Member::launched_rank) != lost.end())
      joiner.lost_ns = launched_.env.monotonic_ns();
  }
}

void TrainRun::show_places_left_alone(const GrowthPlan& plan) {
  for (const std::string& place : plan.left_alone) {
    if (std::ranges::find(growth_.left_alone, place) != growth_.left_alone.end()) continue;
    growth_.left_alone.push_back(place);
    journal_.progress()->excluded(
        {.step = step(),
         .host = launched_.env.host_name(),
         .place = place,
         .reason =
             fmt::format("no more ranks are started at {} of host {}: {} ranks in a row died soon after "
                         "they had joined there; look at the GPU and the memory, the next start uses it "
                         "again",
                         place, launched_.env.host_name(), GrowingPauses::max_failures)});
  }
}

// Plans the growth on the rank that decides when the run grows: rank 0 of all, which can start new ranks
// ahead, or, if that is a spare, the leader.
std::optional<Growth> TrainRun::plan_growth() {
  const bool nobody_asks = growth_.on_several_hosts && launched_start(launched_.env).empty();
  if (nobody_asks && group_.leads() && wants_ranks() && !std::exchange(growth_.explained, true)) {
    print_message(
        "{} of {} ranks go on until the next start: on several hosts it takes holdfast launch to get them "
        "back",
        group_.world().communicator.size(), recovery_.inventory.launched_ranks);
  }
  const std::int64_t at_ns = grow_at_ns();
  if (at_ns != 0 && host_computes_wrong()) {
    if (group_.leads() && !std::exchange(growth_.explained, true)) {
      print_message(
          "no new ranks are started on host {}, whose hardware computed wrong numbers again and again ({})",
          launched_.env.host_name(), RunPaths{setup_.config.run.directory}.hardware());
    }
    return std::nullopt;
  }
  if (wants_ranks()) show_places_left_alone(growth_places());
  const bool starts_ahead = group_.assignment().coordinate_of(0) >= 0;
  const bool decides = starts_ahead ? group_.world().communicator.rank() == 0 : group_.leads();
  if (at_ns == 0 || !decides) return std::nullopt;
  Growth::Terms terms{.at_ns = at_ns};
  if (starts_ahead) {
    constexpr std::int64_t min_retry_ms = 1'000;
    Membership& membership = *launched_.membership;
    const ElasticConfig& elastic = setup_.config.elastic;
    terms.retry_ns = std::max(elastic.grow_after_ms, min_retry_ms) * 1'000'000;
    terms.patience_ns = (elastic.memory_timeout_ms + elastic.recovery_timeout_ms) * 1'000'000;
    terms.settle_ns = elastic.memory_timeout_ms * 1'000'000;
    terms.start = [this] { return start_new_ranks(); };
    terms.obstacle = [&membership] { return membership.why_none_can_start(); };
    terms.state = [&membership] { return membership.new_rank_state(); };
    terms.dismiss = [&membership] { membership.dismiss_new_ranks(); };
  }
  return Growth(std::move(terms));
}

// Starts new ranks ahead. The others begin their next step meanwhile, and wait for this rank there.
Result<void> TrainRun::start_new_ranks() {
  enter_recovery(launched_.watch, step(), setup_.config);
  const bool have_coordinates = group_.assignment().shape.data < setup_.request.data_max;
  std::string task;
  if (have_coordinates) {
    HF_TRY(NewRankTask planned, plan_new_rank({.env = launched_.env,
                                               .faults = launched_.faults,
                                               .communicator = group_.active().communicator,
                                               .device = *setup_.device,
                                               .config = setup_.config,
                                               .mesh = Mesh(group_.assignment().shape),
                                               .data = nullptr},
                                              setup_.request.data_max));
    planned.timeout_ms = setup_.config.elastic.memory_timeout_ms;
    planned.given_back_bytes = bytes_given_back(planned);
    planned.shm_run_id = recovery_.inventory.shm_run_id;
    if (memory_.decision.room.tiers == SnapshotTiers::none) planned.slot_bytes = 0;
    if (planned.device_bytes + planned.host_bytes > 0) task = record_to_text(planned);
  }
  return launched_.membership->start_new_ranks(ranks_wanted(), task,
                                               setup_.config.elastic.recovery_timeout_ms);
}

// Returns the bytes that the ranks of this host hold beyond the need of each after the ranks of `planned`
// have joined. All ranks are assumed to be as large as this one.
std::uint64_t TrainRun::bytes_given_back(const NewRankTask& planned) const {
  const std::uint64_t now = memory_.kept.bytes() + worker_->snapshots().shared_bytes();
  const std::uint64_t then =
      planned.device_bytes + planned.host_bytes + SnapshotMemory::shared_slots * planned.slot_bytes;
  return static_cast<std::uint64_t>(worker_->rank().ranks_on_host) * (now - std::min(now, then));
}

// Grows the run. All ranks of the epoch call it, between two steps; the state is sealed.
Result<PhaseOutcome> TrainRun::grow() {
  Env& env = launched_.env;
  recovery_.step = step();
  recovery_.disturbed_ns = env.monotonic_ns();
  const int wanted = ranks_wanted();
  journal_
      .begin_recovery(fmt::format("{} ranks want {} more", group_.world().communicator.size(), wanted),
                      recovery_.disturbed_ns, group_.assignment().shape.active())
      .wanted = wanted;
  enter_recovery(launched_.watch, recovery_.step, setup_.config);
  HF_FAULT_POINT(launched_.faults, "grow.begin");
  worker_.reset();
  journal_.close();
  group_.end_epoch();
  const Result<void> grown = launched_.membership->grow(
      journal_.recovery()->wanted, setup_.config.elastic.recovery_timeout_ms, journal_.recovery()->noticed);
  group_.connect();
  journal_.recovery()->shrink_ns += env.monotonic_ns() - journal_.recovery()->noticed_ns;
  if (group_.world().communicator.abandoned()) return grown.error();
  if (!grown.ok()) journal_.recovery()->not_grown = grown.error().message;
  if (grown.ok()) note_joiners(journal_.recovery()->before);
  HF_FAULT_POINT(launched_.faults, "grow.after_spawn");
  return PhaseOutcome::joiners_come;
}

// Begins the next epoch with the new ranks, if there are any; they call it, too.
Result<PhaseOutcome> TrainRun::admit() {
  if (!journal_.recovery().has_value()) {  // this rank is new
    journal_.begin_recovery({}, launched_.started_ns, 0).noticed_us = launched_.env.wall_time_us();
    if (launched_.config.ok()) setup_.config = launched_.config->config;
    group_.connect();
  }
  journal_.phase_ns();
  enter_recovery(launched_.watch, recovery_.step, setup_.config);
  HF_TRY(const std::vector<RecoveryInventory> inventories, exchange_inventories());
  adopt_inventory(merge_inventories(inventories));
  if (!recovery_.inventory.joined) {
    recovery_.joins = true;
    enter(launched_.watch, Phase::recovery, recovery_.step,  // the GPU of a new rank may be full for a while
          rebuild_deadline_ms(setup_.config) + setup_.config.elastic.memory_timeout_ms);
    HF_TRY_VOID(join_again());
    recovery_.inventory.joined = true;
  }
  HF_TRY_VOID(assign_coordinates(setup_.request));
  HF_TRY_VOID(find_recovery_point());
  HF_FAULT_POINT(launched_.faults, "grow.before_load");
  journal_.recovery()->plan_ns += journal_.phase_ns();
  return PhaseOutcome::ready;
}

// Agrees with new ranks on all that a start agrees on. What this rank had stays as it is until all have agreed.
Result<void> TrainRun::join_again() {
  HF_TRY_VOID(take_place_on_host());
  RunSetup joined = {.secret = setup_.secret};
  HF_TRY_VOID(prepare(group_.world(),
                      {.mode = PrepareMode::rejoin,
                       .recovers = true,
                       .ranks = recovery_.inventory.launched_ranks,
                       .shm_run_id = recovery_.inventory.shm_run_id,
                       .device = setup_.device.get()},
                      joined));
  if (setup_.device != nullptr) joined.device = std::move(setup_.device);
  joined.claim = std::move(setup_.claim);
  joined.domain = std::move(setup_.domain);
  setup_ = std::move(joined);
  return {};
}

// Gives a new rank the local rank that the others have chosen for it, because the launcher only counted the ranks
// that were started together with it.
Result<void> TrainRun::take_place_on_host() {
  const std::string host = launched_.env.host_id();
  HF_TRY(const std::vector<std::string> hosts,
         all_gather_text(group_.world().communicator, group_.waiter(), host));
  if (setup_.device != nullptr) return {};
  const int mine = group_.world().communicator.global_rank(group_.world().communicator.rank());
  const std::vector<Joiner>& joiners = recovery_.inventory.joiners;
  const auto found = std::ranges::find(joiners, mine, &Joiner::launched_rank);
  HF_CHECK(found != joiners.end(), "no rank knows the place of rank {}", mine);
  const bool is_gpu = found->place.starts_with("GPU-");
  group_.take_place({.rank_on_host = found->number, .gpu = is_gpu ? found->place : std::string()},
                    static_cast<int>(std::ranges::count(hosts, host)));
  return {};
}

// Goes on as after a death, without the new ranks, which leave. An operation that new ranks cannot do, or do
// differently, must not end the run.
void TrainRun::dismiss_joiners(const Error& error) {
  print_message("new ranks cannot take part: {}", error.message);
  std::fflush(nullptr);
  recovery_.inventory.joined = true;
  group_.world().communicator.abandon();
}

}  // namespace holdfast::elastic
