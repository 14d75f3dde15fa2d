#include "runtime/rank/rank_links.h"

#include <vector>

#include "runtime/rank/nccl_connection.h"

namespace holdfast::inline rank {

RankLinks::RankLinks(Communicator& run, const Mesh& mesh, const TensorShare& share,
                     const PipelineLinks::Options& pipeline)
    : communicator_(run),
      data_(communicator_, mesh.data_group(run.rank()), TagGroup::data),
      tensor_(communicator_, mesh.tensor_group(run.rank()), TagGroup::tensor),
      tensor_group_(share),
      pipeline_(communicator_, mesh, pipeline) {}

Result<void> RankLinks::connect_nccl(NcclLibrary& library, Env& env, const NcclOptions& options) {
  nccl_session_ = std::make_unique<NcclSession>(library, env, options);
  std::vector<NcclGroup> groups = pipeline_.groups();
  groups.push_back({&data_, Axis::data, "data", NcclPhase::data});
  groups.push_back({&tensor_, Axis::tensor, "tensor", NcclPhase::tensor});
  return connect_nccl_groups(*nccl_session_, communicator_, env, groups);
}

void RankLinks::plan_with_nccl() {
  data_.use(std::make_unique<HostTransport>(data_.group()));
}

void RankLinks::reserve(const LinkBytes& largest, Device& device, MemoryPlan& plan) {
  data_.reserve(device, largest.data, plan);
  tensor_.reserve(device, largest.tensor, plan);
  pipeline_.reserve(device, largest.boundary, largest.tied, plan);
}

void RankLinks::bind(const MemoryArena& arena) {
  data_.bind(arena);
  tensor_.bind(arena);
  pipeline_.bind(arena);
}

void RankLinks::connect_tensor_group(const Waiter& waiter) {
  if (tensor_group_.share().ranks() > 1) tensor_group_.connect(tensor_.transport(), waiter);
}

void RankLinks::abort_nccl(const std::string& reason) {
  if (nccl_session_ != nullptr) static_cast<void>(nccl_session_->abort_all(reason));
}

}  // namespace holdfast::inline rank
