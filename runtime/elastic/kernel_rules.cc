#include "runtime/elastic/kernel_rules.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <vector>

#include "kernels/call_filter.h"
#include "kernels/composed.h"
#include "runtime/elastic/planned_rank.h"
#include "runtime/model/spec.h"
#include "runtime/rank/kernel_choice.h"

namespace holdfast::elastic {
namespace {

constexpr std::size_t shapes_shown = 6;

// Counts for a rule the calls of its op, by how much of it they meet.
class RuleCalls {
 public:
  static Result<RuleCalls> of(const KernelPreference& rule) {
    HF_TRY(CallFilter filter, CallFilter::parse(rule.op, rule.layers, rule.where));
    return RuleCalls(rule, std::move(filter));
  }

  void see(OpId id, const CallPlace& place, const void* arguments) {
    if (id != rule_.op) return;
    is_called_ = true;
    if (!filter_.has_place(place)) return;
    has_place_ = true;
    has_call_ = has_call_ || filter_.has_shape(arguments);
    if (shapes_.size() < shapes_shown) shapes_.insert(filter_.shape_text(arguments));
  }

  Result<void> outcome(std::int64_t layers) const {
    if (has_call_) return {};
    const std::string rule = preference_text(rule_);
    if (!is_called_ && is_composed(rule_.op))
      return fail(
          ExitCode::config,
          "{}: no step of this run launches {}, which is {} in one: a layer has a place for it where its "
          "norms "
          "are of this kind, and a shadow is compared where an implementation of the op is named; take it "
          "out, or name one in kernels.{}",
          rule, name_of(rule_.op), parts_text(rule_.op), name_of(rule_.op));
    if (!is_called_)
      return fail(
          ExitCode::config,
          "{}: no step of this run calls {}; take the rule out, or name an op of the model, which holdfast "
          "plan --ops lists",
          rule, name_of(rule_.op));
    if (!has_place_)
      return fail(
          ExitCode::config,
          "{}: no call of {} is{}: the model has layers 0 to {}; give some of them, or take the rule out",
          rule, name_of(rule_.op), filter_.text(), layers - 1);
    return fail(
        ExitCode::config,
        "{}: no call of {} is{}; its calls there have {}. Give one of these, or take the rule out; shapes "
        "follow from the microbatch, the model and parallel.tensor",
        rule, name_of(rule_.op), filter_.text(), fmt::join(shapes_, "; "));
  }

 private:
  RuleCalls(const KernelPreference& rule, CallFilter filter) : rule_(rule), filter_(std::move(filter)) {}

  KernelPreference rule_;
  CallFilter filter_;
  bool is_called_ = false, has_place_ = false, has_call_ = false;
  std::set<std::string> shapes_ = {};
};

// Returns whether a key names an implementation of a composed op.
bool names_composed(const KernelsConfig& kernels) {
  for (std::size_t index = 0; index < op_count; ++index) {
    if (kernels.implementations[index] != "auto" && is_composed(static_cast<OpId>(index))) return true;
  }
  return false;
}

// Returns the config with which a step launches composed ops that rules are about in all of their places.
Result<Config> with_all_places(const Config& config, const std::vector<KernelPreference>& requests) {
  Config planned = config;
  for (const KernelPreference& each : requests) {
    if (!is_composed(each.op) || each.every > 0) continue;
    if (!may_compose(each.op, each.name, recompute_of(config)))
      return fail(
          ExitCode::config,
          "{}: with training.recompute = \"selective\" a backward computes {} alone, so a kernel of {} has "
          "to "
          "have the bits of its parts, and only those of Holdfast are known to: take \"full\" or \"none\"",
          preference_text(each), name_of(parts_of(each.op).back()), name_of(each.op));
    std::string& name = planned.kernels.implementations[static_cast<std::size_t>(each.op)];
    if (name == "auto") name = "parts";
  }
  return planned;
}

}  // namespace

Result<void> check_rules_have_calls(Env& env, const Config& config,
                                    const std::map<std::string, std::string>& origin,
                                    const MeshShape& shape) {
  if (config.kernels.rules.empty() && config.kernels.shadows.empty() && !names_composed(config.kernels))
    return {};
  HF_TRY(const KernelRequest request, kernel_request(env, config.kernels, origin));
  std::vector<RuleCalls> rules;
  for (const KernelPreference& each : request.requests) {
    if (each.key.empty()) continue;
    HF_TRY(RuleCalls calls, RuleCalls::of(each));
    rules.push_back(std::move(calls));
  }
  HF_TRY(const Config planned_config, with_all_places(config, request.requests));
  if (rules.empty()) return {};
  const Mesh mesh(shape);
  for (int stage = 0; stage < shape.pipeline; ++stage) {
    const int rank = mesh.rank_at({.data = 0, .pipeline = stage, .tensor = 0});
    HF_TRY(const std::unique_ptr<PlannedWorker> planned,
           PlannedWorker::make(env, planned_config, mesh, rank,
                               {.device = {.host_sees_memory = config.device != "cuda"}}));
    HF_TRY_VOID(planned->run_step([&](OpId id, const void* arguments) {
      const CallPlace place = place_of(planned->device().scope());
      for (RuleCalls& rule : rules) rule.see(id, place, arguments);
    }));
  }
  for (const RuleCalls& rule : rules) HF_TRY_VOID(rule.outcome(config.model.layers));
  return {};
}

}  // namespace holdfast::elastic
