#include "runtime/rank/transport_choice.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "parallel/comm/gather.h"
#include "parallel/nccl/nccl_environment.h"
#include "runtime/os/posix_start.h"
#include "runtime/rank/device_choice.h"

namespace holdfast::rank {
namespace {

std::string rank_text(std::span<const TransportMeans> ranks, std::size_t rank) {
  return fmt::format("rank {} ({})", rank, ranks[rank].host);
}

// Sharing describes the GPU that most ranks share: their number, and the first two of them.
struct Sharing {
  int ranks = 1;
  std::size_t first = 0, second = 0;
};

Sharing sharing_of(std::span<const TransportMeans> ranks) {
  std::map<std::string_view, Sharing> by_gpu;
  Sharing most;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto [found, is_first] = by_gpu.try_emplace(ranks[rank].gpu, Sharing{.first = rank});
    Sharing& here = found->second;
    if (!is_first && ++here.ranks == 2) here.second = rank;
    if (here.ranks > most.ranks) most = here;
  }
  return most;
}

// Returns why these ranks cannot use NCCL together, as a clause; empty when they can.
std::string obstacle_to_nccl(std::span<const TransportMeans> ranks, const Sharing& sharing) {
  const int version = ranks.front().nccl_version;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const TransportMeans& means = ranks[rank];
    if (means.nccl_version == 0) {
      return fmt::format("{} has no NCCL: {}", rank_text(ranks, rank), means.nccl_missing);
    }
    if (means.nccl_version != version) {
      return fmt::format("{} has NCCL {}, but {} has {}", rank_text(ranks, 0), nccl_version_text(version),
                         rank_text(ranks, rank), nccl_version_text(means.nccl_version));
    }
  }
  if (version >= NcclLibrary::version_reconnect_broken_first &&
      version <= NcclLibrary::version_reconnect_broken_last) {
    return fmt::format(
        "NCCL {} may crash when ranks connect again after a death (so do {} to {}; install {} or newer)",
        nccl_version_text(version), nccl_version_text(NcclLibrary::version_reconnect_broken_first),
        nccl_version_text(NcclLibrary::version_reconnect_broken_last),
        nccl_version_text(NcclLibrary::version_reconnect_broken_last + 1));
  }
  if (sharing.ranks > 1 && version < NcclLibrary::version_shared_gpus) {
    return fmt::format("ranks {} and {} share a GPU, which NCCL {} refuses ({} is the first that takes them)",
                       sharing.first, sharing.second, nccl_version_text(version),
                       nccl_version_text(NcclLibrary::version_shared_gpus));
  }
  return {};
}

std::int64_t tensor_of(const Config& config) {
  return std::max<std::int64_t>(1, config.parallel.tensor);
}
std::int64_t pipeline_of(const Config& config) {
  return std::max<std::int64_t>(1, config.parallel.pipeline);
}

// Returns how many of the launched ranks compute.
int without_spares(const Config& config, int ranks) {
  if (config.parallel.data <= 0) return ranks;
  return static_cast<int>(config.parallel.data * tensor_of(config) * pipeline_of(config));
}

// Finds the GPU of this rank, and loads NCCL for it unless parallel.exchange is "host".
Result<void> find_gpu_and_nccl(const TrainInputs& inputs, const Config& config, TransportMeans& mine,
                               JoinedTransport& joined) {
  HF_TRY(const CudaPresence cuda, find_cuda(inputs.env));
  HF_TRY(const CudaFacts gpu, gpu_of_rank(cuda, inputs.place));
  joined.gpu = gpu.ordinal;
  mine.gpu = gpu.uuid;
  if (config.parallel.exchange == "host") return {};
  HF_TRY_VOID(check_nccl_environment(inputs.env));
  HF_TRY(joined.nccl, inputs.load_nccl ? inputs.load_nccl() : cuda.module->load_nccl(nccl_library_file));
  mine.nccl_version = joined.nccl->version();
  NcclThreadBlocks blocks = nccl_thread_blocks(inputs.env);
  mine.thread_blocks = blocks.count;
  mine.blocks_setting = std::move(blocks.setting);
  return {};
}

}  // namespace

Result<TransportChoice> choose_transport(std::string_view wanted, std::span<const TransportMeans> ranks) {
  TransportChoice choice;
  if (ranks.size() == 1) {
    choice.description = "none: there is one rank";
    return choice;
  }
  if (ranks.front().host_sees_memory) {
    if (wanted == "nccl") {
      return fail(
          ExitCode::config,
          "parallel.exchange = \"nccl\", but the run computes on the CPU, and NCCL moves the memory of "
          "GPUs; set device = \"cuda\", or leave parallel.exchange out");
    }
    choice.description = "host memory";
    return choice;
  }
  const Sharing sharing = sharing_of(ranks);
  choice.ranks_per_gpu = sharing.ranks;
  if (wanted == "host") {
    choice.description = "pinned host memory, as parallel.exchange = \"host\" asks";
    return choice;
  }
  const std::string obstacle = obstacle_to_nccl(ranks, sharing);
  if (!obstacle.empty() && wanted == "nccl") {
    return fail(ExitCode::config,
                "parallel.exchange = \"nccl\", but {}. With \"auto\" or \"host\" the run goes through pinned "
                "host memory",
                obstacle);
  }
  if (!obstacle.empty()) {
    choice.description = fmt::format("pinned host memory, because {}", obstacle);
    return choice;
  }
  choice.way = TransportWay::nccl;
  choice.description = fmt::format("NCCL {}", nccl_version_text(ranks.front().nccl_version));
  if (sharing.ranks > 1) {
    choice.description += fmt::format(", up to {} ranks on one GPU", sharing.ranks);
  }
  return choice;
}

std::string thread_block_warning(std::span<const TransportMeans> ranks, int max_ctas) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (max_ctas == 0 || ranks[rank].thread_blocks <= max_ctas) continue;
    return fmt::format(
        "{} of {}, which wins over the limit of {} thread block{} for each communicator: communicators that "
        "share a GPU and do not fit on it together wait for each other until the deadline ends "
        "them; unset it, or lower it to {}",
        ranks[rank].blocks_setting, rank_text(ranks, rank), max_ctas, max_ctas == 1 ? "" : "s", max_ctas);
  }
  return {};
}

int transports_at_once(const Config& config, int ranks) {
  const std::int64_t tensor = tensor_of(config), pipeline = pipeline_of(config);
  const std::int64_t data = ranks / (tensor * pipeline);
  const bool two_neighbours = pipeline > 2 || config.parallel.pipeline_chunks > 1;
  const int of_pipeline = pipeline == 1 ? 0 : two_neighbours ? 4 : 2;  // activations and gradients
  return (data > 1 ? 1 : 0) + (tensor > 1 ? 1 : 0) + of_pipeline;
}

Result<void> prepare_cuda_for_nccl(Env& env, const Config& config, int ranks) {
  if (config.device == "cpu" || config.parallel.exchange == "host" || !may_have_gpu(env)) return {};
  if (ranks > 1) HF_TRY_VOID(check_nccl_environment(env));
  set_nccl_variables(env);
  if (transports_at_once(config, without_spares(config, ranks)) < 2) return {};
  set_variable_if_unset("CUDA_MODULE_LOADING", "EAGER");
  set_variable_if_unset("CUDA_DEVICE_MAX_CONNECTIONS", "32");
  return {};
}

Result<JoinedTransport> join_transport(const TrainInputs& inputs, const Waiter& waiter, const Config& config,
                                       const Device& device) {
  JoinedTransport joined;
  TransportMeans mine{.host = inputs.env.host_name(), .host_sees_memory = device.host_sees_memory()};
  if (!mine.host_sees_memory && inputs.communicator.size() > 1) {
    const Result<void> found = find_gpu_and_nccl(inputs, config, mine, joined);
    if (!found.ok()) mine.nccl_missing = found.error().message;
  }
  HF_TRY(const std::vector<TransportMeans> ranks, gather(inputs.communicator, waiter, mine));
  HF_TRY(joined.choice, choose_transport(config.parallel.exchange, ranks));
  if (joined.choice.way == TransportWay::host) {
    joined.nccl = nullptr;
    return joined;
  }
  const int exchanges = std::max(1, transports_at_once(config, inputs.communicator.size()));
  joined.nccl->share_gpus(joined.choice.ranks_per_gpu, exchanges);
  joined.choice.warning = thread_block_warning(ranks, joined.nccl->max_ctas());
  return joined;
}

}  // namespace holdfast::rank
