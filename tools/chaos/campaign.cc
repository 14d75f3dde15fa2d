#include "tools/chaos/campaign.h"

#include <fmt/core.h>

#include <algorithm>

#include "runtime/config/document.h"
#include "runtime/config/loader.h"
#include "runtime/core/text.h"
#include "runtime/core/units.h"
#include "runtime/launch/launch_options.h"
#include "runtime/os/console.h"
#include "runtime/os/fault_point.h"
#include "runtime/os/foreign_text.h"
#include "runtime/os/machine_facts.h"
#include "runtime/os/paths.h"
#include "runtime/report/report_page.h"
#include "runtime/run/event_reading.h"
#include "runtime/run/log_reader.h"
#include "runtime/run/run_history.h"
#include "tools/chaos/chaos_summary.h"
#include "tools/chaos/faulty_storage.h"
#include "tools/chaos/number_check.h"

namespace holdfast::chaos {
namespace {

// Prints a line and ignores errors: the report holds the results, progress output may be lost.
void say(const std::string& line) {
  print_line("{}", line);
}

std::vector<std::string> host_options(const CampaignOptions& options) {
  if (!options.hosts.empty()) return {"--host", options.hosts};
  if (!options.hostfile.empty()) return {"--hostfile", options.hostfile};
  return {};
}

// Returns the files that training data are read from; a source may be named without its ending.
std::vector<std::string> data_files(Env& env, const Config& config) {
  std::vector<std::string> files;
  for (const SourceConfig& source : config.data.sources) {
    for (const char* ending : {"", ".bin"}) {
      const Result<FileStatus> status = env.status(source.path + ending);
      if (status.ok() && status->exists && !status->directory) files.push_back(source.path + ending);
    }
  }
  return files;
}

class Campaign {
 public:
  Campaign(Env& env, Mounts& mounts, const CampaignOptions& options, const ChaosMachine& machine,
           Config config, ChaosChoice choice)
      : env_(&env),
        options_(&options),
        config_(std::move(config)),
        choice_(std::move(choice)),
        begun_ns_(env.monotonic_ns()) {
    setup_ = {.program = program_directory() + "/holdfast",
              .config = options.config,
              .overrides = options.overrides,
              .steps = static_cast<std::uint64_t>(config_.training.steps),
              .lanes = config_.parallel.lanes,
              .tensor_lanes = config_.parallel.tensor_lanes,
              .samples_of_step = static_cast<std::uint64_t>(samples_of_step(config_)),
              .digest = {},
              .host_options = host_options(options),
              .hosts = machine.hosts,
              .other_hosts = machine.other_hosts,
              .host_commands = options.host_commands,
              .mounts = &mounts,
              .data_files = data_files(env, config_)};
    header_ = {.name = "chaos of " + options.config, .program = options.version, .host = env.host_name()};
  }

  Result<bool> run() {
    HF_TRY_VOID(env_->make_directories(options_->directory));
    HF_TRY_VOID(run_undisturbed());
    HF_TRY_VOID(measure_disk());
    for (const auto& [fault, reason] : choice_.skipped)
      say(fmt::format("left out: {}: {}", facts_of(fault).text, reason));
    header_.skipped = choice_.skipped;
    std::uint64_t seed = options_->first_seed;
    while (on_resume()) {
      HF_TRY_VOID(run_seed(seed++));
      HF_TRY_VOID(write_reports(seed - 1));
    }
    const ChaosSummary summary = summarize(runs_);
    say("\n" + to_text(summary));
    say(fmt::format(
        "{} faults in {} runs, {} of them kills, {} during a recovery: {} of {} runs ended with the right "
        "bits{}",
        summary.faults, summary.runs, summary.kills, summary.in_recovery, summary.right, summary.runs,
        summary.excused == 0
            ? ""
            : fmt::format(", {} with others by a wrong number that no check sees", summary.excused)));
    say(fmt::format("{0}/chaos.html\n{1}", options_->directory, json_path()));
    return summary.wrong_runs() == 0;
  }

 private:
  std::string json_path() const {
    return options_->json.empty() ? options_->directory + "/chaos.json" : options_->json;
  }
  std::string undisturbed() const { return options_->directory + "/undisturbed"; }

  bool on_resume() const {
    const double minutes = static_cast<double>(env_->monotonic_ns() - begun_ns_) / 60e9;
    const ChaosSummary summary = summarize(runs_);
    // A campaign that only kills uses the layouts in turn, and each at least once.
    const bool in_turn = options_->kills_only && summary.runs < std::ssize(choice_.limits.layouts);
    if (options_->kills > 0 && summary.kills >= options_->kills && !in_turn) return false;
    if (options_->minutes > 0.0 && minutes >= options_->minutes) return false;
    return options_->runs == 0 || summary.runs < options_->runs;
  }

  // Returns whether the run that exists is the one that this config makes.
  Result<bool> can_be_used_again() {
    const RunPaths paths{undisturbed()};
    if (read_status(*env_, paths).state != "finished") return false;
    const Result<std::string> stored = read_text_within(*env_, paths.config(), text_limits::config);
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

  // Returns the layout of the config where that is possible.
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
      HF_TRY_VOID(make_undisturbed(undisturbed(), ""));
    }
    HF_TRY(const FileStatus known, env_->status(digest_path));
    if (!known.exists) {
      HF_TRY(const std::string digest, digest_of_run(*env_, undisturbed()));
      HF_TRY_VOID(env_->replace_text(digest_path, digest));
    }
    HF_TRY(undisturbed_digest_, env_->read_text(digest_path));
    HF_TRY(const LogReader log, LogReader::open(*env_, {undisturbed()}));
    HF_TRY_VOID(log.for_each([&](const Json& event) {
      if (auto verdict = event_as<VerdictEvent>(event)) setup_.usual_verdicts.push_back(*std::move(verdict));
    }));
    HF_TRY(const IncidentLog ledger, read_incident_log(*env_, {undisturbed()}));
    const std::int64_t wall_ms = (ledger.end_us() - ledger.begin_us()) / 1000;
    setup_.limit_ms = options_->limit_ms > 0 ? options_->limit_ms : 60'000 + 10 * wall_ms;
    // The limit allows a rank twelve times watchdog.floor in its first steps, and another start after that.
    setup_.hang_ms = options_->limit_ms > 0 ? 0 : 15'000 + 12 * config_.watchdog.floor_ms;
    header_.digest = undisturbed_digest_;
    say(fmt::format("undisturbed: {} steps in {}{}", config_.training.steps,
                    format_duration(wall_ms / 100 * 100), again ? ", as it was there" : ""));
    return {};
  }

  // Makes a run that nothing happens to. `samples`: entries of HOLDFAST_FAULTS that spoil samples.
  Result<void> make_undisturbed(const std::string& directory, const std::string& samples) {
    const ChaosPlan plan{.seed = 0, .layout = undisturbed_layout()};
    const std::string log = directory + ".log";
    HF_TRY(const std::unique_ptr<Process> launcher,
           env_->processes().start({.arguments = launch_words(setup_, plan, directory),
                                    .variables = {{"HOLDFAST_FAULTS", samples}},
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

  // Returns the digest that a run of this plan must have: that of the undisturbed run, or of its twin, which
  // reads the same spoiled sample. A campaign makes each twin once.
  Result<std::string> expected_digest(const ChaosPlan& plan) {
    const std::string samples = fault_points_of(plan, {.only_of_data = true});
    if (samples.empty()) return undisturbed_digest_;
    if (const auto known = twin_digests_.find(samples); known != twin_digests_.end()) return known->second;
    const std::string directory = options_->directory + "/twin";
    HF_TRY_VOID(env_->remove_tree(directory));
    HF_TRY_VOID(make_undisturbed(directory, samples));
    HF_TRY(const std::string digest, digest_of_run(*env_, directory));
    HF_TRY_VOID(env_->remove_tree(directory));
    HF_TRY_VOID(env_->remove(directory + ".log"));
    return twin_digests_.emplace(samples, digest).first->second;
  }

  // Measures the disk size for a run with all that a fault may leave there for a while; the disk that can be
  // full is in memory.
  Result<void> measure_disk() {
    constexpr std::uint64_t factor = 4, min_bytes = std::uint64_t{16} << 20, part_of_memory = 4;
    std::vector<ChaosFault>& faults = choice_.limits.faults;
    HF_TRY(const std::uint64_t bytes, bytes_of_tree(*env_, undisturbed()));
    setup_.disk_bytes = min_bytes + factor * bytes;
    if (std::ranges::find(faults, ChaosFault::full_disk) == faults.end()) return {};
    const std::optional<std::uint64_t> memory_bytes = available_memory_bytes(*env_);
    if (!memory_bytes.has_value() || setup_.disk_bytes <= *memory_bytes / part_of_memory) return {};
    choice_.skipped[ChaosFault::full_disk] =
        fmt::format("a file system for a run takes {} of memory, and {} are free",
                    format_bytes(setup_.disk_bytes), format_bytes(*memory_bytes));
    std::erase(faults, ChaosFault::full_disk);
    return faults.empty() ? nothing_to_draw(choice_) : Result<void>();
  }

  Result<void> run_seed(std::uint64_t seed) {
    const ChaosPlan plan = plan_chaos(seed, choice_.limits);
    const std::string directory = fmt::format("{}/seed-{}", options_->directory, seed);
    HF_TRY_VOID(env_->remove_tree(directory));
    HF_TRY_VOID(env_->remove(directory + ".log"));
    HF_TRY_VOID(look_at_hosts());
    HF_TRY(setup_.digest, expected_digest(plan));
    HF_TRY(ChaosRun run, run_chaos(*env_, setup_, plan, directory, options_->keep));
    report(run);
    if (run.wrong.empty() && !options_->keep) {
      HF_TRY_VOID(env_->remove_tree(directory));
      HF_TRY_VOID(env_->remove(directory + ".log"));
    }
    runs_.push_back(std::move(run));
    return {};
  }

  // Reads the hostfile again: what replaces a host goes by another name.
  Result<void> look_at_hosts() {
    HF_TRY(setup_.hosts, hosts_of(*env_, *options_));
    std::vector<std::string> others = others_of(*env_, setup_.hosts);
    if (others.empty() && !setup_.other_hosts.empty())
      return fail(ExitCode::config, "chaos: {} names no host but this one any more; write the others into it",
                  options_->hostfile);
    setup_.other_hosts = std::move(others);
    return {};
  }

  void report(const ChaosRun& run) const {
    const auto again = std::ranges::count(run.ledger.faults, FaultLevel::restart, &FaultEntry::level);
    say(fmt::format("seed {}: {}; {} fault{}, {} restart{}, {} steps again, goodput {}, {:.1f} s: {}",
                    run.plan.seed, to_text(run.plan.layout), run.injected.size(),
                    run.injected.size() == 1 ? "" : "s", again, again == 1 ? "" : "s", run.ledger.lost_steps,
                    percent(run.ledger.effective_ratio()), static_cast<double>(run.duration_ms) / 1e3,
                    !run.wrong.empty()   ? "WRONG"
                    : run.excuse.empty() ? "same bits"
                                         : "other bits by a wrong number that no check sees"));
    report_numbers(run);
    for (const CheckedLoss& checked : check_losses(run)) {
      if (!checked.held()) say("  more was lost than promised: " + to_text(checked));
    }
    if (run.wrong.empty()) return;
    for (const std::string& line : to_lines(run.plan)) say("  " + line);
    for (const ChaosInjected& injected : run.injected) say("  done: " + injected.what);
    say(fmt::format(
        "  {}\n  its files: {}, {}.log\n  what it left in memory: holdfast clean {} removes it\n  again: {}",
        run.wrong, run.directory, run.directory, run.directory, command(run.plan.seed, run.plan.seed)));
  }

  void report_numbers(const ChaosRun& run) const {
    const NumberCheck check = check_numbers(run);
    for (std::size_t i = 0; i < run.injected.size(); ++i) {
      const ChaosInjected& injected = run.injected[i];
      if (!check.each[i].has_value()) continue;
      say(fmt::format("  {}, step {}{}: {}", injected.what, injected.step,
                      injected.before_first_update ? " (before the first update)" : "",
                      to_text(*check.each[i])));
    }
    for (const std::string& sentence : check.baseless) say("  " + sentence);
  }

  std::string command(std::uint64_t first, std::uint64_t last) const {
    std::string text = fmt::format("holdfast chaos {} --seeds {}..{} --ranks {}", options_->config, first,
                                   last, options_->ranks);
    for (const ChaosLayout& layout : options_->layouts)
      text += (&layout == &options_->layouts.front() ? " --layouts " : ",") + to_word(layout);
    if (options_->kills_only) text += " --kills-only";
    if (options_->as_configured) text += " --as-configured";
    for (const std::string& word : setup_.host_options) text += " " + shell_word(word);
    for (const auto& [option, words] : options_->host_commands)
      text += fmt::format(" --{} {}", option, shell_word(words));
    if (options_->faults_max != CampaignOptions{}.faults_max)
      text += fmt::format(" --faults-max {}", options_->faults_max);
    if (options_->every_ms > 0)
      text += fmt::format(" --every {}", static_cast<double>(options_->every_ms) / 1e3);
    if (!options_->faults.empty()) text += " --faults " + to_list(options_->faults);
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
  std::string undisturbed_digest_;
  std::map<std::string, std::string> twin_digests_;  // by the entries that spoil their samples
  std::vector<ChaosRun> runs_;
  std::int64_t begun_ns_;
};

}  // namespace

Result<bool> run_campaign(Env& env, Mounts& mounts, const CampaignOptions& options, Config resolved) {
  HF_TRY(const ChaosMachine machine, look_around(env, mounts, options, resolved));
  HF_TRY(ChaosChoice choice, choose_limits(resolved, options, machine));
  if (!options.only_plans)
    return Campaign(env, mounts, options, machine, std::move(resolved), std::move(choice)).run();
  for (std::int64_t i = 0; i < options.runs; ++i) {
    for (const std::string& line :
         to_lines(plan_chaos(options.first_seed + static_cast<std::uint64_t>(i), choice.limits)))
      say(line);
  }
  return true;
}

}  // namespace holdfast::chaos
