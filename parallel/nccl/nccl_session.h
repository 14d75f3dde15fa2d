// NcclSession is the NCCL of this process in one membership epoch: it makes the transports, and ends them all
// together.
//
//   HF_TRY(std::unique_ptr<NcclLibrary> library, cuda_module->load_nccl(nccl_library_file));
//   NcclSession session(*library, env, {.device = 0, .epoch = 3});
//   HF_TRY(std::unique_ptr<Transport> transport, session.connect(world, "data"));
//   ... a step: LaneReduction over *transport; control words over `world` ...
//   session.stop_all("rank 5 died");       // from any thread; transport gives errors from now on
//   ... the survivors agree on their new group, and so that all have stopped ...
//   session.abort_all("rank 5 died");      // gives the memory back; a new session with epoch 4, connect() again
//
// Each epoch has its own session: a communicator that met a fault is never used again, and the names of the
// communicators say which epoch they belong to. NCCL's Shrink (2.27) and Grow (2.29.2) need a parent that works or
// is quiet; the fresh start needs nothing, and works with every version. Revoke (2.28.7) needs nothing of the peers
// either: it is the first half of the end, in stop_all().
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "parallel/comm/collectives.h"
#include "parallel/comm/communicator.h"
#include "parallel/comm/transport.h"
#include "parallel/nccl/nccl_communicators.h"

namespace holdfast::parallel {

struct NcclOptions {
  int device = 0;  // CUDA ordinal
  std::uint64_t epoch = 0;
  std::int64_t connect_timeout_ms = 120'000;  // NCCL's start and the first exchange, which makes connections
  std::int64_t abort_timeout_ms = 15'000;
  std::function<void(const std::string& sentence)> die = {};  // NcclEnd::die
};

// NcclStart is a transport whose ranks NCCL connects.
struct NcclStart {
  Communicator* control = nullptr;
  NcclLink* link = nullptr;
  NcclUniqueId id = {};
  std::int64_t moved_ns = 0;                  // when it was begun, or last moved
  std::unique_ptr<Transport> transport = {};  // null: NCCL has not started
  Transport::Number first = 0;                // of the transport: its first exchange
};

class NcclSession {
 public:
  NcclSession(NcclLibrary& library, Env& env, NcclOptions options);  // `library` and `env` outlive it

  // Makes a transport over the ranks of `control`, all of which call it, in one order if they call it several
  // times, while no other transport of the session has anything open. Transports with different ranks must be
  // made in an order in which no ranks wait in a circle (runtime/rank/rank_links.h). The id of the
  // communicator is sent over `control`, which stays usable as well. When connect() returns ok, each pair of
  // ranks has exchanged a message. Errors are agreed on over `control`: all ranks get the sentence of the
  // lowest failing one (a rank that dies meanwhile breaks `control`, which is an error too), and this session
  // has ended. The transport does not outlive the session; the thread that calls connect() is the
  // transport's.
  Result<std::unique_ptr<Transport>> connect(Communicator& control, const std::string& name);

  // Do the same without waiting for NCCL, while the ranks of `control` exchange what they like over other transports.
  // begin() is called by all of them together. Each then calls has_started() again and again, until it is true on all,
  // and has_exchanged() likewise, whose kernels occupy the device until all ranks are at it: then `start.transport` is
  // ready. Errors of begin() are agreed on, and this session has ended; others are this rank's alone, and the callers
  // end the session on all ranks.
  Result<NcclStart> begin(Communicator& control, const std::string& name);
  Result<bool> has_started(NcclStart& start);
  Result<bool> has_exchanged(NcclStart& start);

  // Returns how long a rank that takes no part in connect() waits for the ranks that do.
  std::int64_t connect_patience_ms() const {
    return 4 * options_.connect_timeout_ms + options_.abort_timeout_ms;
  }

  // Calls NcclCommunicators::stop_all(): returns when nothing of this process runs in them any more, or kills the
  // process.
  Result<void> stop_all(const std::string& reason) { return communicators_.stop_all(reason); }
  // Calls NcclCommunicators::abort_all(): returns when all communicators are gone, or kills the process.
  Result<void> abort_all(const std::string& reason) { return communicators_.abort_all(reason); }
  bool ended() const { return communicators_.ended(); }

 private:
  Result<std::unique_ptr<Transport>> make_transport(Communicator& control, const std::string& name);
  Result<NcclUniqueId> invite(Communicator& control, const Waiter& waiter);
  Result<void> prepare(NcclLink& link);
  Result<NcclStart> prepare_start(Communicator& control, const std::string& name);
  Result<void> wait_for(NcclStart& start);
  Result<void> initialise(NcclLink& link, const NcclUniqueId& id);
  Result<void> begin_first_exchange(NcclStart& start);
  bool is_late(const NcclStart& start) const;
  Error nccl_failed(const NcclLink& link, const char* call, NcclResult result);
  Error cuda_failed(const char* call, CudaError error);

  NcclLibrary* library_;
  Env* env_;
  NcclOptions options_;
  NcclCommunicators communicators_;
};

}  // namespace holdfast::parallel
