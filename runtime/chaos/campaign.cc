#include "runtime/chaos/campaign.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "runtime/chaos/chaos_run.h"
#include "runtime/chaos/chaos_summary.h"
#include "runtime/config/document.h"
#include "runtime/config/loader.h"
#include "runtime/core/fault_point.h"
#include "runtime/core/program_directory.h"
#include "runtime/core/units.h"
#include "runtime/train/rank_layout.h"

namespace holdfast {
namespace {

constexpr std::int64_t slow_rank_most_ms = 400;  // chaos_plan.cc

void say(const std::string& line) {
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

bool is_possible(const Config& config, const ChaosLayout& layout) {
  Config with = config;
  with.parallel.data = layout.data();
  with.parallel.pipeline = layout.pipeline;
  with.parallel.tensor = layout.tensor;
  with.elastic.spares = layout.spares;
  const bool enough = layout.data() >= config.elastic.min_data_parallel;
  return enough && check_layout(with, layout.ranks, layout.spares).ok();
}

// Of layouts that differ in their spares alone: those with the fewest, and one copy more.
std::vector<ChaosLayout> layouts_of(const Config& config, const CampaignOptions& options) {
  std::vector<ChaosLayout> possible, chosen;
  for (const ChaosLayout& layout : layouts_up_to(options.ranks, static_cast<int>(config.model.layers) + 2,
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
    // What only kills wants many of them, each with somebody left.
    const bool fits = !options.kills_only || (layout.ranks == options.ranks && layout.deaths_in_place() > 1);
    if (fits && layout.spares <= fewest + layout.pipeline * layout.tensor) chosen.push_back(layout);
  }
  return chosen;
}

// Those that a rank passes in the middle of such a run. A start has its own tests, and gives up quickly.
std::vector<std::string> points_of(const Config& config) {
  std::vector<std::string> points;
  for (const std::string_view name : FaultPoints::names()) {
    const bool snapshots = config.checkpoint.ram_every_steps > 0;
    const bool passed =
        name.starts_with("step.") ||
        ((name.starts_with("save.") || name.starts_with("retain.")) && config.checkpoint.every_steps != 0) ||
        (name.starts_with("snapshot.") && (snapshots || config.checkpoint.every_steps != 0)) ||
        (name.starts_with("replica.") && snapshots && config.checkpoint.replicas == "on") ||
        (name.starts_with("evaluation.") && config.evaluation.every_steps > 0);
    if (passed) points.emplace_back(name);
  }
  return points;
}

bool can_spin(Env& env) {
  return FaultPoints::parse("step.begin=spin", 0, env).ok();
}

// Why this one cannot be made here; empty when it can.
std::string why_not(ChaosFault fault, const Config& config) {
  switch (fault) {
    case ChaosFault::hang:
      return config.watchdog.guard ? "" : "watchdog.guard is off, so nobody ends a rank that hangs";
    case ChaosFault::livelock:
      if (!can_spin(posix_env())) return "this program has no fault point action \"spin\"";
      return config.watchdog.guard ? "" : "watchdog.guard is off, so nobody ends a rank that hangs";
    case ChaosFault::slow_rank:
      return config.watchdog.floor_ms > 2 * slow_rank_most_ms
                 ? ""
                 : "watchdog.floor is so short that slow is a hang";
    case ChaosFault::damaged_checkpoint:
      return config.checkpoint.every_steps != 0 ? ""
                                                : "checkpoint.every_steps is 0: there is none before the end";
    case ChaosFault::full_disk:
      return "it needs a file system of limited size that only this run writes to";
    case ChaosFault::lost_host:
    case ChaosFault::cut_link:
      return "all ranks are on this host";
    default:
      return "";
  }
}

class Campaign {
 public:
  Campaign(Env& env, const CampaignOptions& options, Config config, ChaosChoice choice)
      : env_(&env),
        options_(&options),
        config_(std::move(config)),
        choice_(std::move(choice)),
        begun_ns_(env.monotonic_ns()) {
    setup_ = {.program = program_path(),
              .config = options.config,
              .overrides = options.overrides,
              .lanes = config_.parallel.lanes,
              .tensor_lanes = config_.parallel.tensor_lanes,
              .digest = {}};
    header_ = {.name = "chaos of " + options.config,
               .program = options.version,
               .host = env.host_name(),
               .skipped = choice_.skipped};
  }

  Result<bool> run() {
    HF_TRY_VOID(env_->make_directories(options_->directory));
    for (const auto& [fault, reason] : choice_.skipped)
      say(fmt::format("left out: {}: {}", facts_of(fault).text, reason));
    HF_TRY_VOID(run_undisturbed());
    std::uint64_t seed = options_->first_seed;
    while (goes_on()) {
      HF_TRY_VOID(run_seed(seed++));
      HF_TRY_VOID(write_reports(seed - 1));
    }
    const ChaosSummary summary = summarize(runs_);
    say("\n" + to_text(summary));
    say(fmt::format(
        "{} faults in {} runs, {} of them kills, {} during a recovery: {} of {} runs ended with the right "
        "bits",
        summary.faults, summary.runs, summary.kills, summary.in_recovery, summary.right, summary.runs));
    say(fmt::format("{0}/chaos.html\n{1}", options_->directory, json_path()));
    return summary.right == summary.runs;
  }

 private:
  std::string json_path() const {
    return options_->json.empty() ? options_->directory + "/chaos.json" : options_->json;
  }
  std::string undisturbed() const { return options_->directory + "/undisturbed"; }

  bool goes_on() const {
    const double minutes = static_cast<double>(env_->monotonic_ns() - begun_ns_) / 60e9;
    const ChaosSummary summary = summarize(runs_);
    if (options_->kills > 0 && summary.kills >= options_->kills) return false;
    if (options_->minutes > 0.0 && minutes >= options_->minutes) return false;
    return options_->runs == 0 || summary.runs < options_->runs;
  }

  // Where the run that is there is the one that this config makes.
  Result<bool> can_be_used_again() {
    const RunPaths paths{undisturbed()};
    if (read_status(*env_, paths).state != "finished") return false;
    const Result<std::string> stored = env_->read_text(paths.config());
    if (!stored.ok()) return false;
    const Result<LoadedConfig> before = load_stored_config(*env_, *stored, paths.config());
    if (!before.ok()) return false;
    Config now = config_;
    inherit_resolved(now, before->config);
    if (now.training.steps != before->config.training.steps) return false;
    return std::ranges::all_of(diff_config(before->config, now), [](const ConfigChange& change) {
      return change.effect == ResumeEffect::safe;
    });
  }

  // In the layout of the config, where that is possible.
  ChaosLayout undisturbed_layout() const {
    const std::vector<ChaosLayout>& layouts = choice_.limits.layouts;
    const auto wanted =
        std::ranges::find_if(layouts.rbegin(), layouts.rend(), [&](const ChaosLayout& layout) {
          return layout.pipeline == config_.parallel.pipeline && layout.tensor == config_.parallel.tensor;
        });
    ChaosLayout layout = wanted == layouts.rend() ? layouts.back() : *wanted;
    layout.ranks -= layout.spares;
    layout.spares = 0;
    return layout;
  }

  Result<void> run_undisturbed() {
    const std::string digest_path = undisturbed() + ".digest";
    HF_TRY(const bool again, can_be_used_again());
    if (!again) {
      HF_TRY_VOID(env_->remove_tree(undisturbed()));
      HF_TRY_VOID(env_->remove(digest_path));
      HF_TRY_VOID(make_undisturbed());
    }
    HF_TRY(const FileStatus known, env_->status(digest_path));
    if (!known.exists) {
      HF_TRY(const std::string digest, digest_of_run(*env_, undisturbed()));
      HF_TRY_VOID(env_->replace_text(digest_path, digest));
    }
    HF_TRY(setup_.digest, env_->read_text(digest_path));
    HF_TRY(const std::string log, env_->read_text(RunPaths{undisturbed()}.events()));
    const FaultLedger ledger = read_ledger(log);
    const std::int64_t wall_ms = (ledger.end_us() - ledger.begin_us()) / 1000;
    setup_.limit_ms = options_->limit_ms > 0 ? options_->limit_ms : 60'000 + 10 * wall_ms;
    header_.digest = setup_.digest;
    say(fmt::format("undisturbed: {} steps in {}{}", config_.training.steps,
                    format_duration(wall_ms / 100 * 100), again ? ", as it was there" : ""));
    return {};
  }

  Result<void> make_undisturbed() {
    const ChaosPlan plan{.seed = 0, .layout = undisturbed_layout()};
    const std::string log = undisturbed() + ".log";
    HF_TRY(const std::unique_ptr<Process> launcher,
           env_->processes().start({.arguments = launch_words(setup_, plan, undisturbed()),
                                    .variables = {{"HOLDFAST_FAULTS", ""}},
                                    .output = log,
                                    .own_session = true,
                                    .die_with_parent = true}));
    constexpr std::int64_t look_ms = 1'000;
    while (!launcher->wait_ended(look_ms)) {
    }
    const std::optional<ProcessEnd> end = launcher->end();
    if (end.has_value() && !end->killed && end->code == 0) return {};
    const Result<std::string> said = env_->read_text(log);
    return fail(
        ExitCode::config, "the undisturbed run ended with {} {}; what it said is in {}{}",
        end.has_value() && end->killed ? "signal" : "exit code", end.has_value() ? end->code : -1, log,
        said.ok() ? ":\n" + said->substr(said->size() - std::min<std::size_t>(said->size(), 800)) : "");
  }

  Result<void> run_seed(std::uint64_t seed) {
    const ChaosPlan plan = plan_chaos(seed, choice_.limits);
    const std::string directory = fmt::format("{}/seed-{}", options_->directory, seed);
    HF_TRY_VOID(env_->remove_tree(directory));
    HF_TRY_VOID(env_->remove(directory + ".log"));
    HF_TRY(ChaosRun run, run_chaos(*env_, setup_, plan, directory));
    tell(run);
    if (run.wrong.empty() && !options_->keep) {
      HF_TRY_VOID(env_->remove_tree(directory));
      HF_TRY_VOID(env_->remove(directory + ".log"));
    }
    runs_.push_back(std::move(run));
    return {};
  }

  void tell(const ChaosRun& run) const {
    const auto again = std::ranges::count(run.ledger.faults, FaultLevel::restart, &FaultEntry::level);
    say(fmt::format("seed {}: {}; {} fault{}, {} restart{}, {} steps again, {:.1f} s: {}", run.plan.seed,
                    to_text(run.plan.layout), run.injected.size(), run.injected.size() == 1 ? "" : "s", again,
                    again == 1 ? "" : "s", run.ledger.lost_steps, static_cast<double>(run.duration_ms) / 1e3,
                    run.wrong.empty() ? "same bits" : "WRONG"));
    if (run.wrong.empty()) return;
    for (const std::string& line : to_lines(run.plan)) say("  " + line);
    for (const ChaosInjected& injected : run.injected) say("  done: " + injected.what);
    say(fmt::format("  {}\n  its files: {}, {}.log; again: {}", run.wrong, run.directory, run.directory,
                    command(run.plan.seed, run.plan.seed)));
  }

  std::string command(std::uint64_t first, std::uint64_t last) const {
    std::string text = fmt::format("holdfast chaos {} --seeds {}..{} --ranks {}", options_->config, first,
                                   last, options_->ranks);
    if (options_->kills_only) text += " --kills-only";
    if (options_->faults_max != CampaignOptions{}.faults_max)
      text += fmt::format(" --faults-max {}", options_->faults_max);
    std::string names;
    for (const ChaosFault fault : options_->faults)
      names += fmt::format("{}{}", names.empty() ? " --faults " : ",", facts_of(fault).name);
    text += names;
    for (const std::string& word : options_->overrides) text += " " + word;
    return text;
  }

  Result<void> write_reports(std::uint64_t last_seed) {
    header_.command = command(options_->first_seed, last_seed);
    header_.duration_ms = (env_->monotonic_ns() - begun_ns_) / 1'000'000;
    const ChaosSummary summary = summarize(runs_);
    HF_TRY_VOID(env_->replace_text(json_path(), chaos_json(header_, runs_, summary)));
    return env_->replace_text(options_->directory + "/chaos.html", chaos_html(header_, runs_, summary));
  }

  Env* env_;
  const CampaignOptions* options_;
  Config config_;
  ChaosChoice choice_;
  ChaosSetup setup_;
  ChaosHeader header_;
  std::vector<ChaosRun> runs_;
  std::int64_t begun_ns_;
};

}  // namespace

Result<ChaosChoice> choose_limits(const Config& resolved, const CampaignOptions& options) {
  ChaosChoice choice;
  choice.limits = {.steps = static_cast<std::uint64_t>(resolved.training.steps),
                   .layouts = layouts_of(resolved, options),
                   .points = points_of(resolved),
                   .savings = {"", "--checkpoint.ram_every_steps=1", "--checkpoint.ram_every_steps=3"},
                   .faults_max = options.faults_max,
                   .kills_only = options.kills_only};
  if (choice.limits.layouts.empty()) {
    return fail(
        ExitCode::config,
        "no layout of 2 to {} ranks can run this config; raise --ranks, or parallel.lanes in the config",
        options.ranks);
  }
  for (std::size_t i = 0; i < chaos_fault_kinds; ++i) {
    const auto fault = static_cast<ChaosFault>(i);
    const bool wanted =
        options.faults.empty() || std::ranges::find(options.faults, fault) != options.faults.end();
    if (!wanted) continue;
    if (const std::string reason = why_not(fault, resolved); reason.empty()) {
      choice.limits.faults.push_back(fault);
    } else {
      choice.skipped[fault] = reason;
    }
  }
  if (!choice.limits.faults.empty()) return choice;
  return fail(ExitCode::config, "none of the faults that --faults names can be made here: {}: {}",
              facts_of(choice.skipped.begin()->first).name, choice.skipped.begin()->second);
}

Result<bool> run_campaign(Env& env, const CampaignOptions& options, Config resolved) {
  HF_TRY(ChaosChoice choice, choose_limits(resolved, options));
  if (!options.only_plans) return Campaign(env, options, std::move(resolved), std::move(choice)).run();
  for (std::int64_t i = 0; i < options.runs; ++i) {
    for (const std::string& line :
         to_lines(plan_chaos(options.first_seed + static_cast<std::uint64_t>(i), choice.limits)))
      say(line);
  }
  return true;
}

}  // namespace holdfast
