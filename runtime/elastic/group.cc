#include "runtime/elastic/group.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "parallel/comm/agreement.h"

namespace holdfast::elastic {
namespace {

// Tag in the communicator of all ranks, which otherwise carries nothing but collectives.
constexpr int tag_run_end = tag_collective + 1;

struct EndMessage {
  std::uint64_t step = 0;  // LeaderFacts
  std::int32_t log_opened = 0;
  std::int32_t code = 0;
  std::int32_t is_error = 0;
  std::int32_t how = 0;              // EpochEnd::how
  std::int32_t reach = 0;            // of an error
  std::int32_t reason = 0;           // Error::reason
  std::array<char, 992> sentence{};  // ends with a zero
};
static_assert(sizeof(EndMessage) == 1024);

}  // namespace

TrainInputs with_communicator(const TrainInputs& inputs, Communicator& communicator) {
  return {{inputs.env, inputs.faults, communicator, inputs.watch, inputs.ranks_on_host, inputs.sharers},
          inputs,  // ProcessInputs
          inputs.stop,
          inputs.config};
}

MembershipEpoch::MembershipEpoch(const TrainInputs& inputs, RankAssignment assignment)
    : world_(inputs), assignment_(std::move(assignment)) {
  if (assignment_.coordinate_of(inputs.communicator.rank()) < 0) return;
  group_.emplace(inputs.communicator, assignment_.active_ranks, TagGroup::active);
  active_.emplace(with_communicator(inputs, *group_));
}

Result<EpochEnd> MembershipEpoch::wait_for_end(const Waiter& waiter, LeaderFacts& leader) {
  Communicator& world = world_.communicator;
  EndMessage message;
  HF_TRY(const Communicator::Request request,
         world.receive(std::as_writable_bytes(std::span(&message, 1)), assignment_.leader(), tag_run_end));
  constexpr std::int64_t look_again_us = 1000;
  const std::int64_t since_ns = waiter.env().monotonic_ns();
  const Awaited awaited{.operation = "the end of the run", .peer = world.global_rank(assignment_.leader())};
  while (true) {
    HF_TRY(const bool reported, world.test(request));
    if (reported) break;
    HF_TRY_VOID(world.check_peers_among(assignment_.active_ranks));
    if (waiter.listener() != nullptr)
      waiter.listener()->on_wait(since_ns, waiter.env().monotonic_ns(), awaited);
    waiter.env().sleep_us(look_again_us);
  }
  if (waiter.listener() != nullptr) waiter.listener()->on_resume();
  const auto code = static_cast<ExitCode>(message.code);
  leader = {.log_opened = message.log_opened != 0, .step = message.step};
  if (message.is_error != 0)
    return Error{code, message.sentence.data(), static_cast<Reach>(message.reach), message.reason};
  return EpochEnd{.how = static_cast<PhaseOutcome>(message.how), .code = code};
}

Result<void> MembershipEpoch::inform_spares(const Waiter& waiter, const Result<EpochEnd>& end,
                                            const LeaderFacts& leader) {
  if (!leads()) return {};
  EndMessage message;
  message.step = leader.step;
  message.log_opened = leader.log_opened ? 1 : 0;
  message.code = static_cast<std::int32_t>(end.ok() ? end->code : end.error().code);
  if (end.ok()) message.how = static_cast<std::int32_t>(end->how);
  message.is_error = end.ok() ? 0 : 1;
  message.reach = static_cast<std::int32_t>(end.ok() ? Reach::run : end.error().reach);
  message.reason = end.ok() ? 0 : end.error().reason;
  const std::string sentence = end.ok() ? "" : end.error().message;
  std::memcpy(message.sentence.data(), sentence.data(),
              std::min(sentence.size(), message.sentence.size() - 1));
  end_message_ = std::make_shared<std::vector<std::byte>>(sizeof(message));
  std::memcpy(end_message_->data(), &message, sizeof(message));
  return send_end(waiter);
}

// Sends to all spares before it waits for one, and waits for none that has died.
Result<void> MembershipEpoch::send_end(const Waiter& waiter) {
  Communicator& world = world_.communicator;
  std::vector<std::pair<int, Communicator::Request>> sent;
  for (const int spare : assignment_.spares) {
    if (world.has_died(spare)) continue;
    HF_TRY(const Communicator::Request request, world.send(*end_message_, spare, tag_run_end));
    sent.emplace_back(spare, request);
  }
  PollBackoff backoff(waiter);
  const auto awaited = [&] {
    return Awaited{.operation = "telling a spare that the run ends",
                   .peer = world.global_rank(sent.front().first)};
  };
  while (!sent.empty()) {
    Result<void> failed;
    const std::size_t moved = std::erase_if(sent, [&](const auto& each) {
      if (!failed.ok() || world.has_died(each.first)) return failed.ok();
      const Result<bool> done = world.test(each.second);
      failed = outcome_of(done);
      return done.ok() && *done;
    });
    HF_TRY_VOID(failed);
    if (moved > 0) {
      backoff.reset();
    } else if (!backoff.pause(awaited)) {
      world.abandon();
      return fail(ExitCode::communication, "rank {} does not hear that the run ends",
                  world.global_rank(sent.front().first));
    }
  }
  return {};
}

void Group::end_epoch() {
  if (epoch_ != nullptr && epoch_->end_message() != nullptr) kept_.push_back(epoch_->end_message());
  epoch_.reset();
}

MembershipView Group::view() const {
  return launched_.membership != nullptr ? launched_.membership->view() : MembershipView();
}

void Group::connect() {
  world_.emplace(with_communicator(launched_, launched_.membership->communicator()));
}

void Group::take_place(const DevicePlace& place, int ranks_on_host) {
  launched_.place = place;
  launched_.ranks_on_host = ranks_on_host;
  connect();
}

Result<void> Group::choose_writers(const Result<RankAssignment>& assignment) {
  const int rank = world().communicator.rank();
  leads_ = assignment.ok() ? assignment->coordinate_of(rank) == 0 : rank == 0;
  writes_ = leads_;
  if (assignment.ok()) {
    HF_TRY(writes_, writes_with(*assignment));
  }
  return {};
}

// Gathers the storage domains of the epoch that begins, and returns whether this rank writes: in each storage domain it
// is the rank with the lowest coordinate, or the leader of the storage domain if no rank there has a coordinate.
Result<bool> Group::writes_with(const RankAssignment& assignment) {
  if (!setup_.domain.has_value()) return leads_;
  HF_TRY(domains_, gather_storage_domains(world().communicator, waiter(), *setup_.domain));
  active_domains_ = domains_->of_group(assignment.active_ranks);
  for (const int rank : assignment.active_ranks) {
    if (domains_->of(rank).number == setup_.domain->number) return rank == world().communicator.rank();
  }
  return domains_->leads(world().communicator.rank());
}

void Group::begin_epoch(RankAssignment assignment) {
  end_epoch();
  epoch_ = std::make_unique<MembershipEpoch>(world(), std::move(assignment));
  tell_watch();
}

// Reports the epoch to the watchdog. Phases take longer with fewer ranks, because each has more work.
void Group::tell_watch() {
  const int active = assignment().shape.active();
  const int before = std::exchange(reported_active_, active);
  if (launched_.watch == nullptr || launched_.membership == nullptr) return;
  const MembershipView& view = launched_.membership->view();
  launched_.watch->begin_epoch({.number = view.epoch,
                                .work_times = before == 0 ? 1.0 : static_cast<double>(before) / active,
                                .members = static_cast<std::uint32_t>(view.members.size())});
}

SourceFinder Group::source_of(const TrainInputs& ranks, const ClaimCheck& check) const {
  return SourceFinder({.inputs = ranks,
                       .waiter = waiter(),
                       .config = setup_.config,
                       .in_place = recovers_,
                       .domains = &ranks == &world() ? domains_ : active_domains_,
                       .check = check});
}

Waiter Group::waiter() const {
  return waiter_for(launched_, setup_.config, recovers_);
}

Result<void> Group::agree_among(const TrainInputs& ranks, const Result<void>& mine, const Waiter& patience) {
  if (setup_.device != nullptr && setup_.device->lost()) {
    leaving_.emplace(LeavingRank{ranks.env, ranks.communicator, setup_.config.run.directory});
    return setup_.device->status().error();
  }
  return agree_on_outcome(ranks.communicator, patience, mine, ranks.env.host_name());
}

}  // namespace holdfast::elastic
