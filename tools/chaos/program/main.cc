// holdfast-chaos: the program that `holdfast chaos` runs. It turns the command line into the options of a
// campaign.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <iterator>

#include "runtime/cli/common/arguments.h"
#include "runtime/cli/common/program.h"
#include "runtime/config/loader.h"
#include "runtime/core/text.h"
#include "tools/chaos/campaign.h"

namespace holdfast::cli {
namespace {

constexpr const char* usage =
    "usage: holdfast chaos RUN.toml [--runs N | --minutes M | --kills N] [--seed S | --seeds A..B] [--ranks "
    "N]\n"
    "                      [--directory DIR] [--section.key=value ...]\n"
    "\n"
    "Trains the model that RUN.toml describes once without faults, then once for each seed under `holdfast "
    "launch`\n"
    "with faults that the seed draws: which ones, when, on whom, in which layout. Every run must end with "
    "the bits\n"
    "of the first one. Says how each fault was mended and how long that took. docs/chaos.md says more.\n"
    "\n"
    "  --runs N          how many seeds; 10 when left out, without --minutes, --kills and --seeds\n"
    "  --minutes M       begins no run later than that\n"
    "  --kills N         stop after N ranks and launchers have been killed\n"
    "  --seed S          the first seed, 1 when left out\n"
    "  --seeds A..B      these, both included: 17..17 repeats the plan of one\n"
    "  --ranks N         of a run, at most; 4 when left out\n"
    "  --layouts LIST    only these: copies x stages x ranks that share a layer, and spares, as in "
    "2x2x1,4x1x2+1\n"
    "  --faults LIST     only these, as in kill,crash; \"numbers\" stands for all that make numbers wrong, "
    "\"all\" for\n"
    "                    all others, which are taken when it is left out. Runs with wrong numbers audit a "
    "lane "
    "at every\n"
    "                    step unless --verdict.audit_every_steps or --as-configured says otherwise. A wrong "
    "number that\n"
    "                    comes once in another lane is counted as missed, and its run is not wrong\n"
    "  --faults-max N    of a run, 4 when left out\n"
    "  --every SECONDS   between a fault of a run and the next, all kinds in turn, as many as --faults-max "
    "says, instead "
    "of\n"
    "                    at steps that the seed draws\n"
    "  --as-configured   sets no key of checkpoint.*: runs save as the config says, or by default\n"
    "  --kills-only      inject as many kills as the run can survive, more than a third of them during "
    "recovery\n"
    "  --host LIST, --hostfile F   of `holdfast launch`: the hosts of the runs\n"
    "  --lose-host CMD, --return-host CMD   what ends a host, and what brings it back: {host} in CMD is its "
    "name\n"
    "  --cut-link CMD, --mend-link CMD      what cuts a host off from the others, and what mends that\n"
    "  --kill-host CMD                      what kills all ranks of a host\n"
    "  --deafen-host CMD, --undeafen-host CMD   what keeps all from a host that is sent to it, and what ends "
    "that\n"
    "  --mute-host CMD, --unmute-host CMD   the same of all that it sends\n"
    "  --spoil-link CMD, --clean-link CMD   what loses a part of both, and what ends that\n"
    "  --slow-link CMD, --fast-link CMD     what makes both late, and what ends that\n"
    "  --sicken-host CMD                    what makes the sensors of a host say that it should be left\n"
    "  --unfit-host CMD, --fit-host CMD     what makes a host unfit and kills its ranks, and what ends that\n"
    "  --cut-pair CMD, --mend-pair CMD      what cuts a host off from {peer} alone, and what mends that\n"
    "  --stop-host CMD, --continue-host CMD what stops all processes of a host, and what continues them\n"
    "  --replace-host CMD                   behind --lose-host: what puts a host with another name into the "
    "hostfile\n"
    "  --directory DIR   where the runs are; run.directory with \"-chaos\" behind it when left out\n"
    "  --json FILE       DIR/chaos.json when left out\n"
    "  --limit SECONDS   timeout of a run; default: 60 s and 10 times the undisturbed run\n"
    "  --keep            keeps the directories of runs that were right\n"
    "  --plan            prints what the seeds would do, and does nothing\n"
    "\n"
    "Exit code 0 when every run ended with the right bits, 1 when one did not: its directory is kept.\n";

struct Words {
  std::vector<std::string> overrides, others;
};

Words split(const std::vector<std::string>& words) {
  Words result;
  for (const std::string& word : words) {
    const std::string name = word.substr(0, word.find('='));
    const bool is_key = name.find('.') != std::string::npos || name == "--threads" || name == "--device";
    (name.starts_with("--") && is_key ? result.overrides : result.others).push_back(word);
  }
  return result;
}

Result<void> read_seeds(const Arguments& parsed, CampaignOptions& options) {
  HF_TRY(const std::int64_t first, parsed.integer("seed", 1, 0));
  options.first_seed = static_cast<std::uint64_t>(first);
  if (!parsed.has("seeds")) return {};
  const std::string text = parsed.text("seeds", "");
  std::uint64_t from = 0, to = 0;
  const std::size_t dots = text.find("..");
  const char* end = text.data() + text.size();
  const bool read = dots != std::string::npos &&
                    std::from_chars(text.data(), end, from).ptr == text.data() + dots &&
                    dots + 2 < text.size() && std::from_chars(text.data() + dots + 2, end, to).ptr == end;
  if (!read || to < from || parsed.has("seed") || parsed.has("runs")) {
    return fail(
        ExitCode::config,
        "chaos: --seeds must be A..B with A <= B, as in 17..17, without --seed and --runs; got \"{}\"", text);
  }
  options.first_seed = from;
  options.runs = static_cast<std::int64_t>(to - from + 1);
  return {};
}

Result<std::vector<ChaosLayout>> read_layouts(const std::string& list) {
  std::vector<ChaosLayout> layouts;
  for (const std::string& word : split_list(list)) {
    const std::optional<ChaosLayout> layout = read_layout(word);
    if (!layout.has_value() || layout->ranks < 2) {
      return fail(ExitCode::config,
                  "chaos: {} is no layout; one is copies x stages x ranks that share a layer, and spares, as "
                  "in 2x1x2 or 4x2x1+3, of two ranks at least",
                  word);
    }
    layouts.push_back(*layout);
  }
  return layouts;
}

Result<CampaignOptions> read_options(const Arguments& parsed) {
  CampaignOptions options{.config = parsed.positional(0)};
  const bool bounded = parsed.has("minutes") || parsed.has("kills");
  HF_TRY(options.runs, parsed.integer("runs", bounded ? 0 : options.runs, 1));
  HF_TRY(options.minutes, parsed.real("minutes", 0.0, 0.0));
  HF_TRY(options.kills, parsed.integer("kills", 0, 1));
  HF_TRY_VOID(read_seeds(parsed, options));
  HF_TRY(const std::int64_t ranks, parsed.integer("ranks", options.ranks, 2));
  options.ranks = static_cast<int>(std::min<std::int64_t>(ranks, 4096));
  HF_TRY(const std::int64_t faults_max, parsed.integer("faults-max", options.faults_max, 1));
  options.faults_max = static_cast<int>(std::min<std::int64_t>(faults_max, 1000));
  HF_TRY(const double every_seconds, parsed.real("every", 0.0, 0.1));
  options.every_ms = static_cast<std::int64_t>(every_seconds * 1e3);
  HF_TRY(const double limit_seconds, parsed.real("limit", 0.0, 1.0));
  options.limit_ms = static_cast<std::int64_t>(limit_seconds * 1e3);
  HF_TRY(options.layouts, read_layouts(parsed.text("layouts", "")));
  HF_TRY(options.faults, read_faults(parsed.text("faults", "")));
  options.hosts = parsed.text("host", "");
  options.hostfile = parsed.text("hostfile", "");
  if (!options.hosts.empty() && !options.hostfile.empty()) {
    return fail(ExitCode::config,
                "chaos: --host and --hostfile both say where the ranks run; give one of them");
  }
  for (const std::string_view option : host_fault_options()) {
    if (parsed.has(option)) options.host_commands.emplace(option, parsed.text(option, ""));
  }
  options.kills_only = parsed.has("kills-only");
  if (options.kills_only && options.every_ms > 0)
    return fail(ExitCode::config,
                "chaos: --kills-only and --every both say when faults come; give one of them");
  options.as_configured = parsed.has("as-configured");
  options.keep = parsed.has("keep");
  options.only_plans = parsed.has("plan");
  options.json = parsed.text("json", "");
  options.directory = parsed.text("directory", "");
  options.version = fmt::format("holdfast {} ({} build)", build_version(), build_type());
  return options;
}

std::string without_slashes(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

Result<bool> chaos(const std::vector<std::string>& words) {
  Env& env = posix_env();
  const Words parts = split(words);
  std::vector<std::string_view> names = {"runs",      "minutes", "kills",  "seed",       "seeds",
                                         "ranks",     "layouts", "faults", "faults-max", "every",
                                         "directory", "json",    "limit",  "host",       "hostfile"};
  std::ranges::copy(host_fault_options(), std::back_inserter(names));
  HF_TRY(const Arguments parsed, Arguments::parse("chaos", parts.others, {"RUN.toml"}, names,
                                                  {"kills-only", "as-configured", "keep", "plan"}));
  HF_TRY(CampaignOptions options, read_options(parsed));
  options.overrides = parts.overrides;
  HF_TRY(const std::vector<Override> overrides, parse_overrides(parts.overrides));
  HF_TRY(LoadedConfig loaded, load_config(env, options.config, overrides));
  HF_TRY_VOID(resolve_with_data(env, loaded.config));
  if (options.directory.empty()) options.directory = without_slashes(loaded.config.run.directory) + "-chaos";
  options.directory = without_slashes(options.directory);
  return run_campaign(env, posix_mounts(), options, std::move(loaded.config));
}

int run_chaos_command(const std::vector<std::string>& words) {
  if (wants_help(words)) {
    fmt::print("{}", usage);
    return with_output(0);
  }
  // Lost output is no error here: the command prints progress of a campaign, whose result is in its report.
  const Result<bool> right = chaos(words);
  if (!right.ok()) return complain(right.error());
  return *right ? 0 : 1;
}

}  // namespace
}  // namespace holdfast::cli

int main(int argc, char** argv) {
  return holdfast::cli::run_program(argc, argv, holdfast::cli::run_chaos_command);
}
