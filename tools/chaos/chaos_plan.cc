#include "tools/chaos/chaos_plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>
#include <utility>

#include "runtime/core/check.h"
#include "runtime/core/random.h"
#include "runtime/os/fault_action.h"

namespace holdfast::chaos {
namespace {

constexpr std::int64_t delay_max_us = 60'000;  // within a step of a small run, or some of them
constexpr std::int64_t stall_max_ms = 8'000;   // longer than the default watchdog.floor
// Calls of slow storage take so long, each so many times in 20, and the storage is slow.
constexpr struct {
  std::uint64_t weight;
  std::int64_t call_ms, least_ms, most_ms;
} slow_calls[] = {{14, 1'000, 10'000, 30'000}, {5, 10'000, 30'000, 60'000}, {1, 60'000, 70'000, 120'000}};
constexpr std::int64_t recovery_max_us = 15'000;  // the others have begun to recover, and are hardly done
constexpr std::int64_t lasts_min = 3, lasts_max = 12;  // steps; what was under way when it began is one
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

// Draws a layout; most draws take one that can lose a rank and go on without another start.
ChaosLayout draw_layout(Draw& draw, const std::vector<ChaosLayout>& layouts) {
  std::vector<ChaosLayout> robust;
  for (const ChaosLayout& layout : layouts) {
    if (layout.deaths_in_place() > 0) robust.push_back(layout);
  }
  return draw.one_of(robust.empty() || draw.chance(15) ? layouts : robust);
}

// Drops faults of other disks: a run has one, and the one that can stall is another one than the one that can be full.
std::vector<ChaosFault> on_one_disk(std::vector<ChaosFault> kinds) {
  const bool stalls = std::ranges::find(kinds, ChaosFault::stalled_disk) != kinds.end();
  if (stalls) std::erase(kinds, ChaosFault::full_disk);
  if (std::ranges::find(kinds, ChaosFault::slow_storage) != kinds.end()) {
    std::erase(kinds, ChaosFault::full_disk);
    std::erase(kinds, ChaosFault::stalled_disk);
  }
  return kinds;
}

// Swarm testing: which faults exist at all differs from seed to seed, so rare ones are not drowned by others.
std::vector<ChaosFault> draw_kinds(Draw& draw, const std::vector<ChaosFault>& possible) {
  std::vector<ChaosFault> kinds;
  for (const ChaosFault fault : possible) {
    if (draw.chance(40)) kinds.push_back(fault);
  }
  if (kinds.empty()) kinds.push_back(draw.one_of(possible));
  return on_one_disk(std::move(kinds));
}

// Draws steps for the injections, ascending, so that some steps are left at the end.
std::vector<std::uint64_t> draw_steps(Draw& draw, std::uint64_t steps, std::size_t count) {
  const auto last = static_cast<std::int64_t>(steps > 4 ? steps - 3 : 1);
  std::vector<std::uint64_t> drawn;
  for (std::size_t i = 0; i < count; ++i) drawn.push_back(static_cast<std::uint64_t>(draw.between(1, last)));
  std::ranges::sort(drawn);
  return drawn;
}

// Returns whether the publishing rank alone passes this point.
bool is_of_publisher(std::string_view point) {
  return point.starts_with("retain.") || point == "save.before_manifest" || point.ends_with("_rename");
}

std::vector<std::string> points_in_step(const ChaosLimits& limits) {
  std::vector<std::string> points;
  for (const std::string& point : limits.points) {
    if (point.starts_with("step.")) points.push_back(point);
  }
  return points;
}

std::uint64_t lanes_of_rank(const ChaosLimits& limits, const ChaosLayout& layout) {
  const std::int64_t copies = std::max(layout.data(), 1);
  return static_cast<std::uint64_t>(std::max<std::int64_t>((limits.lanes + copies - 1) / copies, 1));
}

// The pass of a point of steps with which a rank that passes it from the first step on comes to `step`: once
// a step, or once for each of its lanes.
std::uint64_t pass_of_step(std::string_view point, std::uint64_t step, const ChaosLimits& limits,
                           const ChaosLayout& layout) {
  const bool of_lane = point == "step.before_backward" || point == "step.before_reduce";
  return of_lane ? (step - 1) * lanes_of_rank(limits, layout) + 1 : step;
}

// Half of them inside a step.
std::string point_of_kill(Draw& draw, const ChaosLimits& limits, const ChaosLayout& layout,
                          const ChaosInjection& injection) {
  const std::vector<std::string> in_step = points_in_step(limits);
  const std::string name = draw.one_of(draw.chance(50) && !in_step.empty() ? in_step : limits.points);
  const int rank = is_of_publisher(name) ? 0 : injection.victim % (layout.ranks - layout.spares);
  // Points outside a step are passed less often, so an early pass is drawn.
  const std::uint64_t hit = name.starts_with("step.") ? pass_of_step(name, injection.step, limits, layout)
                                                      : static_cast<std::uint64_t>(draw.between(1, 3));
  return fmt::format("{}@{}:{}=kill", name, hit, rank);
}

std::string point_of_livelock(Draw& draw, const ChaosLimits& limits, const ChaosLayout& layout,
                              const ChaosInjection& injection) {
  const std::vector<std::string> in_step = points_in_step(limits);
  const std::string name = in_step.empty() ? "step.before_reduce" : draw.one_of(in_step);
  return fmt::format("{}@{}:{}=spin", name, pass_of_step(name, injection.step, limits, layout),
                     injection.victim);
}

std::string point_of_gpu_fault(Draw& draw, const ChaosLimits& limits, const ChaosLayout& layout,
                               const ChaosInjection& injection) {
  return fmt::format("step.before_reduce@{}:{}={}",
                     pass_of_step("step.before_reduce", injection.step, limits, layout),
                     injection.victim % (layout.ranks - layout.spares),
                     draw.chance(50) ? "gpu_trap" : "gpu_illegal_address");
}

std::string points_of_slow_rank(const ChaosLimits& limits, const ChaosLayout& layout,
                                const ChaosInjection& injection) {
  constexpr std::uint64_t steps = 3;
  std::string points;
  for (std::uint64_t step = injection.step; step < injection.step + steps; ++step) {
    points += fmt::format("{}step.before_backward@{}:{}=sleep:{}", points.empty() ? "" : ",",
                          pass_of_step("step.before_backward", step, limits, layout), injection.victim,
                          injection.pause_us / 1000);
  }
  return points;
}

// It passes at the next attempt, after some, or on one rank never: what no rank could do in any start would be no run. A
// rank that can never write is one that another copy of the model goes on without.
std::string point_of_storage_error(const ChaosLimits& limits, const ChaosLayout& layout,
                                   const ChaosInjection& injection) {
  constexpr std::uint64_t passes_max = 20, shards_max = 3, loads_max = 2;
  std::uint64_t draw = injection.place;
  const auto drawn = [&draw](std::uint64_t count) {
    const std::uint64_t number = draw % count;
    draw /= count;
    return number;
  };
  const bool reads = injection.fault == ChaosFault::read_error;
  const bool is_on_all = drawn(3) == 0;
  const bool may_last = !is_on_all && (injection.fault != ChaosFault::write_error || layout.data() > 1);
  const std::uint64_t kind = drawn(may_last ? 3 : 2), more = drawn(reads ? passes_max : shards_max);
  const std::string rank =
      is_on_all ? "" : fmt::format(":{}", injection.victim % (layout.ranks - layout.spares));
  const std::string passes = kind == 0   ? ""
                             : kind == 1 ? fmt::format(":EIO:{}", 2 + more)
                                         : fmt::format(":EIO:{}", all_passes);
  const std::uint64_t lanes = limits.lanes > 0 ? static_cast<std::uint64_t>(limits.lanes)
                                               : static_cast<std::uint64_t>(std::max(layout.data(), 1));
  const std::uint64_t samples =
      static_cast<std::uint64_t>(limits.samples_of_step) / lanes * lanes_of_rank(limits, layout);
  if (injection.fault == ChaosFault::load_error)
    return fmt::format("{}@{}{}=error{}", load_point, drawn(loads_max) + 1, rank, passes);
  const std::uint64_t hit = reads ? (injection.step - 1) * samples + 1 : drawn(shards_max) + 1;
  return fmt::format("{}@{}{}=error{}", reads ? read_point : write_point, hit, rank, passes);
}

// Draws no more numbers than other faults do.
std::string point_of_numbers(const ChaosLimits& limits, const ChaosLayout& layout,
                             const ChaosInjection& injection) {
  return number_fault_point(injection.fault,
                            {.step = injection.step,
                             .rank = injection.victim % (layout.ranks - layout.spares),
                             .lanes_of_rank = lanes_of_rank(limits, layout),
                             .samples_of_step = static_cast<std::uint64_t>(limits.samples_of_step),
                             .moment_count = static_cast<std::uint64_t>(limits.moment_count),
                             .draw = injection.place});
}

// Mostly of the run directory, and mostly a second a call.
void draw_slow_storage(Draw& draw, ChaosInjection& injection) {
  constexpr std::uint64_t weights = 20;
  std::uint64_t drawn = injection.place % weights;
  for (const auto& calls : slow_calls) {
    if (drawn < calls.weight) {
      injection.call_ms = calls.call_ms;
      injection.pause_us = 1000 * draw.between(calls.least_ms, calls.most_ms);
      break;
    }
    drawn -= calls.weight;
  }
  injection.of_data = injection.place / weights % 3 == 0;
  injection.lasts = 0;
}

ChaosInjection draw_injection(Draw& draw, const ChaosLimits& limits, const ChaosLayout& layout,
                              ChaosFault fault, std::uint64_t step) {
  ChaosInjection injection{.fault = fault, .step = step, .delay_us = draw.between(0, delay_max_us)};
  injection.victim = static_cast<int>(draw.between(0, layout.ranks - 1));
  injection.other = static_cast<int>(draw.between(1, std::max(layout.ranks - 1, 1)));
  injection.place = draw.bits();
  if (facts_of(fault).of_numbers) injection.point = point_of_numbers(limits, layout, injection);
  if (facts_of(fault).lasts) injection.lasts = static_cast<std::uint64_t>(draw.between(lasts_min, lasts_max));
  if (is_storage_error(fault)) injection.point = point_of_storage_error(limits, layout, injection);
  switch (fault) {
    case ChaosFault::two_kills:
      injection.deaths = 2;
      break;
    case ChaosFault::kill_in_recovery:
      injection.deaths = 2;
      injection.pause_us = draw.between(0, recovery_max_us);
      break;
    case ChaosFault::kill_at_point:
      injection.point = point_of_kill(draw, limits, layout, injection);
      break;
    case ChaosFault::crash:
      injection.signal = draw.chance(50) ? SIGSEGV : SIGABRT;
      break;
    case ChaosFault::livelock:
      injection.point = point_of_livelock(draw, limits, layout, injection);
      break;
    case ChaosFault::stalled_disk:
    case ChaosFault::stalled_output:
    case ChaosFault::unfit_host:
      injection.lasts = 0;
      injection.pause_us = 1000 * draw.between(500, stall_max_ms);
      break;
    case ChaosFault::slow_storage:
      draw_slow_storage(draw, injection);
      break;
    case ChaosFault::gpu_fault:
      injection.point = point_of_gpu_fault(draw, limits, layout, injection);
      break;
    case ChaosFault::host_killed:
    case ChaosFault::sick_host:
      injection.lasts = 0;
      break;
    case ChaosFault::slow_rank:
      injection.pause_us = 1000 * draw.between(50, 400);
      injection.point = points_of_slow_rank(limits, layout, injection);
      break;
    default:
      break;
  }
  return injection;
}

// Drops all injections of this fault but the first. A run has one spoiled sample, because its twin is a run of
// its own, and one rank that is wrong for good: of two nobody can tell which one an audit is about.
void keep_first(std::vector<ChaosInjection>& injections, ChaosFault fault) {
  bool is_first = true;
  std::erase_if(injections, [&](const ChaosInjection& injection) {
    return injection.fault == fault && !std::exchange(is_first, false);
  });
}

void plan_mixture(Draw& draw, const ChaosLimits& limits, ChaosPlan& plan) {
  const std::vector<ChaosFault> kinds = draw_kinds(draw, limits.faults);
  const auto count = static_cast<std::size_t>(draw.between(1, limits.faults_max));
  for (const std::uint64_t step : draw_steps(draw, limits.steps, count)) {
    plan.injections.push_back(draw_injection(draw, limits, plan.layout, draw.one_of(kinds), step));
  }
  keep_first(plan.injections, ChaosFault::bad_sample);
  keep_first(plan.injections, ChaosFault::wrong_product_always);
  const bool of_numbers = std::ranges::any_of(
      plan.injections, [](const ChaosInjection& injection) { return facts_of(injection.fault).of_numbers; });
  if (of_numbers) plan.audits = limits.audits;
}

// Draws one fault after another for a run that is long enough: all kinds in turn, in another order each time.
void plan_regularly(Draw& draw, const ChaosLimits& limits, ChaosPlan& plan) {
  std::vector<ChaosFault> kinds;
  while (std::ssize(plan.injections) < limits.faults_max) {
    if (kinds.empty()) kinds = on_one_disk(limits.faults);
    const auto at = draw.between(0, std::ssize(kinds) - 1);
    const std::uint64_t step = plan.injections.size() + 1;
    plan.injections.push_back(
        draw_injection(draw, limits, plan.layout, kinds[static_cast<std::size_t>(at)], step));
    plan.injections.back().delay_us = limits.every_us;
    kinds.erase(kinds.begin() + at);
  }
}

// Returns the deaths of one start, one after the other: until `left` ranks are dead, then all that remain.
std::vector<ChaosInjection> deaths_of_start(Draw& draw, const ChaosLimits& limits, const ChaosLayout& layout,
                                            int left) {
  constexpr int max_at_once = 6;
  std::vector<ChaosInjection> injections;
  while (left > 0) {
    const int deaths = draw.chance(10) ? 1 : static_cast<int>(draw.between(3, max_at_once));
    ChaosFault fault = ChaosFault::kill_in_recovery;
    if (std::min(deaths, left) == 2 && draw.chance(15)) fault = ChaosFault::two_kills;
    if (std::min(deaths, left) == 1) fault = ChaosFault::kill;
    injections.push_back(draw_injection(draw, limits, layout, fault, 1));
    injections.back().deaths = std::min(deaths, left);
    left -= injections.back().deaths;
  }
  const ChaosFault end = draw.chance(20) ? ChaosFault::mpirun_killed : ChaosFault::all_killed;
  injections.push_back(draw_injection(draw, limits, layout, end, 1));
  return injections;
}

bool is_of_one_start(ChaosFault fault) {
  return fault != ChaosFault::mpirun_killed && fault != ChaosFault::all_killed;
}

// The last start of a run lives on.
void plan_kills(Draw& draw, const ChaosLimits& limits, ChaosPlan& plan) {
  // Steps of a small run are over in milliseconds: more pass than are waited for.
  constexpr std::uint64_t steps_each = 10, steps_between = 4;
  constexpr std::int64_t max_us = 5'000;
  const std::size_t room = std::max<std::size_t>(limits.steps / steps_each, 2) - 1;
  const bool by_itself = draw.chance(50);
  std::vector<ChaosInjection>& injections = plan.injections;
  while (injections.size() < room) {
    const int left = plan.layout.deaths_in_place() - (by_itself ? 1 : 0);
    for (ChaosInjection& injection : deaths_of_start(draw, limits, plan.layout, left))
      injections.push_back(std::move(injection));
  }
  injections.resize(room);
  if (injections.size() > 1 && !is_of_one_start(injections.back().fault)) injections.pop_back();
  for (std::size_t i = 0; i < injections.size(); ++i) {
    injections[i].step = steps_between * i + static_cast<std::uint64_t>(draw.between(1, steps_between));
    injections[i].delay_us = draw.between(0, max_us);
  }
  if (!by_itself) return;
  // The fault point is in a recovery: the first one of every start.
  const auto point = static_cast<std::size_t>(draw.between(0, std::ssize(recovery_points) - 1));
  ChaosInjection injection{.fault = ChaosFault::kill_at_point};
  injection.point = fmt::format("{}:{}=kill", recovery_points[point], draw.between(0, plan.layout.ranks - 1));
  plan.injections.insert(plan.injections.begin(), std::move(injection));
}

std::string signal_name(int number) {
  return number == SIGSEGV ? "SIGSEGV" : "SIGABRT";
}

}  // namespace

ChaosPlan plan_chaos(std::uint64_t seed, const ChaosLimits& limits) {
  HF_CHECK(!limits.layouts.empty() && !limits.faults.empty() && !limits.savings.empty());
  Draw draw(seed);
  ChaosPlan plan{
      .seed = seed, .layout = draw_layout(draw, limits.layouts), .saving = draw.one_of(limits.savings)};
  if (limits.kills_only) plan.layout = limits.layouts[seed % limits.layouts.size()];
  if (limits.kills_only) {
    plan_kills(draw, limits, plan);
  } else if (limits.every_us > 0) {
    plan_regularly(draw, limits, plan);
  } else {
    plan_mixture(draw, limits, plan);
  }
  return plan;
}

std::string fault_points_of(const ChaosPlan& plan, const ArmedPoints& armed) {
  std::string text;
  for (const ChaosInjection& injection : plan.injections) {
    const bool is_of_data = injection.fault == ChaosFault::bad_sample;
    const bool is_armed =
        is_armed_later(injection) ? &injection == armed.later : is_of_data || !armed.only_of_data;
    if (injection.point.empty() || !is_armed) continue;
    if (!text.empty()) text += ",";
    text += injection.point;
  }
  return text;
}

bool is_armed_later(const ChaosInjection& injection) {
  return !injection.point.empty() && facts_of(injection.fault).ends_job;
}

bool is_armed_by(const ChaosInjection& injection, std::string_view point, std::uint64_t hit, int rank,
                 std::string_view action) {
  const std::string place = hit == 1 && injection.point.find('@') == std::string::npos
                                ? std::string(point)
                                : fmt::format("{}@{}", point, hit);
  for (const std::string& of_rank : {fmt::format(":{}", rank), std::string()}) {
    if (injection.point.find(fmt::format("{}{}={}", place, of_rank, action)) != std::string::npos)
      return true;
  }
  return false;
}

std::string to_text(const ChaosLayout& layout) {
  std::string text = fmt::format("{} ranks = {} {} x {} stage{} x {}", layout.ranks, layout.data(),
                                 layout.data() == 1 ? "copy" : "copies", layout.pipeline,
                                 layout.pipeline == 1 ? "" : "s", layout.tensor);
  if (layout.spares > 0) text += fmt::format(" + {} spare{}", layout.spares, layout.spares == 1 ? "" : "s");
  return text;
}

std::string what_is_slow(const ChaosInjection& injection) {
  return fmt::format("each call to the {} takes {} s", injection.of_data ? "training data" : "run directory",
                     injection.call_ms / 1000);
}

std::string to_text(const ChaosInjection& injection) {
  std::string text(facts_of(injection.fault).text);
  if (injection.fault == ChaosFault::crash) text += fmt::format(" ({})", signal_name(injection.signal));
  if (!injection.point.empty()) text += ": " + injection.point;
  if (!injection.point.empty() && !is_armed_later(injection)) return text;
  if (injection.fault == ChaosFault::slow_storage) text += ": " + what_is_slow(injection);
  text += fmt::format(", {} ms behind step {}", injection.delay_us / 1000, injection.step);
  if (injection.lasts > 0) text += fmt::format(", for {} steps", injection.lasts);
  if (is_timed(injection.fault))
    text += fmt::format(", for {:.1f} s", static_cast<double>(injection.pause_us) / 1e6);
  if (injection.fault == ChaosFault::kill_in_recovery)
    text += fmt::format(", {} in all, each {} ms after recovery began", injection.deaths,
                        injection.pause_us / 1000);
  return text;
}

std::vector<std::string> to_lines(const ChaosPlan& plan) {
  std::vector<std::string> lines = {fmt::format("seed {}: {}", plan.seed, to_text(plan.layout))};
  for (const std::string& word : {plan.saving, plan.audits})
    if (!word.empty()) lines.front() += ", " + word;
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

std::optional<ChaosLayout> read_layout(std::string_view text) {
  std::array<int, 4> numbers = {0, 0, 0, 0};  // copies, stages, ranks of a layer, spares
  const std::array<std::string_view, 4> between = {"", "x", "x", "+"};
  const char* at = text.data();
  const char* end = text.data() + text.size();
  for (std::size_t i = 0; i < numbers.size() && (i < 3 || at != end); ++i) {
    if (!std::string_view(at, end).starts_with(between[i])) return std::nullopt;
    const auto [next, error] = std::from_chars(at + between[i].size(), end, numbers[i]);
    const bool good = error == std::errc() && numbers[i] >= (i < 3 ? 1 : 0) && numbers[i] <= 4096;
    if (!good) return std::nullopt;
    at = next;
  }
  if (at != end) return std::nullopt;
  const auto [data, pipeline, tensor, spares] = numbers;
  return ChaosLayout{
      .ranks = data * pipeline * tensor + spares, .pipeline = pipeline, .tensor = tensor, .spares = spares};
}

std::string to_word(const ChaosLayout& layout) {
  return fmt::format("{}x{}x{}{}", layout.data(), layout.pipeline, layout.tensor,
                     layout.spares > 0 ? fmt::format("+{}", layout.spares) : "");
}

}  // namespace holdfast::chaos
