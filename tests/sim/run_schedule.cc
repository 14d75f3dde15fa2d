#include "tests/sim/run_schedule.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "runtime/core/random.h"

namespace holdfast::test {
namespace {

// A point of the program, and how often a rank passes it in a run of twelve steps.
struct Point {
  const char* name;
  int hits;
};
constexpr Point points[] = {{"start.before_join", 1},
                            {"start.after_join", 1},
                            {"step.begin", 12},
                            {"step.before_backward", 40},
                            {"step.before_reduce", 12},
                            {"step.before_vote", 12},
                            {"step.after_vote", 12},
                            {"step.before_update", 12},
                            {"step.before_gather", 12},
                            {"step.end", 12},
                            {"data.before_batch", 40},
                            {"evaluation.begin", 2},
                            {"snapshot.before_copy", 12},
                            {"snapshot.mid_copy", 12},
                            {"snapshot.before_seal", 12},
                            {"snapshot.after_seal", 12},
                            {"save.before_shard", 4},
                            {"save.mid_shard", 4},
                            {"save.after_shard", 4},
                            {"save.before_manifest", 4},
                            {"save.before_rename", 4},
                            {"save.after_rename", 4},
                            {"retain.before_rename", 2},
                            {"retain.after_rename", 2},
                            {"recover.begin", 2},
                            {"recover.after_shrink", 2},
                            {"recover.before_load", 2},
                            {"recover.before_resume", 2},
                            {"rollback.begin", 1},
                            {"generation.before_publish", 2},
                            {"generation.after_publish", 2},
                            {"load.before_read", 2},
                            {"load.before_snapshot", 2},
                            {"slot.before_resize", 2},
                            {"slot.after_resize", 2},
                            {"slot.before_unseal", 4},
                            {"slot.before_rename", 2},
                            {"grow.begin", 2},
                            {"grow.after_spawn", 2},
                            {"grow.before_load", 2},
                            {"reduce.received", 20},
                            {"log.before_line", 30}};
constexpr const char* disk_operations[] = {"read",        "write",   "sync",      "open",
                                           "rename",      "remove",  "read_text", "sync_directory",
                                           "append_line", "allocate"};
constexpr const char* ram_lost = "ram_lost";
constexpr const char* damaged = "damaged";

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : stream_(seed, 0x5c4ed01e) {}
  bool happens(double probability) { return stream_.uniform(next_++) < probability; }
  // Returns a number from 0 to count - 1.
  std::size_t below(std::size_t count) {
    return std::min(count - 1,
                    static_cast<std::size_t>(stream_.uniform(next_++) * static_cast<double>(count)));
  }
  int from(int first, int last) {
    return first + static_cast<int>(below(static_cast<std::size_t>(last - first + 1)));
  }

 private:
  RandomStream stream_;
  std::uint64_t next_ = 0;
};

std::string draw_fault(Draw& draw, const RunSchedule& schedule, const ScheduleOptions& options) {
  const int rank = draw.from(0, schedule.ranks - 1 + schedule.newcomers);
  if (draw.happens(options.disk_fault)) {
    if (draw.happens(options.death_at_disk_fault))
      return fmt::format("disk.any@{}:{}=EIO:dies", draw.from(1, 400), rank);
    const char* const operation = disk_operations[draw.below(std::size(disk_operations))];
    const bool for_ever = draw.happens(options.disk_fault_for_ever);
    return fmt::format("disk.{}@{}:{}=EIO{}", operation, draw.from(1, 60), rank, for_ever ? ":ever" : "");
  }
  const Point& point = points[draw.below(std::size(points))];
  const char* const action = draw.happens(0.85) ? "kill" : draw.happens(0.5) ? "sleep:500" : "sleep:5000";
  return fmt::format("{}@{}:{}={}", point.name, draw.from(1, point.hits), rank, action);
}

}  // namespace

RunSchedule draw_schedule(std::uint64_t seed, const ScheduleOptions& options) {
  Draw draw(seed);
  RunSchedule schedule;
  schedule.ranks = draw.from(1, options.ranks_max);
  if (schedule.ranks > 1 && draw.happens(options.spares)) schedule.spares = 1;
  if ((schedule.ranks - schedule.spares) % 2 == 0 && draw.happens(options.pipeline)) schedule.pipeline = 2;
  if (draw.happens(options.newcomers)) schedule.newcomers = 1;
  constexpr int intervals[] = {0, 1, 1, 3}, disk_intervals[] = {0, 2, 4, 5};
  schedule.ram_every = intervals[draw.below(std::size(intervals))];
  schedule.disk_every = disk_intervals[draw.below(std::size(disk_intervals))];
  if (draw.happens(options.late_messages)) schedule.message_us = draw.happens(0.5) ? 300 : 20'000;
  if (draw.happens(options.slow_storage)) schedule.storage_us = draw.happens(0.7) ? 5'000 : 700'000;
  const int starts = draw.from(1, options.starts_max);
  for (int start = 0; start < starts; ++start) {
    std::vector<std::string>& happens = schedule.starts.emplace_back();
    if (start > 0 && draw.happens(options.lost_ram)) happens.emplace_back(ram_lost);
    if (start > 0 && draw.happens(options.damaged)) happens.emplace_back(damaged);
    for (int fault = draw.from(start == 0 ? 1 : 0, options.faults_max); fault > 0; --fault)
      happens.push_back(draw_fault(draw, schedule, options));
  }
  return schedule;
}

std::string RunSchedule::text() const {
  std::string text =
      fmt::format("ranks={} pipeline={} spares={} newcomers={} ram={} disk={} message_us={} storage_us={}",
                  ranks, pipeline, spares, newcomers, ram_every, disk_every, message_us, storage_us);
  for (const std::vector<std::string>& happens : starts)
    text += fmt::format(" | {}", fmt::join(happens, ","));
  return text;
}

bool RunSchedule::simpler(int way, RunSchedule& result) const {
  result = *this;
  for (std::size_t start = 0; start < starts.size(); ++start) {
    for (std::size_t i = 0; i < starts[start].size(); ++i) {
      if (way-- > 0) continue;
      std::vector<std::string>& happens = result.starts[start];
      happens.erase(happens.begin() + static_cast<std::ptrdiff_t>(i));
      while (!result.starts.empty() && result.starts.back().empty()) result.starts.pop_back();
      return true;
    }
  }
  const auto without = [&](auto& field, auto value) {
    if (field == value || way-- > 0) return false;
    field = value;
    return true;
  };
  return without(result.message_us, 0) || without(result.storage_us, 0) || without(result.newcomers, 0) ||
         without(result.spares, 0);
}

Result<RunSchedule> parse_schedule(const std::string& text) {
  RunSchedule schedule;
  const std::map<std::string, int*> numbers = {
      {"ranks", &schedule.ranks},         {"pipeline", &schedule.pipeline}, {"spares", &schedule.spares},
      {"newcomers", &schedule.newcomers}, {"ram", &schedule.ram_every},     {"disk", &schedule.disk_every}};
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (word == "|") {
      schedule.starts.emplace_back();
      continue;
    }
    if (schedule.starts.empty()) {
      const std::size_t equals = word.find('=');
      const std::string name = word.substr(0, equals);
      const long number =
          equals == std::string::npos ? -1 : std::strtol(word.c_str() + equals + 1, nullptr, 10);
      if (const auto found = numbers.find(name); found != numbers.end()) {
        *found->second = static_cast<int>(number);
      } else if (name == "message_us" || name == "storage_us") {
        (name == "message_us" ? schedule.message_us : schedule.storage_us) = number;
      } else {
        return fail(ExitCode::config, "a schedule has no \"{}\"", word);
      }
      continue;
    }
    std::istringstream parts(word);
    for (std::string part; std::getline(parts, part, ',');) schedule.starts.back().push_back(part);
  }
  return schedule;
}

}  // namespace holdfast::test
