// The Transport over one NCCL communicator and one CUDA stream, for device memory.
//
// An exchange is one group of ncclSend and ncclRecv. Groups are issued in the order of their numbers, each
// when its sends are given and NCCL has launched the one before; several may be on the stream at once. The
// end of a group is an event after it, and events are only ever queried: a wait for the stream of a dead peer
// would never end; nor is a group ever captured into a CUDA graph, which would delay the abort. NCCL moves
// bytes and adds nothing; the receiver computes sums, in the order of lanes.
//
// Several transports at the same time, each with a communicator and a stream of its own, progress in any
// order, as over the host, if nothing on the GPU makes the kernel of one wait for another's, which waits for
// other ranks. Four things could, and each is handled:
//
//   blocks    all kernels of NCCL fit on the GPU at once: NcclLibrary::max_ctas()
//   loading   CUDA loads a kernel when it is first launched, and that may wait for the kernels that run.
//             CUDA_MODULE_LOADING=EAGER: runtime/rank/transport_choice.h. One communicator alone does not
//             need it: its groups have one order on all ranks, so those of the rank that has issued least
//             end
//   queues    streams share the GPU's hardware queues, 8 by default. CUDA_DEVICE_MAX_CONNECTIONS=32: set in
//             the same file
//   calls     that wait for the whole device (cudaMalloc, cudaFree): none in a step, and while communicators
//             connect their streams are empty. Where training.cuda_graphs is on, graphs are made in the
//             second step; whether that waits is not known
//
// received() and oldest(): the host has seen the event after the group, so work launched from now on, on any
// stream, may read the received data, and the sent memory may be written. After send() nothing else orders a stream of
// NCCL and the device's queue: the caller has waited for the ticket of the work that wrote the bytes, the caller of
// open() for that of the work that last read the target.
//
// send_behind() and follow() order them on the device: an event of the device's queue before the group, and the event
// after the group before what follows in the device's queue. Two queues that wait for each other in this way need no
// host to end: every wait is for something that was put into its queue before. A stop ends them, too: kernels of a
// revoked or aborted communicator return, those of groups that begin later among them, and with them ends every
// wait of the device's queue; what it then computes from bytes that never came is nobody's, because this process sends
// nothing any more and the error reaches whoever trusts results. The streams are quiet when the device's queue has got
// to the last group, so the deadline of the stop holds for what was launched before that, too.
//
// Unproven: none of this has run on a GPU, only on a test double (tests/parallel/nccl). To be checked first
// on a GPU: several communicators at once, an abort with kernels of several on the device, a stop while the device's
// queue waits for exchanges, and how much receives that wait on the GPU take from kernels that compute.
//
// The transport learns of a dead peer by itself only where NCCL's network code meets it. Otherwise nothing
// moves any more, and the caller's deadline leads to abandon(), which ends all communicators of the process
// (nccl_communicators.h) and returns when their memory may be freed.
//
// Errors name the communicator, the exchange, its peers, the call and NCCL's message. A CUDA error that is
// sticky kills the process.
#pragma once

#include <vector>

#include "parallel/comm/transport.h"
#include "parallel/nccl/nccl_communicators.h"

namespace holdfast::parallel {

class NcclTransport final : public Transport {
 public:
  static constexpr std::size_t slot_count = 64;  // exchanges open at once; the link has as many events

  // `communicators` outlives it and owns `link`, whose communicator is ready.
  NcclTransport(NcclCommunicators& communicators, const NcclLink& link);

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool can_open() const override { return next_ - oldest_ < slot_count; }
  Result<Number> open(std::span<const Incoming> incoming) override;
  Result<void> send(Number number, std::span<const Outgoing> outgoing) override;
  Result<bool> advance() override;
  bool is_on_device() const override { return size_ > 1; }
  Result<void> send_behind(Number number, std::span<const Outgoing> outgoing, DeviceQueue& queue) override;
  Result<bool> follow(Number number, DeviceQueue& queue) override;
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
    bool has_ready_event = false;
    bool empty() const { return incoming.empty() && outgoing.empty(); }
  };

  Slot& slot(Number number) { return slots_[number % slot_count]; }
  const Slot& slot(Number number) const { return slots_[number % slot_count]; }
  void post(Number number, std::span<const Outgoing> outgoing, bool has_ready_event);
  // Calls act() inside enter(); when it fails, everything stops.
  template <typename Act>
  auto guarded(const Act& act) -> decltype(act());
  Result<bool> move();              // polls everything once
  Result<bool> finish_launch();     // for the group that NCCL is still launching
  Result<bool> finish_exchanges();  // ends exchanges whose events are reached
  Result<bool> issue();             // issues all groups that are next in order
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

}  // namespace holdfast::parallel
