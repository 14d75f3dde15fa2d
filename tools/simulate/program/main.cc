// holdfast-simulate: the program that `holdfast simulate` runs. It turns the command line into a study of a fleet.
#include <fmt/core.h>

#include <charconv>

#include "runtime/cli/common/arguments.h"
#include "runtime/cli/common/program.h"
#include "tools/simulate/simulate_report.h"

namespace holdfast::cli {
namespace {

namespace fleet = launch::fleet;

constexpr const char* usage =
    "usage: holdfast simulate CLUSTER.toml [--days D] [--seeds A..B] [--compare] [--sensitivity]\n"
    "                         [--json FILE] [--html FILE] [--section.key=value ...]\n"
    "\n"
    "Says how much of its time a run on a fleet trains (ETTR), where the rest goes, and what would change "
    "that. What the\n"
    "program decides is decided by its own code (which hosts a start has, recoveries, intervals of saves, "
    "slow hosts);\n"
    "hosts, racks, storage, repairs and people are a model whose numbers CLUSTER.toml has, each with its "
    "source.\n"
    "configs/clusters/ has some clusters; docs/simulator.md says what is real and what is a model.\n"
    "\n"
    "  --days D        of the run, 30 when left out\n"
    "  --seeds A..B    schedules of faults, both included; 1..20 when left out. The same seeds give the same "
    "bytes\n"
    "  --compare       with each feature off, on the same faults; against failures, size, interval and "
    "spares\n"
    "  --sensitivity   with half and twice of each number of the model, one at a time\n"
    "  --json FILE     all of it; --html FILE one page with plots\n"
    "\n"
    "keys of CLUSTER.toml (--section.key=value overrides one, --fault.NAME.key=value one of a fault; a "
    "number of the\n"
    "model may be { value = 5, source = \"where it comes from\" }, a section may have a source, the rest is "
    "\"assumed\"):\n";

struct SimulateWords {
  std::vector<std::string> overrides, others;
};

SimulateWords split_words(const std::vector<std::string>& words) {
  SimulateWords result;
  for (const std::string& word : words) {
    const std::string name = word.substr(0, word.find('='));
    const bool is_key = word.starts_with("--") && name.find('.') != std::string::npos;
    (is_key ? result.overrides : result.others).push_back(word);
  }
  return result;
}

Result<void> read_seeds_of(const std::string& text, fleet::StudyOptions& options) {
  constexpr std::uint64_t most_seeds = 1'000'000;
  std::uint64_t first = 0, last = 0;
  const char* end = text.data() + text.size();
  const std::size_t dots = text.find("..");
  const bool read = dots != std::string::npos &&
                    std::from_chars(text.data(), end, first).ptr == text.data() + dots &&
                    dots + 2 < text.size() && std::from_chars(text.data() + dots + 2, end, last).ptr == end;
  if (!read || last < first || last - first >= most_seeds)
    return fail(ExitCode::config,
                "simulate: --seeds must be A..B with A <= B, at most a million, as in 1..20; got \"{}\"",
                text);
  options.first_seed = first;
  options.last_seed = last;
  return {};
}

Result<void> simulate(const std::vector<std::string>& words) {
  Env& env = posix_env();
  const SimulateWords parts = split_words(words);
  HF_TRY(const Arguments parsed,
         Arguments::parse("simulate", parts.others, {"CLUSTER.toml"}, {"days", "seeds", "json", "html"},
                          {"compare", "sensitivity"}));
  fleet::StudyOptions options{.compares = parsed.has("compare"), .asks_numbers = parsed.has("sensitivity")};
  HF_TRY(options.days, parsed.real("days", options.days, 0.001));
  constexpr double most_days = 36'500.0;
  if (options.days > most_days)
    return fail(ExitCode::config, "simulate: --days {} is more than a hundred years", options.days);
  if (parsed.has("seeds")) HF_TRY_VOID(read_seeds_of(parsed.text("seeds", ""), options));
  HF_TRY(const std::vector<Override> overrides, parse_overrides(parts.overrides));
  HF_TRY(const fleet::Cluster cluster, fleet::load_cluster(env, parsed.positional(0), overrides));
  HF_TRY(const fleet::Study study, fleet::run_study(env, cluster, options));
  fmt::print("{}", fleet::study_text(study));
  if (parsed.has("json")) HF_TRY_VOID(env.replace_text(parsed.text("json", ""), fleet::study_json(study)));
  if (parsed.has("html")) HF_TRY_VOID(env.replace_text(parsed.text("html", ""), fleet::study_html(study)));
  return {};
}

int run_simulate_command(const std::vector<std::string>& words) {
  if (wants_help(words)) {
    fmt::print("{}{}", usage, fleet::cluster_keys_text());
    return with_output(0);
  }
  const Result<void> done = simulate(words);
  return done.ok() ? with_output(0) : complain(done.error());
}

}  // namespace
}  // namespace holdfast::cli

int main(int argc, char** argv) {
  return holdfast::cli::run_program(argc, argv, holdfast::cli::run_simulate_command);
}
