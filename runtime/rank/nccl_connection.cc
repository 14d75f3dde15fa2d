#include "runtime/rank/nccl_connection.h"

#include "parallel/comm/agreement.h"
#include "parallel/comm/guarded_transport.h"

namespace holdfast::inline rank {
namespace {

constexpr int groups_of_phase_max = 2;  // groups of one rank: activations and gradients

Result<void> connect_group(NcclSession& session, CountedCommunicator& run, Env& env, const NcclGroup& group) {
  Communicator& control = group.transport->group();
  if (control.size() == 1) return {};
  Result<std::unique_ptr<Transport>> connected = session.connect(control, group.name);
  if (!connected.ok()) {
    return fail_because(connected.error(), connected.error().code,
                        "{}. parallel.exchange = \"host\" does without NCCL", connected.error().message);
  }
  group.transport->use(std::make_unique<GuardedTransport>(std::move(connected).value(), control, env,
                                                          run.traffic().of(group.axis)));
  return {};
}

Result<void> connect_phase(NcclSession& session, CountedCommunicator& run, Env& env,
                           std::span<const NcclGroup> groups, NcclPhase phase) {
  for (const NcclGroup& group : groups) {
    if (group.phase == phase) HF_TRY_VOID(connect_group(session, run, env, group));
  }
  return {};
}

}  // namespace

Result<void> connect_nccl_groups(NcclSession& session, CountedCommunicator& run, Env& env,
                                 std::span<const NcclGroup> groups) {
  const Waiter patient(env, groups_of_phase_max * session.connect_patience_ms());
  for (const NcclPhase phase : {NcclPhase::data, NcclPhase::tensor, NcclPhase::even_stages,
                                NcclPhase::odd_stages, NcclPhase::wrapped_stages, NcclPhase::tied_ends}) {
    const Result<void> mine = connect_phase(session, run, env, groups, phase);
    const Result<void> all = agree_on_outcome(run, patient, mine, env.host_name());
    if (all.ok()) continue;
    static_cast<void>(session.abort_all(all.error().message));
    return all;
  }
  return {};
}

}  // namespace holdfast::inline rank
