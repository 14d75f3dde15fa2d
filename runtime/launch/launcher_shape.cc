// The launcher lays a start out on its hosts: how many ranks there are, where, and which of the config's settings
// change for them.
#include <fmt/core.h>

#include <algorithm>

#include "runtime/launch/launcher.h"
#include "runtime/os/foreign_text.h"
#include "runtime/run/event_reading.h"

namespace holdfast::launch {
namespace {

void replace_setting(std::vector<std::string>& overrides, const std::string& key, std::int64_t value) {
  const std::string option = fmt::format("--{}=", key);
  std::erase_if(overrides, [&](const std::string& word) { return word.starts_with(option); });
  overrides.push_back(fmt::format("{}{}", option, value));
}

}  // namespace

int Launcher::ranks_per_copy() const {
  return static_cast<int>(std::max<std::int64_t>(config_.parallel.tensor, 1) *
                          std::max<std::int64_t>(config_.parallel.pipeline, 1));
}

// Asks, for a range of ranks, for no more copies of the model than a start could use.
RanksWanted Launcher::ranks_wanted() const {
  const int per_copy = ranks_per_copy();
  const auto least = static_cast<int>(config_.elastic.min_data_parallel);
  if (options_.min_ranks == 0)
    return {.ranks = options_.ranks,
            .per_copy = per_copy,
            .min_copies = least,
            .spares = static_cast<int>(config_.elastic.spares),
            .within_slots = has_slots_for_all_};
  const std::int64_t lanes = lanes_of_run() > 0 ? lanes_of_run() : default_lanes;
  const std::int64_t most = config_.parallel.data > 0 ? config_.parallel.data : lanes;
  const std::int64_t copies = std::min<std::int64_t>(most, options_.ranks / per_copy);
  return {.ranks = static_cast<int>(copies) * per_copy,
          .per_copy = per_copy,
          .min_copies = std::max(least, (options_.min_ranks + per_copy - 1) / per_copy),
          .at_most = true};
}

// Gives mpirun a list of hosts if a command printed them, or Slurm allocated them.
LaunchShape Launcher::whole_shape() const {
  const RanksWanted wanted = ranks_wanted();
  LaunchShape shape{
      .ranks = wanted.ranks, .several_hosts = hosts_.size() > 1, .overrides = options_.overrides};
  shape.given = ranks_by_host(hosts_, wanted.ranks);
  if (!hosts_.empty() && options_.hosts.empty() && options_.hostfile.empty())
    shape.hosts = list_of_hosts_left(hosts_, wanted.ranks);
  // A run that loses ranks goes on with as few as a start would have.
  if (wanted.min_copies > config_.elastic.min_data_parallel)
    replace_setting(shape.overrides, "elastic.min_data_parallel", wanted.min_copies);
  return shape;
}

void Launcher::say_narrower(const StartLayout& layout, int per_copy) {
  say(
      fmt::format("the hosts that are left have no room for a copy of the model on {} ranks: the run goes on "
                  "with {} rank{} a copy (parallel.tensor = {}, parallel.pipeline = {}), and the same bits",
                  per_copy, layout.tensor * layout.pipeline, layout.tensor * layout.pipeline == 1 ? "" : "s",
                  layout.tensor, layout.pipeline));
}

// Returns the layout with at least `min_ranks` ranks that a start has on the hosts that answer; none if they are too
// few.
std::optional<StartLayout> Launcher::layout_on(const std::vector<LaunchHost>& hosts, int min_ranks) const {
  const RanksWanted wanted = ranks_wanted();
  StartLayout layout{.pipeline = static_cast<int>(std::max<std::int64_t>(config_.parallel.pipeline, 1)),
                     .tensor = static_cast<int>(std::max<std::int64_t>(config_.parallel.tensor, 1))};
  if (const std::optional<int> ranks = ranks_on_hosts_left(hosts, wanted);
      ranks.has_value() && *ranks >= min_ranks) {
    layout.ranks = *ranks;
    return layout;
  }
  std::optional<Config> run = wanted.per_copy > 1 ? config_of_run() : std::nullopt;
  if (!run.has_value()) return std::nullopt;
  run->parallel.pipeline = layout.pipeline;
  run->parallel.pipeline_chunks = config_.parallel.pipeline_chunks;
  run->parallel.tensor = layout.tensor;
  return narrower_layout(*run, hosts, wanted, std::max(options_.min_ranks, min_ranks));
}

bool Launcher::is_narrower(const StartLayout& layout) const {
  return layout.pipeline * layout.tensor < ranks_per_copy();
}

LaunchShape Launcher::shape_on_hosts_left(const StartLayout& layout) const {
  LaunchShape shape = whole_shape();
  const int wanted = shape.ranks;
  const bool all_answer = std::ranges::all_of(hosts_, &LaunchHost::answers) && hosts_trouble_.empty();
  if (layout.ranks == wanted && all_answer) return shape;
  shape.ranks = layout.ranks;
  shape.is_narrower = is_narrower(layout);
  const int group = shape.is_narrower ? layout.tensor : 1;
  shape.hosts = list_of_hosts_left(hosts_, layout.ranks, group);
  shape.given = ranks_by_host(hosts_, layout.ranks, group);
  if (layout.ranks == wanted) return shape;
  const std::int64_t computing = wanted - config_.elastic.spares;
  const std::int64_t spares = std::max<std::int64_t>(0, layout.ranks - computing);
  if (config_.elastic.spares > 0) replace_setting(shape.overrides, "elastic.spares", spares);
  if (shape.is_narrower) {
    replace_setting(shape.overrides, "parallel.tensor", layout.tensor);
    replace_setting(shape.overrides, "parallel.pipeline", layout.pipeline);
    if (layout.pipeline == 1) replace_setting(shape.overrides, "parallel.pipeline_chunks", 1);
  }
  const std::int64_t data = (layout.ranks - spares) / (layout.pipeline * layout.tensor);
  if (config_.parallel.data <= data) return shape;
  // The requested degree is not possible. It also sets the number of lanes if that is not configured.
  replace_setting(shape.overrides, "parallel.data", data);
  replace_setting(shape.overrides, "parallel.lanes", lanes_of_run());
  return shape;
}

// Returns the config as the first start resolved it; none if no start came that far.
std::optional<Config> Launcher::config_of_run() const {
  const Result<std::string> stored = read_text_within(*env_, paths_.config(), text_limits::config);
  if (!stored.ok()) return std::nullopt;
  Result<LoadedConfig> config = load_stored_config(*env_, *stored, paths_.config());
  if (!config.ok()) return std::nullopt;
  return std::move(config->config);
}

// Returns the number of lanes as the run's first start resolved it.
std::int64_t Launcher::lanes_of_run() const {
  if (config_.parallel.lanes > 0) return config_.parallel.lanes;
  const std::optional<Config> run = config_of_run();
  return run.has_value() && run->parallel.lanes > 0 ? run->parallel.lanes : config_.parallel.data;
}

}  // namespace holdfast::launch
