#include "runtime/bench/op_case.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <span>

#include "kernels/registry.h"
#include "runtime/bench/limits.h"
#include "runtime/bench/op_samples.h"
#include "runtime/bench/op_text.h"
#include "runtime/bench/op_timer.h"
#include "runtime/bench/samples.h"
#include "runtime/bench/table.h"
#include "runtime/core/suggest.h"

namespace holdfast {
namespace {

// One implementation on a device of its own, with the clock of its ops.
struct Contender {
  const Implementation* implementation = nullptr;
  std::unique_ptr<OpTimer> timer;
  std::unique_ptr<Device> device;

  bool supports(const OpCall& call) const {
    return implementation->supports == nullptr || implementation->supports(call.arguments());
  }
};

// Every name that this processor runs, or the one that is asked for; none when the op has no such name. The
// scalar reference takes minutes on a model's shapes, so it wants to be asked for.
std::vector<Contender> contenders_of(Env& env, const OpCaseOptions& options, OpId id) {
  std::vector<Contender> contenders;
  std::set<std::string_view> seen;
  const std::string_view wanted = options.implementation;
  for (const Implementation* each : kernel_registry().of(id)) {
    const bool asked_for =
        wanted.empty() ? std::string_view(each->name) != "reference" : wanted == each->name;
    const Implementation* best = kernel_registry().find(id, each->name, best_cpu_isa());
    if (!asked_for || best == nullptr || !seen.insert(each->name).second) continue;
    Contender contender{.implementation = best, .timer = std::make_unique<OpTimer>(env), .device = nullptr};
    CpuDeviceOptions device{.threads = options.threads, .kernels = {{.op = id, .name = best->name}}};
    contender.timer->attach(device);
    contender.device = make_cpu_device(device);
    contenders.push_back(std::move(contender));
  }
  return contenders;
}

Error no_such_implementation(const OpCaseOptions& options, std::span<const OpId> ops) {
  std::set<std::string_view> names;
  for (const OpId id : ops) {
    for (const Implementation* each : kernel_registry().of(id)) {
      if (each->needs <= best_cpu_isa()) names.insert(each->name);
    }
  }
  return fail(ExitCode::config, "bench op: no implementation {} of {} runs on this processor; there are {}",
              options.implementation, options.name, fmt::join(names, ", "));
}

// Runs the op for a while; appends the time of each call.
void measure(Env& env, Contender& contender, const OpCall& call, std::int64_t duration_ns,
             std::vector<double>& seconds) {
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
    seconds.push_back(static_cast<double>(record.duration_ns) * 1e-9);
  }
}

Result<double> limit_of(const OpCall& call, const OpCost& cost, DType dtype, Limits& limits) {
  if (call.id() == Matmul::id) return limits.product_seconds(*static_cast<const Matmul*>(call.arguments()));
  HF_TRY(const double stream, limits.stream_seconds(cost));
  return cost.flops > 0.0 ? std::max(stream, cost.flops / limits.product_rate(dtype)) : stream;
}

class OpBench {
 public:
  OpBench(Env& env, const OpCaseOptions& options)
      : env_(env),
        options_(options),
        caches_(cache_sizes(env)),
        limits_(env, options.threads, options.milliseconds) {}

  // Prints the op's table; the figures, an array by shape, empty without an implementation.
  Result<Json> run(OpId id);

 private:
  Result<Json> run_sample(const OpSample& sample, std::span<Contender> contenders, TextTable& table);

  Env& env_;
  const OpCaseOptions& options_;
  CacheSizes caches_;
  Limits limits_;
};

// One row for each implementation; the first also says what the shape is.
Result<Json> OpBench::run_sample(const OpSample& sample, std::span<Contender> contenders, TextTable& table) {
  constexpr std::int64_t rounds = 5;
  OpMemory memory;
  const OpCall call = sample.make(memory);
  HF_TRY_VOID(memory.outcome());
  std::vector<Contender*> running;
  for (Contender& contender : contenders) {
    if (!contender.supports(call)) continue;
    call.launch(*contender.device);  // makes what the op needs
    contender.device->synchronize();
    running.push_back(&contender);
  }
  const OpCost cost = cost_of(call.id(), call.arguments());
  HF_TRY(const double limit_before, limit_of(call, cost, options_.dtype, limits_));
  std::vector<std::vector<double>> seconds(running.size());
  for (std::int64_t round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < running.size(); ++i) {
      measure(env_, *running[i], call, options_.milliseconds * 1'000'000 / rounds, seconds[i]);
    }
  }
  limits_.forget();  // a moment that another program takes from a limit is not held in our favour
  HF_TRY(const double limit_after, limit_of(call, cost, options_.dtype, limits_));
  const double limit = std::min(limit_before, limit_after);
  const std::string shape = shape_text(call.id(), call.arguments());
  const std::string level = level_of(caches_, cost.working_set_bytes(), options_.threads);
  Json implementations = Json::array();
  for (std::size_t i = 0; i < running.size(); ++i) {
    const double time = median(seconds[i]);
    const std::string name = running[i]->implementation->name;
    const auto once = [i](std::string text) { return i == 0 ? text : ""; };
    table.add({once(shape), once(sample.use), name, digits(time * 1e6), rate_text(cost, time),
               once(digits(limit * 1e6)), once(rate_text(cost, limit)), once(level), percent(limit / time)});
    implementations.push_back({{"name", name}, {"microseconds", time * 1e6}, {"calls", seconds[i].size()}});
  }
  return Json{{"shape", shape},
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
  std::vector<Contender> contenders = contenders_of(env_, options_, id);
  if (contenders.empty()) return shapes;
  std::set<std::string> seen;
  TextTable table(
      {"shape", "such as", "implementation", "us", "rate", "limit us", "limit", "level", "of limit"}, 3);
  for (const SampleSource& source : sample_sources(id, options_.dtype)) {
    for (const OpSample& sample : op_samples(id, source)) {
      OpMemory none(OpMemory::Mode::shapes_only);
      const OpCall call = sample.make(none);
      const std::string shape = shape_text(call.id(), call.arguments());
      const bool wanted = shape.find(options_.shape) != std::string::npos ||
                          sample.use.find(options_.shape) != std::string::npos;
      if (!wanted || !seen.insert(shape).second) continue;
      HF_TRY(Json figures, run_sample(sample, contenders, table));
      shapes.push_back(std::move(figures));
    }
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
  const bool found = std::ranges::any_of(ops, [&](OpId id) {
    const std::string& name = options.implementation;
    return name.empty() || kernel_registry().find(id, name, best_cpu_isa()) != nullptr;
  });
  if (!found) return no_such_implementation(options, ops);
  fmt::print("{}\n{}, {} threads, median of the calls of {} ms; docs/bench.md says what the limits are\n",
             machine_line(env), name_of(options.dtype), options.threads, options.milliseconds);
  Json result{{"dtype", name_of(options.dtype)}, {"threads", options.threads}, {"ops", Json::object()}};
  OpBench bench(env, options);
  std::size_t shapes = 0;
  for (const OpId id : ops) {
    Json& figures = result["ops"][name_of(id)];
    HF_TRY(figures, bench.run(id));
    shapes += figures.size();
  }
  if (shapes > 0) return result;
  return fail(ExitCode::config,
              "bench op: no shape or use of {} contains \"{}\"; without --shape all of them are measured",
              options.name, options.shape);
}

}  // namespace holdfast
