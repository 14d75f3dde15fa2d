// NcclLibrary: exactly those calls of NCCL and of the CUDA runtime that the communicators of parallel/nccl
// make, so that tests can replace them by calls that hang, fail, are slow or end late
// (tests/parallel/nccl/nccl_double.h). Nothing here includes NCCL's headers: the state machines above it are
// compiled and tested everywhere. The real one belongs to the CUDA module (CudaModule::load_nccl), which also
// has the device's runtime.
//
// Threads: the rules of NCCL and CUDA, which the caller keeps: one thread at a time per communicator (state
// and abort too), an open group belongs to its thread. Errors are the libraries' own codes.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/core/device_event.h"
#include "runtime/core/result.h"

namespace holdfast::device {

// Values of ncclResult_t.
enum class NcclResult : int {
  success = 0,
  unhandled_cuda_error = 1,
  system_error = 2,
  internal_error = 3,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6,
  in_progress = 7,
};

// A value of cudaError_t; runtime/device/cuda_error.h classifies them.
using CudaError = int;

using NcclComm = struct NcclCommHandle*;      // ncclComm_t
using CudaStream = struct CudaStreamHandle*;  // cudaStream_t
using CudaEvent = DeviceEvent;                // cudaEvent_t
struct NcclUniqueId {
  std::array<char, 128> bytes = {};
};

// Configures a communicator of NCCL when a rank joins it.
struct NcclCommConfig {
  int ranks = 1;
  NcclUniqueId id = {};  // the same on all ranks, from unique_id() of one of them
  int rank = 0;
  std::string name = {};  // shown in NCCL's own messages and tools, where the version knows of it (2.27)
  int max_ctas = 0;       // limit of thread blocks of its kernels (ncclConfig_t.maxCTAs); 0: NCCL's default
};

// Computes the NcclCommConfig::max_ctas with which the kernels of all communicators on a GPU run at the same
// time: they wait for each other, so one that finds no free multiprocessor could cause a deadlock. All
// together get 32 thread blocks, or one each: a GPU that trains has more multiprocessors. The kind of GPU
// makes no difference, because the ranks of a communicator must agree. The result is a power of two, because
// NCCL rounds the channels of send and receive up to one (paths.cc, ncclTopoComputeP2pChannels).
inline int nccl_max_ctas(int ranks_per_gpu, int communicators) {
  const unsigned at_once = static_cast<unsigned>(ranks_per_gpu * communicators), ctas_of_all = 32;
  if (at_once <= 1) return 0;
  return static_cast<int>(std::bit_floor(std::max(1U, ctas_of_all / at_once)));
}

class NcclLibrary {
 public:
  // Oldest supported version, and the first whose communicators can be aborted inside a group; before that,
  // each is aborted by a thread of its own.
  static constexpr int version_min = 21801;
  static constexpr int version_group_abort = 22203;
  // First version that accepts several ranks on one GPU, when share_gpus() states that.
  static constexpr int version_shared_gpus = 23003;
  // First version that has ncclCommRevoke().
  static constexpr int version_revoke = 22807;
  // First and last of the versions that may crash in a process which connects again after an abort, as every
  // recovery in place does. Source: the list of supported versions in the README of NVIDIA's
  // nvidia-resiliency-ext.
  static constexpr int version_reconnect_broken_first = 22803, version_reconnect_broken_last = 22808;

  virtual ~NcclLibrary() = default;
  virtual int version() const = 0;  // 22809: 2.28.9

  // States for the communicators made from now on how many ranks use one GPU, and how many communicators of
  // each are active at the same time; until it is called, one of each. max_ctas() follows from it. All ranks
  // of a membership epoch give the same numbers; the next epoch, whose numbers may differ, gives its own.
  void share_gpus(int ranks_per_gpu, int communicators) {
    ranks_per_gpu_ = ranks_per_gpu;
    communicators_at_once_ = communicators;
  }
  int ranks_per_gpu() const { return ranks_per_gpu_; }
  int communicators_at_once() const { return communicators_at_once_; }
  int max_ctas() const { return nccl_max_ctas(ranks_per_gpu_, communicators_at_once_); }

  // The calls of NCCL. Communicators are non-blocking: a call that starts something on one may return
  // in_progress, and until comm_state() reports something else, only that and comm_abort() may be called on
  // it.
  virtual NcclResult unique_id(NcclUniqueId& id) = 0;
  virtual NcclResult comm_init(NcclComm& comm, const NcclCommConfig& config) = 0;
  // Gets the state of the communicator, or the error that it met since (ncclCommGetAsyncError).
  virtual NcclResult comm_state(NcclComm comm, NcclResult& state) = 0;
  // Returns whether the library has comm_revoke().
  virtual bool can_revoke() const = 0;
  // Ends what the communicator has under way on this rank, and frees nothing: comm_state() is in_progress until its
  // kernels have ended, and after that only comm_abort() may be called. Requires that the start of the communicator
  // is complete. One rank may call it alone.
  virtual NcclResult comm_revoke(NcclComm comm) = 0;
  virtual NcclResult comm_abort(NcclComm comm) = 0;  // blocks, perhaps for ever; also for an orderly end
  virtual NcclResult group_start() = 0;
  virtual NcclResult group_end() = 0;  // blocks when the group aborts
  virtual NcclResult send(const void* source, std::size_t bytes, int peer, NcclComm comm,
                          CudaStream stream) = 0;
  virtual NcclResult receive(void* target, std::size_t bytes, int peer, NcclComm comm, CudaStream stream) = 0;
  virtual std::string text(NcclResult result) = 0;
  virtual std::string last_error(NcclComm comm) = 0;  // empty when there is none; comm may be null

  // The calls of the CUDA runtime. None waits for the device, which would be for ever with a dead peer,
  // except free(), which may be called only after streams that are idle.
  virtual CudaError device_count(int& count) = 0;
  virtual CudaError set_device(int device) = 0;  // of the calling thread
  virtual CudaError allocate(void** memory, std::size_t bytes) = 0;
  virtual CudaError free(void* memory) = 0;
  virtual CudaError free_memory(std::size_t& bytes) = 0;  // how much of the current device's is free
  // Makes a stream that does not wait for the default stream. It has the highest priority of the device, which computes
  // at the lowest (runtime/device/cuda/cuda_device.cc): the few blocks of an exchange, for which other ranks wait,
  // then do not queue behind the blocks of kernels that were launched before.
  virtual CudaError stream_create(CudaStream& stream) = 0;
  virtual CudaError stream_query(CudaStream stream) = 0;
  virtual CudaError stream_destroy(CudaStream stream) = 0;
  virtual CudaError event_create(CudaEvent& event) = 0;  // without timing
  virtual CudaError event_record(CudaEvent event, CudaStream stream) = 0;
  virtual CudaError event_query(CudaEvent event) = 0;
  // Makes what is put on the stream from now on wait for the latest event_record(), also of another stream of the
  // device.
  virtual CudaError stream_wait(CudaStream stream, CudaEvent event) = 0;
  virtual CudaError event_destroy(CudaEvent event) = 0;
  virtual CudaError last_cuda_error() = 0;  // and forgets it, unless it is sticky
  virtual std::string text(CudaError error) = 0;

 private:
  int ranks_per_gpu_ = 1, communicators_at_once_ = 1;
};

// Name of the library for the dynamic loader.
inline constexpr const char* nccl_library_file = "libnccl.so.2";

// Returns the version as text: 22809 -> "2.28.9".
inline std::string nccl_version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace holdfast::device
