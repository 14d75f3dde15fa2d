#include "runtime/rank/rank_links.h"

#include <fmt/core.h>

#include <utility>

namespace holdfast::rank {
PipelineLinks::PipelineLinks(Communicator& run, const Mesh& mesh, const Options& options)
    : stage_(mesh.coordinate_of(run.rank()).pipeline), stages_(mesh.shape().pipeline) {
  const std::vector<int> line = mesh.pipeline_line(run.rank());
  const int stage = stage_, stages = stages_;
  if (stages == 1) return;
  const auto link = [&](int from, int to, TagGroup tags) {
    const std::vector<int> pair = {line[static_cast<std::size_t>(from)], line[static_cast<std::size_t>(to)]};
    constexpr std::size_t open_max = 64;  // few: these links share their requests with the data group
    return std::make_unique<RankTransport>(run, pair, tags, open_max);
  };
  // The direction from the last stage to the first has tags of its own, because with two stages both
  // directions are between the same ranks.
  const auto connect = [&](int from, int to, Link& activations, Link& gradients) {
    const bool wraps = to == 0;
    activations = link(from, to, wraps ? TagGroup::wrapped_activations : TagGroup::activations);
    gradients = link(from, to, wraps ? TagGroup::wrapped_gradients : TagGroup::gradients);
  };
  if (stage > 0 || options.is_ring)
    connect((stage + stages - 1) % stages, stage, activations_in_, gradients_out_);
  if (stage + 1 < stages || options.is_ring)
    connect(stage, (stage + 1) % stages, activations_out_, gradients_in_);
  if (options.has_tied_ends && (stage == 0 || stage + 1 == stages))
    tied_ = link(0, stages - 1, TagGroup::tied_weights);
}

std::vector<NcclGroup> PipelineLinks::groups() {
  std::vector<NcclGroup> groups;
  const auto add = [&](Link& activations, Link& gradients, int from) {
    if (activations == nullptr) return;
    const int to = (from + 1) % stages_;
    const bool is_even = from % 2 == 0;
    const NcclTurn turn = to == 0   ? NcclTurn::wrapped_activations
                          : is_even ? NcclTurn::even_activations
                                    : NcclTurn::odd_activations;
    const NcclTurn next = to == 0   ? NcclTurn::wrapped_gradients
                          : is_even ? NcclTurn::even_gradients
                                    : NcclTurn::odd_gradients;
    groups.push_back({activations.get(), Axis::pipeline, fmt::format("activations-{}-{}", from, to), turn});
    groups.push_back({gradients.get(), Axis::pipeline, fmt::format("gradients-{}-{}", to, from), next});
  };
  add(activations_in_, gradients_out_, (stage_ + stages_ - 1) % stages_);
  add(activations_out_, gradients_in_, stage_);
  if (tied_ != nullptr) groups.push_back({tied_.get(), Axis::pipeline, "tied", NcclTurn::tied_ends});
  return groups;
}

void PipelineLinks::reserve(Device& device, std::uint64_t boundary_bytes, std::uint64_t tied_bytes,
                            MemoryPlan& plan) {
  for (const Link* link : {&activations_in_, &activations_out_, &gradients_in_, &gradients_out_}) {
    if (*link != nullptr) (*link)->reserve(device, boundary_bytes, plan);
  }
  if (tied_ != nullptr && tied_bytes > 0) tied_->reserve(device, tied_bytes, plan);
}

void PipelineLinks::bind(const MemoryArena& arena) {
  for (const Link* link : {&activations_in_, &activations_out_, &gradients_in_, &gradients_out_, &tied_}) {
    if (*link != nullptr) (*link)->bind(arena);
  }
}

StageLinks PipelineLinks::neighbours() {
  const auto exchange_of = [](const Link& link) { return link == nullptr ? nullptr : &link->transport(); };
  return {.activations_in = exchange_of(activations_in_),
          .activations_out = exchange_of(activations_out_),
          .gradients_in = exchange_of(gradients_in_),
          .gradients_out = exchange_of(gradients_out_)};
}

RankLinks::RankLinks(Communicator& run, const Mesh& mesh, const TensorShare& share,
                     const PipelineLinks::Options& pipeline)
    : communicator_(run),
      data_(communicator_, mesh.data_group(run.rank()), TagGroup::data),
      tensor_(communicator_, mesh.tensor_group(run.rank()), TagGroup::tensor),
      tensor_group_(share),
      pipeline_(communicator_, mesh, pipeline) {}

std::vector<NcclGroup> RankLinks::nccl_groups() {
  std::vector<NcclGroup> groups = pipeline_.groups();
  groups.push_back({&data_, Axis::data, "data", NcclTurn::data});
  groups.push_back({&tensor_, Axis::tensor, "tensor", NcclTurn::tensor});
  return groups;
}

Result<void> RankLinks::connect_nccl(NcclLibrary& library, Env& env, const NcclOptions& options) {
  nccl_session_ = std::make_unique<NcclSession>(library, env, options);
  HF_TRY_VOID(NcclConnecting(*nccl_session_, communicator_, env, nccl_groups()).connect());
  is_over_nccl_ = true;
  return {};
}

void RankLinks::connect_nccl_beside(NcclLibrary& library, Env& env, const NcclOptions& options) {
  nccl_session_ = std::make_unique<NcclSession>(library, env, options);
  std::vector<NcclGroup> groups = nccl_groups();
  for (const NcclGroup& group : groups) group.transport->expect_another();
  connecting_ = std::make_unique<NcclConnecting>(*nccl_session_, communicator_, env, std::move(groups));
}

Result<bool> RankLinks::advance_nccl() {
  Result<bool> is_connected = connecting_->advance();
  if (!is_connected.ok()) connecting_.reset();
  return is_connected;
}

void RankLinks::use_nccl() {
  connecting_->hand_over();
  connecting_.reset();
  is_over_nccl_ = true;
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

void RankLinks::connect_tensor_group(Device& device, const Waiter& waiter) {
  if (tensor_group_.share().ranks() > 1) tensor_group_.connect(tensor_.transport(), device, waiter);
}

void RankLinks::stop_nccl(const std::string& reason) {
  if (nccl_session_ != nullptr) static_cast<void>(nccl_session_->stop_all(reason));
}

void RankLinks::abort_nccl(const std::string& reason) {
  if (nccl_session_ != nullptr) static_cast<void>(nccl_session_->abort_all(reason));
}

}  // namespace holdfast::rank
