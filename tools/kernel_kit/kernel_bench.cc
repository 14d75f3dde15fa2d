#include "tools/kernel_kit/kernel_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>

#include "runtime/core/median.h"
#include "runtime/measure/call_key.h"
#include "runtime/measure/report.h"
#include "tools/bench_native/contenders.h"
#include "tools/kernel_kit/call_probe.h"

namespace holdfast::bench::kernel_kit {
namespace {

constexpr double turn_seconds = 0.002;
constexpr std::size_t least_calls = 3, most_calls = 500;  // of a turn
constexpr std::size_t least_rounds = 10;                  // before a standard error says anything
// At least; of a short call more, so that half of the time goes to timed ones.
constexpr double calls_per_probe = 8.0;
constexpr std::uint64_t probes_per_renewal = 4;

// Entrant is one implementation in the turns of a call.
struct Entrant {
  const Implementation* kernel = nullptr;
  struct Times {
    std::vector<double> rounds = {}, turns = {};  // seconds: means of rounds, and medians of the turns of one
    void end_round() {
      rounds.push_back(std::accumulate(turns.begin(), turns.end(), 0.0) / static_cast<double>(turns.size()));
      turns.clear();
    }
  };
  Times warm = {}, cold = {};
  std::unique_ptr<CallProbe> probe = {};  // of a plug-in's kernel
};

double fastest_other(const CallFigures& call) {
  double fastest = std::numeric_limits<double>::infinity();
  for (const KernelFigures& each : call.kernels) {
    if (!each.is_of_plugin) fastest = std::min(fastest, each.warm.seconds);
  }
  return fastest;
}

// CallBench measures one call.
class CallBench {
 public:
  CallBench(const CounterClock& clock, const KernelBenchTerms& terms, KernelRunner& runner,
            const KernelChoice& usual, const StepCall& call, BenchMemory::Given given, QuickRandom& random,
            const std::function<void(const std::string&)>& tell)
      : clock_(clock),
        terms_(terms),
        runner_(runner),
        usual_(first_that_computes(usual.order, call.sample.shape.arguments())),
        call_(call),
        given_(given),
        random_(random),
        tell_(tell),
        text_(measure::call_text(call.sample.shape.id(), call.sample.shape.arguments())) {}

  // Measures until all is settled or the time is over, and adds what it finds.
  Result<void> run(double seconds, OpFigures& figures);

 private:
  void round();
  void turn(Entrant& entrant, bool is_cold);
  void probe(Entrant& entrant, const CallProbe::How& how);
  double chance_of_probe() const;
  double timed_call(const Implementation& kernel, bool is_cold);
  void find_limit();
  bool is_settled() const;
  CallFigures figures() const;

  const CounterClock& clock_;
  const KernelBenchTerms& terms_;
  KernelRunner& runner_;
  const Implementation& usual_;
  const StepCall& call_;
  BenchMemory::Given given_;
  QuickRandom& random_;
  const std::function<void(const std::string&)>& tell_;
  std::string text_;
  std::unique_ptr<BenchMemory> memory_, twin_;
  std::vector<Entrant> entrants_;
  double limit_ = 0.0;                   // seconds
  double probing_ = 0.0, timing_ = 0.0;  // seconds, with what goes before and after
  double probes_ = 0.0, timed_ = 0.0;    // calls
  std::vector<std::string> problems_;
};

void CallBench::probe(Entrant& entrant, const CallProbe::How& how) {
  if (entrant.probe == nullptr || !problems_.empty()) return;
  const std::uint64_t begin = CounterClock::now();
  if (const std::string problem = entrant.probe->probe(*entrant.kernel, how); !problem.empty())
    problems_.push_back(fmt::format("{} on {}: {}", entrant.kernel->name, text_, problem));
  // Its arrays are then where calls leave them: the comparison has used all of its memory.
  timed_call(*entrant.kernel, how.is_cold);
  probing_ += clock_.seconds_since(begin);
  probes_ += 1.0;
}

// The chance is the same for all calls, so that no call says when the next comparison comes.
double CallBench::chance_of_probe() const {
  const double usual = 1.0 / calls_per_probe;
  if (timed_ < 1.0 || probes_ < 1.0) return usual;
  return std::min(usual, (timing_ / timed_) / (probing_ / probes_));
}

// A kernel is asked for its working memory before its numbers are there.
double CallBench::timed_call(const Implementation& kernel, bool is_cold) {
  runner_.prepare(kernel, memory_->arguments());
  memory_->touch(random_);
  if (is_cold) memory_->flush();
  const std::uint64_t before = CounterClock::now();
  runner_.run_prepared(kernel, memory_->arguments());
  return clock_.seconds(CounterClock::now() - before);
}

// Each call gets other numbers in each array, so that what a kernel remembers or left is of no use to it, and any call may
// be one that is compared, and is then not timed.
void CallBench::turn(Entrant& entrant, bool is_cold) {
  const Implementation& kernel = *entrant.kernel;
  if (kernel.plugin != nullptr) tell_(fmt::format("{} on {}", kernel.name, text_));
  std::vector<double> seconds;
  const std::uint64_t begin = CounterClock::now();
  const double probed_before = probing_;
  memory_->renew_updated(random_);
  do {
    if (random_.uniform() < chance_of_probe())
      probe(entrant, {.renews = random_.below(probes_per_renewal) == 0, .is_cold = is_cold});
    seconds.push_back(timed_call(kernel, is_cold));
  } while (seconds.size() < least_calls ||
           (clock_.seconds_since(begin) < turn_seconds && seconds.size() < most_calls));
  timing_ += clock_.seconds_since(begin) - (probing_ - probed_before);
  timed_ += static_cast<double>(seconds.size());
  (is_cold ? entrant.cold : entrant.warm).turns.push_back(median(std::move(seconds)));
}

// A B B A: what changes on the machine in the course of it weighs on all alike. The two turns of a round are not
// independent, so the round counts as one.
void CallBench::round() {
  for (Entrant& each : entrants_) turn(each, false), turn(each, true);
  for (std::size_t i = entrants_.size(); i-- > 0;) turn(entrants_[i], true), turn(entrants_[i], false);
  for (Entrant& each : entrants_) each.warm.end_round(), each.cold.end_round();
}

// The better of two measurements counts: a moment that another program takes is not held in anybody's favour.
void CallBench::find_limit() {
  const OpCall& shape = call_.sample.shape;
  OpCost cost = cost_of(shape.id(), shape.arguments());
  cost.flops *= call_.sample.flops_share;
  const Result<double> limit = limit_of(shape, cost, terms_.dtype, *terms_.limits);
  if (limit.ok()) limit_ = limit_ > 0.0 ? std::min(limit_, *limit) : *limit;
}

bool CallBench::is_settled() const {
  return std::ranges::all_of(entrants_, [&](const Entrant& each) {
    if (each.warm.rounds.size() < least_rounds) return false;
    for (const RoundMean& figure : {figure_of(each.warm.rounds), figure_of(each.cold.rounds)}) {
      if (figure.error > terms_.largest_error * figure.seconds) return false;
    }
    return true;
  });
}

CallFigures CallBench::figures() const {
  CallFigures found{.call = text_, .calls = call_.calls, .limit_seconds = limit_};
  for (const Entrant& each : entrants_)
    found.kernels.push_back({.name = each.kernel->name,
                             .is_default = each.kernel == &usual_,
                             .is_of_plugin = each.kernel->plugin != nullptr,
                             .warm = figure_of(each.warm.rounds),
                             .cold = figure_of(each.cold.rounds)});
  return found;
}

Result<void> CallBench::run(double seconds, OpFigures& figures) {
  const std::uint64_t begin = CounterClock::now();
  HF_TRY(memory_, BenchMemory::make(call_.sample, given_));
  HF_TRY(twin_, BenchMemory::make(call_.sample, given_));
  memory_->renew(random_);
  for (const Implementation* each : contenders_for(*terms_.registry, terms_.op, {.isa = best_cpu_isa()})) {
    if (each->plugin != nullptr) tell_(fmt::format("{} on {}: supports()", each->name, text_));
    if (!each->computes(memory_->arguments())) {
      if (each->plugin != nullptr)
        figures.notes.push_back(fmt::format(
            "{} does not compute {}: its time in a step has the default's there", each->name, text_));
      continue;
    }
    Entrant& entrant = entrants_.emplace_back(Entrant{.kernel = each});
    if (each->plugin == nullptr) continue;
    entrant.probe = std::make_unique<CallProbe>(runner_, usual_, *memory_, *twin_, random_);
    tell_(fmt::format("{} on {}", each->name, text_));
    probe(entrant, {});
  }
  find_limit();
  do {
    round();
  } while (problems_.empty() && !is_settled() && clock_.seconds_since(begin) < seconds);
  for (Entrant& each : entrants_) probe(each, {});
  terms_.limits->forget();
  find_limit();
  const CallFigures found = this->figures();
  for (const KernelFigures& each : found.kernels) {
    if (!each.is_of_plugin) continue;
    const std::string problem = problem_of_speed(each.warm.seconds, limit_, fastest_other(found));
    if (!problem.empty()) problems_.push_back(fmt::format("{} on {}: {}", each.name, text_, problem));
  }
  // A kernel's own threads may still write to memory that goes with this object.
  constexpr double patience = 0.3;
  if (!problems_.empty()) clock_.sleep(patience);
  figures.is_settled = figures.is_settled && is_settled();
  figures.calls.push_back(found);
  figures.problems.insert(figures.problems.end(), problems_.begin(), problems_.end());
  return {};
}

void add_times(RoundMean& sum, const RoundMean& one, double times) {
  sum.seconds += times * one.seconds;
  sum.error = std::hypot(sum.error, times * one.error);
  sum.rounds += one.rounds;
}

const KernelFigures* find(const CallFigures& call, const auto& matches) {
  const auto found = std::ranges::find_if(call.kernels, matches);
  return found == call.kernels.end() ? nullptr : &*found;
}

}  // namespace

RoundMean figure_of(std::span<const double> rounds) {
  RoundMean figure{.rounds = std::ssize(rounds)};
  const auto count = static_cast<double>(rounds.size());
  if (rounds.empty()) return figure;
  for (const double each : rounds) figure.seconds += each / count;
  double squares = 0.0;
  for (const double each : rounds) squares += (each - figure.seconds) * (each - figure.seconds);
  figure.error = rounds.size() < 2 ? figure.seconds : std::sqrt(squares / (count - 1.0) / count);
  return figure;
}

std::string problem_of_speed(double seconds, double limit_seconds, double others) {
  constexpr double times = 4.0;  // what is nearer to a measured limit may be right
  // A limit of less than `large` may be the start of threads, which a kernel can do without; it takes `start` or so.
  constexpr double large = 10e-6, start = 2e-6;
  // A limit that other programs were in the way of is not believed against all other kernels.
  if (seconds * times >= limit_seconds || seconds * times >= others) return {};
  if (limit_seconds < large && seconds + start >= others) return {};
  return fmt::format(
      "it takes {:.3g} us, this machine needs {:.3g} us to move the bytes of the call or to multiply its "
      "numbers, and the "
      "fastest other kernel takes {:.3g} us: it does not do the work",
      seconds * 1e6, limit_seconds * 1e6, others * 1e6);
}

std::vector<OpFigures::Step> OpFigures::steps() const {
  std::vector<Step> sums;
  for (const CallFigures& call : calls) {
    for (const KernelFigures& each : call.kernels) {
      if (std::ranges::find(sums, each.name, &Step::name) == sums.end())
        sums.push_back({.name = each.name, .is_of_plugin = each.is_of_plugin});
    }
  }
  for (Step& sum : sums) {
    for (const CallFigures& call : calls) {
      const KernelFigures* own = find(call, [&](const KernelFigures& each) { return each.name == sum.name; });
      if (own != nullptr) sum.is_default = sum.is_default || own->is_default;
      if (own == nullptr) own = find(call, [](const KernelFigures& each) { return each.is_default; });
      if (own == nullptr) continue;
      add_times(sum.warm, own->warm, static_cast<double>(call.calls));
      add_times(sum.cold, own->cold, static_cast<double>(call.calls));
    }
  }
  return sums;
}

double OpFigures::largest_error() const {
  double largest = 0.0;
  for (const CallFigures& call : calls) {
    for (const KernelFigures& each : call.kernels) {
      for (const RoundMean& figure : {each.warm, each.cold})
        largest = std::max(largest, figure.seconds > 0.0 ? figure.error / figure.seconds : 0.0);
    }
  }
  return largest;
}

Result<OpFigures> bench_kernels(const CounterClock& clock, const KernelBenchTerms& terms,
                                const std::function<void(const std::string&)>& tell) {
  HF_TRY(const KernelTable usual, kernel_registry().choose(best_cpu_isa(), {}));
  KernelRunner runner(terms.threads);
  QuickRandom random(terms.seed);
  OpFigures figures{.op = name_of(terms.op)};
  const std::uint64_t begin = CounterClock::now();
  for (std::size_t i = 0; i < terms.calls.size(); ++i) {
    const double left = terms.seconds - clock.seconds_since(begin);
    CallBench bench(clock, terms, runner, usual[static_cast<std::size_t>(terms.op)], terms.calls[i],
                    terms.given.empty() ? BenchMemory::Given() : terms.given[i], random, tell);
    HF_TRY_VOID(bench.run(left / static_cast<double>(terms.calls.size() - i), figures));
  }
  if (std::string problem = clock.problem_of_clock(); !problem.empty())
    figures.problems.push_back(std::move(problem));
  return figures;
}

}  // namespace holdfast::bench::kernel_kit
