#include "runtime/elastic/membership_epoch.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace holdfast::elastic {
namespace {

// Tag in the communicator of all ranks, which otherwise carries nothing but collectives.
constexpr int tag_run_end = tag_collective + 1;

struct EndMessage {
  std::int32_t code = 0;
  std::int32_t is_error = 0;
  std::int32_t grows = 0, shrinks = 0, rolls_back = 0;
  std::array<char, 1004> sentence{};  // ends with a zero
};
static_assert(sizeof(EndMessage) == 1024);

}  // namespace

TrainInputs with_communicator(const TrainInputs& inputs, Communicator& communicator) {
  return {.env = inputs.env,
          .faults = inputs.faults,
          .communicator = communicator,
          .stop = inputs.stop,
          .config = inputs.config,
          .build = inputs.build,
          .ranks_on_host = inputs.ranks_on_host,
          .place = inputs.place,
          .started_ns = inputs.started_ns,
          .load_nccl = inputs.load_nccl,
          .membership = inputs.membership,
          .watch = inputs.watch,
          .spoil_kept_memory = inputs.spoil_kept_memory};
}

MembershipEpoch::MembershipEpoch(const TrainInputs& inputs, RankAssignment assignment)
    : world_(inputs), assignment_(std::move(assignment)) {
  if (assignment_.coordinate_of(inputs.communicator.rank()) < 0) return;
  group_.emplace(inputs.communicator, assignment_.active_ranks, TagGroup::active);
  active_.emplace(with_communicator(inputs, *group_));
}

Result<EpochEnd> MembershipEpoch::wait_for_end(const Waiter& waiter) {
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
  if (message.is_error != 0) return Error{code, message.sentence.data()};
  return EpochEnd{.code = code,
                  .grows = message.grows != 0,
                  .shrinks = message.shrinks != 0,
                  .rolls_back = message.rolls_back != 0};
}

Result<void> MembershipEpoch::inform_spares(const Waiter& waiter, const Result<EpochEnd>& end) {
  if (!leads()) return {};
  EndMessage message;
  message.code = static_cast<std::int32_t>(end.ok() ? end->code : end.error().code);
  message.grows = end.ok() && end->grows ? 1 : 0;
  message.shrinks = end.ok() && end->shrinks ? 1 : 0;
  message.rolls_back = end.ok() && end->rolls_back ? 1 : 0;
  message.is_error = end.ok() ? 0 : 1;
  const std::string sentence = end.ok() ? "" : end.error().message;
  std::memcpy(message.sentence.data(), sentence.data(),
              std::min(sentence.size(), message.sentence.size() - 1));
  for (const int spare : assignment_.spares) {
    HF_TRY(const Communicator::Request request,
           world_.communicator.send(std::as_bytes(std::span(&message, 1)), spare, tag_run_end));
    HF_TRY_VOID(waiter.wait(world_.communicator, request, "telling a spare that the run ends", spare));
  }
  return {};
}

}  // namespace holdfast::elastic
