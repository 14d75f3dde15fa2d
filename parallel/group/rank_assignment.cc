#include "parallel/group/rank_assignment.h"

#include <algorithm>

#include "runtime/core/check.h"

namespace holdfast::parallel {

int RankAssignment::coordinate_of(int rank) const {
  const auto coordinate = std::ranges::find(active_ranks, rank);
  return coordinate == active_ranks.end() ? -1 : static_cast<int>(coordinate - active_ranks.begin());
}

RankAssignment assignment_of(const Mesh& mesh) {
  RankAssignment assignment{.shape = mesh.shape(), .active_ranks = {}, .spares = mesh.spares()};
  assignment.shape.spares = 0;
  const MeshShape& shape = mesh.shape();
  for (int data = 0; data < shape.data; ++data) {
    for (int pipeline = 0; pipeline < shape.pipeline; ++pipeline) {
      for (int tensor = 0; tensor < shape.tensor; ++tensor) {
        assignment.active_ranks.push_back(
            mesh.rank_at({.data = data, .pipeline = pipeline, .tensor = tensor}));
      }
    }
  }
  return assignment;
}

Result<RankAssignment> assign_ranks(const AssignmentRequest& request,
                                    std::span<const std::string> host_of_rank) {
  HF_CHECK(request.data_min >= 1 && request.data_max >= request.data_min);
  const int ranks = static_cast<int>(host_of_rank.size()), copy = request.pipeline * request.tensor;
  for (int data = std::min(request.data_max, ranks / copy); data >= request.data_min; --data) {
    const MeshShape shape{
        .data = data, .pipeline = request.pipeline, .tensor = request.tensor, .spares = ranks - data * copy};
    if (const Result<Mesh> mesh = Mesh::placed(shape, host_of_rank); mesh.ok()) return assignment_of(*mesh);
  }
  return fail(ExitCode::communication,
              "{} rank{} left, which {} not enough for {} cop{} of the model with parallel.tensor x pipeline "
              "= {} x {} ranks each{}: the run ends here. Start it again with as many ranks as it had; it "
              "goes on from the newest step that is whole",
              ranks, ranks == 1 ? " is" : "s are", ranks == 1 ? "is" : "are", request.data_min,
              request.data_min == 1 ? "y" : "ies", request.tensor, request.pipeline,
              request.data_min > 1 ? ", the fewest that elastic.min_data_parallel allows" : "");
}

}  // namespace holdfast::parallel
