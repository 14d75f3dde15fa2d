#include "runtime/elastic/generation.h"

#include <fmt/core.h>

#include <algorithm>

namespace holdfast::elastic {
namespace {

// Returns why a new generation begins; empty if the state goes on in generation `current`.
std::string why_one_begins(const Lineage& lineage, std::uint64_t current, const ParentCheckpoint& state,
                           const std::string& numeric, const std::string& settings) {
  if (state.generation == current) return numeric.empty() ? "" : "changed: " + numeric;
  const Generation* const begun = lineage.find(current);
  if (begun != nullptr && begun->settings == settings &&
      (begun->is_rollback ? !lineage.discards(state) : begun->parent == state))
    return "";
  return fmt::format("nothing is left of generation {}", current);
}

}  // namespace

GenerationChoice choose_generation(const StartPoint& start, const RunState& state, const std::string& numeric,
                                   const std::string& settings) {
  GenerationChoice choice{.lineage = start.lineage, .jumps = state.jumps};
  Lineage& lineage = choice.lineage;
  const bool fresh = start.checkpoint.empty() && !start.snapshot.has_value();
  std::string reason = start.begins;
  if (!reason.empty()) lineage.generations.pop_back();
  if (lineage.run_id != state.run_id) {
    if (fresh) reason.clear();  // another run, which has no history
    lineage = {.run_id = state.run_id};
  }
  const ParentCheckpoint from = {.generation = state.generation, .step = state.step};
  const std::uint64_t current = std::max(lineage.current(), state.generation);
  choice.generation = current;
  if (reason.empty()) reason = why_one_begins(lineage, current, from, numeric, settings);
  if (reason.empty()) {
    lineage.add_jumps_after(from, choice.jumps);
    return choice;
  }
  choice.begins = true;
  choice.generation = current + 1;
  lineage.generations.push_back(
      {.number = choice.generation, .parent = from, .settings = settings, .reason = std::move(reason)});
  if (lineage.newest_checkpoint.has_value() && lineage.discards(*lineage.newest_checkpoint))
    lineage.newest_checkpoint.reset();
  lineage.add_jumps_after(from, choice.jumps);
  return choice;
}

}  // namespace holdfast::elastic
