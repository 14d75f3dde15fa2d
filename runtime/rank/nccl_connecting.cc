#include "runtime/rank/nccl_connecting.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <utility>

#include "parallel/comm/agreement.h"

namespace holdfast::rank {
namespace {

constexpr int turns = static_cast<int>(NcclTurn::tied_ends) + 1;

Error with_advice(const Error& error) {
  return fail_because(error, error.code, "{}. parallel.exchange = \"host\" does without NCCL", error.message);
}

}  // namespace

NcclConnecting::NcclConnecting(NcclSession& session, CountedCommunicator& run, Env& env,
                               std::vector<NcclGroup> groups)
    : session_(&session), run_(&run), env_(&env), groups_(std::move(groups)) {
  std::erase_if(groups_, [](const NcclGroup& group) { return group.transport->group().size() == 1; });
}

const NcclGroup* NcclConnecting::group_of(NcclTurn turn) const {
  const auto found = std::ranges::find(groups_, turn, &NcclGroup::turn);
  return found == groups_.end() ? nullptr : &*found;
}

void NcclConnecting::connected(const NcclGroup& group, std::unique_ptr<Transport> transport) {
  connected_.push_back(
      {.group = group.transport,
       .transport = std::make_unique<GuardedTransport>(std::move(transport), group.transport->group(), *env_,
                                                       run_->traffic().of(group.axis))});
}

// Returns whether all ranks have done their part of the turn; the error of one is everybody's.
Result<bool> NcclConnecting::agree(const Result<bool>& mine) {
  const Waiter patient(*env_, session_->connect_patience_ms());
  std::array<std::int64_t, 2> ranks = {mine.ok() && *mine ? 1 : 0, mine.ok() ? 0 : 1};
  HF_TRY_VOID(all_reduce_sum(*run_, patient, ranks));
  if (ranks[1] == 0) return ranks[0] == run_->size();
  Result<void> outcome;
  if (!mine.ok()) outcome = with_advice(mine.error());
  // No rank comes out of the agreement before all have stopped: then what one frees is used by nobody.
  static_cast<void>(session_->stop_all("NCCL failed on some rank"));
  const Result<void> all = agree_on_outcome(*run_, patient, outcome, env_->host_name());
  HF_CHECK(!all.ok());
  static_cast<void>(session_->abort_all(all.error().message));
  return all.error();
}

Result<void> NcclConnecting::connect() {
  for (turn_ = 0; turn_ < turns; ++turn_) {
    const Result<bool> mine = [&]() -> Result<bool> {
      const NcclGroup* const group = group_of(NcclTurn(turn_));
      if (group == nullptr) return true;
      HF_TRY(std::unique_ptr<Transport> made, session_->connect(group->transport->group(), group->name));
      connected(*group, std::move(made));
      return true;
    }();
    HF_TRY_VOID(outcome_of(agree(mine)));
  }
  hand_over();
  return {};
}

Result<bool> NcclConnecting::has_started() {
  const NcclGroup* const group = group_of(NcclTurn(turn_));
  if (group == nullptr) return true;
  if (!start_.has_value()) {
    HF_TRY(start_, session_->begin(group->transport->group(), group->name));
  }
  return session_->has_started(*start_);
}

Result<bool> NcclConnecting::has_exchanged() {
  return start_.has_value() ? session_->has_exchanged(*start_) : true;
}

Result<bool> NcclConnecting::advance() {
  for (; turn_ < turns; ++turn_) {
    if (!all_have_started_) {
      HF_TRY(all_have_started_, agree(has_started()));
      if (!all_have_started_) return false;
    }
    HF_TRY(const bool all_are_ready, agree(has_exchanged()));
    if (!all_are_ready) return false;
    if (start_.has_value()) connected(*group_of(NcclTurn(turn_)), std::move(start_->transport));
    start_.reset();
    all_have_started_ = false;
  }
  return true;
}

void NcclConnecting::hand_over() {
  for (Connected& each : connected_) each.group->use(std::move(each.transport));
  connected_.clear();
}

}  // namespace holdfast::rank
