#include "tools/bench_native/cases.h"

#include <fmt/core.h>

#include "runtime/measure/measured_device.h"
#include "runtime/measure/report.h"
#include "tools/bench_native/step_budget.h"
#include "tools/bench_native/timed_steps.h"

namespace holdfast::bench {

Result<Json> run_step_case(Env& env, const StepCaseOptions& options) {
  HF_TRY(BenchRun run, load_bench_run(env, options.config_path, options.overrides));
  HF_TRY(const MeasuredDevice bench, MeasuredDevice::find(env, {.gpu = run.config.device == "cuda",
                                                                .threads = threads_of(env, run.config)}));
  TimedSteps steps(env, std::move(run), bench);
  HF_TRY_VOID(steps.prepare());
  // Half of the steps, limits, the other half, limits: all see the same machine, and a moment that another
  // program takes from one limit is not held in our favour.
  const std::int64_t first = (options.steps + 1) / 2;
  HF_TRY_VOID(steps.warm_up(options.warmup_steps));
  HF_TRY_VOID(steps.measure(first));
  const std::unique_ptr<Limits> limits_between = bench.limits(options.limit_ms);
  StepBudget half = make_budget(steps.records(), steps.seconds());
  HF_TRY_VOID(measure_limits(half, *limits_between));
  HF_TRY_VOID(steps.warm_up(1));
  HF_TRY_VOID(steps.measure(options.steps - first));
  const std::unique_ptr<Limits> limits_after = bench.limits(options.limit_ms);
  StepBudget budget = make_budget(steps.records(), steps.seconds());
  HF_TRY_VOID(measure_limits(budget, *limits_between));
  HF_TRY_VOID(measure_limits(budget, *limits_after));

  const Config& config = steps.config();
  const double tokens = static_cast<double>(steps.worker().workload().tokens_per_step());
  const std::string model = config.model.preset.empty() ? config.model.style : config.model.preset;
  fmt::print(
      "{}\n{}, {} lanes x {} microbatches of {} x {} tokens, {}{} ({})\n"
      "step {} ms, {} tokens/s: median of {} steps after {}\n\n{}",
      bench.line(), model, config.parallel.lanes, config.training.microbatches_per_lane,
      config.training.microbatch_size, config.training.sequence_length, config.training.precision,
      bench.threads_text(), steps.device().description(), digits(budget.step_seconds * 1e3),
      digits(tokens / budget.step_seconds), options.steps, options.warmup_steps, budget_text(budget));
  Json result{
      {"model", model},
      {"parameters", parameter_count(steps.worker().workload().spec)},
      {"flops_per_token", flops_per_token(steps.worker().workload().spec, config.training.sequence_length)},
      {"lanes", config.parallel.lanes},
      {"microbatches_per_lane", config.training.microbatches_per_lane},
      {"microbatch_size", config.training.microbatch_size},
      {"sequence_length", config.training.sequence_length},
      {"precision", config.training.precision},
      {"device", steps.device().description()},
      {"tokens_per_sec", tokens / budget.step_seconds}};
  bench.describe(result);
  std::vector<double> step_ms;
  for (const double seconds : steps.seconds()) step_ms.push_back(seconds * 1e3);
  result["steps_ms"] = step_ms;
  result.update(budget_json(budget));
  return result;
}

}  // namespace holdfast::bench
