#include "tools/bench_native/cases.h"

#include <fmt/core.h>

#include <algorithm>

#include "runtime/core/median.h"
#include "runtime/core/text.h"
#include "runtime/measure/report.h"
#include "tools/bench_native/synthetic_run.h"
#include "tools/bench_native/timed_steps.h"

namespace holdfast::bench {
namespace {

constexpr double target_ratio = 10.0;

// Tokens per second over every microbatch of one epoch.
Result<double> loader_rate(Env& env, const std::shared_ptr<DataSet>& data, const LoaderCaseOptions& options,
                           std::int64_t vocabulary) {
  const BatchShape shape{.sequence_length = options.sequence_length,
                         .microbatch_size = options.microbatch_size,
                         .microbatches_per_lane = 1,
                         .lanes = 1};
  constexpr std::uint64_t seed = 1;
  constexpr std::int64_t prefetch = 4;
  const std::uint64_t batches = data->sample_count() / shape.samples_per_step();
  const std::int64_t begin_ns = env.monotonic_ns();
  DataLoader loader(env, data, seed, shape, {0}, 0, vocabulary, prefetch);
  for (std::uint64_t batch = 0; batch < batches; ++batch) HF_TRY_VOID(outcome_of(loader.next()));
  const double seconds = static_cast<double>(env.monotonic_ns() - begin_ns) * 1e-9;
  return static_cast<double>(batches * shape.samples_per_step()) *
         static_cast<double>(options.sequence_length) / seconds;
}

// Returns the step rate of the model that trains fastest.
Result<double> step_rate(Env& env, const LoaderCaseOptions& options) {
  HF_TRY(BenchRun run,
         load_bench_run(env, "",
                        {{"device", "cpu"},
                         {"model.preset", "llama-15m"},
                         {"training.precision", "bf16"},
                         {"training.sequence_length", std::to_string(options.sequence_length)},
                         {"training.microbatch_size", std::to_string(options.microbatch_size)}}));
  HF_TRY(const MeasuredDevice bench, MeasuredDevice::find(env, {.threads = threads_of(env, run.config)}));
  TimedSteps steps(env, std::move(run), bench);
  HF_TRY_VOID(steps.prepare());
  constexpr std::int64_t warmup_steps = 3;
  HF_TRY_VOID(steps.warm_up(warmup_steps));
  HF_TRY_VOID(steps.measure(options.steps));
  return static_cast<double>(steps.worker().workload().tokens_per_step()) / median(steps.seconds());
}

}  // namespace

Result<Json> run_loader_case(Env& env, const LoaderCaseOptions& options) {
  HF_TRY(const double needed, step_rate(env, options));
  HF_TRY(const std::unique_ptr<ScratchDirectory> scratch, ScratchDirectory::make(env));
  fmt::print(
      "{}\nevery sample of {} tokens once, {} x {} a microbatch; the fastest step (llama-15m, bf16, all "
      "processors, "
      "the same microbatch) takes {} tokens/s\n\n",
      machine_line(env), options.tokens, options.microbatch_size, options.sequence_length, digits(needed));
  TextTable table(
      {"format", "vocabulary", "cold tokens/s", "of the step's", "warm tokens/s", "of the step's"}, 1);
  Json formats = Json::array();
  for (const TokenFileKind& kind : token_file_kinds()) {
    const std::string path = scratch->file(fmt::format("{}-{}", kind.format, kind.vocabulary));
    HF_TRY(const std::vector<std::string> files, write_token_file(env, kind, path, options.tokens));
    HF_TRY(const std::shared_ptr<DataSet> data,
           DataSet::open(env, {{.path = files.front(), .format = std::string(kind.format)}},
                         options.sequence_length));
    data->drop_cached();  // open() has read the file for its fingerprint
    HF_TRY(const double cold, loader_rate(env, data, options, kind.vocabulary));
    HF_TRY(const double warm, loader_rate(env, data, options, kind.vocabulary));
    for (const std::string& file : files) HF_TRY_VOID(env.remove(file));
    table.add({std::string(kind.format), std::to_string(kind.vocabulary), digits(cold),
               fmt::format("{:.1f} x", cold / needed), digits(warm), fmt::format("{:.1f} x", warm / needed)});
    formats.push_back({{"format", kind.format},
                       {"vocabulary", kind.vocabulary},
                       {"cold_tokens_per_sec", cold},
                       {"warm_tokens_per_sec", warm}});
  }
  fmt::print("{}target: at least {:.0f} x\n", table.text(), target_ratio);
  return Json{{"tokens", options.tokens},
              {"sequence_length", options.sequence_length},
              {"microbatch_size", options.microbatch_size},
              {"step_tokens_per_sec", needed},
              {"formats", formats}};
}

}  // namespace holdfast::bench
