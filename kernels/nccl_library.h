// NcclLibrary: exactly those calls of NCCL and of the CUDA runtime that the communicators of parallel/nccl
// make, so that tests can put a world behind them in which calls hang, fail, are slow and end late
// (tests/parallel_nccl/nccl_double.h). Nothing here includes NCCL's headers: the state machines above it are
// compiled and tested everywhere. The real one is the CUDA module's (CudaModule::load_nccl), where the
// device's runtime is, too.
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

#include "runtime/core/result.h"

namespace holdfast::inline kernels {

// ncclResult_t, by value.
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

// cudaError_t, by value; what a code means: kernels/cuda_error.h.
using CudaError = int;

using NcclComm = struct NcclCommHandle*;      // ncclComm_t
using CudaStream = struct CudaStreamHandle*;  // cudaStream_t
using CudaEvent = struct CudaEventHandle*;    // cudaEvent_t
struct NcclUniqueId {
  std::array<char, 128> bytes = {};
};

// Tells NCCL about a communicator when a rank joins it.
struct NcclCommConfig {
  int ranks = 1;
  NcclUniqueId id = {};  // the same on all ranks, from unique_id() of one of them
  int rank = 0;
  std::string name = {};  // shown in NCCL's own messages and tools, where the version knows of it (2.27)
  int max_ctas = 0;       // limit of thread blocks of its kernels (ncclConfig_t.maxCTAs); 0: NCCL's default
};

// Computes the NcclCommConfig::max_ctas with which the kernels of all communicators on a GPU run at the same
// time: they wait for each other, so one that finds no free multiprocessor could be a deadlock. 32 thread
// blocks for all together, or one each: a GPU that trains has more multiprocessors. The GPUs make no
// difference, because the ranks of a communicator must agree. A power of two, because NCCL rounds the
// channels of send and receive up to one (paths.cc, ncclTopoComputeP2pChannels).
inline int nccl_max_ctas(int ranks_per_gpu, int communicators) {
  const unsigned at_once = static_cast<unsigned>(ranks_per_gpu * communicators), ctas_of_all = 32;
  if (at_once <= 1) return 0;
  return static_cast<int>(std::bit_floor(std::max(1U, ctas_of_all / at_once)));
}

class NcclLibrary {
 public:
  // The oldest supported, and the first whose communicators can be aborted inside a group; before, each is
  // aborted by a thread of its own.
  static constexpr int version_min = 21801;
  static constexpr int version_group_abort = 22203;
  // The first that takes several ranks on one GPU, when it is told (share_gpus).
  static constexpr int version_shared_gpus = 23003;

  virtual ~NcclLibrary() = default;
  virtual int version() const = 0;  // 22809: 2.28.9

  // States for the communicators made from now on that so many ranks use one GPU, each with so many
  // communicators at work at the same time; until it is called, one of each. max_ctas() follows from it. All
  // ranks of a membership epoch give the same numbers; the next epoch, whose numbers may differ, gives its
  // own.
  void share_gpus(int ranks_per_gpu, int communicators) {
    ranks_per_gpu_ = ranks_per_gpu;
    communicators_at_once_ = communicators;
  }
  int ranks_per_gpu() const { return ranks_per_gpu_; }
  int communicators_at_once() const { return communicators_at_once_; }
  int max_ctas() const { return nccl_max_ctas(ranks_per_gpu_, communicators_at_once_); }

  // NCCL. Communicators are non-blocking: what starts on one may return in_progress, and until comm_state()
  // says something else, nothing but that and comm_abort() may be called on it.
  virtual NcclResult unique_id(NcclUniqueId& id) = 0;
  virtual NcclResult comm_init(NcclComm& comm, const NcclCommConfig& config) = 0;
  // What the communicator is doing, or the error that it met since (ncclCommGetAsyncError).
  virtual NcclResult comm_state(NcclComm comm, NcclResult& state) = 0;
  virtual NcclResult comm_abort(NcclComm comm) = 0;  // blocks, perhaps for ever; also for an orderly end
  virtual NcclResult group_start() = 0;
  virtual NcclResult group_end() = 0;  // blocks when the group aborts
  virtual NcclResult send(const void* source, std::size_t bytes, int peer, NcclComm comm,
                          CudaStream stream) = 0;
  virtual NcclResult receive(void* target, std::size_t bytes, int peer, NcclComm comm, CudaStream stream) = 0;
  virtual std::string text(NcclResult result) = 0;
  virtual std::string last_error(NcclComm comm) = 0;  // empty when there is none; comm may be null

  // The CUDA runtime. Nothing that waits for the device, which for a dead peer is for ever; but free(), which
  // belongs behind streams that are quiet.
  virtual CudaError device_count(int& count) = 0;
  virtual CudaError set_device(int device) = 0;  // of the calling thread
  virtual CudaError allocate(void** memory, std::size_t bytes) = 0;
  virtual CudaError free(void* memory) = 0;
  virtual CudaError free_memory(std::size_t& bytes) = 0;    // how much of the current device's is free
  virtual CudaError stream_create(CudaStream& stream) = 0;  // that does not wait for the default stream
  virtual CudaError stream_query(CudaStream stream) = 0;
  virtual CudaError stream_destroy(CudaStream stream) = 0;
  virtual CudaError event_create(CudaEvent& event) = 0;  // without timing
  virtual CudaError event_record(CudaEvent event, CudaStream stream) = 0;
  virtual CudaError event_query(CudaEvent event) = 0;
  virtual CudaError event_destroy(CudaEvent event) = 0;
  virtual CudaError last_cuda_error() = 0;  // and forgets it, unless it is sticky
  virtual std::string text(CudaError error) = 0;

 private:
  int ranks_per_gpu_ = 1, communicators_at_once_ = 1;
};

// As the dynamic loader finds it.
inline constexpr const char* nccl_library_file = "libnccl.so.2";

// 22809 -> "2.28.9"
inline std::string nccl_version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace holdfast::inline kernels
