#include "runtime/train/straggler_watch.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <utility>

#include "parallel/comm/collectives.h"
#include "parallel/comm/gather.h"
#include "runtime/run/launch_record.h"
#include "runtime/run/requests.h"
#include "runtime/run/run_directory.h"

namespace holdfast::train {
namespace {

// A gather costs some tens of microseconds; so often it takes less than a thousandth of the time, and a verdict comes
// at most so much later.
constexpr std::size_t gathered_steps_max = 64;
constexpr std::int64_t gather_interval_ns = 250'000'000;

// A start without a host costs so much beside what this process took to come to its steps: the launcher ends the one
// before, tries the hosts and starts mpirun.
constexpr double launch_seconds = 5.0;

constexpr std::array waits_for_peers = {
    SpanKind::wait_activation, SpanKind::wait_gradient,   SpanKind::wait_send,        SpanKind::wait_lanes,
    SpanKind::wait_vote,       SpanKind::wait_parameters, SpanKind::wait_tied_weight, SpanKind::wait_slices,
};

float milliseconds_of(std::int64_t duration_ns) {
  return static_cast<float>(static_cast<double>(std::max<std::int64_t>(duration_ns, 0)) / 1e6);
}

std::vector<RankWork> work_of(const std::vector<RankPlace>& ranks) {
  std::vector<RankWork> work;
  for (const RankPlace& each : ranks) work.push_back({.group = each.group, .weight = each.weight});
  return work;
}

}  // namespace

StragglerWatch::Leader::Leader(Env& env, const std::string& path, const std::vector<RankPlace>& places)
    : ranks(places),
      rule(work_of(places)),
      shared(places),
      rows(places.size()),
      file(std::make_shared<RankTimesFile>(env, path, places)),
      of_step(places.size()),
      sums(places.size()),
      told_step(places.size()),
      answers(places.size()) {}

StragglerWatch::StragglerWatch(Worker& worker, Progress& progress, std::int64_t startup_ns)
    : worker_(worker), progress_(progress), startup_ns_(startup_ns) {
  const RankContext& rank = worker.rank();
  WorkClock* const clock = rank.device.work_clock();
  if (rank.config.health.preset == "off" || rank.communicator.size() == 1 || clock == nullptr) return;
  sums_.emplace(rank.env, *clock);
  rank.spans.sum_waits(&*sums_);
}

StragglerWatch::~StragglerWatch() {
  if (on()) worker_.rank().spans.sum_waits(nullptr);
}

Result<void> StragglerWatch::begin() {
  if (!on()) return {};
  const RankContext& rank = worker_.rank();
  Communicator& all = rank.communicator;
  HF_TRY(const std::vector<RankPlace> places,
         gather(all, rank.waiter,
                RankPlace{.rank = all.global_rank(all.rank()),
                          .host = rank.env.host_name(),
                          .group = rank.coordinate.pipeline,
                          .weight = static_cast<double>(worker_.workload().rank_lanes.size())}));
  pending_.reserve(gathered_steps_max);
  gathered_.resize(gathered_steps_max * places.size());
  waits_.resize(places.size());
  gathered_ns_ = rank.env.monotonic_ns();
  if (all.rank() == 0) leader_.emplace(rank.env, RunPaths{rank.config.run.directory}.rank_times(), places);
  return {};
}

StragglerWatch::Reading StragglerWatch::read() const {
  const WorkClock& device = sums_->device();
  Reading reading{.time_ns = worker_.rank().env.monotonic_ns(),
                  .input_ns = sums_->waited_ns(SpanKind::wait_data),
                  .stall_ns = sums_->waited_ns(SpanKind::wait_snapshot)};
  reading.idle_ns = device.idle_ns(reading.time_ns);
  for (const SpanKind kind : waits_for_peers) reading.peers_ns += sums_->waited_ns(kind);
  reading.forward_ns = device.worked_ns(SpanKind::forward);
  reading.backward_ns = device.worked_ns(SpanKind::backward) + device.worked_ns(SpanKind::backward_input) +
                        device.worked_ns(SpanKind::backward_weight);
  reading.update_ns = device.worked_ns(SpanKind::update);
  return reading;
}

void StragglerWatch::begin_step() {
  if (!on()) return;
  begin_ = read();
  if (RankWatch* const watch = worker_.rank().watch) watch->count_waits(true);
}

void StragglerWatch::end_step() {
  if (!on()) return;
  if (RankWatch* const watch = worker_.rank().watch) watch->count_waits(false);
  const Reading end = read();
  const std::int64_t idle_ns = end.idle_ns - begin_.idle_ns;
  const std::int64_t worked_ns = end.time_ns - begin_.time_ns - idle_ns;
  const std::int64_t forward_ns = end.forward_ns - begin_.forward_ns,
                     backward_ns = end.backward_ns - begin_.backward_ns,
                     update_ns = end.update_ns - begin_.update_ns;
  const std::int64_t input_ns = end.input_ns - begin_.input_ns, peers_ns = end.peers_ns - begin_.peers_ns;
  last_ = {.spent_ms = {milliseconds_of(forward_ns), milliseconds_of(backward_ns), milliseconds_of(update_ns),
                        milliseconds_of(worked_ns - forward_ns - backward_ns - update_ns),
                        milliseconds_of(input_ns), milliseconds_of(idle_ns - input_ns - peers_ns)},
           .waited_ms = milliseconds_of(peers_ns)};
  stall_ns_ = end.stall_ns - begin_.stall_ns;
}

bool StragglerWatch::wants_times() const {
  return leader_.has_value() && (pending_.size() + 1 >= gathered_steps_max ||
                                 worker_.rank().env.monotonic_ns() - gathered_ns_ >= gather_interval_ns);
}

Result<void> StragglerWatch::exchange(const StepOutcome& outcome) {
  gathered_count_ = 0;
  if (!on()) return {};
  pending_.push_back(last_);
  if (!outcome.gathers_times) return {};
  const RankContext& rank = worker_.rank();
  const std::size_t count = pending_.size();
  const auto ranks = static_cast<std::size_t>(rank.communicator.size());
  HF_TRY_VOID(gather_on_first(rank.communicator, rank.waiter, std::as_bytes(std::span(pending_)),
                              std::as_writable_bytes(std::span(gathered_).first(count * ranks))));
  pending_.clear();
  const PeerWaits own_waits = rank.watch != nullptr ? rank.watch->take_waits() : PeerWaits{};
  HF_TRY_VOID(gather_on_first(rank.communicator, rank.waiter, std::as_bytes(std::span(&own_waits, 1)),
                              std::as_writable_bytes(std::span(waits_))));
  gathered_ns_ = rank.env.monotonic_ns();
  gathered_count_ = count;
  return {};
}

void StragglerWatch::judge(const StepOutcome& outcome) {
  const std::size_t count = gathered_count_;
  if (count == 0 || !leader_.has_value()) return;
  std::ranges::fill(leader_->sums, StepTimes{});
  for (std::size_t i = 0; i < count; ++i) take(outcome.step - (count - 1 - i), i, count);
  take_shared(outcome.step - (count - 1), outcome.step);
  for (const StragglerVerdict& verdict : leader_->rule.standing()) {
    const std::uint64_t told = leader_->told_step[static_cast<std::size_t>(verdict.rank)];
    if (follow(verdict)) {
      tell(verdict, true);
    } else if (verdict.last_step - verdict.since_step >= 2 * (told - verdict.since_step)) {
      tell(verdict, false);
    }
  }
}

// Takes one of the gathered steps: `index` of `count`.
void StragglerWatch::take(std::uint64_t step, std::size_t index, std::size_t count) {
  Leader& leader = *leader_;
  for (std::size_t rank = 0; rank < leader.of_step.size(); ++rank) {
    leader.of_step[rank] = gathered_[rank * count + index];
    leader.sums[rank].add(leader.of_step[rank]);
  }
  const StepTimes& own = leader.of_step[0];
  const double seconds = (own.own_ms() + static_cast<double>(own.waited_ms)) / 1e3;
  for (const StragglerVerdict& verdict : leader.rule.take(step, leader.of_step, seconds))
    tell(verdict, !verdict.is_over);
  write(leader.rows.add(step, leader.of_step, seconds));
}

// Takes all of the gathered steps.
void StragglerWatch::take_shared(std::uint64_t first_step, std::uint64_t last_step) {
  Leader& leader = *leader_;
  const StepTimes& own = leader.sums[0];
  const double seconds = (own.own_ms() + static_cast<double>(own.waited_ms)) / 1e3;
  for (const StragglerVerdict& verdict : leader.shared.take({.first_step = first_step,
                                         .last_step = last_step,
                                         .seconds = seconds,
                                         .times = leader.sums,
                                         .waits = waits_}))
    tell(verdict, !verdict.is_over);
}

RunOutlook StragglerWatch::outlook() const {
  const RankContext& rank = worker_.rank();
  const auto copies = static_cast<std::int64_t>(rank.mesh.shape().data);
  return {.steps = static_cast<std::uint64_t>(rank.config.training.steps),
          .restart_seconds = static_cast<double>(startup_ns_) / 1e9 + launch_seconds,
          .lanes = rank.config.parallel.lanes,
          .copies = copies,
          .ranks_per_copy = rank.communicator.size() / copies};
}

// Does what follows from a verdict that stands, once. Returns whether it was something.
bool StragglerWatch::follow(const StragglerVerdict& verdict) {
  HealthAnswer& answer = leader_->answers[static_cast<std::size_t>(verdict.rank)];
  if (answer != HealthAnswer::told) return false;
  const std::optional<std::int64_t> ranks = ranks_worth_leaving(verdict, outlook());
  if (!ranks.has_value()) return false;
  const RankContext& rank = worker_.rank();
  answer =
      answer_to(HealthAction::drain, rank.config.health.preset == "guard", !launched_start(rank.env).empty());
  if (answer != HealthAnswer::ask) return true;
  DrainRequest request{.host = leader_->ranks[static_cast<std::size_t>(verdict.rank)].host,
                       .state = DrainRequest::State::sick,
                       .ranks = static_cast<int>(*ranks),
                       .sentence = sentence_of(verdict)};
  progress_.post(
      [&env = rank.env, paths = RunPaths{rank.config.run.directory}, request = std::move(request)] {
        static_cast<void>(ask_to_leave(env, paths, request).ok());  // the run goes on with the slow rank
      });
  return true;
}

std::string StragglerWatch::shared_sentence_of(const StragglerVerdict& verdict) const {
  const auto name = [this](int index) {
    const RankPlace& place = leader_->ranks[static_cast<std::size_t>(index)];
    return fmt::format("rank {} (host {})", place.rank, place.host);
  };
  return fmt::format(
      "{} {:.2f} times as long as was usual in this run, since step {}: {}; {:.1f} s are lost{}",
      verdict.peer < 0
          ? fmt::format("all ranks {}", verdict.is_over ? "took" : "take")
          : fmt::format("{} and {} {} for each other, and a step {}", name(verdict.rank), name(verdict.peer),
                        verdict.is_over ? "waited" : "wait", verdict.is_over ? "took" : "takes"),
      verdict.factor, verdict.since_step,
      verdict.peer < 0 ? "no single rank is the cause" : "the link between their hosts is slow",
      verdict.lost_seconds,
      verdict.is_over ? fmt::format("; at step {} it is as usual again", verdict.last_step) : "");
}

std::string StragglerWatch::sentence_of(const StragglerVerdict& verdict) const {
  const RankPlace& place = leader_->ranks[static_cast<std::size_t>(verdict.rank)];
  return fmt::format(
      "rank {} (host {}) {} {:.2f} times as long as the ranks that do the same, since step {}, most of it in "
      "{}: the others have waited {:.1f} s for it{}",
      place.rank, place.host, verdict.is_over ? "took" : "takes", verdict.factor, verdict.since_step,
      verdict.kind == StragglerKind::slow_input ? "waiting for its data"
                                                : std::string(name_of(verdict.phase)),
      verdict.lost_seconds,
      verdict.is_over ? fmt::format("; at step {} it is as fast as they are again", verdict.last_step) : "");
}

void StragglerWatch::tell(const StragglerVerdict& verdict, bool is_new) {
  Leader& leader = *leader_;
  StragglerEvent event{.step = verdict.last_step,
                       .of = std::string(name_of(verdict.kind)),
                       .factor = verdict.factor,
                       .since_step = verdict.since_step,
                       .lost_seconds = verdict.lost_seconds};
  if (verdict.is_over) event.until_step = verdict.last_step;
  const auto index = static_cast<std::size_t>(verdict.rank);
  if (verdict.rank >= 0) {
    event.rank = leader.ranks[index].rank;
    event.host = leader.ranks[index].host;
  }
  if (verdict.peer >= 0) event.peer = leader.ranks[static_cast<std::size_t>(verdict.peer)].rank;
  HealthAnswer answer = HealthAnswer::told;
  if (verdict.kind == StragglerKind::slow_rank || verdict.kind == StragglerKind::slow_input) {
    leader.told_step[index] = verdict.last_step;
    if (verdict.is_over) leader.answers[index] = HealthAnswer::told;
    answer = leader.answers[index];
    event.phase = std::string(name_of(verdict.phase));
    event.reason = sentence_of(verdict);
  } else {
    event.reason = shared_sentence_of(verdict);
  }
  event.answer = std::string(name_of(answer));
  event.reason += clause_of(answer);
  progress_.found_straggler(std::move(event), is_new);
}

void StragglerWatch::write(std::optional<RankTimesRow> row) {
  if (row.has_value())
    progress_.post([file = leader_->file, row = *std::move(row)]() mutable { file->add(std::move(row)); });
}

void StragglerWatch::finish() {
  if (!leader_.has_value()) return;
  for (const StragglerVerdict& verdict : leader_->rule.standing()) tell(verdict, false);
  for (const StragglerVerdict& verdict : leader_->shared.standing()) tell(verdict, false);
  write(leader_->rows.finish());
}

}  // namespace holdfast::train
