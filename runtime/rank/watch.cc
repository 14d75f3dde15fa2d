#include "runtime/rank/watch.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "parallel/comm/launcher.h"
#include "runtime/os/console.h"
#include "runtime/os/paths.h"
#include "runtime/os/processes.h"

namespace holdfast::rank {
namespace {

// Returns the number of slots on this host's board. Ranks that join later, when the run grows back, need
// slots, too.
std::uint32_t slots_on_host(Env& env) {
  constexpr std::uint32_t later_min = 8;
  const auto ranks = static_cast<std::uint32_t>(launched_ranks_on_host(env));
  return ranks + std::max(ranks, later_min);
}

// Returns the command of the guard of this host, which reads the host's health, too, unless that is off.
std::vector<std::string> guard_words(const std::string& board, const HealthConfig& health) {
  std::vector<std::string> words = {program_path(), "guard", board};
  if (health.preset == "off") return words;
  words.insert(words.end(), {"--health", health.preset, "--every-ms", fmt::format("{}", health.every_ms)});
  if (!health.host_root.empty()) words.insert(words.end(), {"--host-root", health.host_root});
  if (!health.dcgm_exporter.empty()) words.insert(words.end(), {"--dcgm-exporter", health.dcgm_exporter});
  if (!health.rules.empty())
    words.insert(words.end(), {"--rules", fmt::format("{}", fmt::join(health.rules, ","))});
  return words;
}

}  // namespace

DeadlineLimits deadline_limits(const WatchdogConfig& config) {
  constexpr std::int64_t ns_per_ms = 1'000'000;
  return {.factor = config.factor,
          .floor_ns = config.floor_ms * ns_per_ms,
          .ceiling_ns = config.ceiling_ms * ns_per_ms};
}

std::string watched_board(Env& env) {
  return board_name(
      fmt::format("{} {} {}", launched_job(env), env.host_name(), env.processes().own_namespace()));
}

std::unique_ptr<RankWatch> begin_watch(Env& env, const Result<LoadedConfig>& config, int launched_rank,
                                       std::int64_t join_timeout_ms) {
  const WatchdogConfig wanted = config.ok() ? config->config.watchdog : WatchdogConfig{};
  const HealthConfig health = config.ok() ? config->config.health : HealthConfig{.preset = "off"};
  if (!wanted.guard) return nullptr;
  const std::string board = watched_board(env);
  Result<std::unique_ptr<RankWatch>> watch = RankWatch::begin(env, {.board = board,
                                                                    .slots = slots_on_host(env),
                                                                    .launched_rank = launched_rank,
                                                                    .guard = guard_words(board, health),
                                                                    .limits = deadline_limits(wanted)});
  if (!watch.ok()) {
    print_message("rank {} (host {}) runs without a watchdog: {}", launched_rank, env.host_name(),
                  watch.error().message);
    return nullptr;
  }
  (*watch)->enter(Phase::start_up, 0, std::min(join_timeout_ms, wanted.ceiling_ms));
  return std::move(watch).value();
}

}  // namespace holdfast::rank
