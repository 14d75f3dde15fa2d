// NcclCommunicators owns the NCCL communicators of this process in one membership epoch, the rule that one
// thread at a time calls them, and the thread that ends them all.
//
// NCCL does not report that a peer on the same host died, and its kernels wait for it for ever. A caller that
// learns it (an error, a deadline that passed, a verdict of the watchdog) calls stop_all(), and, when all ranks
// that are left have done so, abort_all():
//
//   live      every call goes through enter()
//   stopping  enter() gives an error, so nothing new is launched. A thread of its own, inside no call, revokes all
//             communicators (ncclCommRevoke, from 2.28.7) and waits until their kernels and streams are quiet
//   stopped   nothing of this process runs any more; its memory is all there, because kernels of other ranks on
//             this host may still read and write it
//   aborting  that thread aborts all communicators in one NCCL group (one after the other they deadlock in the
//             driver; before 2.22, which cannot do that in a group, each in a thread of its own), waits until the
//             streams are quiet, and checks whether CUDA still works
//   ended     all memory is given back; the next epoch connects anew, with new communicators
//   lost      the deadline passed, an abort failed, or CUDA's error is sticky: the process kills itself,
//             which is an ordinary death for its peers
//
// Why two calls: abort frees memory that kernels of other ranks of the host have mapped, which would end them with
// an error that CUDA does not survive (nccl#863: every rank of a host stops before anyone frees). What lies between
// them is an agreement of the ranks that are left: Membership::recover(), which no rank comes out of before all
// have entered it (runtime/elastic/session.cc). An NCCL without ncclCommRevoke, and communicators whose start is
// not complete, cannot be stopped: there stop_all() does what abort_all() does.
//
// Threads: any may call stop_all(), abort_all() and ended(). Everything else is for the owner's thread. The end of
// a run takes the path of abort_all(), after its ranks have agreed that all is done: ncclCommFinalize may wait for
// ever, and one path is tested better than two.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/device/nccl_library.h"
#include "runtime/os/env.h"

namespace holdfast::parallel {

// One communicator and the CUDA objects that belong to it.
struct NcclLink {
  std::string name;  // "holdfast-e3-data", the same on all ranks
  int rank = 0, size = 1;
  NcclComm comm = nullptr;  // null while size is 1
  bool started = false;     // its start is complete
  CudaStream stream = nullptr;
  std::vector<CudaEvent> events = {};  // at the ends of exchanges
  std::vector<CudaEvent> ready = {};   // before which no exchange begins that has one
  void* memory = nullptr;              // on the device, for the first exchange
};

struct NcclEnd {
  int device = 0;
  std::int64_t timeout_ms = 15'000;
  // Ends this process: Env::kill_self() after the sentence is on stderr, unless a test replaces it. The
  // replacement returns, and abort_all() returns the sentence as its error.
  std::function<void(const std::string& sentence)> die = {};
};

class NcclCommunicators {
 public:
  // `library` and `env` outlive this object.
  NcclCommunicators(NcclLibrary& library, Env& env, NcclEnd end);
  // Aborts the communicators that are live. None of their exchanges may be used any more.
  ~NcclCommunicators();

  NcclLibrary& library() { return *library_; }
  // Adds a link, owned by this object, at a stable address. A link that could not be completed is ended with
  // the others.
  NcclLink& add(NcclLink link);

  // Lock that a caller holds while it calls NCCL, or CUDA on NCCL's streams. enter() returns an error when
  // these communicators have ended.
  using Calls = std::unique_lock<std::mutex>;
  Result<Calls> enter();

  // Groups start one after the other, whatever their communicators: before NCCL 2.24 a thread's launch state
  // was in one shared place. So a caller asks may_launch() before it starts a group, and calls launching()
  // when it has; both inside enter(). Neither waits for another rank: a launched group makes no new
  // connections, except in connect().
  Result<bool> may_launch(const NcclLink& link);  // requires that `link` has nothing in progress
  void launching(const NcclLink& link) { launching_ = &link; }

  // Stops all communicators. `seen`: a CUDA error that the caller met, if any. ok: the state is stopped or ended.
  Result<void> stop_all(const std::string& reason, CudaError seen = 0) {
    return take_down(Phase::stopping, reason, seen);
  }
  // Aborts all communicators. ok: the state is ended.
  Result<void> abort_all(const std::string& reason, CudaError seen = 0) {
    return take_down(Phase::aborting, reason, seen);
  }
  bool ended() const { return phase_.load() != Phase::live; }

 private:
  enum class Phase { live, stopping, stopped, aborting, ended, lost };

  Result<void> take_down(Phase way, const std::string& reason, CudaError seen);
  void run();  // the thread
  std::vector<NcclComm> comms() const;
  bool revoke_all();
  Result<void> end_all();
  NcclResult abort_group(const std::vector<NcclComm>& comms);
  NcclResult abort_each(const std::vector<NcclComm>& comms);
  Result<void> wait_until_quiet();
  CudaError free_all();

  NcclLibrary* library_;
  Env* env_;
  NcclEnd end_;
  std::vector<std::unique_ptr<NcclLink>> links_;
  const NcclLink* launching_ = nullptr;  // link that last started a group, until the launch is seen to be
                                         // done
  std::mutex calls_;

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::atomic<Phase> phase_ = Phase::live;
  std::string reason_;   // reason for the abort
  std::string outcome_;  // error text in state lost
  bool dead_ = false;    // die() was called
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace holdfast::parallel
