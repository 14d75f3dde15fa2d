// Connects NCCL for all groups of ranks of a run that exchange device memory: those of the lanes, of the
// slices of a layer, and of neighbouring stages in a pipeline. All communicators of a rank belong to one
// session and end together.
//
// No deadlock can occur. Connecting is collective over a group, and a rank is in several groups, so it
// happens in phases. In one phase a rank connects with the ranks of at most one group (or twice with the same
// one, in one order), and no phase begins before all ranks of the run have agreed that the one before is
// done. The pairs of a pipeline take three phases: those that start at even stages have no rank in common,
// nor have those that start at odd stages. The pair of the last stage and the first, if the stages form a
// ring, has a phase of its own, because with an odd number of stages it shares a rank with a pair that starts
// at an even stage. So 64 stages take as long as 4.
//
// A failure of one rank is therefore a failure of all: a rank with no group in a phase waits for the outcome
// of the others, and no rank starts a phase with one that has given up.
#pragma once

#include <span>
#include <string>

#include "parallel/comm/counted_communicator.h"
#include "parallel/nccl/nccl_session.h"
#include "runtime/rank/rank_transport.h"

namespace holdfast::inline rank {

enum class NcclPhase { data, tensor, even_stages, odd_stages, wrapped_stages, tied_ends };

struct NcclGroup {
  RankTransport* transport = nullptr;
  Axis axis = Axis::data;
  std::string name;  // name of its communicator, the same on all its ranks
  NcclPhase phase = NcclPhase::data;
};

// Connects the groups. All ranks of `run` call it; a group of one rank moves nothing and is skipped. From
// then on the transports are those of NCCL, and `session` and `env` must outlive them. Errors are the same on
// all ranks: the sentence of NCCL or of the deadline (NcclSession::connect), followed by the setting that
// avoids NCCL; the session has ended then.
Result<void> connect_nccl_groups(NcclSession& session, CountedCommunicator& run, Env& env,
                                 std::span<const NcclGroup> groups);

}  // namespace holdfast::inline rank
