// RankLinks holds the connections of one rank to the ranks that it exchanges device memory with: those with
// the same layers and slices (data), those with the other slices (tensor), and the neighbouring stages and
// the other end of a tied weight (pipeline). They share one counted communicator, and one NCCL session if
// NCCL moves the memory.
//
// Call in this order: connect_nccl() if the run uses NCCL, reserve(), bind(), and, once the kernels are
// planned, for which no data has to move, connect_tensor_group().
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "parallel/comm/group_communicator.h"
#include "parallel/comm/host_transport.h"
#include "parallel/data/pinned_transport.h"
#include "parallel/group/mesh.h"
#include "parallel/nccl/nccl_session.h"
#include "parallel/pipeline/stage_executor.h"
#include "parallel/tensor/tensor_group.h"
#include "runtime/core/memory_plan.h"
#include "runtime/core/result.h"
#include "runtime/device/device.h"
#include "runtime/device/nccl_library.h"
#include "runtime/os/env.h"

namespace holdfast::rank {

// LinkBytes holds the size of the largest exchange on each link of a rank.
struct LinkBytes {
  std::uint64_t data = 0;
  std::uint64_t tensor = 0;
  std::uint64_t boundary = 0;  // size of a microbatch between two stages
  std::uint64_t tied = 0;      // size of this rank's part of a tied weight
};

// RankTransport is the transport of device memory between some ranks of the run, with all that it is built
// on: their group of the run's communicator, and pinned buffers if the host does not see the device's memory.
class RankTransport {
 public:
  // Makes the transport. `members`: as for GroupCommunicator; `run` outlives this object. `open`: as for
  // HostTransport.
  RankTransport(Communicator& run, std::vector<int> members, TagGroup tags,
                std::size_t open = HostTransport::open_max)
      : group_(run, std::move(members), tags), host_(group_, open) {}
  // Uses another transport of the same group from now on, which moves the device's memory itself (NCCL's).
  void use(std::unique_ptr<Transport> other) { other_ = std::move(other); }
  // Reserves what one exchange of at most `largest_bytes` needs, if the host does not see the device's
  // memory; otherwise does nothing. Call it before the transport is used.
  void reserve(Device& device, std::uint64_t largest_bytes, MemoryPlan& plan) {
    if (device.host_sees_memory() || group_.size() == 1 || other_ != nullptr) return;
    pinned_ = std::make_unique<PinnedTransport>(host_, device, largest_bytes, plan);
  }
  void bind(const MemoryArena& arena) {
    if (pinned_ != nullptr) pinned_->bind(arena);
  }
  Transport& transport() {
    if (other_ != nullptr) return *other_;
    if (pinned_ != nullptr) return *pinned_;
    return host_;
  }
  Communicator& group() { return group_; }

 private:
  GroupCommunicator group_;
  HostTransport host_;
  std::unique_ptr<PinnedTransport> pinned_;
  std::unique_ptr<Transport> other_;
};

// NcclPhase is when the groups of a kind are connected: one phase after the other, in this order.
enum class NcclPhase { data, tensor, even_stages, odd_stages, wrapped_stages, tied_ends };

// NcclGroup is a group of ranks that NCCL can connect.
struct NcclGroup {
  RankTransport* transport = nullptr;
  Axis axis = Axis::data;
  std::string name;  // name of its communicator, the same on all its ranks
  NcclPhase phase = NcclPhase::data;
};

// PipelineLinks holds the transports of one rank to the other stages of its pipeline: activations and
// gradients with its neighbours, and the exchange between the two ends of a tied weight.
class PipelineLinks {
 public:
  struct Options {
    bool is_ring = false;        // the last stage sends to the next chunk of the first
    bool has_tied_ends = false;  // the first and the last stage share a weight
  };
  PipelineLinks(Communicator& run, const Mesh& mesh, const Options& options);
  // Returns the groups that NCCL can connect. Call it before reserve().
  std::vector<NcclGroup> groups();
  // Reserves the buffers. `boundary_bytes`: size of a microbatch between two stages; `tied_bytes`: size of
  // this rank's part of a tied weight.
  void reserve(Device& device, std::uint64_t boundary_bytes, std::uint64_t tied_bytes, MemoryPlan& plan);
  void bind(const MemoryArena& arena);

  StageLinks neighbours();
  Transport* tied() {
    return tied_ == nullptr ? nullptr : &tied_->transport();
  }  // null: this rank is not at an end of a tied weight

 private:
  using Link = std::unique_ptr<RankTransport>;
  int stage_, stages_;
  Link activations_in_, activations_out_, gradients_in_, gradients_out_, tied_;
};

class RankLinks {
 public:
  // `run` and `mesh` outlive this object.
  RankLinks(Communicator& run, const Mesh& mesh, const TensorShare& share,
            const PipelineLinks::Options& pipeline);

  // Connects NCCL for all links. All ranks call it together, before the memory of the plan is allocated, so
  // that the GPU memory that NCCL takes is counted. If NCCL does not finish in time, options.die ends the
  // process. `library` and `env` outlive this object. Errors are the same on all ranks: the sentence of NCCL or of
  // the deadline (NcclSession::connect), followed by the setting that avoids NCCL; the session has ended then.
  Result<void> connect_nccl(NcclLibrary& library, Env& env, const NcclOptions& options);
  // Plans the memory of a run whose lanes exchange by NCCL, which needs no buffers, without loading NCCL.
  void plan_with_nccl();
  // Reserves buffers if the host does not see the device's memory.
  void reserve(const LinkBytes& largest, Device& device, MemoryPlan& plan);
  void bind(const MemoryArena& arena);
  void connect_tensor_group(const Waiter& waiter);
  // Stops the operations that NCCL has under way on the device, which never end by themselves if a peer has
  // died. After that the links move nothing. Memory that other ranks of the host may use stays until abort_nccl().
  void stop_nccl(const std::string& reason);
  // Gives that memory back, too. Call it when the other ranks have stopped, or have nothing under way.
  void abort_nccl(const std::string& reason);

  CountedCommunicator& communicator() { return communicator_; }  // all ranks of the run
  // Returns what this rank has sent and received since the links were made.
  const AxisTraffic& traffic() { return communicator_.traffic(); }
  Transport& data() { return data_.transport(); }
  // Slices of split tensors that this rank has, and the ranks that have the others.
  TensorGroup& tensor_group() { return tensor_group_; }
  PipelineLinks& pipeline() { return pipeline_; }

 private:
  CountedCommunicator communicator_;
  std::unique_ptr<NcclSession> nccl_session_;  // outlives its transports; null without NCCL
  RankTransport data_, tensor_;
  TensorGroup tensor_group_;
  PipelineLinks pipeline_;
};

}  // namespace holdfast::rank
