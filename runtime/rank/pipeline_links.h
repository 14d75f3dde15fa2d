// PipelineLinks holds the transports of one rank to the other stages of its pipeline: activations and
// gradients with its neighbours, and the exchange between the two ends of a tied weight.
#pragma once

#include <memory>
#include <vector>

#include "parallel/group/mesh.h"
#include "parallel/pipeline/stage_executor.h"
#include "runtime/rank/nccl_connection.h"
#include "runtime/rank/rank_transport.h"

namespace holdfast::inline rank {

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

}  // namespace holdfast::inline rank
