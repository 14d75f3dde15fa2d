#include "runtime/elastic/armed.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <functional>
#include <string_view>
#include <utility>

#include "runtime/core/units.h"
#include "runtime/save/save_cadence.h"

namespace holdfast::elastic {
namespace {

struct Answer {
  bool is_on = false;
  std::string words = {};
};
Answer on(std::string numbers) {
  return {.is_on = true, .words = std::move(numbers)};
}
Answer off(std::string why) {
  return {.is_on = false, .words = std::move(why)};
}

std::string interval_words(std::int64_t every_steps, std::string_view by_measure) {
  if (every_steps == CheckpointConfig::interval_auto) return std::string(by_measure);
  return fmt::format("every {} step{}", every_steps, every_steps == 1 ? "" : "s");
}

std::string no_snapshots(const Config& config, const ArmedFacts& facts) {
  if (config.checkpoint.ram_every_steps == 0) return "checkpoint.ram_every_steps = 0";
  if (!save_plan(config).beside_steps) return "the run saves at its end alone";
  if (facts.tiers == SnapshotTiers::none) return "no memory: " + facts.lacks_memory;
  return {};
}

Answer snapshots(const Config& config, const ArmedFacts& facts) {
  if (std::string why = no_snapshots(config, facts); !why.empty()) return off(std::move(why));
  return on(interval_words(save_plan(config).intervals.ram_every_steps, "as often as costs 0.5 %"));
}

Answer checkpoints(const Config& config, const ArmedFacts&) {
  const CheckpointConfig& checkpoint = config.checkpoint;
  if (checkpoint.every_ms > 0) return on("every " + format_duration(checkpoint.every_ms));
  if (checkpoint.every_steps == 0) return off("checkpoint.every_steps = 0: at the end alone");
  return on(interval_words(checkpoint.every_steps, "as often as failures ask for"));
}

Answer replicas(const Config& config, const ArmedFacts& facts) {
  if (!no_snapshots(config, facts).empty()) return off("no snapshots");
  if (config.checkpoint.replicas == "off") return off("checkpoint.replicas = \"off\"");
  if (facts.copies < 2) return off("one copy of the model");
  if (!facts.has_buddies)
    return off(fmt::format("{}, and checkpoint.replicas = \"auto\"",
                           facts.hosts > 1 ? "no other host has the same part of the model" : "one host"));
  if (facts.tiers != SnapshotTiers::all) return off("no memory: " + facts.lacks_memory);
  return on(facts.replicas_cross_hosts ? "on another host" : "of another rank, not all on another host");
}

Answer uploads(const Config& config, const ArmedFacts&) {
  const CheckpointConfig& checkpoint = config.checkpoint;
  if (checkpoint.upload_command.empty() && checkpoint.upload_shard_command.empty())
    return off("checkpoint.upload_command is not set");
  return on("of each checkpoint");
}

Answer in_place(const Config& config, const ArmedFacts& facts) {
  if (!config.elastic.in_place) return off("elastic.in_place = false");
  if (facts.ranks + facts.spares < 2) return off("one rank");
  if (!facts.has_membership) return off("this MPI tells of no deaths (no ULFM)");
  const auto fewest = static_cast<int>(config.elastic.min_data_parallel);
  if (facts.spares == 0 && facts.copies <= fewest)
    return off(facts.copies == 1
                   ? "one copy of the model and no spare"
                   : fmt::format("elastic.min_data_parallel = {} of {} copies", fewest, facts.copies));
  return on(fmt::format("within {}", format_duration(config.elastic.recovery_timeout_ms)));
}

Answer shrink(const Config& config, const ArmedFacts& facts) {
  const auto fewest = static_cast<int>(config.elastic.min_data_parallel);
  if (facts.copies <= fewest) return off(fmt::format("{} of {} copies are the fewest", fewest, facts.copies));
  return on(fmt::format("{} to {} copies", fewest, facts.copies));
}

Answer growth(const Config& config, const ArmedFacts& facts) {
  if (config.elastic.grow == "off") return off("elastic.grow = \"off\"");
  if (facts.hosts > 1 && !facts.has_launcher) return off("several hosts without holdfast launch");
  if (!facts.has_membership && !facts.has_launcher) return off("neither holdfast launch nor ULFM");
  return on(fmt::format("{} after a loss", format_duration(config.elastic.grow_after_ms)));
}

Answer restart(const Config&, const ArmedFacts& facts) {
  return facts.has_launcher ? on("by holdfast launch") : off("not started by holdfast launch");
}

Answer spares(const Config& config, const ArmedFacts& facts) {
  if (facts.spares > 0) return on(fmt::format("{}", facts.spares));
  return off(config.elastic.spares == 0
                 ? "elastic.spares = 0"
                 : fmt::format("none is left of elastic.spares = {}", config.elastic.spares));
}

Answer watchdog(const Config& config, const ArmedFacts& facts) {
  if (!config.watchdog.guard) return off("watchdog.guard = false");
  if (!facts.is_watched) return off("no shared memory for it");
  return on(fmt::format("{} to {}", format_duration(config.watchdog.floor_ms),
                        format_duration(config.watchdog.ceiling_ms)));
}

Answer verdicts(const Config& config, const ArmedFacts&) {
  if (config.verdict.preset == "off") return off("verdict.preset = \"off\"");
  return on(config.verdict.preset == "guard" ? "answered" : "told alone, verdict.preset = \"watch\"");
}

Answer audits(const Config& config, const ArmedFacts& facts) {
  if (facts.audit_every_steps > 0) return on(interval_words(facts.audit_every_steps, ""));
  if (config.verdict.preset != "guard")
    return off(fmt::format("verdict.preset = \"{}\"", config.verdict.preset));
  return off("verdict.audit_every_steps = 0");
}

Answer health(const Config& config, const ArmedFacts& facts) {
  if (config.health.preset == "off") return off("health.preset = \"off\"");
  if (!config.watchdog.guard || !facts.is_watched) return off("no watchdog, which reads the hosts");
  return on(fmt::format("every {}, {}", format_duration(config.health.every_ms),
                        config.health.preset == "guard" ? "sick hosts are left" : "told alone"));
}

Answer stragglers(const Config& config, const ArmedFacts& facts) {
  if (config.health.preset == "off") return off("health.preset = \"off\"");
  if (facts.ranks < 2) return off("one rank");
  if (!facts.measures_ranks) return off("not measured on this device");
  return on(config.health.preset == "guard" ? "their hosts are left" : "told alone");
}

Answer notices(const Config& config, const ArmedFacts&) {
  const ElasticConfig& elastic = config.elastic;
  if (elastic.notice_file.empty() && elastic.notice_command.empty())
    return off("elastic.notice_file and elastic.notice_command are not set");
  return on("every " + format_duration(elastic.notice_every_ms));
}

Answer notify(const Config& config, const ArmedFacts&) {
  if (config.notify.command.empty()) return off("notify.command is not set");
  return on(fmt::format("{} an hour at most", config.notify.at_most));
}

// Returns "watchdog (5s to 10m), spares (2)": those that `is_wanted`.
std::string listed(const std::vector<Protection>& all,
                   const std::function<bool(const Protection&)>& is_wanted) {
  std::string line;
  for (const Protection& each : all) {
    if (is_wanted(each)) line += fmt::format("{}{} ({})", line.empty() ? "" : ", ", each.name, each.words);
  }
  return line;
}

struct Row {
  std::string_view name;
  Answer (*answer)(const Config&, const ArmedFacts&);
};
constexpr auto table = std::to_array<Row>({
    {"snapshots", snapshots},
    {"replicas", replicas},
    {"checkpoints", checkpoints},
    {"uploads", uploads},
    {"recovery in place", in_place},
    {"shrink", shrink},
    {"growth", growth},
    {"spares", spares},
    {"restart", restart},
    {"watchdog", watchdog},
    {"verdicts", verdicts},
    {"audits", audits},
    {"stragglers", stragglers},
    {"health", health},
    {"drain notices", notices},
    {"notify", notify},
});

}  // namespace

std::vector<Protection> protections_of(const Config& config, const ArmedFacts& facts) {
  std::vector<Protection> all;
  for (const Row& row : table) {
    Answer answer = row.answer(config, facts);
    all.push_back({.name = std::string(row.name), .is_on = answer.is_on, .words = std::move(answer.words)});
  }
  return all;
}

std::map<std::string, std::string> protections_by_name(const std::vector<Protection>& all, bool is_on) {
  std::map<std::string, std::string> words;
  for (const Protection& each : all) {
    if (each.is_on == is_on) words[each.name] = each.words;
  }
  return words;
}

std::string armed_line(const std::vector<Protection>& all, bool is_on) {
  const std::string line = listed(all, [is_on](const Protection& each) { return each.is_on == is_on; });
  return fmt::format("{}: {}", is_on ? "armed" : "not armed", line.empty() ? "nothing" : line);
}

std::vector<std::string> armed_news(const std::vector<Protection>& before,
                                    const std::vector<Protection>& now) {
  std::vector<std::string> lines;
  for (const auto& [is_on, begin] : {std::pair(false, "no longer armed"), std::pair(true, "armed again")}) {
    const std::string line = listed(now, [&before, is_on = is_on](const Protection& each) {
      const auto old = std::ranges::find(before, each.name, &Protection::name);
      return each.is_on == is_on && old != before.end() && old->is_on != is_on;
    });
    if (!line.empty()) lines.push_back(fmt::format("{}: {}", begin, line));
  }
  return lines;
}

}  // namespace holdfast::elastic
