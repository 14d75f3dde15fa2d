#include "tools/kernel_kit/kernel_ab.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <set>
#include <span>

#include "checkpoint/find_checkpoint.h"
#include "kernels/composed.h"
#include "kernels/plugin_loader.h"
#include "parallel/local/local_communicator.h"
#include "runtime/core/text.h"
#include "runtime/core/units.h"
#include "runtime/rank/kernel_choice.h"
#include "runtime/replay/replay_source.h"
#include "runtime/replay/step_session.h"
#include "runtime/run/run_layout.h"
#include "runtime/save/run_state.h"

namespace holdfast::bench::kernel_kit {
namespace {

using Tell = std::function<Result<void>(const std::string&)>;

// In the first steps of a process memory is touched for the first time; in the first ones, too, results are looked at, because that
// is where most kernels differ.
constexpr std::uint64_t steps_inspected = 2, steps_untimed = 6;

// Side is one of those that train.
class Side {
 public:
  static Result<std::unique_ptr<Side>> make(Env& env, const std::string& build, LoadedConfig config,
                                            const SessionState& state, bool inspects,
                                            const std::string& faults = "") {
    HF_TRY(std::unique_ptr<FaultPoints> points, FaultPoints::parse(faults, 0, env));
    std::unique_ptr<Side> side(new Side(env, build, std::move(points)));
    HF_TRY_VOID(side->session_.load_config(std::move(config)));
    HF_TRY_VOID(side->session_.make_worker(state, inspects));
    HF_TRY_VOID(side->session_.load_state(state));
    return side;
  }

  StepSession& session() { return session_; }
  std::uint64_t step() { return session_.worker().state().step; }

  Result<AbNumbers> make_step(bool inspects) {
    StepChecks* const checks = inspects ? session_.checks() : nullptr;
    if (checks != nullptr) checks->begin();
    const std::int64_t begin_ns = env_.monotonic_ns();
    HF_TRY(const StepOutcome outcome, session_.step());
    session_.device().synchronize();
    const std::int64_t duration_ns = env_.monotonic_ns() - begin_ns;
    if (checks != nullptr) {
      checks->end();
      results_ = checks->results();
    }
    HF_TRY_VOID(session_.device().status());
    if (outcome.ends_steps) return AbNumbers{.duration_ns = duration_ns};
    return AbNumbers{.loss = outcome.loss, .grad_norm = outcome.grad_norm, .duration_ns = duration_ns};
  }
  // Returns those of the newest step that was inspected.
  const std::vector<OpDigest>& results() const { return results_; }

 private:
  Side(Env& env, const std::string& build, std::unique_ptr<FaultPoints> faults)
      : env_(env),
        faults_(std::move(faults)),
        ends_(make_local_communicators(1)),
        session_({.env = env, .faults = *faults_, .communicator = *ends_.front(), .build = build}) {}

  Env& env_;
  std::unique_ptr<FaultPoints> faults_;
  std::vector<std::unique_ptr<Communicator>> ends_;
  StepSession session_;
  std::vector<OpDigest> results_ = {};
};

// Experiment makes the steps of all sides.
class Experiment {
 public:
  Experiment(Env& env, const AbTerms& terms, const Tell& tell) : env_(env), terms_(terms), tell_(tell) {}

  Result<AbReport> run() {
    HF_TRY_VOID(read_configs());
    HF_TRY_VOID(find_state());
    HF_TRY_VOID(make_sides(true));
    HF_TRY_VOID(limit_steps());
    tell_kernels();
    HF_TRY_VOID(make_steps());
    report_.has_same_state = a_->session().state_digest() == b_->session().state_digest();
    if (const Result<void> found = find_late_origin(); !found.ok())
      report_.why_no_origin = found.error().message;
    return std::move(report_);
  }

 private:
  Result<LoadedConfig> load(const std::vector<Override>& overrides) const;
  Result<std::vector<Override>> overrides_of_b() const;
  Result<void> read_configs();
  Result<void> find_state();
  Result<void> make_sides(bool with_noise);
  Result<void> limit_steps();
  void tell_kernels();
  Result<void> make_steps();
  Result<bool> make_step(std::uint64_t index);
  void note_origin(std::uint64_t step);
  Result<void> find_late_origin();

  Env& env_;
  const AbTerms& terms_;
  const Tell& tell_;
  std::optional<LoadedConfig> config_a_, config_b_;
  SessionState state_;
  std::uint64_t steps_ = 0;
  std::set<std::string> differing_ = {};  // ops that A and B compute with other kernels
  std::string left_ = {};                 // ", 3 min left"
  std::unique_ptr<Side> a_, b_, noise_;
  AbReport report_;
};

// Returns the config with which one rank trains and nothing is written. A verdict would make a step again, or go back.
Result<LoadedConfig> Experiment::load(const std::vector<Override>& overrides) const {
  const std::string of_run = RunPaths{terms_.run}.config();
  HF_TRY(const FileStatus status, env_.status(of_run));
  if (!status.exists) {
    HF_TRY(LoadedConfig loaded, load_config(env_, terms_.run, overrides));
    return loaded;
  }
  HF_TRY(const std::string text, env_.read_text(of_run));
  HF_TRY(LoadedConfig loaded, load_stored_config(env_, text, of_run, overrides));
  loaded.config.run.directory = terms_.run;
  return loaded;
}

// Returns whether a config names an implementation of an op, for all calls or for some.
bool is_chosen(const KernelsConfig& kernels, OpId op) {
  return kernels.implementations[static_cast<std::size_t>(op)] != "auto" ||
         std::ranges::any_of(kernels.rules,
                             [op](const KernelRuleConfig& rule) { return rule.op == name_of(op); });
}

// Makes one side launch a composed op where only the other one does, by the kernels of its parts, which have the bits that
// it had: so the sides have the same ops, and what differs is found at the op that makes it.
void launch_alike(KernelsConfig& one, const KernelsConfig& other) {
  for (std::size_t index = 0; index < op_count; ++index) {
    const auto op = static_cast<OpId>(index);
    const std::span<const OpId> parts = parts_of(op);
    const auto chosen_here = [&one](OpId each) { return is_chosen(one, each); };
    if (parts.empty() || chosen_here(op) || std::ranges::any_of(parts, chosen_here)) continue;
    if (other.implementations[index] != "auto") one.implementations[index] = "parts";
    for (KernelRuleConfig rule : other.rules) {
      if (rule.op != name_of(op)) continue;
      rule.use = "parts";
      one.rules.push_back(std::move(rule));
    }
  }
}

// Returns the overrides of B: its plug-in beside those of the config, and the kernels that it has, unless others are named.
Result<std::vector<Override>> Experiment::overrides_of_b() const {
  std::vector<Override> overrides = terms_.overrides;
  if (!terms_.plugin.empty()) {
    HF_TRY(const KernelRegistry* registry, registry_with_plugins(env_, {terms_.plugin}));
    std::vector<std::string> paths = config_a_->config.kernels.plugins;
    paths.push_back(terms_.plugin);
    std::string list;
    for (const std::string& each : paths)
      list += fmt::format("{}{}", list.empty() ? "" : ", ", Json(each).dump());
    overrides.push_back({.key = "kernels.plugins", .value = "[" + list + "]"});
    const bool has_rules = std::ranges::any_of(
        terms_.candidate, [](const Override& each) { return each.key == "kernels.rules"; });
    for (std::size_t index = 0; index < op_count && !has_rules; ++index) {
      for (const Implementation* each : registry->of(static_cast<OpId>(index))) {
        if (each->plugin != nullptr)
          overrides.push_back({.key = fmt::format("kernels.{}", op_names[index]), .value = each->name});
      }
    }
  }
  // Of two overrides of one key the last one counts.
  overrides.insert(overrides.end(), terms_.candidate.begin(), terms_.candidate.end());
  return overrides;
}

Result<void> Experiment::read_configs() {
  HF_TRY(config_a_, load(terms_.overrides));
  HF_TRY(const std::vector<Override> overrides, overrides_of_b());
  HF_TRY(config_b_, load(overrides));
  // B has what it is about in all calls, unless it comes with rules of its own.
  const auto is_named = [&overrides](std::string_view key) {
    return std::ranges::any_of(overrides, [key](const Override& each) { return each.key == key; });
  };
  if (!is_named("kernels.rules"))
    std::erase_if(config_b_->config.kernels.rules,
                  [&](const KernelRuleConfig& rule) { return is_named("kernels." + rule.op); });
  launch_alike(config_a_->config.kernels, config_b_->config.kernels);
  launch_alike(config_b_->config.kernels, config_a_->config.kernels);
  for (LoadedConfig* const each : {&*config_a_, &*config_b_}) each->config.kernels.shadows.clear();
  for (LoadedConfig* const each : {&*config_a_, &*config_b_}) {
    choose_layout(each->config.parallel, 1, terms_.overrides);
    write_nothing(each->config);
    each->config.verdict.preset = "off";
  }
  return {};
}

Result<void> Experiment::find_state() {
  report_.from = "the initial weights";
  const std::string& directory = config_a_->config.run.directory;
  if (terms_.from_start || directory.empty()) return {};
  HF_TRY(const std::optional<FoundCheckpoint> found, find_checkpoint(env_, directory));
  if (!found.has_value()) return {};
  const Manifest& manifest = found->checkpoint.manifest();
  state_ = {.checkpoint = found->checkpoint.directory(),
            .device = value_of(manifest, "device"),
            .device_plan = value_of(manifest, "device_plan")};
  report_.from = fmt::format("{} (step {})", state_.checkpoint, manifest.step);
  return {};
}

Result<void> Experiment::make_sides(bool with_noise) {
  const auto make = [&](const LoadedConfig& config, bool inspects, const std::string& faults = "") {
    return Side::make(env_, terms_.build, config, state_, inspects, faults);
  };
  a_.reset();
  b_.reset();
  HF_TRY_VOID(tell_("making A"));
  HF_TRY(a_, make(*config_a_, true));
  HF_TRY_VOID(tell_("making B"));
  HF_TRY(b_, make(*config_b_, true));
  if (!terms_.noise || !with_noise) return {};
  HF_TRY_VOID(tell_("making A with other last bits"));
  constexpr std::uint64_t changed = 65'536;
  const std::uint64_t all = parameter_count(a_->session().worker().workload().spec);
  const std::string faults = fmt::format("step.begin@1=flip_run:weights:0:{}:{}:0", changed,
                                         std::max<std::uint64_t>(all / changed, 1));
  HF_TRY(noise_, make(*config_a_, false, faults));
  return {};
}

Result<void> Experiment::limit_steps() {
  const auto all = static_cast<std::uint64_t>(config_a_->config.training.steps);
  const std::uint64_t made = a_->step();
  if (made >= all) {
    return fail(
        ExitCode::config,
        "{} has made all of its {} steps: give --from=start to begin with the initial weights, or more with "
        "--training.steps",
        terms_.run, all);
  }
  steps_ = std::min(terms_.steps, all - made);
  return {};
}

void Experiment::tell_kernels() {
  report_.device = a_->session().device().description();
  const KernelTable &of_a = a_->session().device().kernels(), &of_b = b_->session().device().kernels();
  for (std::size_t i = 0; i < op_count; ++i) {
    const std::string names_a = names_in_use(of_a[i]), names_b = names_in_use(of_b[i]);
    if (names_a == names_b) continue;
    differing_.insert(op_names[i]);
    report_.kernels.push_back(fmt::format("{}: A {}, B {}", op_names[i], names_a, names_b));
  }
}

Result<void> Experiment::make_steps() {
  const std::int64_t begin_ns = env_.monotonic_ns();
  for (std::uint64_t index = 0; index < steps_; ++index) {
    if (index >= steps_untimed) {
      const double each_s =
          static_cast<double>(env_.monotonic_ns() - begin_ns) * 1e-9 / static_cast<double>(index);
      left_ = fmt::format(", {} left", format_seconds(each_s * static_cast<double>(steps_ - index)));
    }
    HF_TRY(const bool goes_on, make_step(index));
    if (!goes_on) break;
  }
  return {};
}

// Makes a step of each side; returns whether all of them can go on. A makes every other one first.
Result<bool> Experiment::make_step(std::uint64_t index) {
  const bool inspects = index < steps_inspected && !report_.origin.has_value();
  // An even number, so that A makes the first step of a pair first.
  const std::uint64_t untimed = std::min(steps_untimed, 2 * std::max<std::uint64_t>(steps_ / 4, 1));
  AbStep step{.step = a_->step() + 1, .is_timed = !inspects && index >= untimed};
  const auto make_a = [&]() -> Result<void> {
    HF_TRY_VOID(tell_(fmt::format("step {} of {}: A{}", index + 1, steps_, left_)));
    HF_TRY(step.a, a_->make_step(inspects));
    return {};
  };
  const auto make_b = [&]() -> Result<void> {
    HF_TRY_VOID(tell_(fmt::format("step {} of {}: B{}", index + 1, steps_, left_)));
    HF_TRY(step.b, b_->make_step(inspects));
    return {};
  };
  HF_TRY_VOID(index % 2 == 0 ? make_a() : make_b());
  HF_TRY_VOID(index % 2 == 0 ? make_b() : make_a());
  if (noise_ != nullptr) {
    HF_TRY_VOID(tell_(fmt::format("step {} of {}: A with other last bits{}", index + 1, steps_, left_)));
    HF_TRY(const AbNumbers numbers, noise_->make_step(false));
    step.noise_loss = numbers.loss;
  }
  report_.steps.push_back(step);
  if (inspects) note_origin(step.step);
  const bool a_ends = !std::isfinite(step.a.loss), b_ends = !std::isfinite(step.b.loss);
  if (a_ends || b_ends)
    report_.ended = fmt::format("{} {} not finite in step {}",
                                a_ends && b_ends ? "A and B"
                                : a_ends         ? "A"
                                                 : "B",
                                a_ends && b_ends ? "are" : "is", step.step);
  return report_.ended.empty();
}

void Experiment::note_origin(std::uint64_t step) {
  const std::vector<OpDigest>&of_a = a_->results(), &of_b = b_->results();
  const std::optional<std::size_t> first = first_difference(of_a, of_b);
  if (!first.has_value()) return;
  const CheckedOp op = checked_op(of_b[*first], of_b);
  report_.origin = AbOrigin{.step = step,
                            .is_alike = !differing_.contains(op.op),
                            .op = op.op,
                            .where = describe(op),
                            .output = op.output};
}

// Makes the steps up to a difference once more, to see where it came from: losses may show it later than results.
Result<void> Experiment::find_late_origin() {
  std::uint64_t first = losses_of(report_).first_difference;
  if (first == 0 && !report_.has_same_state) first = report_.steps.back().step;
  if (first == 0 || report_.origin.has_value()) return {};
  HF_TRY_VOID(make_sides(false));
  while (a_->step() < first && !report_.origin.has_value()) {
    const std::uint64_t step = a_->step() + 1;
    HF_TRY_VOID(tell_(fmt::format("step {} of {} once more, to find the op that differs: A", step, first)));
    HF_TRY_VOID(outcome_of(a_->make_step(true)));
    HF_TRY_VOID(tell_(fmt::format("step {} of {} once more, to find the op that differs: B", step, first)));
    HF_TRY_VOID(outcome_of(b_->make_step(true)));
    note_origin(step);
  }
  return {};
}

}  // namespace

Result<AbReport> compare_in_run(Env& env, const AbTerms& terms, const Tell& tell) {
  return Experiment(env, terms, tell).run();
}

}  // namespace holdfast::bench::kernel_kit
