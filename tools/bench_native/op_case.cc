#include "tools/bench_native/cases.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <span>

#include "kernels/registry.h"
#include "runtime/core/median.h"
#include "runtime/core/text.h"
#include "runtime/measure/call_key.h"
#include "runtime/measure/op_timer.h"
#include "runtime/measure/report.h"
#include "tools/bench_native/contenders.h"

namespace holdfast::bench {
namespace {

// One implementation on a device of its own.
struct Contender {
  const Implementation* implementation = nullptr;
  std::string name = {};           // its own, or that of an algorithm of the library
  std::unique_ptr<OpTimer> timer;  // of its ops; null on a GPU
  std::unique_ptr<Device> device;
  std::vector<double> seconds = {};  // of a call
  std::int64_t calls = 0;
  std::int64_t spent_ns = 0;  // of a GPU's time; an implementation that takes too much of it is left alone

  bool supports(const OpCall& call) const { return implementation->computes(call.arguments()); }
};

// Contenders on devices of their own; none when the op has no such name.
Result<std::vector<Contender>> contenders_of(Env& env, const MeasuredDevice& bench,
                                             const OpCaseOptions& options, OpId id) {
  std::vector<Contender> contenders;
  for (const Implementation* each :
       contenders_for(bench.registry(), id, bench.target(), options.implementation)) {
    Contender contender{.implementation = each, .name = each->name, .timer = nullptr, .device = nullptr};
    if (!bench.is_gpu()) contender.timer = std::make_unique<OpTimer>(env);
    HF_TRY(contender.device,
           bench.make({.requests = {{.op = id, .name = each->name}}}, contender.timer.get()));
    contenders.push_back(std::move(contender));
  }
  return contenders;
}

// Every algorithm that the GPU's library has for a product, the one that it would take by itself first.
Result<std::vector<Contender>> algorithms_of_product(const MeasuredDevice& bench, const Matmul& product) {
  std::vector<Contender> contenders;
  const Implementation* const library = bench.registry().find(Matmul::id, "cublaslt", bench.target());
  const std::vector<KernelPreference> requests = {{.op = Matmul::id, .name = library->name}};
  HF_TRY(std::unique_ptr<Device> asked, bench.make({.requests = requests}, nullptr));
  for (std::string& algorithm : asked->algorithms_for(product)) {
    HF_TRY(std::unique_ptr<Device> device, bench.make({.requests = requests}, nullptr));
    device->prefer_plan({{plan_shape(product_shape(product)), algorithm}});
    contenders.push_back({.implementation = library,
                          .name = std::move(algorithm),
                          .timer = nullptr,
                          .device = std::move(device)});
  }
  return contenders;
}

// Keeps the library's choice and what was fastest, in that order.
void keep_fastest(std::vector<Contender>& contenders) {
  constexpr std::ptrdiff_t kept = 5;
  if (std::ssize(contenders) <= kept) return;
  std::ranges::stable_sort(std::span(contenders).subspan(1), {},
                           [](const Contender& each) { return median(each.seconds); });
  contenders.erase(contenders.begin() + kept, contenders.end());
}

Error no_such_implementation(const MeasuredDevice& bench, const OpCaseOptions& options,
                             std::span<const OpId> ops) {
  const KernelTarget target = bench.target();
  std::set<std::string_view> names;
  for (const OpId id : ops) {
    for (const Implementation* each : bench.registry().of(id)) {
      if (target.runs(*each)) names.insert(each->name);
    }
  }
  return fail(ExitCode::config, "bench op: no implementation {} of {} runs on this {}; there are {}",
              options.implementation, options.name, options.device.gpu ? "GPU" : "processor",
              fmt::join(names, ", "));
}

// Runs the op on the CPU for a while; the time of each call is that between its begin and its end.
void measure_calls(Env& env, Contender& contender, const OpCall& call, std::int64_t duration_ns) {
  contender.timer->clear();
  const std::int64_t begin_ns = env.monotonic_ns();
  call.launch(*contender.device);  // wakes the team, and says how many calls fit
  contender.device->synchronize();
  const std::vector<OpTimer::Record>& records = contender.timer->records();
  const std::int64_t first_ns = std::max<std::int64_t>(1, records.front().duration_ns);
  constexpr std::int64_t most = 8;  // enough that the queue is never empty for long
  const std::int64_t calls = std::clamp<std::int64_t>(duration_ns / first_ns, 1, most);
  do {
    for (std::int64_t i = 0; i < calls; ++i) call.launch(*contender.device);
    contender.device->synchronize();
  } while (env.monotonic_ns() - begin_ns < duration_ns);
  for (const OpTimer::Record& record : std::span(records).subspan(1)) {
    contender.seconds.push_back(static_cast<double>(record.duration_ns) * 1e-9);
    ++contender.calls;
  }
}

// Times many calls at once on a GPU, by the clock of the host: in a step its ops are queued, too, and events
// around each would be long beside a short one. Calls that are shorter than their launch (a few microseconds)
// show the launch.
void measure_queue(Env& env, Contender& contender, const OpCall& call, std::int64_t duration_ns) {
  const auto run_ns = [&](std::int64_t calls) {
    const std::int64_t begin_ns = env.monotonic_ns();
    for (std::int64_t i = 0; i < calls; ++i) call.launch(*contender.device);
    contender.device->synchronize();
    return std::max<std::int64_t>(1, env.monotonic_ns() - begin_ns);
  };
  const auto count = [&](std::int64_t duration, std::int64_t calls) {
    contender.seconds.push_back(static_cast<double>(duration) * 1e-9 / static_cast<double>(calls));
    contender.calls += calls;
  };
  // An implementation without tensor cores takes seconds for a large shape, and one call says how long.
  const std::int64_t first_ns = run_ns(1);
  if (first_ns >= duration_ns) return count(first_ns, 1);
  constexpr std::int64_t probe = 4, most = 20'000;
  const std::int64_t once_ns = std::max<std::int64_t>(1, run_ns(probe) / probe);
  const std::int64_t calls = std::clamp<std::int64_t>(duration_ns / once_ns, 1, most);
  count(run_ns(calls), calls);
}

SampleSizes sizes_of(const OpCaseOptions& options) {
  return options.sizes.value_or(options.device.gpu ? SampleSizes::gpu : SampleSizes::cpu);
}

std::string shape_of(const OpSample& sample) {
  return measure::call_text(sample.shape.id(), sample.shape.arguments());
}

class OpBench {
 public:
  OpBench(Env& env, const OpCaseOptions& options, const MeasuredDevice& bench,
          std::span<const OpSample> samples)
      : env_(env),
        options_(options),
        bench_(bench),
        samples_(samples),
        limits_(bench.limits(options.milliseconds)) {}

  // Prints the op's table; the figures, an array by shape, empty without an implementation.
  Result<Json> run(OpId id);
  // Returns the algorithms that beat the library's choice, as a plan.
  const std::string& plan() const { return plan_; }

 private:
  Result<Json> run_sample(const OpSample& sample, std::vector<Contender>& contenders, TextTable& table);
  void note_faster_algorithm(const Matmul& product, std::span<const Contender> contenders);
  Result<void> measure(const OpSample& sample, std::span<Contender> contenders);

  Env& env_;
  const OpCaseOptions& options_;
  const MeasuredDevice& bench_;
  std::span<const OpSample> samples_;
  std::unique_ptr<Limits> limits_;
  std::string plan_;
};

// Notes what is faster by more than the noise: less is not worth other bits.
void OpBench::note_faster_algorithm(const Matmul& product, std::span<const Contender> contenders) {
  constexpr double worth = 0.99;
  const double chosen = median(contenders.front().seconds);
  const auto best =
      std::ranges::min_element(contenders, {}, [](const Contender& each) { return median(each.seconds); });
  if (median(best->seconds) > worth * chosen) return;
  plan_ += fmt::format("# {:.1f} instead of {:.1f} us\n{}: {}\n", median(best->seconds) * 1e6, chosen * 1e6,
                       plan_shape(product_shape(product)), best->name);
}

// Measures those of the contenders that take these operands.
Result<void> OpBench::measure(const OpSample& sample, std::span<Contender> contenders) {
  constexpr std::int64_t rounds = 5;
  OpMemory memory = bench_.is_gpu() ? OpMemory(*contenders.front().device) : OpMemory();
  const OpCall call = sample.make(memory);
  HF_TRY_VOID(memory.outcome());
  std::vector<Contender*> running;
  for (Contender& contender : contenders) {
    contender.seconds.clear();
    contender.calls = 0;
    contender.spent_ns = 0;
    if (!contender.supports(call)) continue;
    call.launch(*contender.device);  // makes what the op needs
    contender.device->synchronize();
    running.push_back(&contender);
  }
  for (std::int64_t round = 0; round < rounds; ++round) {
    for (Contender* contender : running) {
      const std::int64_t duration_ns = options_.milliseconds * 1'000'000;
      if (contender->spent_ns > 2 * duration_ns) continue;
      const std::int64_t begin_ns = env_.monotonic_ns();
      const auto measure = bench_.is_gpu() ? measure_queue : measure_calls;
      measure(env_, *contender, call, duration_ns / rounds);
      if (bench_.is_gpu()) contender->spent_ns += env_.monotonic_ns() - begin_ns;
    }
  }
  for (Contender* contender : running) HF_TRY_VOID(contender->device->status());
  return {};
}

// One row for each implementation; the first also says what the shape is. Cost and limit are read from the
// sample's shape, whose table is in the host's memory.
Result<Json> OpBench::run_sample(const OpSample& sample, std::vector<Contender>& contenders,
                                 TextTable& table) {
  const OpCall& shape = sample.shape;
  if (options_.algorithms) {
    HF_TRY(contenders, algorithms_of_product(bench_, *static_cast<const Matmul*>(shape.arguments())));
  }
  OpCost cost = cost_of(shape.id(), shape.arguments());
  cost.flops *= sample.flops_share;
  HF_TRY(const double limit_before, limit_of(shape, cost, options_.dtype, *limits_));
  HF_TRY_VOID(measure(sample, contenders));
  if (options_.algorithms && !contenders.empty()) {
    note_faster_algorithm(*static_cast<const Matmul*>(shape.arguments()), contenders);
    keep_fastest(contenders);
  }
  limits_->forget();  // a moment that another program takes from a limit is not held in our favour
  HF_TRY(const double limit_after, limit_of(shape, cost, options_.dtype, *limits_));
  const double limit = std::min(limit_before, limit_after);
  const std::string text = shape_of(sample);
  const std::string level = limits_->level_of(cost.working_set_bytes());
  Json implementations = Json::array();
  for (const Contender& contender : contenders) {
    if (contender.seconds.empty()) continue;
    const double time = median(contender.seconds);
    const std::string& name = contender.name;
    const bool first = implementations.empty();
    const auto once = [first](std::string words) { return first ? words : ""; };
    table.add({once(text), once(sample.use), name, digits(time * 1e6), rate_text(cost, time),
               once(digits(limit * 1e6)), once(rate_text(cost, limit)), once(level), percent(limit / time)});
    implementations.push_back({{"name", name},
                               {"microseconds", time * 1e6},
                               {"calls", contender.calls},
                               {"flops_per_sec", cost.flops / time}});
  }
  return Json{{"shape", text},
              {"use", sample.use},
              {"flops", cost.flops},
              {"bytes_read", cost.bytes_read},
              {"bytes_written", cost.bytes_written},
              {"working_set_bytes", cost.working_set_bytes()},
              {"level", level},
              {"limit_microseconds", limit * 1e6},
              {"implementations", implementations}};
}

Result<Json> OpBench::run(OpId id) {
  Json shapes = Json::array();
  HF_TRY(std::vector<Contender> contenders, contenders_of(env_, bench_, options_, id));
  if (contenders.empty()) return shapes;
  std::set<measure::CallKey> seen;
  TextTable table(
      {"shape", "such as", "implementation", "us", "rate", "limit us", "limit", "level", "of limit"}, 3);
  for (const OpSample& sample : samples_) {
    if (sample.shape.id() != id) continue;
    const std::string shape = shape_of(sample);
    if (shape.find(options_.shape) == std::string::npos &&
        sample.use.find(options_.shape) == std::string::npos)
      continue;
    if (!seen.insert(measure::call_key(id, sample.shape.arguments())).second) continue;
    Result<Json> figures = run_sample(sample, contenders, table);
    if (!figures.ok() && figures.error().code == ExitCode::does_not_fit) {
      fmt::print("left out: {} {}: {}\n", name_of(id), shape, figures.error().message);
      continue;
    }
    HF_TRY_VOID(outcome_of(figures));
    shapes.push_back(std::move(figures).value());
  }
  if (!shapes.empty()) fmt::print("\n{}\n{}", name_of(id), table.text());
  std::fflush(stdout);
  return shapes;
}

Result<std::vector<OpId>> ops_of(const std::string& name) {
  std::vector<OpId> all;
  std::vector<std::string_view> names;
  for (std::uint16_t i = 0; i < static_cast<std::uint16_t>(OpId::count); ++i) {
    all.push_back(static_cast<OpId>(i));
    names.push_back(name_of(all.back()));
    if (names.back() == name) return std::vector<OpId>{all.back()};
  }
  if (name == "all") return all;
  const std::string near = closest(name, names);
  return fail(ExitCode::config, "bench op: there is no op {}{}; there are {} (or all of them: all)",
              name.empty() ? "\"\"" : name, near.empty() ? "" : fmt::format(", did you mean {}?", near),
              fmt::join(names, ", "));
}

}  // namespace

Result<Json> run_op_case(Env& env, const OpCaseOptions& options) {
  HF_TRY(const std::vector<OpId> ops, ops_of(options.name));
  if (options.algorithms && (options.name != name_of(Matmul::id) || !options.device.gpu))
    return fail(
        ExitCode::config,
        "bench op: --algorithms are those of a GPU's library for a matrix product: bench op {} --device cuda "
        "--algorithms",
        name_of(Matmul::id));
  HF_TRY(const MeasuredDevice device, MeasuredDevice::find(env, options.device));
  const bool found = std::ranges::any_of(ops, [&](OpId id) {
    const std::string& name = options.implementation;
    return name.empty() || device.registry().find(id, name, device.target()) != nullptr;
  });
  if (!found) return no_such_implementation(device, options, ops);
  fmt::print("{}\n{}{}, median of the calls of {} ms; docs/bench.md says what the limits are\n",
             device.line(), name_of(options.dtype), device.threads_text(), options.milliseconds);
  Json result{{"dtype", name_of(options.dtype)}, {"sizes", name_of(sizes_of(options))}};
  device.describe(result);
  result["ops"] = Json::object();
  HF_TRY(const std::vector<OpSample> samples, op_samples(env, options.dtype, sizes_of(options)));
  OpBench bench(env, options, device, samples);
  std::size_t shapes = 0;
  for (const OpId id : ops) {
    Json& figures = result["ops"][name_of(id)];
    HF_TRY(figures, bench.run(id));
    shapes += figures.size();
  }
  if (options.algorithms) result["plan"] = bench.plan();
  if (!options.plan.empty()) {
    std::string text =
        fmt::format("Algorithms of matrix products for kernels.plan, measured on {}", device.line());
    for (std::size_t end = 0; end != std::string::npos; end = text.find('\n', end + 1))
      text.insert(end == 0 ? 0 : end + 1, "# ");
    HF_TRY_VOID(env.replace_text(options.plan, text + "\n" + bench.plan()));
    fmt::print("kernels.plan = \"{}\" takes those that were faster than the library's choice\n",
               options.plan);
  }
  if (shapes > 0) return result;
  return fail(
      ExitCode::config,
      "bench op: no shape or use of {} with --sizes={} contains \"{}\"; without --shape all of them are "
      "measured",
      options.name, name_of(sizes_of(options)), options.shape);
}

}  // namespace holdfast::bench
