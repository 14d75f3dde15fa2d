// Connects NCCL for all groups of ranks of a run that exchange device memory: lanes, the slices of a layer,
// the neighbours in a pipeline. All of a rank's communicators are of one session and end together.
//
// No deadlock: to connect is collective over a group, and a rank is in several groups. So it happens in
// phases. In one phase a rank connects with the ranks of at most one group (or twice with the same one, in
// one order), and no phase begins before all ranks of the run have agreed that the one before is done. A
// pipeline's pairs take three: those that start at even stages have no rank in common, nor have those at odd
// ones, and the pair of the last stage and the first, where the stages form a ring, comes alone, because with
// an odd number of stages it meets an even one. It takes as long for 64 stages as for 4.
//
// So also a failure is everybody's: whoever has nothing to do in a phase waits for the others' outcome, and
// nobody starts with a rank that has given up.
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
  std::string name;  // of its communicator, the same on its ranks
  NcclPhase phase = NcclPhase::data;
};

// All ranks of `run` call it; a group of one rank moves nothing and is skipped. From then on the
// transports are NCCL's, and `session` and `env` outlive them. Errors are the same on all ranks: the sentence
// of NCCL or of the deadline (NcclSession::connect), and what does without NCCL; the session has ended.
Result<void> connect_nccl_groups(NcclSession& session, CountedCommunicator& run, Env& env,
                                 std::span<const NcclGroup> groups);

}  // namespace holdfast::inline rank
