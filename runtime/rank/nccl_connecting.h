// NcclConnecting connects the groups of one rank by NCCL: all at once, before the first step of a run, or beside the
// steps of a run that recovers, which goes on over the host's memory until it is done. Both have the same bits.
//
// Connecting is collective over a group, and a rank is in several groups, so the groups take turns: in one turn a rank
// connects with the ranks of at most one group, and no turn begins before all ranks of the run have agreed that the one
// before is done. So no deadlock can occur. The pairs of a pipeline take three kinds of turns: those that start at even
// stages have no rank in common, nor have those that start at odd stages. The pair of the last stage and the first, if
// the stages form a ring, has turns of its own, because with an odd number of stages it shares a rank with a pair that
// starts at an even stage. So 64 stages take as long as 4. A failure of one rank is a failure of all: a rank that has
// no group in a turn waits for the outcome of the others, and no rank begins a turn with one that has given up.
//
// All communicators of a rank belong to one session and end together. Threads: that of the links. Errors:
// ExitCode::communication, the same on all ranks: the sentence of NCCL or of the deadline (NcclSession), followed by the
// setting that avoids NCCL; the session has ended then.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel/comm/group_communicator.h"
#include "parallel/nccl/nccl_session.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/rank/rank_transport.h"

namespace holdfast::rank {

// NcclTurn is when the groups of a kind are connected, in this order. Links between stages are two: activations and
// gradients.
enum class NcclTurn {
  data,
  tensor,
  even_activations,
  even_gradients,
  odd_activations,
  odd_gradients,
  wrapped_activations,
  wrapped_gradients,
  tied_ends,
};

// NcclGroup is a group of ranks that NCCL can connect; one of a single rank moves nothing and is skipped.
struct NcclGroup {
  RankTransport* transport = nullptr;
  Axis axis = Axis::data;
  std::string name;  // name of its communicator, the same on all its ranks
  NcclTurn turn = NcclTurn::data;
};

class NcclConnecting {
 public:
  // Everything that is passed by reference outlives this object. `groups`: those of this rank, one at most for a turn.
  NcclConnecting(NcclSession& session, CountedCommunicator& run, Env& env, std::vector<NcclGroup> groups);

  // Connects all groups and hands their transports over. All ranks call it together.
  Result<void> connect();
  // Does what can be done without waiting for NCCL; all ranks call it together, again and again. Returns whether all
  // groups are connected, which is the same on all ranks.
  Result<bool> advance();
  // Has all groups use NCCL from now on; after advance() has returned true, and while no rank has an exchange open.
  void hand_over();

 private:
  const NcclGroup* group_of(NcclTurn turn) const;
  Result<bool> has_started();
  Result<bool> has_exchanged();
  Result<bool> agree(const Result<bool>& mine);
  void connected(const NcclGroup& group, std::unique_ptr<Transport> transport);

  struct Connected {
    RankTransport* group = nullptr;
    std::unique_ptr<Transport> transport;
  };
  NcclSession* session_;
  CountedCommunicator* run_;
  Env* env_;
  std::vector<NcclGroup> groups_;
  int turn_ = 0;                    // the one that is under way
  std::optional<NcclStart> start_;  // of this rank's group in it; none: it has not begun
  bool all_have_started_ = false;   // in this turn
  std::vector<Connected> connected_;
};

}  // namespace holdfast::rank
