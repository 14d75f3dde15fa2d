// holdfast-bench: the program that `holdfast bench` runs. It finds the case in a constant table.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "runtime/cli/common/arguments.h"
#include "runtime/cli/common/program.h"
#include "runtime/core/text.h"
#include "runtime/measure/report.h"
#include "runtime/os/io_queue.h"
#include "tools/bench_native/cases.h"

namespace holdfast::cli {
namespace {

constexpr const char* usage =
    "usage: holdfast bench CASE [...] [--json FILE]\n"
    "\n"
    "Measures one thing on this machine, each figure beside what the machine allows. tools/bench runs\n"
    "several cases in one go, also those that need other programs. docs/bench.md says how to read the "
    "tables.\n"
    "\n"
    "  op NAME|all [--device cpu|cuda] [--implementation X] [--dtype fp32|bf16] [--threads N]\n"
    "     [--sizes cpu|gpu|toy] [--shape TEXT] [--milliseconds N]\n"
    "      Every implementation of an op on the shapes that models call it with, N ms each (40). --sizes:\n"
    "      shapes that a processor trains, shapes that fill a GPU (up to 10 GB of operands), or tiny ones; "
    "the\n"
    "      first on a CPU and the second on a GPU if it is left out. --shape keeps those whose shape or use\n"
    "      contains TEXT, such as 4x64 or llama. With matmul and cuda, --algorithms measures all algorithms\n"
    "      that cuBLASLt has for a product; --plan FILE writes the faster ones for kernels.plan.\n"
    "  step [RUN.toml] [--section.key=value ...] [--steps N] [--warmup-steps N] [--milliseconds N]\n"
    "      Where the time of a training step goes, op by op. Without RUN.toml: gpt2-124m, 4 x 64 tokens, "
    "one\n"
    "      lane, made-up tokens. N steps are measured (10) after others (3); each limit of a CPU is "
    "measured\n"
    "      for N ms (60). The device is the one that training would take, or that of --device.\n"
    "  optimizer [--device cpu|cuda] [--preset NAME] [--dtype fp32|bf16] [--moments fp32|bf16] [--threads "
    "N]\n"
    "      [--updates N]\n"
    "      AdamW over all parameters of a model (gpt2-124m), N times (20), against the rate of memory.\n"
    "  loader [--tokens N] [--sequence-length N] [--microbatch-size N]\n"
    "      Tokens per second of the data loader from a file of N tokens (16777216) of each format, cold and\n"
    "      warm, against the fastest step.\n"
    "  checksum [--milliseconds N]\n"
    "      CRC32C of bytes in the caches and in memory, on one thread; N ms for each figure (100).\n"
    "  disk [--directory PATH] [--mebibytes N] [--depth N] [--rounds N] [--io auto|io_uring|threads]\n"
    "      A checkpoint of N MiB (1024) written and verified, beside transfers of 4 MiB, N at a time (16), "
    "and "
    "beside\n"
    "      writing through the page cache, on the disk of PATH (that of temporary files).\n"
    "\n"
    "  --json FILE    every figure of the case as one JSON document\n";

// Returns whether the word is an option of the config ("--section.key=value", which has a point, or one of
// the two keys that are in no section), and not "--name=value" or "--name value" of a case.
bool is_config_override(const std::string& word) {
  const std::string name = word.substr(0, word.find('='));
  return name.starts_with("--") &&
         (name.find('.') != std::string::npos || name == "--threads" || name == "--device");
}

struct CaseWords {
  std::vector<std::string> overrides;
  std::vector<std::string> others;
};
CaseWords split(const std::vector<std::string>& words) {
  CaseWords result;
  for (const std::string& word : words) {
    (is_config_override(word) ? result.overrides : result.others).push_back(word);
  }
  return result;
}

Result<DType> dtype_of(const Arguments& arguments) {
  const std::string dtype = arguments.text("dtype", "fp32");
  if (dtype == "fp32") return DType::fp32;
  if (dtype == "bf16") return DType::bf16;
  return fail(ExitCode::config, "--dtype must be fp32 or bf16, got \"{}\"", dtype);
}

Result<std::optional<SampleSizes>> sizes_of(const Arguments& arguments) {
  if (!arguments.has("sizes")) return std::optional<SampleSizes>();
  HF_TRY(const std::string name, arguments.choice("sizes", {"cpu", "gpu", "toy"}));
  return std::optional(name == "cpu"   ? SampleSizes::cpu
                       : name == "gpu" ? SampleSizes::gpu
                                       : SampleSizes::toy);
}

Result<MeasuredDeviceOptions> device_of(Env& env, const Arguments& arguments) {
  constexpr std::int64_t most = 4096;
  MeasuredDeviceOptions device;
  const std::string kind = arguments.text("device", "cpu");
  if (kind != "cpu" && kind != "cuda")
    return fail(ExitCode::config, "--device must be cpu or cuda, got \"{}\"", kind);
  device.gpu = kind == "cuda";
  HF_TRY(const std::int64_t threads, arguments.integer("threads", env.processor_count(), 1));
  device.threads = static_cast<int>(std::min(threads, most));
  return device;
}

Result<std::int64_t> milliseconds_of(const Arguments& arguments, std::int64_t otherwise) {
  constexpr std::int64_t most = 600'000;
  HF_TRY(const std::int64_t milliseconds, arguments.integer("milliseconds", otherwise, 1));
  return std::min(milliseconds, most);
}

Result<Json> op(Env& env, const std::vector<std::string>& words) {
  HF_TRY(const Arguments arguments, Arguments::parse("bench op", words, {"NAME"},
                                                     {"device", "implementation", "dtype", "threads", "sizes",
                                                      "shape", "milliseconds", "plan", "json"},
                                                     {"algorithms"}));
  OpCaseOptions op{.name = arguments.positional(0),
                   .implementation = arguments.text("implementation", ""),
                   .algorithms = arguments.has("algorithms"),
                   .plan = arguments.text("plan", ""),
                   .shape = arguments.text("shape", "")};
  HF_TRY(op.dtype, dtype_of(arguments));
  HF_TRY(op.device, device_of(env, arguments));
  HF_TRY(op.sizes, sizes_of(arguments));
  HF_TRY(op.milliseconds, milliseconds_of(arguments, op.milliseconds));
  return run_op_case(env, op);
}

Result<Json> step(Env& env, const std::vector<std::string>& words) {
  const CaseWords split_words = split(words);
  std::vector<std::string> options = split_words.others;
  StepCaseOptions step;
  if (!options.empty() && !options.front().starts_with("--")) {
    step.config_path = options.front();
    options.erase(options.begin());
  }
  HF_TRY(const Arguments arguments,
         Arguments::parse("bench step", options, {}, {"steps", "warmup-steps", "milliseconds", "json"}));
  HF_TRY(step.overrides, parse_overrides(split_words.overrides));
  HF_TRY(step.steps, arguments.integer("steps", step.steps, 1));
  HF_TRY(step.warmup_steps, arguments.integer("warmup-steps", step.warmup_steps, 0));
  HF_TRY(step.limit_ms, milliseconds_of(arguments, step.limit_ms));
  return run_step_case(env, step);
}

Result<Json> optimizer(Env& env, const std::vector<std::string>& words) {
  HF_TRY(const Arguments arguments,
         Arguments::parse("bench optimizer", words, {},
                          {"device", "preset", "dtype", "moments", "threads", "updates", "json"}));
  OptimizerCaseOptions optimizer;
  optimizer.preset = arguments.text("preset", optimizer.preset);
  HF_TRY(optimizer.dtype, dtype_of(arguments));
  HF_TRY(optimizer.moments, arguments.choice("moments", {"fp32", "bf16"}));
  HF_TRY(optimizer.device, device_of(env, arguments));
  HF_TRY(optimizer.updates, arguments.integer("updates", optimizer.updates, 1));
  return run_optimizer_case(env, optimizer);
}

Result<Json> loader(Env& env, const std::vector<std::string>& words) {
  HF_TRY(
      const Arguments arguments,
      Arguments::parse("bench loader", words, {}, {"tokens", "sequence-length", "microbatch-size", "json"}));
  LoaderCaseOptions loader;
  HF_TRY(loader.sequence_length, arguments.integer("sequence-length", loader.sequence_length, 1));
  HF_TRY(loader.microbatch_size, arguments.integer("microbatch-size", loader.microbatch_size, 1));
  HF_TRY(loader.tokens, arguments.integer("tokens", loader.tokens, 1));
  const std::int64_t fewest = loader.microbatch_size * loader.sequence_length + 1;
  if (loader.tokens >= fewest) return run_loader_case(env, loader);
  return fail(ExitCode::config, "--tokens must be at least {}, one microbatch, got {}", fewest,
              loader.tokens);
}

Result<Json> checksum(Env& env, const std::vector<std::string>& words) {
  HF_TRY(const Arguments arguments, Arguments::parse("bench checksum", words, {}, {"milliseconds", "json"}));
  ChecksumCaseOptions checksum;
  HF_TRY(checksum.milliseconds, milliseconds_of(arguments, checksum.milliseconds));
  return run_checksum_case(env, checksum);
}

Result<Json> disk(Env& env, const std::vector<std::string>& words) {
  HF_TRY(
      const Arguments arguments,
      Arguments::parse("bench disk", words, {}, {"directory", "mebibytes", "depth", "rounds", "io", "json"}));
  DiskCaseOptions disk{.directory = arguments.text("directory", "")};
  HF_TRY(disk.mebibytes, arguments.integer("mebibytes", disk.mebibytes, 4));
  disk.mebibytes = disk.mebibytes / 4 * 4;  // whole transfers
  HF_TRY(disk.depth, arguments.integer("depth", disk.depth, 1));
  disk.depth = std::min<std::int64_t>(disk.depth, largest_io_depth);
  HF_TRY(disk.rounds, arguments.integer("rounds", disk.rounds, 1));
  HF_TRY(const std::string io, arguments.choice("io", {"auto", "io_uring", "threads"}));
  disk.backend = io_backend_of(io);
  return run_disk_case(env, disk);
}

struct Case {
  std::string_view name;
  Result<Json> (*run)(Env& env, const std::vector<std::string>& words);
};
constexpr std::array<Case, 6> cases = {{{"op", op},
                                        {"step", step},
                                        {"optimizer", optimizer},
                                        {"loader", loader},
                                        {"checksum", checksum},
                                        {"disk", disk}}};

// Returns the file of --json, which every case takes.
std::string json_path(const std::vector<std::string>& words) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i].starts_with("--json=")) return words[i].substr(7);
    if (words[i] == "--json" && i + 1 < words.size()) return words[i + 1];
  }
  return "";
}

Result<void> bench(const std::vector<std::string>& words) {
  Env& env = posix_env();
  const std::string name = words.empty() ? "" : words.front();
  const auto* found = std::ranges::find(cases, name, &Case::name);
  if (found == cases.end()) {
    std::vector<std::string_view> names;
    for (const Case& each : cases) names.push_back(each.name);
    const std::string near = closest(name, names);
    return fail(ExitCode::config, "bench needs one of {}, got {}{}\n{}", fmt::join(names, ", "),
                name.empty() ? "nothing" : name, near.empty() ? "" : fmt::format(", did you mean {}?", near),
                usage);
  }
  const std::vector<std::string> rest(words.begin() + 1, words.end());
  const std::int64_t time_us = env.wall_time_us();
  HF_TRY(const Json result, found->run(env, rest));
  const std::string path = json_path(rest);
  if (path.empty()) return {};
  const Json document{
      {"case", name},
      {"arguments", rest},
      {"time_us", time_us},
      {"machine", machine_json(env)},
      {"build", {{"version", build_version()}, {"type", build_type()}, {"compiler", build_compiler()}}},
      {"result", result}};
  const Result<void> written = env.replace_text(path, document.dump(1) + "\n");
  if (written.ok()) return {};
  return Error{ExitCode::config, fmt::format("--json: {}", written.error().message)};
}

int run_bench(const std::vector<std::string>& words) {
  if (wants_help(words)) {
    fmt::print("{}", usage);
    return with_output(0);
  }
  const Result<void> outcome = bench(words);
  return with_output(outcome.ok() ? 0 : complain(outcome.error()));
}

}  // namespace
}  // namespace holdfast::cli

int main(int argc, char** argv) {
  return holdfast::cli::run_program(argc, argv, holdfast::cli::run_bench);
}
