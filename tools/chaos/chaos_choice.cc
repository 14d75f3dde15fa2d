#include <fmt/core.h>

#include <algorithm>

#include "runtime/launch/launch_options.h"
#include "runtime/os/fault_point.h"
#include "runtime/os/foreign_text.h"
#include "runtime/os/slow_files.h"
#include "runtime/rank/device_choice.h"
#include "runtime/run/run_layout.h"
#include "tools/chaos/campaign.h"
#include "tools/chaos/faulty_storage.h"

namespace holdfast::chaos {
namespace {

constexpr std::int64_t slow_rank_max_ms = 400;  // chaos_plan.cc

bool is_possible(const Config& config, const ChaosLayout& layout) {
  Config with = config;
  with.parallel.data = layout.data();
  with.parallel.pipeline = layout.pipeline;
  with.parallel.tensor = layout.tensor;
  with.elastic.spares = layout.spares;
  const bool enough = layout.data() >= config.elastic.min_data_parallel;
  return enough && check_layout(with, layout.ranks, layout.spares).ok();
}

// Returns the layouts to choose from. Among those that differ only in their spares, it keeps the ones with
// the fewest spares, up to one more copy of the model.
std::vector<ChaosLayout> all_layouts(const Config& config, const CampaignOptions& options, int ranks) {
  std::vector<ChaosLayout> possible, chosen;
  for (const ChaosLayout& layout : layouts_up_to(ranks, static_cast<int>(config.model.layers) + 2,
                                                 static_cast<int>(config.parallel.tensor_lanes))) {
    if (is_possible(config, layout)) possible.push_back(layout);
  }
  for (const ChaosLayout& layout : possible) {
    int fewest = layout.spares;
    for (const ChaosLayout& other : possible) {
      const bool same =
          other.ranks == layout.ranks && other.pipeline == layout.pipeline && other.tensor == layout.tensor;
      if (same) fewest = std::min(fewest, other.spares);
    }
    // A campaign that only kills uses the full number of ranks and needs layouts that survive several deaths.
    const bool fits = !options.kills_only || (layout.ranks == ranks && layout.deaths_in_place() > 1);
    if (fits && layout.spares <= fewest + layout.pipeline * layout.tensor) chosen.push_back(layout);
  }
  return chosen;
}

// Returns the number of ranks: as requested, or limited to the hosts' slots if all hosts declare them.
int max_ranks(const CampaignOptions& options, const ChaosMachine& machine) {
  int slots = 0;
  for (const LaunchHost& host : machine.hosts) {
    if (host.slots <= 0) return options.ranks;
    slots += host.slots;
  }
  return slots > 0 ? std::min(options.ranks, slots) : options.ranks;
}

Result<std::vector<ChaosLayout>> layouts_of(const Config& config, const CampaignOptions& options,
                                            const ChaosMachine& machine) {
  if (options.layouts.empty()) {
    const int ranks = max_ranks(options, machine);
    std::vector<ChaosLayout> layouts = all_layouts(config, options, ranks);
    if (!layouts.empty()) return layouts;
    return fail(
        ExitCode::config,
        "no layout of 2 to {} ranks can run this config; raise --ranks, or parallel.lanes in the config",
        ranks);
  }
  for (const ChaosLayout& layout : options.layouts) {
    if (!is_possible(config, layout))
      return fail(ExitCode::config, "this config cannot run in the layout {} ({}); holdfast plan says more",
                  to_word(layout), to_text(layout));
  }
  return options.layouts;
}

// Returns the points that a rank passes in the middle of such a run. Points of a start have their own tests,
// and a start gives up quickly.
std::vector<std::string> points_of(const Config& config) {
  std::vector<std::string> points;
  for (const std::string_view name : FaultPoints::names()) {
    const bool snapshots = config.checkpoint.ram_every_steps != 0;
    const bool passed =
        name.starts_with("step.") ||
        ((name.starts_with("save.") || name.starts_with("retain.")) && config.checkpoint.every_steps != 0) ||
        (name.starts_with("snapshot.") && (snapshots || config.checkpoint.every_steps != 0)) ||
        (name.starts_with("slot.") && snapshots) ||
        (name.starts_with("replica.") && snapshots && config.checkpoint.replicas == "on") ||
        (name.starts_with("evaluation.") && config.evaluation.every_steps > 0);
    if (passed) points.emplace_back(name);
  }
  return points;
}

std::string why_no_host_fault(const HostFault& fault, const CampaignOptions& options,
                              const ChaosMachine& machine) {
  if (machine.hosts.size() < 2) return "all ranks are on this host";
  if (machine.other_hosts.empty()) return "the hosts of the run are all this one";
  const std::string missing = missing_commands(fault, options.host_commands);
  if (!missing.empty()) return "nobody said how: " + missing;
  return fault.renames && options.hostfile.empty() ? "a host with another name can only join by --hostfile"
                                                   : "";
}

// Returns whether only the CPU device can make this fault.
bool is_of_cpu(ChaosFault fault) {
  return fault == ChaosFault::wrong_product || fault == ChaosFault::wrong_product_always;
}

bool on_gpu(const Config& config, const ChaosMachine& machine) {
  return config.device == "cuda" || (config.device == "auto" && machine.auto_is_gpu);
}

std::string why_no_number_fault(ChaosFault fault, const Config& config, const ChaosMachine& machine) {
  if (is_of_cpu(fault) && on_gpu(config, machine))
    return "a GPU makes no wrong products on purpose; device = \"cpu\" makes some";
  if (config.verdict.preset != "guard") return "verdict.preset is not guard, so nothing compares bits";
  const bool of_weights = fault == ChaosFault::flip_weights || fault == ChaosFault::nan;
  if (of_weights && (!config.model.freeze.empty() || config.lora.is_on()))
    return "model.freeze or lora.rank: no update reads frozen weights";
  const bool skips = config.verdict.skips_max > 0;
  return fault == ChaosFault::bad_sample && !skips ? "verdict.skips_max is 0, so such a run ends" : "";
}

// Why this one cannot be made here; empty when it can.
std::string why_not(ChaosFault fault, const Config& config, const CampaignOptions& options,
                    const ChaosMachine& machine) {
  constexpr const char* other_memory = "what other hosts have in memory would be left";
  if (options.every_ms > 0 && is_at_place(fault)) return "it comes at a step, and --every asks for times";
  const bool several_hosts = machine.hosts.size() > 1;
  if (const HostFault* of_host = host_fault_of(fault); of_host != nullptr)
    return fault == ChaosFault::sick_host && config.health.preset != "guard"
               ? "health.preset is not guard, so nobody leaves a sick host"
               : why_no_host_fault(*of_host, options, machine);
  switch (fault) {
    case ChaosFault::hang:
    case ChaosFault::livelock:
      return config.watchdog.guard ? "" : "watchdog.guard is off, so nobody ends a rank that hangs";
    case ChaosFault::gpu_fault:
      return on_gpu(config, machine) ? "" : "the run computes on processors";
    case ChaosFault::slow_rank:
      return config.watchdog.floor_ms > 2 * slow_rank_max_ms
                 ? ""
                 : "watchdog.floor is so short that slow is a hang";
    case ChaosFault::ram_lost:
      return several_hosts ? other_memory : "";
    case ChaosFault::damaged_checkpoint:
    case ChaosFault::load_error:
      if (several_hosts) return other_memory;
      return config.checkpoint.every_steps != 0 ? ""
                                                : "checkpoint.every_steps is 0: there is none before the end";
    case ChaosFault::full_disk:
      if (several_hosts) return "other hosts would not see a file system that is mounted here";
      if (config.checkpoint.every_steps == 0) return "checkpoint.every_steps is 0: nothing is written";
      return machine.no_small_disk;
    case ChaosFault::write_error:
      return config.checkpoint.every_steps != 0 ? "" : "checkpoint.every_steps is 0: nothing is written";
    case ChaosFault::slow_storage:
      if (several_hosts) return "other hosts would not see a file system that is mounted here";
      return machine.no_slow_files;
    case ChaosFault::stalled_disk:
      if (several_hosts) return "other hosts would not see a file system that is mounted here";
      return machine.no_stalling_disk;
    default:
      return facts_of(fault).of_numbers ? why_no_number_fault(fault, config, machine) : "";
  }
}

// Returns the override that lets as many faults of one lane as possible be found; empty: the options say how
// often lanes are audited, or no key may be set.
std::string audits_of(const CampaignOptions& options) {
  constexpr std::string_view key = "--verdict.audit_every_steps=";
  const bool is_set =
      std::ranges::any_of(options.overrides, [&](const std::string& word) { return word.starts_with(key); });
  return options.as_configured || is_set ? "" : std::string(key) + "1";
}

// Returns the overrides of checkpoint.ram_every_steps that seeds draw from; empty: as configured.
std::vector<std::string> savings_drawn() {
  return {"", "--checkpoint.ram_every_steps=1", "--checkpoint.ram_every_steps=3"};
}

}  // namespace

std::int64_t samples_of_step(const Config& config) {
  return config.parallel.lanes * config.training.microbatches_per_lane * config.training.microbatch_size;
}

Error nothing_to_draw(const ChaosChoice& choice) {
  const auto& [fault, reason] = *choice.skipped.begin();
  return fail(ExitCode::config, "none of the faults that --faults names can be made here: {}: {}",
              facts_of(fault).name, reason);
}

Result<std::vector<LaunchHost>> hosts_of(Env& env, const CampaignOptions& options) {
  if (options.hostfile.empty()) {
    std::vector<LaunchHost> named = hosts_of_list(options.hosts);
    HF_TRY_VOID(check_host_names(named, "chaos: --host"));
    return named;
  }
  HF_TRY(const std::string text, read_text_within(env, options.hostfile, text_limits::hostfile));
  std::vector<LaunchHost> named = hosts_of_file(text);
  HF_TRY_VOID(check_host_names(named, "chaos: " + options.hostfile));
  return named;
}

std::vector<std::string> others_of(Env& env, const std::vector<LaunchHost>& hosts) {
  std::vector<std::string> others;
  for (const LaunchHost& host : hosts) {
    if (host.name != env.host_name() && host.name != "localhost") others.push_back(host.name);
  }
  return others;
}

Result<ChaosMachine> look_around(Env& env, Mounts& mounts, const CampaignOptions& options,
                                 const Config& resolved) {
  ChaosMachine machine;
  HF_TRY(machine.hosts, hosts_of(env, options));
  machine.other_hosts = others_of(env, machine.hosts);
  // The GPU is not tried out, as a rank does: that would hold memory of it during the campaign.
  const auto asks_for_device = [](ChaosFault fault) {
    return is_of_cpu(fault) || fault == ChaosFault::gpu_fault;
  };
  if (resolved.device == "auto" &&
      (options.faults.empty() || std::ranges::any_of(options.faults, asks_for_device)))
    machine.auto_is_gpu = may_have_gpu(env) && find_cuda(env).ok();
  const auto may_draw = [&](ChaosFault fault) {
    return !options.kills_only && machine.hosts.size() < 2 &&
           (options.faults.empty() || std::ranges::find(options.faults, fault) != options.faults.end());
  };
  const bool stalls = may_draw(ChaosFault::stalled_disk);
  if (!stalls && !may_draw(ChaosFault::full_disk) && !may_draw(ChaosFault::slow_storage)) return machine;
  machine.no_slow_files = why_no_slow_files();
  if (const Result<void> own = mounts.begin_own(); !own.ok()) {
    machine.no_small_disk = "a file system of limited size is not permitted: " + own.error().message;
    machine.no_stalling_disk = machine.no_small_disk;
    machine.no_slow_files = "mounts are not permitted: " + own.error().message;
  } else if (stalls) {
    machine.no_stalling_disk = StallingDisk::why_not(env);
  }
  return machine;
}

Result<ChaosChoice> choose_limits(const Config& resolved, const CampaignOptions& options,
                                  const ChaosMachine& machine) {
  ChaosChoice choice;
  HF_TRY(std::vector<ChaosLayout> layouts, layouts_of(resolved, options, machine));
  choice.limits = {.steps = static_cast<std::uint64_t>(resolved.training.steps),
                   .layouts = std::move(layouts),
                   .lanes = resolved.parallel.lanes,
                   .samples_of_step = samples_of_step(resolved),
                   .moment_count = resolved.optimizer.moment_count(),
                   .points = points_of(resolved),
                   .savings = options.as_configured ? std::vector<std::string>{""} : savings_drawn(),
                   .audits = audits_of(options),
                   .faults_max = options.faults_max,
                   .every_us = options.every_ms * 1000,
                   .kills_only = options.kills_only};
  for (std::size_t i = 0; i < chaos_fault_kinds; ++i) {
    const auto fault = static_cast<ChaosFault>(i);
    const bool wanted = options.faults.empty()
                            ? !facts_of(fault).of_numbers
                            : std::ranges::find(options.faults, fault) != options.faults.end();
    if (!wanted) continue;
    if (const std::string reason = why_not(fault, resolved, options, machine); reason.empty()) {
      choice.limits.faults.push_back(fault);
    } else {
      choice.skipped[fault] = reason;
    }
  }
  if (!choice.limits.faults.empty()) return choice;
  return nothing_to_draw(choice);
}

}  // namespace holdfast::chaos
