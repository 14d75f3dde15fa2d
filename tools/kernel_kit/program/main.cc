// holdfast-kernel: the program that `holdfast kernel` runs. It finds the subcommand in a constant table.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <optional>

#include "kernels/composed.h"
#include "kernels/plugin_loader.h"
#include "runtime/cli/common/arguments.h"
#include "runtime/cli/common/program.h"
#include "runtime/core/text.h"
#include "runtime/core/units.h"
#include "runtime/measure/measured_device.h"
#include "runtime/os/console.h"
#include "runtime/os/foreign_text.h"
#include "runtime/os/paths.h"
#include "runtime/os/processes.h"
#include "runtime/run/kernel_faults.h"
#include "runtime/run/run_directory.h"
#include "tools/bench_native/step_calls.h"
#include "tools/bench_native/synthetic_run.h"
#include "tools/kernel_kit/bench_records.h"
#include "tools/kernel_kit/call_trace.h"
#include "tools/kernel_kit/check_report.h"
#include "tools/kernel_kit/kernel_bench.h"
#include "tools/kernel_kit/kernel_folder.h"
#include "tools/kernel_kit/program/ab_command.h"
#include "tools/kernel_kit/program/child_process.h"
#include "tools/kernel_kit/program/trace_command.h"

namespace holdfast::cli {
namespace {

constexpr const char* usage =
    "usage: holdfast kernel COMMAND ...\n"
    "\n"
    "Kernels of your own, without a build of Holdfast's tree. docs/kernels.md is the tutorial.\n"
    "\n"
    "  list                            the ops, and which implementations each has here\n"
    "  faults RUN [--forget OP | all]  kernels of plug-ins that have crashed or hung in a run, which leaves "
    "them out where\n"
    "                                  kernels.on_failure is fall_back; --forget: the next start takes them "
    "again\n"
    "  contract OP                     what an op computes, and its struct in C\n"
    "  header                          holdfast_kernel.h, the one file that a plug-in needs\n"
    "  new OP [--lang cpp] [--out DIR] a folder (OP) with a kernel, a Makefile and the contract; `make` "
    "there builds\n"
    "                                  kernel.so, whose kernel has the name mine\n"
    "  check FILE.so [--op OP] [--trace DIR] [--json] [--page FILE.html] [--seconds N] [--seed N]\n"
    "                                  the plug-in's numbers against the reference in double, its bits on 1 "
    "to 16\n"
    "                                  threads, what it writes; in a process of its own, of which no "
    "step\n"
    "                                  lasts longer than N seconds (300); on numbers that "
    "are new each\n"
    "                                  time, or those of a seed; --trace: and on the calls of a trace\n"
    "  bench FILE.so --config RUN.toml | --trace DIR [--op OP] [--threads N] [--seconds N]\n"
    "     [--json FILE] [--record]\n"
    "                                  how fast the plug-in's kernels are on the calls of a step of that "
    "run, or of a\n"
    "                                  trace and on what its arrays held, "
    "beside all\n"
    "                                  others, with warm and cold caches; N seconds for each op (30); what "
    "is "
    "fast because\n"
    "                                  it does not do the work is found; --record: and adds what it found to "
    "the dataset\n"
    "                                  of the trace\n"
    "  ab RUN [--plugin FILE.so] [--kernels.OP=NAME ...] [--steps N] [--from newest|start] [--noise]\n"
    "     [--section.key=value ...] [--json FILE] [--page FILE.html] [--seconds N]\n"
    "                                  a run beside the same run with those kernels, from one state and on "
    "the same "
    "samples:\n"
    "                                  the first result with other bits, loss, and time by step; --noise: "
    "and what\n"
    "                                  other last bits make of the loss. RUN: a config or a run directory\n"
    "  trace RUN --steps LIST --ops PATTERNS [--calls N] [--out DIR] [--section.key=value ...]\n"
    "                                  computes steps (12,20-22) of a run again, as replay does, and keeps "
    "the "
    "first N calls\n"
    "                                  (1) of each shape of these ops ('rmsnorm_*,matmul') in each step in "
    "DIR "
    "(trace): what\n"
    "                                  their arrays held before and after, as safetensors and as a dataset "
    "of\n"
    "                                  FlashInfer-Bench; says about how many bytes before it writes them\n"
    "\n"
    "Exit code 0, 1 where check or bench finds something wrong, 2 where a word or a file is, 76 where "
    "somebody else "
    "ended "
    "the\n"
    "process of the kernels.\n";

constexpr int wrong_kernel = 1;  // exit code of check

Result<int> list(Env&, const std::vector<std::string>& words) {
  HF_TRY_VOID(outcome_of(Arguments::parse("kernel list", words, {}, {})));
  HF_TRY(const KernelTable table, kernel_registry().choose(best_cpu_isa(), {}));
  TextTable rows({"op", "part of a step", "kernel new writes", "runs here", "implementations"}, 5);
  for (std::size_t index = 0; index < op_count; ++index) {
    const auto op = static_cast<OpId>(index);
    std::vector<std::string_view> names;
    for (const Implementation* each : kernel_registry().of(op)) {
      if (std::ranges::find(names, each->name) == names.end()) names.emplace_back(each->name);
    }
    rows.add({name_of(op), name_of(class_of(op)),
              kernel_kit::has_whole_kernel(op) ? "a whole kernel" : "a skeleton", table[index].first().name,
              fmt::format("{}", fmt::join(names, ", "))});
  }
  fmt::print("{}", rows.text());
  return 0;
}

Result<int> faults(Env& env, const std::vector<std::string>& words) {
  HF_TRY(const Arguments arguments, Arguments::parse("kernel faults", words, {"RUN"}, {"forget"}));
  const RunPaths paths{arguments.positional(0)};
  HF_TRY_VOID(expect_run_directory(env, paths));
  if (!arguments.has("forget")) {
    for (const KernelFault& each : read_kernel_faults(env, paths))
      fmt::print("{} (digest {})\n", printable(text_of(each)), each.kernel.digest);
    return 0;
  }
  const std::string op = arguments.text("forget", "");
  if (op != "all") HF_TRY_VOID(outcome_of(kernel_kit::op_of_name(op)));
  HF_TRY(const KernelFaults forgotten, forget_kernel_faults(env, paths, op == "all" ? "" : op));
  for (const KernelFault& each : forgotten) fmt::print("forgotten: {}\n", printable(text_of(each)));
  return 0;
}

Result<int> contract(Env&, const std::vector<std::string>& words) {
  HF_TRY(const Arguments arguments, Arguments::parse("kernel contract", words, {"OP"}, {}));
  HF_TRY(const OpId op, kernel_kit::op_of_name(arguments.positional(0)));
  fmt::print("{}", kernel_kit::contract_of(op));
  return 0;
}

Result<int> header(Env&, const std::vector<std::string>& words) {
  HF_TRY_VOID(outcome_of(Arguments::parse("kernel header", words, {}, {})));
  fmt::print("{}", kernel_kit::plugin_header());
  return 0;
}

Result<int> make_new(Env& env, const std::vector<std::string>& words) {
  HF_TRY(const Arguments arguments, Arguments::parse("kernel new", words, {"OP"}, {"lang", "out"}));
  kernel_kit::FolderTerms terms;
  HF_TRY(terms.op, kernel_kit::op_of_name(arguments.positional(0)));
  terms.language = arguments.text("lang", "cpp");
  terms.folder = arguments.text("out", arguments.positional(0));
  terms.program = program_directory() + "/holdfast";
  HF_TRY_VOID(kernel_kit::make_kernel_folder(env, terms));
  const std::string folder = shell_word(terms.folder);
  fmt::print("{}: {}\n  make -C {}\n  holdfast kernel check {}/kernel.so\n", terms.folder,
             kernel_kit::has_whole_kernel(terms.op) ? "a kernel that is whole, simple and right"
                                                    : "a skeleton, which computes no call yet",
             folder, folder);
  return 0;
}

Error of_another_op(const kernel_kit::CallTrace& trace, const std::string& plugin,
                    const std::vector<std::string>& names) {
  return fail(ExitCode::config,
              "{} has no call of what plug-in {} has kernels for ({}); it has calls of {}. Capture those of "
              "the op with "
              "holdfast kernel trace, from a run that calls it",
              trace.folder, plugin, fmt::join(names, ", "), fmt::join(trace.ops(), ", "));
}

Result<kernel_kit::CheckReport> check_all(Env& env, const Arguments& arguments, const Tell& tell) {
  const std::string& path = arguments.positional(0);
  HF_TRY_VOID(tell("loading it"));
  HF_TRY(const KernelRegistry* registry, registry_with_plugins(env, {path}));
  HF_TRY(const std::int64_t seed, arguments.integer("seed", 0, 0));
  kernel_kit::CheckReport report{.seed = static_cast<std::uint64_t>(seed),
                                 .trace = arguments.text("trace", "")};
  std::optional<kernel_kit::CallTrace> trace;
  if (!report.trace.empty()) {
    HF_TRY(trace, kernel_kit::open_trace(env, report.trace));
  }
  std::vector<std::string> names;
  for (std::size_t index = 0; index < op_count; ++index) {
    for (const Implementation* each : registry->of(static_cast<OpId>(index))) {
      if (each->plugin == nullptr) continue;
      report.plugin = text_of(*each->plugin->file);
      names.emplace_back(op_names[index]);
      if (arguments.has("op") && arguments.text("op", "") != op_names[index]) continue;
      Result<void> told;
      kernel_kit::TracedCalls traced;
      if (trace.has_value()) {
        HF_TRY(traced, kernel_kit::load_calls(env, *trace, static_cast<OpId>(index)));
      }
      report.traced += traced.checked.size();
      HF_TRY(kernel_kit::KernelVerdict verdict,
             kernel_kit::check_kernel(
                 env, *each,
                 [&](const std::string& what) {
                   if (told.ok()) told = tell(fmt::format("{} of {}: {}", each->name, op_names[index], what));
                 },
                 report.seed, traced.checked));
      HF_TRY_VOID(std::move(told));
      report.kernels.push_back(std::move(verdict));
    }
  }
  if (report.kernels.empty())
    return fail(ExitCode::config, "plug-in {} has no kernel for {}; it has some for {}", path,
                arguments.text("op", ""), fmt::join(names, ", "));
  if (trace.has_value() && report.traced == 0) return of_another_op(*trace, path, names);
  return report;
}

// The child: checks the kernels in this process, which they may end.
Result<int> check_here(Env& env, const std::vector<std::string>& words) {
  HF_TRY(const Arguments arguments,
         Arguments::parse("kernel check", words, {"FILE.so"}, {"op", "seed", "trace", "folder"}));
  return work_as_child(env, arguments.text("folder", ""), [&](const Tell& tell) -> Result<Json> {
    HF_TRY(const kernel_kit::CheckReport report, check_all(env, arguments, tell));
    return Json{{"document", report.json()},
                {"text", kernel_kit::text_of(report)},
                {"page", kernel_kit::page_of(report)}};
  });
}

struct CheckTerms {
  std::string path = {}, op = {};
  std::int64_t seconds = 300;
  bool as_json = false;
  std::string page = {};
};

int failed(const CheckTerms& terms, const std::string& sentence) {
  if (terms.as_json) {
    const Json document{
        {"plugin", terms.path}, {"passed", false}, {"kernels", Json::array()}, {"error", sentence}};
    fmt::print("{}\n", document.dump(1));
  } else {
    fmt::print("wrong: plug-in {} {}\n", terms.path, sentence);
  }
  return wrong_kernel;
}

Result<int> show(Env& env, const CheckTerms& terms, const Json& result) {
  const Json& document = result.at("document");
  if (!terms.page.empty()) {
    const Result<void> written = env.replace_text(terms.page, result.value("page", ""));
    if (!written.ok()) return fail(ExitCode::config, "--page: {}", written.error().message);
  }
  if (terms.as_json) {
    fmt::print("{}\n", document.dump_any(1));
  } else {
    fmt::print("{}", result.at("text").get<std::string>());
  }
  return document.value("passed", false) ? 0 : wrong_kernel;
}

Result<int> check(Env& env, const std::vector<std::string>& words) {
  HF_TRY(const Arguments arguments, Arguments::parse("kernel check", words, {"FILE.so"},
                                                     {"op", "trace", "page", "seconds", "seed"}, {"json"}));
  CheckTerms terms{.path = arguments.positional(0), .op = arguments.text("op", "")};
  if (arguments.has("op")) HF_TRY_VOID(outcome_of(kernel_kit::op_of_name(terms.op)));
  HF_TRY(terms.seconds, arguments.integer("seconds", terms.seconds, 1));
  terms.as_json = arguments.has("json");
  terms.page = arguments.text("page", "");
  std::vector<std::string> child = {"check-here", terms.path};
  if (!terms.op.empty()) child.push_back("--op=" + terms.op);
  if (arguments.has("trace")) {
    HF_TRY_VOID(outcome_of(kernel_kit::open_trace(env, arguments.text("trace", ""))));
    child.push_back("--trace=" + arguments.text("trace", ""));
  }
  // Numbers that a plug-in knew before could be answered from a table.
  HF_TRY(const std::int64_t seed,
         arguments.integer("seed", static_cast<std::int64_t>(env.random_u64() % 1'000'000'000), 0));
  child.push_back(fmt::format("--seed={}", seed));
  HF_TRY(const ChildEnd end, run_child(env, {.words = child, .silence_s = terms.seconds}));
  return end.result.has_value() ? show(env, terms, *end.result) : failed(terms, end.fault);
}

// The child: measures the kernels of the plug-in in this process.
struct BenchTerms {
  std::string path = {}, config = {}, trace = {}, op = {};
  std::int64_t threads = 0, seconds = 30;
  bool records = false;  // what it finds, in the trace

  const std::string& source() const { return trace.empty() ? config : trace; }
};
Result<BenchTerms> bench_terms(const Arguments& arguments) {
  BenchTerms terms{.path = arguments.positional(0),
                   .config = arguments.text("config", ""),
                   .trace = arguments.text("trace", ""),
                   .op = arguments.text("op", "")};
  if (terms.config.empty() == terms.trace.empty())
    return fail(ExitCode::config,
                "kernel bench needs --config RUN.toml or --trace DIR, and not both: it measures the calls of "
                "a step of that "
                "run, or those that were captured from one");
  terms.records = arguments.has("record");
  if (terms.records && terms.trace.empty())
    return fail(ExitCode::config,
                "kernel bench --record writes into a trace: give --trace DIR, and not --config");
  if (arguments.has("op")) HF_TRY_VOID(outcome_of(kernel_kit::op_of_name(terms.op)));
  HF_TRY(terms.threads, arguments.integer("threads", 0, 1));
  HF_TRY(terms.seconds, arguments.integer("seconds", terms.seconds, 1));
  return terms;
}

// BenchedCalls are the calls of a step of a config, or of a trace.
struct BenchedCalls {
  Env& env;
  std::optional<bench::BenchRun> run = {};
  std::optional<kernel_kit::CallTrace> trace = {};

  static Result<BenchedCalls> open(Env& env, const BenchTerms& terms) {
    BenchedCalls source{.env = env};
    if (!terms.trace.empty()) {
      HF_TRY(source.trace, kernel_kit::open_trace(env, terms.trace));
      return source;
    }
    HF_TRY(const std::vector<Override> device, parse_overrides({"--device=cpu"}));
    HF_TRY(source.run, bench::load_bench_run(env, terms.config, device));
    return source;
  }
  int threads() const {
    return trace.has_value() ? trace->facts.threads : bench::threads_of(env, run->config);
  }
  bool is_bf16() const {
    return (trace.has_value() ? trace->facts.precision : run->config.training.precision) == "bf16";
  }
  Result<kernel_kit::TracedCalls> of(OpId op) const {
    if (trace.has_value()) return kernel_kit::load_calls(env, *trace, op);
    kernel_kit::TracedCalls calls;
    Config config = run->config;
    // A step has calls of a composed op where an implementation of it is named.
    std::string& name = config.kernels.implementations[static_cast<std::size_t>(op)];
    if (is_composed(op) && name == "auto") name = "parts";
    HF_TRY(calls.measured, bench::calls_of_step(env, config, *run->data, op));
    return calls;
  }
};

Result<Json> bench_all(Env& env, const BenchTerms& terms, const Tell& tell) {
  HF_TRY_VOID(tell(terms.trace.empty() ? "reading the config" : "reading the trace"));
  HF_TRY(const BenchedCalls source, BenchedCalls::open(env, terms));
  const int threads = terms.threads > 0 ? static_cast<int>(terms.threads) : source.threads();
  HF_TRY(const measure::MeasuredDevice measured, measure::MeasuredDevice::find(env, {.threads = threads}));
  constexpr std::int64_t limit_ms = 40;
  const std::unique_ptr<measure::Limits> limits = measured.limits(limit_ms);
  const kernel_kit::CounterClock clock(env);
  HF_TRY_VOID(tell("loading it"));
  HF_TRY(const KernelRegistry* registry, registry_with_plugins(env, {terms.path}));
  Json document{{"plugin", terms.path}, {"run", terms.source()}, {"ops", Json::array()}};
  measured.describe(document);
  std::string text = fmt::format("plug-in {}\n{}, {} threads\n", fmt::join(plugins_of(*registry), ""),
                                 measured.line(), threads);
  bool passed = true;
  Json records = Json::array();
  std::vector<std::string> names;
  for (std::size_t index = 0; index < op_count; ++index) {
    const auto op = static_cast<OpId>(index);
    const auto is_mine = [](const Implementation* each) { return each->plugin != nullptr; };
    if (std::ranges::none_of(registry->of(op), is_mine)) continue;
    names.emplace_back(op_names[index]);
    if (!terms.op.empty() && terms.op != op_names[index]) continue;
    HF_TRY(const kernel_kit::TracedCalls calls, source.of(op));
    if (calls.measured.empty()) continue;
    Result<void> told;
    HF_TRY(const kernel_kit::OpFigures figures,
           kernel_kit::bench_kernels(clock,
                                     {.registry = registry,
                                      .op = op,
                                      .calls = calls.measured,
                                      .given = calls.given,
                                      .dtype = source.is_bf16() ? DType::bf16 : DType::fp32,
                                      .limits = limits.get(),
                                      .threads = threads,
                                      .seconds = static_cast<double>(terms.seconds),
                                      .seed = env.random_u64()},
                                     [&](const std::string& what) {
                                       if (told.ok())
                                         told = tell(fmt::format("{}: {}", op_names[index], what));
                                     }));
    HF_TRY_VOID(std::move(told));
    passed = passed && figures.problems.empty();
    if (terms.records) {
      for (const Json& each : kernel_kit::records_of(env,
                                                     {.registry = registry,
                                                     .op = op,
                                                     .plugin = terms.path,
                                                     .hardware = measured.line(),
                                                     .program = build_version()},
                                                     calls, figures))
        records.push_back(each);
    }
    document["ops"].push_back(kernel_kit::json_of(figures));
    text += "\n" + kernel_kit::text_of(figures, terms.source());
  }
  if (document["ops"].empty() && source.trace.has_value())
    return of_another_op(*source.trace, terms.path, terms.op.empty() ? names : std::vector{terms.op});
  if (document["ops"].empty())
    return fail(ExitCode::config, "a step of {} calls none of what plug-in {} has kernels for{}: {}",
                terms.config, terms.path, terms.op.empty() ? "" : " and --op asks for",
                fmt::join(names, ", "));
  document["passed"] = passed;
  return Json{{"document", document}, {"text", text}, {"records", records}};
}

Result<int> bench_here(Env& env, const std::vector<std::string>& words) {
  HF_TRY(const Arguments arguments,
         Arguments::parse("kernel bench", words, {"FILE.so"},
                          {"config", "trace", "op", "threads", "seconds", "folder"}, {"record"}));
  HF_TRY(const BenchTerms terms, bench_terms(arguments));
  return work_as_child(env, arguments.text("folder", ""),
                       [&](const Tell& tell) { return bench_all(env, terms, tell); });
}

Result<int> bench(Env& env, const std::vector<std::string>& words) {
  HF_TRY(const Arguments arguments,
         Arguments::parse("kernel bench", words, {"FILE.so"},
                          {"config", "trace", "op", "threads", "seconds", "json"}, {"record"}));
  HF_TRY(const BenchTerms terms, bench_terms(arguments));
  std::vector<std::string> child = {
      "bench-here", terms.path, terms.trace.empty() ? "--config=" + terms.config : "--trace=" + terms.trace,
      fmt::format("--seconds={}", terms.seconds)};
  if (terms.records) child.emplace_back("--record");
  if (terms.threads > 0) child.push_back(fmt::format("--threads={}", terms.threads));
  if (!terms.op.empty()) child.push_back("--op=" + terms.op);
  // It says something before each turn of the plug-in; between them are those of others, and measurements of the machine.
  constexpr std::int64_t patience_s = 120;
  HF_TRY(const ChildEnd end, run_child(env, {.words = child, .silence_s = terms.seconds + patience_s}));
  const std::string json = arguments.text("json", "");
  const Json document = end.result.has_value()
                            ? end.result->at("document")
                            : Json{{"plugin", terms.path}, {"passed", false}, {"error", end.fault}};
  if (!json.empty()) {
    const Result<void> written = env.replace_text(json, document.dump_any(1) + "\n");
    if (!written.ok()) return fail(ExitCode::config, "--json: {}", written.error().message);
  }
  if (end.result.has_value()) {
    HF_TRY_VOID(kernel_kit::write_records(env, terms.trace, end.result->value("records", Json::array())));
    fmt::print("{}", end.result->at("text").get<std::string>());
  } else {
    fmt::print("wrong: plug-in {} {}\n", terms.path, end.fault);
  }
  return document.value("passed", false) ? 0 : wrong_kernel;
}

struct Subcommand {
  std::string_view name;
  Result<int> (*run)(Env& env, const std::vector<std::string>& words);
};
constexpr std::size_t child_commands = 3;  // the last ones, which people do not use
constexpr std::array<Subcommand, 12> subcommands = {{{"list", list},
                                                     {"faults", faults},
                                                     {"contract", contract},
                                                     {"header", header},
                                                     {"new", make_new},
                                                     {"check", check},
                                                     {"bench", bench},
                                                     {"ab", run_kernel_ab},
                                                     {"trace", run_kernel_trace},
                                                     {"check-here", check_here},
                                                     {"bench-here", bench_here},
                                                     {"ab-here", run_kernel_ab_here}}};

Result<int> run_subcommand(const std::vector<std::string>& words) {
  const std::string name = words.empty() ? "" : words.front();
  const auto* found = std::ranges::find(subcommands, name, &Subcommand::name);
  if (found != subcommands.end()) return found->run(posix_env(), {words.begin() + 1, words.end()});
  std::vector<std::string_view> names;
  for (const Subcommand& each : std::span(subcommands).first(subcommands.size() - child_commands))
    names.push_back(each.name);
  const std::string near = closest(name, names);
  return fail(ExitCode::config, "kernel needs one of {}, got {}{}\n{}", fmt::join(names, ", "),
              name.empty() ? "nothing" : name, near.empty() ? "" : fmt::format(", did you mean {}?", near),
              usage);
}

int run_kernel(const std::vector<std::string>& words) {
  if (wants_help(words)) {
    fmt::print("{}", usage);
    return with_output(0);
  }
  const Result<int> outcome = run_subcommand(words);
  return with_output(outcome.ok() ? *outcome : complain(outcome.error()));
}

}  // namespace
}  // namespace holdfast::cli

int main(int argc, char** argv) {
  using namespace holdfast;
  if (os::posix_env().variable("HOLDFAST_CORE_FILES") != "1") os::forbid_core_files();
  return cli::run_program(argc, argv, cli::run_kernel);
}
