// RankLinks holds the connections of one rank to the ranks that it exchanges device memory with: those with
// the same layers and slices (data), those with the other slices (tensor), and the neighbouring stages and
// the other end of a tied weight (pipeline). They share one counted communicator, and one NCCL session if
// NCCL moves the memory.
//
// Call in this order: connect_nccl() or connect_nccl_beside() if the run uses NCCL, reserve(), bind(), and, once the
// kernels are planned, for which no data has to move, connect_tensor_group().
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "parallel/comm/group_communicator.h"
#include "parallel/group/mesh.h"
#include "parallel/nccl/nccl_session.h"
#include "parallel/pipeline/stage_executor.h"
#include "parallel/tensor/tensor_group.h"
#include "runtime/core/memory_plan.h"
#include "runtime/core/result.h"
#include "runtime/device/device.h"
#include "runtime/device/nccl_library.h"
#include "runtime/os/env.h"
#include "runtime/rank/nccl_connecting.h"
#include "runtime/rank/rank_transport.h"

namespace holdfast::rank {

// LinkBytes holds the size of the largest exchange on each link of a rank.
struct LinkBytes {
  std::uint64_t data = 0;
  std::uint64_t tensor = 0;
  std::uint64_t boundary = 0;  // size of a microbatch between two stages
  std::uint64_t tied = 0;      // size of this rank's part of a tied weight
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
  // process. `library` and `env` outlive this object. Errors: those of NcclConnecting.
  Result<void> connect_nccl(NcclLibrary& library, Env& env, const NcclOptions& options);
  // Has NCCL connected beside the steps, which go over the host's memory until then: advance_nccl() goes on with it.
  void connect_nccl_beside(NcclLibrary& library, Env& env, const NcclOptions& options);
  bool connects_nccl() const { return connecting_ != nullptr; }
  // Returns whether NCCL moves the messages.
  bool is_over_nccl() const { return is_over_nccl_; }
  // Goes on with connecting; all ranks call it together, between two steps. Returns whether NCCL is connected; then the
  // callers finish what is open, and all call use_nccl(). After an error of NCCL the links stay as they are.
  Result<bool> advance_nccl();
  void use_nccl();
  // Plans the memory of a run whose lanes exchange by NCCL, which needs no buffers, without loading NCCL.
  void plan_with_nccl();
  // Reserves buffers if the host does not see the device's memory.
  void reserve(const LinkBytes& largest, Device& device, MemoryPlan& plan);
  void bind(const MemoryArena& arena);
  void connect_tensor_group(Device& device, const Waiter& waiter);
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
  std::vector<NcclGroup> nccl_groups();

  std::unique_ptr<NcclSession> nccl_session_;  // outlives its transports; null without NCCL
  RankTransport data_, tensor_;
  TensorGroup tensor_group_;
  PipelineLinks pipeline_;
  std::unique_ptr<NcclConnecting> connecting_;  // null: all is connected, or NCCL is not used
  bool is_over_nccl_ = false;
};

}  // namespace holdfast::rank
