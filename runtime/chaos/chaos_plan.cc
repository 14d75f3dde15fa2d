#include "runtime/chaos/chaos_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <csignal>

#include "runtime/core/check.h"
#include "runtime/core/random.h"

namespace holdfast {
namespace {

constexpr std::int64_t delay_most_us = 60'000;  // within a step of a small run, or some of them
constexpr std::int64_t recovery_least_us = 20'000,
                       recovery_most_us = 80'000;  // from a death: noticed, and hardly mended
constexpr std::array<std::string_view, 4> recovery_points = {"recover.begin", "recover.after_shrink",
                                                             "recover.before_load", "recover.before_resume"};

// One number after another of a stream that is the seed's.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : stream_(seed, stream_of_plans) {}
  std::int64_t between(std::int64_t least, std::int64_t most) {  // both may come
    HF_CHECK(least <= most);
    return least + static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(most - least + 1));
  }
  bool chance(int percent) { return between(0, 99) < percent; }
  template <typename T>
  const T& one_of(const std::vector<T>& list) {
    return list[static_cast<std::size_t>(between(0, std::ssize(list) - 1))];
  }
  std::uint64_t bits() { return stream_.bits(next_++); }

 private:
  static constexpr std::uint64_t stream_of_plans = 0xC4A05;
  RandomStream stream_;
  std::uint64_t next_ = 0;
};

// Most of them can lose a rank and go on without another start.
ChaosLayout draw_layout(Draw& draw, const std::vector<ChaosLayout>& layouts) {
  std::vector<ChaosLayout> robust;
  for (const ChaosLayout& layout : layouts) {
    if (layout.deaths_in_place() > 0) robust.push_back(layout);
  }
  return draw.one_of(robust.empty() || draw.chance(15) ? layouts : robust);
}

// Swarm testing: which faults exist at all differs from seed to seed, so rare ones are not drowned by others.
std::vector<ChaosFault> draw_kinds(Draw& draw, const std::vector<ChaosFault>& possible) {
  std::vector<ChaosFault> kinds;
  for (const ChaosFault fault : possible) {
    if (draw.chance(40)) kinds.push_back(fault);
  }
  if (kinds.empty()) kinds.push_back(draw.one_of(possible));
  return kinds;
}

// Behind different steps, with some left at the end.
std::vector<std::uint64_t> draw_steps(Draw& draw, std::uint64_t steps, std::size_t count) {
  const auto last = static_cast<std::int64_t>(steps > 4 ? steps - 3 : 1);
  std::vector<std::uint64_t> drawn;
  for (std::size_t i = 0; i < count; ++i) drawn.push_back(static_cast<std::uint64_t>(draw.between(1, last)));
  std::ranges::sort(drawn);
  return drawn;
}

// Only the rank that publishes passes these.
bool is_of_publisher(std::string_view point) {
  return point.starts_with("retain.") || point == "save.before_manifest" || point.ends_with("_rename");
}

// Half of them inside a step.
std::string point_of_kill(Draw& draw, const ChaosLimits& limits, const ChaosLayout& layout,
                          const ChaosInjection& injection) {
  std::vector<std::string> in_step;
  for (const std::string& point : limits.points) {
    if (point.starts_with("step.")) in_step.push_back(point);
  }
  const std::string name = draw.one_of(draw.chance(50) && !in_step.empty() ? in_step : limits.points);
  const int rank = is_of_publisher(name) ? 0 : injection.victim % (layout.ranks - layout.spares);
  // A step passes a point of its own once; the others come less often, so an early one.
  const std::uint64_t hit =
      name.starts_with("step.") ? injection.step : static_cast<std::uint64_t>(draw.between(1, 3));
  return fmt::format("{}@{}:{}=kill", name, hit, rank);
}

ChaosInjection draw_injection(Draw& draw, const ChaosLimits& limits, const ChaosLayout& layout,
                              ChaosFault fault, std::uint64_t step) {
  ChaosInjection injection{.fault = fault, .step = step, .delay_us = draw.between(0, delay_most_us)};
  injection.victim = static_cast<int>(draw.between(0, layout.ranks - 1));
  injection.other = static_cast<int>(draw.between(1, std::max(layout.ranks - 1, 1)));
  injection.place = draw.bits();
  switch (fault) {
    case ChaosFault::kill_in_recovery:
      injection.pause_us = draw.between(recovery_least_us, recovery_most_us);
      break;
    case ChaosFault::kill_at_point:
      injection.point = point_of_kill(draw, limits, layout, injection);
      break;
    case ChaosFault::crash:
      injection.signal = draw.chance(50) ? SIGSEGV : SIGABRT;
      break;
    case ChaosFault::livelock:
      injection.point = fmt::format("step.before_reduce@{}:{}=spin", step, injection.victim);
      break;
    case ChaosFault::slow_rank:
      injection.pause_us = 1000 * draw.between(50, 400);
      for (std::uint64_t hit = step; hit < step + 3; ++hit) {
        injection.point += fmt::format("{}step.before_backward@{}:{}=sleep:{}", hit == step ? "" : ",", hit,
                                       injection.victim, injection.pause_us / 1000);
      }
      break;
    default:
      break;
  }
  return injection;
}

void plan_mixture(Draw& draw, const ChaosLimits& limits, ChaosPlan& plan) {
  const std::vector<ChaosFault> kinds = draw_kinds(draw, limits.faults);
  const auto count = static_cast<std::size_t>(draw.between(1, limits.faults_max));
  for (const std::uint64_t step : draw_steps(draw, limits.steps, count)) {
    plan.injections.push_back(draw_injection(draw, limits, plan.layout, draw.one_of(kinds), step));
  }
}

// Of one start: until the copies of the model are used up.
std::vector<ChaosFault> deaths_of_start(Draw& draw, const ChaosLayout& layout) {
  std::vector<ChaosFault> faults;
  int left = layout.deaths_in_place();
  while (left > 0) {
    const ChaosFault fault = left == 1 || draw.chance(5) ? ChaosFault::kill
                             : draw.chance(94)           ? ChaosFault::kill_in_recovery
                                                         : ChaosFault::two_kills;
    faults.push_back(fault);
    left -= fault == ChaosFault::kill ? 1 : 2;
  }
  return faults;
}

void plan_kills(Draw& draw, const ChaosLimits& limits, ChaosPlan& plan) {
  constexpr std::uint64_t steps_each = 4;  // that a death has for itself
  const std::size_t room = std::max<std::size_t>(limits.steps / steps_each, 2) - 1;
  std::vector<ChaosFault> faults;
  while (faults.size() < room) {
    for (const ChaosFault fault : deaths_of_start(draw, plan.layout)) faults.push_back(fault);
    faults.push_back(ChaosFault::mpirun_killed);
  }
  faults.resize(room);
  for (std::size_t i = 0; i < room; ++i) {
    const auto step = steps_each * i + static_cast<std::uint64_t>(draw.between(1, steps_each));
    plan.injections.push_back(draw_injection(draw, limits, plan.layout, faults[i], step));
  }
  // By itself, at the named places of a recovery: in the first one of every start.
  auto first = std::ranges::find(plan.injections, ChaosFault::kill_in_recovery, &ChaosInjection::fault);
  if (first == plan.injections.begin() && draw.chance(70)) {
    const auto point = static_cast<std::size_t>(draw.between(0, std::ssize(recovery_points) - 1));
    first->point = fmt::format("{}:{}=kill", recovery_points[point], first->other % plan.layout.ranks);
  }
}

std::string signal_name(int number) {
  return number == SIGSEGV ? "SIGSEGV" : "SIGABRT";
}

}  // namespace

const ChaosFaultFacts& facts_of(ChaosFault fault) {
  static constexpr std::array<ChaosFaultFacts, chaos_fault_kinds> table = {{
      {.name = "kill", .text = "kill -9 of a rank", .kills_rank = true},
      {.name = "two_kills", .text = "kill -9 of two ranks at once", .kills_rank = true},
      {.name = "kill_in_recovery",
       .text = "kill -9 of a rank, and of another during recovery",
       .kills_rank = true},
      {.name = "kill_at_point", .text = "a rank dies at a named place of the program", .kills_rank = true},
      {.name = "crash", .text = "a rank crashes", .kills_rank = true},
      {.name = "hang", .text = "a rank is stopped and hangs", .kills_rank = true},
      {.name = "livelock", .text = "a rank computes for ever", .kills_rank = true},
      {.name = "slow_rank", .text = "a rank is late for three steps"},
      {.name = "mpirun_killed", .text = "kill -9 of mpirun"},
      {.name = "job_killed", .text = "kill -9 of the launcher", .ends_job = true},
      {.name = "ram_lost", .text = "the whole job dies, and RAM snapshots are gone", .ends_job = true},
      {.name = "damaged_checkpoint",
       .text = "the whole job dies, and the newest checkpoint is damaged",
       .ends_job = true},
      {.name = "full_disk", .text = "the disk is full for a while"},
      {.name = "lost_host", .text = "a host is lost"},
      {.name = "cut_link", .text = "the link between two hosts is cut"},
  }};
  return table[static_cast<std::size_t>(fault)];
}

ChaosPlan plan_chaos(std::uint64_t seed, const ChaosLimits& limits) {
  HF_CHECK(!limits.layouts.empty() && !limits.faults.empty() && !limits.savings.empty());
  Draw draw(seed);
  ChaosPlan plan{
      .seed = seed, .layout = draw_layout(draw, limits.layouts), .saving = draw.one_of(limits.savings)};
  limits.kills_only ? plan_kills(draw, limits, plan) : plan_mixture(draw, limits, plan);
  return plan;
}

std::string fault_points_of(const ChaosPlan& plan) {
  std::string text;
  for (const ChaosInjection& injection : plan.injections) {
    if (injection.point.empty()) continue;
    if (!text.empty()) text += ",";
    text += injection.point;
  }
  return text;
}

std::string to_text(const ChaosLayout& layout) {
  std::string text = fmt::format("{} ranks = {} {} x {} stage{} x {}", layout.ranks, layout.data(),
                                 layout.data() == 1 ? "copy" : "copies", layout.pipeline,
                                 layout.pipeline == 1 ? "" : "s", layout.tensor);
  if (layout.spares > 0) text += fmt::format(" + {} spare{}", layout.spares, layout.spares == 1 ? "" : "s");
  return text;
}

std::string to_text(const ChaosInjection& injection) {
  std::string text(facts_of(injection.fault).text);
  if (injection.fault == ChaosFault::crash) text += fmt::format(" ({})", signal_name(injection.signal));
  if (!injection.point.empty()) return fmt::format("{}: {}", text, injection.point);
  text += fmt::format(", {} ms behind step {}", injection.delay_us / 1000, injection.step);
  if (injection.pause_us > 0) text += fmt::format(", the second {} ms later", injection.pause_us / 1000);
  return text;
}

std::vector<std::string> to_lines(const ChaosPlan& plan) {
  std::vector<std::string> lines = {fmt::format("seed {}: {}{}{}", plan.seed, to_text(plan.layout),
                                                plan.saving.empty() ? "" : ", ", plan.saving)};
  for (const ChaosInjection& injection : plan.injections) lines.push_back("  " + to_text(injection));
  return lines;
}

std::vector<ChaosLayout> layouts_up_to(int ranks_max, int pipeline_max, int tensor_max) {
  std::vector<ChaosLayout> layouts;
  for (int ranks = 2; ranks <= ranks_max; ++ranks) {
    for (int pipeline = 1; pipeline <= std::min(pipeline_max, ranks); ++pipeline) {
      for (int tensor = 1; tensor <= tensor_max && pipeline * tensor <= ranks; tensor *= 2) {
        const int copy = pipeline * tensor;
        for (int spares = ranks % copy; spares <= ranks - copy; spares += copy) {
          layouts.push_back({.ranks = ranks, .pipeline = pipeline, .tensor = tensor, .spares = spares});
        }
      }
    }
  }
  return layouts;
}

}  // namespace holdfast
