// How the device's memory travels between the ranks of a run: by NCCL from GPU to GPU, or over the host
// communicator. One choice, alike on all ranks, from what each of them has. It never changes a bit.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "kernels/device.h"
#include "kernels/nccl_library.h"
#include "parallel/comm/collectives.h"
#include "runtime/rank/train_inputs.h"

namespace holdfast::inline rank {

enum class TransportWay {
  host,  // over the communicator: memory that the host sees as it lies, a GPU's by way of pinned buffers
  nccl,
};

// What one rank brings to the choice.
struct TransportMeans {
  std::string host = {};          // for sentences
  bool host_sees_memory = false;  // of the device
  std::string gpu = {};           // CudaFacts::uuid
  int nccl_version = 0;           // 0: it has none
  std::string nccl_missing = {};  // why, a clause

  static void visit_fields(auto& self, auto&& visit) {
    visit("host", self.host);
    visit("host_sees_memory", self.host_sees_memory);
    visit("gpu", self.gpu);
    visit("nccl_version", self.nccl_version);
    visit("nccl_missing", self.nccl_missing);
  }
};

struct TransportChoice {
  TransportWay way = TransportWay::host;
  int ranks_per_gpu = 1;    // the most of them on one
  std::string description;  // for the log, with the reason: "NCCL 2.28.9", "pinned host memory, because ..."
};

// `wanted`: parallel.exchange. ExitCode::config when it is "nccl" and some rank cannot.
Result<TransportChoice> choose_transport(std::string_view wanted, std::span<const TransportMeans> ranks);

// Counts the transports of a rank that have something open at the same time where `ranks` ranks compute: one
// for its lanes, one for the slices of its layers, and those with its neighbours in the pipeline. The two
// ends of a tied weight exchange when all others rest.
int transports_at_once(const Config& config, int ranks);

// Prepares the environment of a run that may go by NCCL. Call it once, before the program touches CUDA and
// with as few other threads as possible: CUDA and NCCL read most variables once, when they are first used,
// and writing one is no call for a process with threads that read them, so no later moment would do, nor one
// for each membership epoch. It sets what NCCL needs (set_nccl_variables), and where several transports may
// go at once what CUDA must do for them (parallel/nccl/nccl_transport.h). What is set already stays. `config`
// as it was read, `ranks` of the run. ExitCode::config where the environment would make NCCL blocking
// (check_nccl_environment).
Result<void> prepare_cuda_for_nccl(Env& env, const Config& config, int ranks);

// The choice of all ranks together for the device that this one has; and NCCL, if that is the choice.
struct JoinedTransport {
  TransportChoice choice;
  std::unique_ptr<NcclLibrary> nccl;
  int gpu = 0;  // CUDA ordinal
};
Result<JoinedTransport> join_transport(const TrainInputs& inputs, const Waiter& waiter, const Config& config,
                                       const Device& device);

}  // namespace holdfast::inline rank
