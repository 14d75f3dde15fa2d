#include "runtime/launch/restart_policy.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <tuple>

#include "runtime/run/run_layout.h"

namespace holdfast::launch {
namespace {

// Returns whether an exit code would occur at every start. Any other end of a process is a fault of this
// start.
bool meets_every_start(ExitCode code) {
  switch (code) {
    case ExitCode::config:
    case ExitCode::does_not_fit:
    case ExitCode::data:
    case ExitCode::checkpoint:
    case ExitCode::numerics:
      return true;
    case ExitCode::done:
    case ExitCode::saved:
    case ExitCode::communication:
      return false;
  }
  return false;
}

// Starts at the end of the list, one after the other, that reached no step which was not reached before.
int starts_without_progress(std::span<const StartEnd> starts) {
  std::uint64_t reached = starts.front().step_before;
  int count = 0;
  for (const StartEnd& start : starts) {
    count = start.step > reached ? 0 : count + 1;
    reached = std::max(reached, start.step);
  }
  return count;
}

// Returns how many starts at the end of the list ended like the last one. The log of a rank that is killed
// may lack its last step, so two ends that are a step apart are at the same place.
int starts_with_same_fault(std::span<const StartEnd> starts) {
  const StartEnd& last = starts.back();
  if (last.kind.empty()) return 0;
  const auto other = std::find_if(starts.rbegin(), starts.rend(), [&](const StartEnd& start) {
    return start.kind != last.kind || start.step > last.step + 1 || last.step > start.step + 1;
  });
  return static_cast<int>(other - starts.rbegin());
}

// Returns how many short starts at the end of the list ended like the last one, wherever they did.
int short_starts_with_same_fault(std::span<const StartEnd> starts) {
  const auto other = std::find_if(starts.rbegin(), starts.rend(), [&](const StartEnd& start) {
    return !start.is_short || start.kind.empty() || start.kind != starts.back().kind;
  });
  return static_cast<int>(other - starts.rbegin());
}

RestartDecision end_with(ExitCode code, std::string sentence) {
  return {.restart = false, .code = code, .delay_ms = 0, .sentence = std::move(sentence)};
}

// 0 after progress; then the first delay, and twice the one before.
std::int64_t delay_ms(int without_progress, const RestartLimits& limits) {
  if (without_progress == 0) return 0;
  std::int64_t delay = limits.first_delay_ms;
  for (int i = 1; i < without_progress && delay < limits.longest_delay_ms; ++i) delay *= 2;
  return std::min(delay, limits.longest_delay_ms);
}

}  // namespace

RestartDecision after_start(std::span<const StartEnd> starts, bool stop_requested,
                            const RestartLimits& limits) {
  const StartEnd& last = starts.back();
  if (last.record == StartEnd::Record::finished) return end_with(ExitCode::done, "all steps are done");
  if (last.record == StartEnd::Record::saved) {
    return end_with(ExitCode::saved, fmt::format("saved at step {}; start it again to go on", last.step));
  }
  if (last.record == StartEnd::Record::failed && meets_every_start(last.code) && last.reach == Reach::run) {
    return end_with(last.code, "another start would end the same way; what is above says what to do");
  }
  if (stop_requested) {
    return end_with(
        ExitCode::saved,
        fmt::format("stopped on request before it could save ({}): the next start goes on from the "
                    "newest checkpoint or RAM snapshot, with the same bits",
                    last.fault));
  }
  // Returns whether the newest starts, so many, have not lasted long enough.
  const auto is_early = [&](int count, std::int64_t patience_ms) {
    const StartEnd& first = count > 0 ? starts[starts.size() - static_cast<std::size_t>(count)] : last;
    return last.ended_ns - first.begun_ns < patience_ms * 1'000'000;
  };
  const int same = starts_with_same_fault(starts);
  if (same >= limits.same_fault && !is_early(same, limits.same_fault_patience_ms)) {
    return end_with(
        ExitCode::communication,
        fmt::format("{} starts in a row ended behind step {} in the same way ({}): that is no accident, "
                    "and another start would not help",
                    same, last.step, last.fault));
  }
  const int fruitless = starts_without_progress(starts);
  if (fruitless >= limits.without_progress && !is_early(fruitless, limits.patience_ms)) {
    return end_with(ExitCode::communication,
                    fmt::format("{} starts in a row reached no step beyond {}; the last one: {}", fruitless,
                                last.step, last.fault));
  }
  // A fault that comes soon after each start costs more than it leaves, though each makes some steps.
  const int loops = std::max(short_starts_with_same_fault(starts) - limits.same_fault, 0);
  return {.restart = true,
          .code = ExitCode::communication,
          .delay_ms = std::max(delay_ms(fruitless, limits), delay_ms(loops, limits)),
          .sentence = last.fault};
}

int room_on_hosts_left(std::span<const LaunchHost> hosts, const RanksWanted& wanted) {
  const bool slots_known = std::ranges::all_of(hosts, [](const LaunchHost& host) { return host.slots > 0; });
  std::int64_t all = 0, left = 0;
  for (const LaunchHost& host : hosts) {
    const int room = slots_known ? host.slots : 1;
    all += room;
    if (host.answers) left += room;
  }
  if (all == 0) return wanted.ranks;  // nobody is named: mpirun knows
  const bool by_slots = slots_known && (wanted.at_most || wanted.within_slots || all >= wanted.ranks);
  return static_cast<int>(by_slots ? std::min<std::int64_t>(left, wanted.ranks) : wanted.ranks * left / all);
}

std::optional<int> ranks_on_hosts_left(std::span<const LaunchHost> hosts, const RanksWanted& wanted) {
  const int room = room_on_hosts_left(hosts, wanted);
  if (room == wanted.ranks) return room;
  const int copies_wanted = (wanted.ranks - wanted.spares) / wanted.per_copy;
  const int copies = std::min(room / wanted.per_copy, copies_wanted);
  if (copies < std::max(wanted.min_copies, 1)) return std::nullopt;
  return copies == copies_wanted ? room : copies * wanted.per_copy;
}

int spares_for_a_host(std::span<const LaunchHost> hosts, const RanksWanted& wanted) {
  int most = 0;
  for (const LaunchHost& host : hosts) {
    if (host.slots == 0) return wanted.spares;
    most = std::max(most, host.slots);
  }
  return std::min(most, wanted.spares);
}

namespace {

// Returns how many groups of `tensor` ranks fit inside single hosts.
int groups_inside_hosts(std::span<const LaunchHost> hosts, int tensor) {
  int groups = 0;
  for (const LaunchHost& host : hosts) {
    if (!host.answers) continue;
    if (host.slots == 0) return std::numeric_limits<int>::max();  // number of slots not known
    groups += host.slots / tensor;
  }
  return groups;
}

bool can_run(Config run, const StartLayout& layout) {
  run.parallel.data = 0;
  run.parallel.tensor = layout.tensor;
  run.parallel.pipeline = layout.pipeline;
  if (layout.pipeline == 1) run.parallel.pipeline_chunks = 1;
  return check_layout(run, layout.ranks).ok();
}

}  // namespace

std::optional<StartLayout> narrower_layout(const Config& run, std::span<const LaunchHost> hosts,
                                           const RanksWanted& wanted, int min_ranks) {
  const int room = room_on_hosts_left(hosts, wanted);
  const int max_copies = (wanted.ranks - wanted.spares) / wanted.per_copy;
  std::optional<StartLayout> best;
  const auto rank = [](const StartLayout& layout) {
    return std::tuple(layout.ranks, layout.pipeline * layout.tensor, layout.tensor);
  };
  for (int tensor = 1; tensor <= run.parallel.tensor; tensor *= 2) {
    const int groups = std::min(room / tensor, groups_inside_hosts(hosts, tensor));
    for (int pipeline = 1; pipeline <= run.parallel.pipeline; ++pipeline) {
      for (int copies = std::min(groups / pipeline, max_copies); copies >= std::max(wanted.min_copies, 1);
           --copies) {
        const StartLayout layout{.ranks = copies * pipeline * tensor, .pipeline = pipeline, .tensor = tensor};
        if (layout.ranks < min_ranks) break;
        if (!can_run(run, layout)) continue;
        if (!best.has_value() || rank(layout) > rank(*best)) best = layout;
        break;
      }
    }
  }
  return best;
}

}  // namespace holdfast::launch
