#include "parallel/group/layout.h"

#include <fmt/core.h>

#include <bit>
#include <numeric>
#include <string_view>
#include <utility>

#include "parallel/comm/transport.h"

namespace holdfast::parallel {
namespace {

bool is_power_of_two(std::int64_t value) {
  return value > 0 && std::has_single_bit(static_cast<std::uint64_t>(value));
}

class Rules {
 public:
  Rules(const Layout& layout, const LayoutFacts& facts) : layout_(layout), facts_(facts) {}

  std::vector<LayoutProblem> check() {
    check_tensor();
    check_slices();
    check_stages();
    check_lane_blocks();
    if (check_degrees() && check_ranks()) check_lanes();
    return std::move(problems_);
  }

 private:
  template <typename... Values>
  void problem(const char* key, fmt::format_string<Values...> format, Values&&... values) {
    problems_.push_back({key, fmt::format(format, std::forward<Values>(values)...)});
  }

  // Returns the number of ranks of one copy of the model.
  std::int64_t replica() const { return layout_.pipeline * layout_.tensor; }
  std::int64_t data() const { return (layout_.ranks - layout_.spares) / replica(); }
  // Returns "6 ranks were started" or "6 ranks were started, 1 of them a spare (elastic.spares)".
  std::string started() const;

  void check_tensor();
  void check_slices();
  void check_stages();
  void check_lane_blocks();
  bool check_degrees();
  bool check_ranks();
  void check_lanes();

  Layout layout_;
  LayoutFacts facts_;
  std::vector<LayoutProblem> problems_;
};

std::string Rules::started() const {
  std::string text = fmt::format("{} rank{} started", layout_.ranks, layout_.ranks == 1 ? " was" : "s were");
  if (layout_.spares > 0) {
    text += fmt::format(", {} of them {} (elastic.spares)", layout_.spares,
                        layout_.spares == 1 ? "a spare" : "spares");
  }
  return text;
}

void Rules::check_tensor() {
  if (!is_power_of_two(facts_.tensor_lanes)) {
    problem("parallel.tensor_lanes",
            "parallel.tensor_lanes = {} is no power of two: slices are added as a binary tree; give {}",
            facts_.tensor_lanes, std::bit_floor(static_cast<std::uint64_t>(facts_.tensor_lanes)));
  }
  if (layout_.tensor < 1) return;
  if (!is_power_of_two(layout_.tensor)) {
    problem(
        "parallel.tensor",
        "parallel.tensor = {} is no power of two: every rank holds one subtree of the slices; set it to {}",
        layout_.tensor, std::bit_floor(static_cast<std::uint64_t>(layout_.tensor)));
  } else if (facts_.tensor_lanes % layout_.tensor != 0 && is_power_of_two(facts_.tensor_lanes)) {
    problem("parallel.tensor",
            "parallel.tensor = {} does not divide parallel.tensor_lanes = {}: every rank needs a slice; "
            "lower parallel.tensor to {}, or give more parallel.tensor_lanes (a run that is resumed is then "
            "cut anew)",
            layout_.tensor, facts_.tensor_lanes, facts_.tensor_lanes);
  }
}

void Rules::check_slices() {
  struct Split {
    const char* key;
    std::int64_t value;
    const char* why;
  };
  const Split splits[] = {
      {"model.heads", facts_.heads, "every slice has the same number of heads"},
      {"model.kv_heads", facts_.kv_heads, "every slice has the key/value heads of its heads"},
      {"model.feed_forward", facts_.feed_forward, "every slice has the same share of the feed-forward width"},
      {"model.vocabulary", facts_.vocabulary,
       "every slice has the same number of rows of the embedding and the head"},
      {"training.sequence_length", facts_.sequence_length,
       "every slice has the same number of positions in the norms"},
  };
  const std::int64_t lanes = facts_.tensor_lanes;
  if (!is_power_of_two(lanes)) return;
  for (const Split& split : splits) {
    if (split.value % lanes == 0) continue;
    const std::int64_t largest = split.value & -split.value;  // the largest power of two that divides it
    const bool padded = std::string_view(split.key) == "model.vocabulary";
    problem(
        "parallel.tensor_lanes",
        "parallel.tensor_lanes = {} (left out, it is parallel.tensor) does not divide {} = {}{}: {}; give "
        "at most {} tensor lane{}",
        lanes, split.key, split.value, padded ? " (with padding)" : "", split.why, largest,
        largest == 1 ? "" : "s");
  }
}

void Rules::check_stages() {
  if (layout_.chunks > 1 && layout_.schedule != ScheduleKind::interleaved) {
    problem("parallel.pipeline_chunks",
            "parallel.pipeline_chunks = {} needs parallel.pipeline_schedule = interleaved, got {}: a stage "
            "of the others is one piece; change one of the two",
            layout_.chunks, name_of(layout_.schedule));
    return;
  }
  if (layout_.chunks > 1 && layout_.pipeline == 1) {
    problem(
        "parallel.pipeline_chunks",
        "parallel.pipeline_chunks = {} needs a pipeline, got parallel.pipeline = 1: one stage has nothing to "
        "interleave; raise parallel.pipeline, or leave parallel.pipeline_chunks out",
        layout_.chunks);
    return;
  }
  const std::int64_t largest = facts_.layers + 2;
  if (layout_.pipeline * layout_.chunks <= largest) return;
  if (layout_.pipeline <= largest) {
    problem("parallel.pipeline_chunks",
            "parallel.pipeline x pipeline_chunks = {} x {} is more than model.layers = {} + 2: every chunk "
            "needs a layer, the embedding or the head; lower parallel.pipeline_chunks to at most {}",
            layout_.pipeline, layout_.chunks, facts_.layers, largest / layout_.pipeline);
    return;
  }
  problem("parallel.pipeline",
          "parallel.pipeline = {} is more than model.layers = {} + 2: every stage needs a layer, the "
          "embedding or the head; lower parallel.pipeline to at most {}",
          layout_.pipeline, facts_.layers, largest);
}

void Rules::check_lane_blocks() {
  if (facts_.lanes % facts_.lane_block == 0) return;
  problem("parallel.lane_block",
          "parallel.lane_block = {} does not divide parallel.lanes = {}: every block has as many lanes; give "
          "{}, or "
          "leave it out",
          facts_.lane_block, facts_.lanes, std::gcd(facts_.lane_block, facts_.lanes));
}

bool Rules::check_degrees() {
  struct Degree {
    const char* key;
    std::int64_t value, least;
  };
  bool sound = true;
  for (const Degree& degree :
       {Degree{"parallel.pipeline", layout_.pipeline, 1},
        Degree{"parallel.pipeline_chunks", layout_.chunks, 1}, Degree{"parallel.tensor", layout_.tensor, 1},
        Degree{"parallel.data", layout_.data, 0}, Degree{"elastic.spares", layout_.spares, 0}}) {
    if (degree.value >= degree.least) continue;
    problem(degree.key, "{} = {} must be at least {}: raise it, or leave it out", degree.key, degree.value,
            degree.least);
    sound = false;
  }
  return sound;
}

// Returns whether the number of data-parallel ranks is known.
bool Rules::check_ranks() {
  const std::int64_t computing = layout_.ranks - layout_.spares;
  if (computing < 1) {
    problem("elastic.spares", "{}: none is left to compute; start at least {}, or lower elastic.spares",
            started(), layout_.spares + replica());
    return false;
  }
  const std::string with_spares =
      layout_.spares > 0 ? fmt::format(" + {} spare{}", layout_.spares, layout_.spares == 1 ? "" : "s") : "";
  if (layout_.data != 0 && layout_.data * replica() != computing) {
    problem("parallel.data",
            "{}, but parallel.data x tensor x pipeline = {} x {} x {} = {}: start with mpirun -np {}, or "
            "leave parallel.data out",
            started(), layout_.data, layout_.tensor, layout_.pipeline, layout_.data * replica(),
            layout_.data * replica() + layout_.spares);
    return false;
  }
  if (computing % replica() != 0) {
    problem("",
            "{}, which is no multiple of parallel.tensor x pipeline = {} x {} = {}{}: start with mpirun -np "
            "and a multiple of {}{}",
            started(), layout_.tensor, layout_.pipeline, replica(), with_spares, replica(), with_spares);
    return false;
  }
  return true;
}

void Rules::check_lanes() {
  const auto ranks_for = [this](std::int64_t data) { return data * replica() + layout_.spares; };
  if (data() > facts_.lanes) {
    problem("",
            "{}, but parallel.lanes = {}: every data-parallel rank needs a lane; start at most {} ranks "
            "(mpirun -np {}), or give more parallel.lanes (a run that is resumed is then cut anew)",
            started(), facts_.lanes, ranks_for(facts_.lanes), ranks_for(facts_.lanes));
  }
  if (data() > Transport::ranks_max) {
    problem("",
            "{}, which is {} data-parallel ranks; this version takes at most {}: start with mpirun -np {}, "
            "and give each rank more threads",
            started(), data(), Transport::ranks_max, ranks_for(Transport::ranks_max));
  }
}

}  // namespace

std::vector<LayoutProblem> layout_problems(const Layout& layout, const LayoutFacts& facts) {
  HF_CHECK(facts.layers >= 1 && facts.heads >= 1 && facts.kv_heads >= 1 && facts.feed_forward >= 1);
  HF_CHECK(facts.vocabulary >= 1 && facts.sequence_length >= 1 && facts.lanes >= 1 && facts.lane_block >= 1 &&
           facts.tensor_lanes >= 1);
  return Rules(layout, facts).check();
}

MeshShape mesh_shape(const Layout& layout) {
  const std::int64_t replica = layout.pipeline * layout.tensor, computing = layout.ranks - layout.spares;
  HF_CHECK(replica > 0 && computing > 0 && computing % replica == 0, "a layout with problems");
  return {.data = static_cast<int>(computing / replica),
          .pipeline = static_cast<int>(layout.pipeline),
          .tensor = static_cast<int>(layout.tensor),
          .spares = static_cast<int>(layout.spares)};
}

}  // namespace holdfast::parallel
