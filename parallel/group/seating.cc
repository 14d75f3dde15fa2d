#include "parallel/group/seating.h"

#include <algorithm>

#include "runtime/core/check.h"

namespace holdfast {

int Seating::seat_of(int rank) const {
  const auto seat = std::ranges::find(rank_of_seat, rank);
  return seat == rank_of_seat.end() ? -1 : static_cast<int>(seat - rank_of_seat.begin());
}

Seating seating_of(const Mesh& mesh) {
  Seating seating{.shape = mesh.shape(), .rank_of_seat = {}, .spares = mesh.spares()};
  seating.shape.spares = 0;
  const MeshShape& shape = mesh.shape();
  for (int data = 0; data < shape.data; ++data) {
    for (int pipeline = 0; pipeline < shape.pipeline; ++pipeline) {
      for (int tensor = 0; tensor < shape.tensor; ++tensor) {
        seating.rank_of_seat.push_back(mesh.rank_at({.data = data, .pipeline = pipeline, .tensor = tensor}));
      }
    }
  }
  return seating;
}

Result<Seating> plan_seating(const SeatingWish& wish, std::span<const std::string> host_of_rank) {
  HF_CHECK(wish.data_least >= 1 && wish.data_most >= wish.data_least);
  const int ranks = static_cast<int>(host_of_rank.size()), copy = wish.pipeline * wish.tensor;
  for (int data = std::min(wish.data_most, ranks / copy); data >= wish.data_least; --data) {
    const MeshShape shape{
        .data = data, .pipeline = wish.pipeline, .tensor = wish.tensor, .spares = ranks - data * copy};
    if (const Result<Mesh> mesh = Mesh::placed(shape, host_of_rank); mesh.ok()) return seating_of(*mesh);
  }
  return fail(ExitCode::communication,
              "{} rank{} left, which {} not enough for {} cop{} of the model with parallel.tensor x pipeline "
              "= {} x {} ranks each{}: the run ends here. Start it again with as many ranks as it had; it "
              "goes on from the newest step that is whole",
              ranks, ranks == 1 ? " is" : "s are", ranks == 1 ? "is" : "are", wish.data_least,
              wish.data_least == 1 ? "y" : "ies", wish.tensor, wish.pipeline,
              wish.data_least > 1 ? ", the fewest that elastic.min_data_parallel allows" : "");
}

}  // namespace holdfast
