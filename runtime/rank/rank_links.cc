#include "runtime/rank/rank_links.h"

#include <fmt/core.h>

#include <span>
#include <utility>

#include "parallel/comm/agreement.h"
#include "parallel/comm/transport.h"

namespace holdfast::rank {
namespace {

constexpr int groups_of_phase_max = 2;  // groups of one rank: activations and gradients

Result<void> connect_group(NcclSession& session, CountedCommunicator& run, Env& env, const NcclGroup& group) {
  Communicator& control = group.transport->group();
  if (control.size() == 1) return {};
  Result<std::unique_ptr<Transport>> connected = session.connect(control, group.name);
  if (!connected.ok()) {
    return fail_because(connected.error(), connected.error().code,
                        "{}. parallel.exchange = \"host\" does without NCCL", connected.error().message);
  }
  group.transport->use(std::make_unique<GuardedTransport>(std::move(connected).value(), control, env,
                                                          run.traffic().of(group.axis)));
  return {};
}

Result<void> connect_phase(NcclSession& session, CountedCommunicator& run, Env& env,
                           std::span<const NcclGroup> groups, NcclPhase phase) {
  for (const NcclGroup& group : groups) {
    if (group.phase == phase) HF_TRY_VOID(connect_group(session, run, env, group));
  }
  return {};
}

// Connects the groups; one of a single rank moves nothing and is skipped. All communicators of a rank belong to one
// session and end together.
//
// No deadlock can occur. Connecting is collective over a group, and a rank is in several groups, so it
// happens in phases. In one phase a rank connects with the ranks of at most one group (or twice with the same
// one, in one order), and no phase begins before all ranks of the run have agreed that the one before is
// done. The pairs of a pipeline take three phases: those that start at even stages have no rank in common,
// nor have those that start at odd stages. The pair of the last stage and the first, if the stages form a
// ring, has a phase of its own, because with an odd number of stages it shares a rank with a pair that starts
// at an even stage. So 64 stages take as long as 4.
//
// A failure of one rank is therefore a failure of all: a rank with no group in a phase waits for the outcome
// of the others, and no rank starts a phase with one that has given up.
Result<void> connect_nccl_groups(NcclSession& session, CountedCommunicator& run, Env& env,
                                 std::span<const NcclGroup> groups) {
  const Waiter patient(env, groups_of_phase_max * session.connect_patience_ms());
  for (const NcclPhase phase : {NcclPhase::data, NcclPhase::tensor, NcclPhase::even_stages,
                                NcclPhase::odd_stages, NcclPhase::wrapped_stages, NcclPhase::tied_ends}) {
    const Result<void> mine = connect_phase(session, run, env, groups, phase);
    const Result<void> all = agree_on_outcome(run, patient, mine, env.host_name());
    if (all.ok()) continue;
    static_cast<void>(session.abort_all(all.error().message));
    return all;
  }
  return {};
}

}  // namespace

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

// Adds activations before gradients, so that links between the same stages have the same order on both ranks.
std::vector<NcclGroup> PipelineLinks::groups() {
  std::vector<NcclGroup> groups;
  const auto add = [&](Link& activations, Link& gradients, int from) {
    if (activations == nullptr) return;
    const int to = (from + 1) % stages_;
    const NcclPhase phase = to == 0         ? NcclPhase::wrapped_stages
                            : from % 2 == 0 ? NcclPhase::even_stages
                                            : NcclPhase::odd_stages;
    groups.push_back({activations.get(), Axis::pipeline, fmt::format("activations-{}-{}", from, to), phase});
    groups.push_back({gradients.get(), Axis::pipeline, fmt::format("gradients-{}-{}", to, from), phase});
  };
  add(activations_in_, gradients_out_, (stage_ + stages_ - 1) % stages_);
  add(activations_out_, gradients_in_, stage_);
  if (tied_ != nullptr) groups.push_back({tied_.get(), Axis::pipeline, "tied", NcclPhase::tied_ends});
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

void RankLinks::stop_nccl(const std::string& reason) {
  if (nccl_session_ != nullptr) static_cast<void>(nccl_session_->stop_all(reason));
}

void RankLinks::abort_nccl(const std::string& reason) {
  if (nccl_session_ != nullptr) static_cast<void>(nccl_session_->abort_all(reason));
}

}  // namespace holdfast::rank
