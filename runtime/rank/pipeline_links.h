// PipelineLinks: the transports of one rank with the other stages of its pipeline: activations and gradients
// with its neighbours, and what the two ends of a tied weight tell each other.
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
    bool is_ring = false;        // the last stage goes on to the first one's next chunk
    bool has_tied_ends = false;  // the first and the last stage share a weight
  };
  PipelineLinks(Communicator& run, const Mesh& mesh, const Options& options);
  // Those that NCCL can move, before reserve().
  std::vector<NcclGroup> groups();
  // `boundary_bytes`: of a microbatch between two stages; `tied_bytes`: this rank's part of a tied weight.
  void reserve(Device& device, std::uint64_t boundary_bytes, std::uint64_t tied_bytes, MemoryPlan& plan);
  void bind(const MemoryArena& arena);

  StageLinks neighbours();
  Transport* tied() {
    return tied_ == nullptr ? nullptr : &tied_->transport();
  }  // null: this is no end of one

 private:
  using Link = std::unique_ptr<RankTransport>;
  int stage_, stages_;
  Link activations_in_, activations_out_, gradients_in_, gradients_out_, tied_;
};

}  // namespace holdfast::inline rank
