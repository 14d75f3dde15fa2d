// The Exchange over one NCCL communicator and one CUDA stream, of the device's memory.
//
// An exchange is one group of ncclSend and ncclRecv. Groups are issued in the order of their numbers, each
// when its sends are given and NCCL has launched the one before; several may be on the stream at once. The
// end of a group is an event behind it, and events are only ever queried: whoever waited for the stream of a
// dead peer would wait for ever; nor is a group ever captured into a CUDA graph, which would keep the abort
// waiting. NCCL moves bytes and adds nothing; sums are the receiver's, in the order of lanes.
//
// CUDA loads a kernel when it is first launched, and that may wait for the kernels that run, NCCL's among
// them, which wait for other ranks. It ends, because all ranks issue the groups in one order: of the rank
// that has issued least, every group is issued everywhere, so its kernels end, and it goes on. A second
// communicator beside this one, in an order of its own, would need CUDA_MODULE_LOADING=EAGER.
//
// It learns of a dead peer by itself only where NCCL's network code meets it. Otherwise nothing moves any
// more, and the caller's deadline leads to abandon(), which ends all communicators of the process
// (nccl_communicators.h) and returns when their memory may go.
//
// Errors name the communicator, the exchange, its peers, the call and what NCCL says. A CUDA error that is
// sticky kills the process.
#pragma once

#include <vector>

#include "parallel/exchange.h"
#include "parallel/nccl/nccl_communicators.h"

namespace holdfast {

class NcclExchange final : public Exchange {
 public:
  static constexpr std::size_t slot_count = 64;  // exchanges open at once, as many events of the link

  // `communicators` outlives it and owns `link`, whose communicator is ready.
  NcclExchange(NcclCommunicators& communicators, const NcclLink& link);

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool can_open() const override { return next_ - oldest_ < slot_count; }
  Result<Number> open(std::span<const Incoming> incoming) override;
  Result<void> send(Number number, std::span<const Outgoing> outgoing) override;
  Result<bool> advance() override;
  bool received(Number number, int) const override { return number < oldest_; }
  Number oldest() const override { return oldest_; }
  Awaited awaited() const override;
  void abandon() override;
  bool abandoned() override { return communicators_->ended(); }

 private:
  struct Slot {
    std::vector<Incoming> incoming;
    std::vector<Outgoing> outgoing;
    bool sent = false;
    bool empty() const { return incoming.empty() && outgoing.empty(); }
  };

  Slot& slot(Number number) { return slots_[number % slot_count]; }
  const Slot& slot(Number number) const { return slots_[number % slot_count]; }
  Result<bool> move();              // one look at everything; calls are entered
  Result<bool> finish_launch();     // of the group that NCCL is still launching
  Result<bool> finish_exchanges();  // whose events are reached
  Result<bool> issue();             // all groups whose turn it is
  Result<void> issue_group(Number number);
  Result<void> record(Number number);
  Error nccl_failed(Number number, const char* call, NcclResult result);
  Error cuda_failed(Number number, const char* call, CudaError error);
  std::string describe(Number number) const;

  NcclCommunicators* communicators_;
  NcclLibrary* library_;
  const NcclLink* link_;
  int rank_, size_;
  std::vector<Slot> slots_;
  Number oldest_ = 0, issued_ = 0, next_ = 0;  // finished below oldest_, on the stream below issued_
  bool launching_ = false;                     // NCCL is still launching issued_ - 1
  CudaError cuda_error_ = 0;                   // of the last failure
};

}  // namespace holdfast
