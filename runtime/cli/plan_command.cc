#include <fmt/core.h>

#include <algorithm>
#include <cstdio>

#include "runtime/cli/commands.h"
#include "runtime/cli/common/arguments.h"
#include "runtime/cli/common/program.h"
#include "runtime/config/loader.h"
#include "runtime/core/units.h"
#include "runtime/device/counting_device.h"
#include "runtime/model/spec.h"
#include "runtime/os/machine_facts.h"
#include "runtime/plan/layout_search.h"
#include "runtime/plan/plan_report.h"
#include "runtime/plan/reliability_report.h"
#include "runtime/plan/stated_gpu.h"
#include "runtime/plan/step_ops.h"
#include "runtime/plan/timed_layers.h"
#include "runtime/rank/device_choice.h"
#include "runtime/rank/kernel_choice.h"
#include "runtime/run/run_layout.h"

namespace holdfast::cli {
namespace {

constexpr const char* plan_usage =
    "usage: holdfast plan RUN.toml --ranks N [--suggest | --ops] [--section.key=value ...]\n"
    "\n"
    "What N ranks would hold, send and take in a step, before any of them starts: memory of every rank as "
    "the\n"
    "run allocates it, traffic, bubble, step time, the same after ranks were lost, the failures to expect, "
    "and\n"
    "what all of it costs. docs/plan.md says how to read it and how far to trust it.\n"
    "\n"
    "  --suggest          the layouts of N ranks that fit, the fastest first, and the keys to set\n"
    "  --ops              every op that one rank launches in a step, by shape: calls, GFLOP, bytes;\n"
    "                     --rank R: of this rank instead of rank 0\n"
    "  --gpu NAME         a100, h100, h200 or b200: the memory and the rates of such a GPU, 8 in a host, "
    "for\n"
    "                     all of the following that are left out\n"
    "  --memory-gib X     memory per rank; default: that of this machine divided by N\n"
    "  --peak-tflops X    of what one rank computes on, with\n"
    "  --memory-gbs Y     the rate of its memory (10^9 bytes read or written per second); left out, a CPU "
    "is\n"
    "                     measured here: a few layers of the model run for a second or two\n"
    "  --link-gbs Z       10^9 bytes per second that a rank receives; left out with stated peaks, sending\n"
    "                     takes no time\n"
    "  --ranks-per-host R ranks r*R to r*R+R-1 share a host; left out, all ranks share one\n"
    "  --host-link-gbs H  with it: 10^9 bytes per second that a rank receives from ranks of its own host;\n"
    "                     --link-gbs is then that between hosts\n"
    "  --replacement-hours H  until a host that failed is back, 24 if left out: for spares and waiting\n"
    "  --json             one JSON object instead of text\n"
    "\n"
    "Exit code 0, 2 when the config or the layout is wrong, 3 when nothing fits; the smallest change that\n"
    "would fit is named.\n";

constexpr std::int64_t ranks_max = 65536;

struct PlanWords {
  std::vector<std::string> overrides, others;
  bool suggest = false, ops = false, json = false;
};

PlanWords split(const std::vector<std::string>& words) {
  PlanWords result;
  for (const std::string& word : words) {
    const std::string name = word.substr(0, word.find('='));
    const bool is_key = name.find('.') != std::string::npos || name == "--threads" || name == "--device";
    if (word == "--suggest") {
      result.suggest = true;
    } else if (word == "--ops") {
      result.ops = true;
    } else if (word == "--json") {
      result.json = true;
    } else {
      (name.starts_with("--") && is_key ? result.overrides : result.others).push_back(word);
    }
  }
  return result;
}

// Rates and sizes that the user stated; 0: not stated.
struct Stated {
  double tflops = 0.0, memory_gbs = 0.0, memory_gib = 0.0, link_gbs = 0.0, host_link_gbs = 0.0;
  int ranks_per_host = 0;
  const StatedGpu* gpu = nullptr;  // of --gpu
  double replacement_hours = 24.0;

  static Result<Stated> of(const Arguments& arguments) {
    Stated stated;
    HF_TRY(stated.tflops, arguments.real("peak-tflops", 0.0, 0.0));
    HF_TRY(stated.memory_gbs, arguments.real("memory-gbs", 0.0, 0.0));
    HF_TRY(stated.memory_gib, arguments.real("memory-gib", 0.0, 0.0));
    HF_TRY(stated.link_gbs, arguments.real("link-gbs", 0.0, 0.0));
    HF_TRY(stated.host_link_gbs, arguments.real("host-link-gbs", 0.0, 0.0));
    HF_TRY(const std::int64_t on_host, arguments.integer("ranks-per-host", 0, 1));
    stated.ranks_per_host = static_cast<int>(std::min<std::int64_t>(on_host, ranks_max));
    HF_TRY(stated.replacement_hours, arguments.real("replacement-hours", stated.replacement_hours, 0.0));
    constexpr double most_hours = 1e6;
    if (stated.replacement_hours > most_hours) {
      return fail(
          ExitCode::config,
          "--replacement-hours is {}, expected at most {}, which is more than a century: hours until a "
          "host that failed is back",
          stated.replacement_hours, most_hours);
    }
    if (arguments.has("gpu")) {
      const std::string name = arguments.text("gpu", "");
      stated.gpu = find_gpu(name);
      if (stated.gpu == nullptr)
        return fail(ExitCode::config,
                    "--gpu is {}, expected one of {}; of another GPU give --peak-tflops and --memory-gbs",
                    name, known_gpus());
    }
    if (stated.gpu != nullptr) return stated;  // which has what is left out
    if (stated.host_link_gbs > 0.0 && stated.ranks_per_host == 0) {
      return fail(
          ExitCode::config,
          "--host-link-gbs is a rate inside a host: give --ranks-per-host, too, or --link-gbs instead");
    }
    if ((stated.tflops > 0.0) == (stated.memory_gbs > 0.0)) return stated;
    return fail(ExitCode::config,
                "--peak-tflops and --memory-gbs belong together: give both, or neither to measure");
  }
  bool peaks() const { return tflops > 0.0; }

  // Puts the rates of the GPU in place of what was left out.
  void complete(const Config& config) {
    if (gpu == nullptr) return;
    if (tflops <= 0.0) tflops = config.training.precision == "bf16" ? gpu->bf16_tflops : gpu->fp32_tflops;
    if (memory_gbs <= 0.0) memory_gbs = gpu->memory_gbs;
    if (memory_gib <= 0.0) memory_gib = gpu->memory_gib;
    if (ranks_per_host == 0) ranks_per_host = gpus_per_host;
    if (host_link_gbs <= 0.0) host_link_gbs = gpu->host_link_gbs;
    if (link_gbs <= 0.0) link_gbs = gpu->link_gbs;
  }
};

// Machine of a plan, and the objects that it points to.
struct Place {
  PlannedMachine machine;
  ReliabilityOptions reliability;
  std::unique_ptr<OpPrices> prices;
  std::unique_ptr<Device> kernels;
};

Result<std::unique_ptr<OpPrices>> prices_of(Env& env, const Config& config, int ranks, const Stated& stated) {
  if (stated.peaks()) {
    const std::string whose =
        stated.gpu == nullptr ? "stated peaks" : fmt::format("--gpu {}", stated.gpu->name);
    return std::unique_ptr<OpPrices>(std::make_unique<PeakPrices>(
        stated.tflops * 1e12, stated.memory_gbs * 1e9,
        fmt::format("{}: {} TFLOP/s of large products and {} GB/s, which no whole step reaches", whose,
                    stated.tflops, stated.memory_gbs)));
  }
  if (config.device != "cpu") return std::unique_ptr<OpPrices>();
  return price_ops_here(env, config, ranks);
}

// Passes over memory that a message costs where all ranks are on this machine and compute on its processors.
// The processors copy it into memory that both ends see and out of it again, so each byte is read and written
// twice.
constexpr double memory_passes_of_a_message = 4.0;

Result<Place> place_of(Env& env, const Config& config, const std::map<std::string, std::string>& origin,
                       int ranks, const Stated& stated) {
  Place place;
  PlannedMachine& machine = place.machine;
  const bool on_cpu = config.device == "cpu";
  machine = machine_of(config, ranks);
  machine.ranks_per_host = stated.ranks_per_host;
  place.reliability.device_kind = stated.gpu != nullptr ? std::string(stated.gpu->name) : config.device;
  place.reliability.replacement_seconds = stated.replacement_hours * hour_seconds;
  if (stated.memory_gib > 0.0) {
    constexpr double gib = 1024.0 * 1024.0 * 1024.0;
    machine.rank_bytes = static_cast<std::uint64_t>(std::min(stated.memory_gib * gib, 1e18));
  } else if (on_cpu) {
    machine.host_bytes = available_memory_bytes(env);
  } else if (const Result<CudaPresence> cuda = find_cuda(env); cuda.ok()) {
    machine.rank_bytes = cuda->devices.front().memory_bytes;
  }
  if (const Result<std::uint64_t> free_bytes = env.free_bytes(shared_memory_directory);
      stated.memory_gib <= 0.0 && free_bytes.ok()) {
    machine.shared_bytes = *free_bytes;
  }
  const int on_host = machine.ranks_on_host(ranks);
  HF_TRY(place.prices, prices_of(env, config, on_host, stated));
  machine.prices = place.prices.get();
  if (stated.link_gbs > 0.0) machine.link_bytes_per_second = stated.link_gbs * 1e9;
  if (stated.host_link_gbs > 0.0) machine.host_link_bytes_per_second = stated.host_link_gbs * 1e9;
  machine.overlaps_messages = stated.peaks();
  if (!on_cpu) return place;
  const int threads = threads_of_rank(env, config, on_host);
  HF_TRY(const KernelRequest kernels, kernel_request(env, config.kernels, origin));
  place.kernels = make_counting_cpu_device(
      {.threads = threads, .isa = kernels.isa, .kernels = kernels.requests, .registry = kernels.registry});
  machine.kernels = place.kernels.get();
  if (stated.peaks()) return place;
  machine.ranks_at_once = std::max(1, env.processor_count() / threads);
  if (!machine.has_links()) {
    machine.link_bytes_per_second = machine.prices->memory_bytes_per_second() / memory_passes_of_a_message;
  }
  return place;
}

void print(const Json& json) {
  fmt::print("{}\n", json.dump_any(1));
}

std::string does_not_fit(const LayoutPlan* plan, int ranks, const PlannedMachine& machine) {
  std::string room = format_bytes(machine.bytes_for_rank(ranks).value_or(0)) + " for a rank";
  if (!machine.rank_bytes.has_value() && machine.host_bytes.has_value()) {
    room += fmt::format(
        ", which is the {} that this machine has available for {} ranks: if the run will be elsewhere, give "
        "--memory-gib, or --gpu",
        format_bytes(*machine.host_bytes), machine.ranks_on_host(ranks));
  }
  if (plan == nullptr)
    return fmt::format("no layout of {} rank{} fits into {}", ranks, ranks == 1 ? "" : "s", room);
  return fmt::format("the plan of {} does not fit into {}",
                     format_bytes(plan->largest(machine).needed_bytes(machine)), room);
}

// Prints why nothing fits and what would help, and returns exit code 3.
int refuse(Env& env, const Config& config, int ranks, const PlannedMachine& machine, const LayoutPlan* plan,
           Json json, bool as_json) {
  const std::optional<Remedy> remedy = smallest_remedy(env, config, ranks, machine);
  if (as_json) {
    json["remedy"] = remedy.has_value() ? remedy_json(*remedy, machine) : Json();
    print(json);
  }
  std::fflush(stdout);
  const std::string help =
      remedy.has_value() ? remedy_text(*remedy, ranks, machine)
                         : "no recomputation, microbatch size or number of stages that was tried helps; "
                           "reduce the model or training.sequence_length";
  return complain(fail(ExitCode::does_not_fit, "{}; {}", does_not_fit(plan, ranks, machine), help));
}

// Prints the progress of a search on stderr, once a second and not before one second has passed.
class SearchNews {
 public:
  explicit SearchNews(Env& env) : env_(env), reported_ns_(env.monotonic_ns()) {}
  void report(const LayoutSearch& search) {
    constexpr std::int64_t interval_ns = 1'000'000'000;
    const std::int64_t now_ns = env_.monotonic_ns();
    if (now_ns - reported_ns_ < interval_ns) return;
    reported_ns_ = now_ns;
    fmt::print(stderr, "holdfast plan: {} candidates, {} do not fit, {} priced, {} of the fastest found\n",
               search.tried, search.too_large, search.priced, search.plans.size());
  }

 private:
  Env& env_;
  std::int64_t reported_ns_;
};

Result<RunPlan> plan_run(Env& env, const Config& config, int ranks, const PlannedMachine& machine) {
  RunPlan plan;
  LayoutPlanner planner(env, machine);
  HF_TRY(plan.layout, planner.plan(config, ranks));
  const int replica = plan.layout.shape.pipeline * plan.layout.shape.tensor;
  const auto fewest = static_cast<int>(config.elastic.min_data_parallel);
  std::vector<int> degrees = {plan.layout.shape.data - 1, fewest};
  if (degrees[0] == degrees[1]) degrees.pop_back();
  Config smaller = config;
  smaller.parallel.data = 0;
  for (const int degree : degrees) {
    if (degree < fewest || degree >= plan.layout.shape.data) continue;
    HF_TRY(LayoutPlan layout, planner.plan(smaller, degree * replica));
    plan.smaller.push_back(std::move(layout));
  }
  return plan;
}

int answer(Env& env, const Config& config, int ranks, const Place& place, const PlanWords& words) {
  const PlannedMachine& machine = place.machine;
  if (words.suggest) {
    SearchNews news(env);
    const LayoutSearch search = search_layouts(
        env, config, ranks, machine, {.progress = [&](const LayoutSearch& so_far) { news.report(so_far); }});
    if (search.tried == 0) return complain(plan_layout(env, config, ranks, machine).error());
    if (search.plans.empty()) {
      return refuse(env, config, ranks, machine, nullptr, search_json(search, config, ranks, machine),
                    words.json);
    }
    if (words.json) {
      print(search_json(search, config, ranks, machine));
    } else {
      fmt::print("{}", search_text(search, config, ranks, machine));
    }
    return 0;
  }
  const Result<RunPlan> plan = plan_run(env, config, ranks, machine);
  if (!plan.ok()) return complain(plan.error());
  ReliabilityOptions options = place.reliability;
  if (!plan->smaller.empty() && plan->smaller.front().time.has_value())
    options.smaller_step_seconds = plan->smaller.front().time->seconds();
  const ReliabilityPlan reliability = plan_reliability(
      plan->layout, machine,
      read_run_figures(env, config.run.directory, ranks, static_cast<int>(config.elastic.spares)), options);
  Json json = plan_json(*plan, machine);
  json["reliability"] = reliability_json(reliability, config.cost);
  if (!words.json)
    fmt::print("{}\n{}", plan_text(*plan, machine), reliability_text(reliability, config.cost));
  if (!plan->layout.fits(machine))
    return refuse(env, config, ranks, machine, &plan->layout, json, words.json);
  if (words.json) print(json);
  return 0;
}

int print_ops(Env& env, const Config& config, int ranks, int rank, bool as_json) {
  const Result<StepOps> step = step_ops(env, config, ranks, rank, machine_of(config, ranks));
  if (!step.ok()) return complain(step.error());
  if (as_json) {
    print(step_ops_json(*step));
  } else {
    fmt::print("{}", step_ops_text(*step));
  }
  return 0;
}

Result<int> plan(const std::vector<std::string>& arguments) {
  Env& env = posix_env();
  PlanWords words = split(arguments);
  HF_TRY(const Arguments parsed,
         Arguments::parse("plan", words.others, {"RUN.toml"},
                          {"ranks", "rank", "memory-gib", "peak-tflops", "memory-gbs", "link-gbs",
                           "ranks-per-host", "host-link-gbs", "gpu", "replacement-hours"}));
  HF_TRY(const std::int64_t ranks, parsed.integer("ranks", 0, 1));
  if (!parsed.has("ranks") || ranks > ranks_max) {
    return fail(ExitCode::config, "plan needs --ranks N, how many ranks the run would have, 1 to {}",
                ranks_max);
  }
  HF_TRY(const std::int64_t rank, parsed.integer("rank", 0, 0));
  if (rank >= ranks) return fail(ExitCode::config, "--rank is {}, expected 0 to {}", rank, ranks - 1);
  if (words.suggest && words.ops) return fail(ExitCode::config, "give --suggest or --ops, not both");
  if (parsed.has("rank") && !words.ops) return fail(ExitCode::config, "--rank belongs to --ops");
  HF_TRY(Stated stated, Stated::of(parsed));
  const bool names_device = std::ranges::any_of(
      words.overrides, [](const std::string& word) { return word.starts_with("--device="); });
  if (stated.gpu != nullptr && !names_device) words.overrides.emplace_back("--device=cuda");
  HF_TRY(const std::vector<Override> overrides, parse_overrides(words.overrides));
  HF_TRY(LoadedConfig loaded, load_config(env, parsed.positional(0), overrides));
  Config& config = loaded.config;
  resolve_device(env, config);
  if (config.device == "cpu") HF_TRY_VOID(check_device(env, config, loaded.origin));
  HF_TRY_VOID(resolve_with_data(env, config));
  HF_TRY_VOID(check_decay_groups(config));
  if (!words.suggest) HF_TRY_VOID(check_layout(config, static_cast<int>(ranks)));
  if (words.ops) return print_ops(env, config, static_cast<int>(ranks), static_cast<int>(rank), words.json);
  if (!words.json) {
    fmt::print("{}", run_text(config));
    std::fflush(stdout);
  }
  stated.complete(config);
  HF_TRY(const Place place, place_of(env, config, loaded.origin, static_cast<int>(ranks), stated));
  return answer(env, config, static_cast<int>(ranks), place, words);
}

}  // namespace

int run_plan_command(const std::vector<std::string>& arguments) {
  if (wants_help(arguments)) {
    fmt::print("{}", plan_usage);
    return 0;
  }
  const Result<int> code = plan(arguments);
  return code.ok() ? *code : complain(code.error());
}

}  // namespace holdfast::cli
