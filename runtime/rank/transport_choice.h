// Chooses how the device's memory travels between the ranks of a run: by NCCL from GPU to GPU, or through the
// host by the communicator. All ranks make the same choice, from what each of them has. It never changes a
// bit.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "parallel/comm/collectives.h"
#include "runtime/device/device.h"
#include "runtime/device/nccl_library.h"
#include "runtime/rank/train_inputs.h"

namespace holdfast::rank {

enum class TransportWay {
  host,  // communicator: memory that the host sees directly, GPU memory through pinned buffers
  nccl,
};

// TransportMeans is what one rank contributes to the choice.
struct TransportMeans {
  std::string host = {};          // host name, for messages
  bool host_sees_memory = false;  // Device::host_sees_memory()
  std::string gpu = {};           // CudaFacts::uuid
  int nccl_version = 0;           // 0: this rank has no NCCL
  std::string nccl_missing = {};  // reason why it has none, a clause
  int thread_blocks = 0;          // NcclThreadBlocks of this rank
  std::string blocks_setting = {};

  static void visit_fields(auto& self, auto&& visit) {
    visit("host", self.host);
    visit("host_sees_memory", self.host_sees_memory);
    visit("gpu", self.gpu);
    visit("nccl_version", self.nccl_version);
    visit("nccl_missing", self.nccl_missing);
    visit("thread_blocks", self.thread_blocks);
    visit("blocks_setting", self.blocks_setting);
  }
};

struct TransportChoice {
  TransportWay way = TransportWay::host;
  int ranks_per_gpu = 1;     // largest number of ranks that share a GPU
  std::string description;   // for the log: "NCCL 2.28.9", "pinned host memory, because ..."
  std::string warning = {};  // sentence for the user; empty: none
};

// Chooses the transport for all ranks. `wanted`: parallel.exchange. ExitCode::config when it is "nccl" and
// some rank cannot use NCCL.
Result<TransportChoice> choose_transport(std::string_view wanted, std::span<const TransportMeans> ranks);

// Returns a sentence about the first rank whose environment gives communicators of NCCL more thread blocks than the
// limit `max_ctas` (NcclLibrary::max_ctas(); 0: there is none); empty where no rank's does.
std::string thread_block_warning(std::span<const TransportMeans> ranks, int max_ctas);

// Returns how many transports of a rank are in use at the same time if `ranks` ranks compute: one for its
// lanes, one for the slices of its layers, and those to its neighbours in the pipeline. The two ends of a
// tied weight exchange when all other transports are idle.
int transports_at_once(const Config& config, int ranks);

// Prepares the environment of a run that may use NCCL. Call it once, before the program touches CUDA and with
// as few other threads as possible: CUDA and NCCL read most variables once, when they are first used, and
// setting a variable is not safe in a process whose threads read the environment. So it can run neither at a
// later moment nor once for each membership epoch. It sets what NCCL needs (set_nccl_variables), and what
// CUDA needs if several transports may be in use at once (parallel/nccl/nccl_transport.h). Variables that are
// set already stay. `config` is as it was read, `ranks` are those of the run. ExitCode::config if the
// environment would make NCCL blocking (check_nccl_environment).
Result<void> prepare_cuda_for_nccl(Env& env, const Config& config, int ranks);

// JoinedTransport is the choice of all ranks together for the device that this rank has, and NCCL if that is
// chosen.
struct JoinedTransport {
  TransportChoice choice;
  std::unique_ptr<NcclLibrary> nccl;
  int gpu = 0;  // CUDA ordinal
};
Result<JoinedTransport> join_transport(const TrainInputs& inputs, const Waiter& waiter, const Config& config,
                                       const Device& device);

}  // namespace holdfast::rank
