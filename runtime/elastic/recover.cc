#include "runtime/elastic/recover.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <sstream>

#include "checkpoint/candidates.h"
#include "parallel/comm/agreement.h"
#include "runtime/elastic/join.h"
#include "runtime/elastic/part_start.h"
#include "runtime/run/run_identity.h"

namespace holdfast {
namespace {

// What the manifests alone say is newest.
Result<StartPoint> newest_by_manifest(Env& env, const std::string& run_directory) {
  StartPoint start;
  HF_TRY(start.lineage, read_lineage(env, run_directory));
  const Result<std::vector<CheckpointCandidate>> candidates = list_candidates(env, run_directory);
  if (!candidates.ok()) return start;
  for (const CheckpointCandidate& candidate : *candidates) {
    if (!candidate.manifest.ok() || candidate.discarded) continue;
    start.generation = candidate.manifest->generation;
    start.step = candidate.step;
    break;
  }
  return start;
}

// A run that was started afresh goes on from what it has saved since.
Config as_resumed(const Config& config) {
  Config resumed = config;
  if (resumed.run.resume == "never") resumed.run.resume = "auto";
  return resumed;
}

std::string text_left(std::istream& stream) {
  return {std::istreambuf_iterator<char>(stream), {}};
}

}  // namespace

Result<Standing> join_standing(const TrainInputs& world, const Waiter& waiter, const Standing& mine) {
  enum Opened : int { no, yes, not_known };
  const Opened opened = !mine.log_opened.has_value() ? not_known : *mine.log_opened ? yes : no;
  const std::string text = fmt::format(
      "{} {} {} {} {} {} {} {} {} {} {} {}\n{}\n{}", mine.launched_ranks, mine.joined ? 1 : 0,
      static_cast<int>(opened), mine.step, mine.gemm_peak, mine.memory_id.empty() ? "-" : mine.memory_id,
      mine.lost_some ? 1 : 0, mine.lost_starter ? 1 : 0, mine.redone_step, mine.redone, mine.noticed_us,
      mine.told ? 1 : 0, mine.verdict, mine.noticed);
  HF_TRY(const std::vector<std::string> texts, all_gather_text(world.communicator, waiter, text));
  Standing all{.joined = true};
  bool some_did_not = false, some_did = false;
  for (const std::string& each : texts) {
    std::istringstream stream(each);
    Standing one;
    int said = not_known;
    stream >> one.launched_ranks >> one.joined >> said >> one.step >> one.gemm_peak >> one.memory_id >>
        one.lost_some >> one.lost_starter >> one.redone_step >> one.redone >> one.noticed_us >> one.told;
    stream.ignore();  // the end of the line
    std::getline(stream, one.verdict);
    one.noticed = text_left(stream);
    all.launched_ranks = std::max(all.launched_ranks, one.launched_ranks);
    all.joined = all.joined && one.joined;
    some_did_not = some_did_not || said == no;
    some_did = some_did || said == yes;
    all.step = std::max(all.step, one.step);
    all.gemm_peak = std::max(all.gemm_peak, one.gemm_peak);
    if (all.memory_id.empty() && one.memory_id != "-") all.memory_id = one.memory_id;
    if (all.verdict.empty()) all.verdict = one.verdict;
    all.lost_some = all.lost_some || one.lost_some;
    all.lost_starter = all.lost_starter || one.lost_starter;
    if (std::pair(one.redone_step, one.redone) > std::pair(all.redone_step, all.redone)) {
      all.redone_step = one.redone_step;
      all.redone = one.redone;
    }
    const bool nearer = std::pair(one.told, one.noticed_us) < std::pair(all.told, all.noticed_us);
    if (!one.noticed.empty() && (all.noticed.empty() || nearer)) {
      all.noticed_us = one.noticed_us;
      all.told = one.told;
      all.noticed = one.noticed;
    }
  }
  // Spares alone have seen others begin; who came later has seen nothing.
  if (all.joined || some_did) all.log_opened = !some_did_not;
  return all;
}

Result<void> count_redo(Standing& standing) {
  constexpr int redone_most = 3;
  if (standing.lost_some) return {};
  standing.redone = standing.step == standing.redone_step ? standing.redone + 1 : 1;
  standing.redone_step = standing.step;
  if (standing.redone <= redone_most) return {};
  return fail(ExitCode::communication,
              "step {} was begun again {} times with nobody lost, and failed each time: {}",
              standing.step + 1, redone_most, standing.noticed);
}

Result<StartPoint> join_recovery_point(const TrainInputs& world, const Waiter& waiter, const Config& config,
                                       const std::string& memory_id, const std::optional<RunPlaces>& places,
                                       const ClaimCheck& check) {
  Result<StartPoint> newest = StartPoint{};
  if (world.communicator.rank() == 0) newest = newest_by_manifest(world.env, config.run.directory);
  if (newest.ok() && world.communicator.rank() == 0) {
    // A snapshot of the same step is as good, and at hand.
    newest->step -= newest->step > 0 ? 1 : 0;
    newest->memory_id = memory_id;
    const Result<RunIdentity> known = identify_run(world.env, {config.run.directory});
    if (memory_id.empty() && known.ok()) newest->memory_id = known->id;
    newest->writer = world.env.random_u64();
  }
  HF_TRY(StartPoint start, share_start(world, waiter, newest));
  HF_TRY_VOID(join_snapshot(world, waiter, as_resumed(config), start));
  if (start.snapshot.has_value()) return start;
  return join_checkpoint_of_run(world, waiter, config, start, places, check);
}

// Looks for a snapshot again: where the newest checkpoint is damaged, one between it and the newest whole one
// is newer than what is left on the disk.
Result<StartPoint> join_checkpoint_of_run(const TrainInputs& inputs, const Waiter& waiter,
                                          const Config& config, const StartPoint& asked,
                                          const std::optional<RunPlaces>& places, const ClaimCheck& check) {
  const std::string& memory_id = asked.memory_id;
  OwnStates own;
  if (places.has_value()) {
    HF_TRY(own, join_parts(inputs, waiter, config.run.directory, *places, check));
  }
  Result<StartPoint> chosen = StartPoint{};
  if (inputs.communicator.rank() == 0) {
    chosen = places.has_value() ? choose_start(inputs.env, as_resumed(config), own, /*in_place=*/true)
                                : choose_start(inputs.env, as_resumed(config), /*in_place=*/true);
    if (chosen.ok()) {
      StartPoint start = *chosen;
      if (!memory_id.empty()) start.memory_id = memory_id;
      start.writer = inputs.env.random_u64();
      start.passed_over = asked.passed_over;
      chosen = start;
    }
  }
  HF_TRY(StartPoint start, share_start(inputs, waiter, chosen));
  HF_TRY_VOID(join_snapshot(inputs, waiter, as_resumed(config), start));
  return start;
}

}  // namespace holdfast
