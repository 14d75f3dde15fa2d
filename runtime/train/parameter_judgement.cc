#include "runtime/train/parameter_judgement.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "parallel/comm/gather.h"
#include "runtime/rank/spare_ranks.h"
#include "runtime/run/numbers_log.h"
#include "runtime/train/damage_judgement.h"

namespace holdfast::train {
namespace {

// ParameterDetail is what a rank of a group that does not agree says when the step was computed again, or was not.
struct ParameterDetail {
  bool restored = false;              // Attempt::restored_parameters
  std::string changed = {};           // frozen tensors that have changed; empty: none
  std::vector<HeldBucket> held = {};  // in the first attempt

  static void visit_fields(auto& self, auto&& visit) {
    visit("restored", self.restored);
    visit("changed", self.changed);
    visit("held", self.held);
  }
};

using Records = std::span<const ParameterRecord>;
using Details = std::span<const ParameterDetail>;

const ParameterRecord& at(Records records, int rank) {
  return records[static_cast<std::size_t>(rank)];
}

ParameterRecord held_parameters_of(Worker& worker) {
  const RankContext& rank = worker.rank();
  const ParameterDigests& digests = worker.checks().parameters;
  ParameterRecord record{.host = rank.env.host_name(),
                         .rank = rank.communicator.global_rank(rank.communicator.rank()),
                         .data = rank.coordinate.data,
                         .pipeline = rank.coordinate.pipeline,
                         .tensor = rank.coordinate.tensor,
                         .frozen_changed = !digests.changed_frozen_tensors().empty(),
                         .sound_step = digests.sound_step().value_or(worker.first_step()),
                         .hardware = own_hardware(rank)};
  for (std::size_t i = 0; i < parameter_set_count; ++i)
    record.sets[i] = to_hex(digests.total(static_cast<ParameterSet>(i)));
  return record;
}

// Returns the groups of ranks that must hold the set alike.
std::vector<std::vector<int>> groups_of(Records records, ParameterSet set) {
  std::map<std::pair<int, int>, std::vector<int>> groups;
  for (std::size_t rank = 0; rank < records.size(); ++rank) {
    const int slice = is_replicated(set) ? 0 : records[rank].tensor;
    groups[{records[rank].pipeline, slice}].push_back(static_cast<int>(rank));
  }
  std::vector<std::vector<int>> all;
  for (auto& [place, ranks] : groups) all.push_back(std::move(ranks));
  return all;
}

// Returns the members that more than half of the others contradict; none where there is no such majority.
std::optional<std::vector<int>> minority_of(std::span<const int> members, Records records, std::size_t set) {
  std::map<std::string, std::vector<int>> holders;
  for (const int rank : members) holders[at(records, rank).sets[set]].push_back(rank);
  const auto most =
      std::ranges::max_element(holders, {}, [](const auto& each) { return each.second.size(); });
  if (most == holders.end() || 2 * most->second.size() <= members.size()) return std::nullopt;
  std::vector<int> others;
  for (const auto& [digest, ranks] : holders)
    if (digest != most->first) others.insert(others.end(), ranks.begin(), ranks.end());
  return others;
}

}  // namespace

ParameterDissent dissent_of(Records records) {
  std::set<int> to_blame, affected;
  ParameterDissent dissent;
  bool is_known = true;
  for (std::size_t rank = 0; rank < records.size(); ++rank)
    if (records[rank].frozen_changed) to_blame.insert(static_cast<int>(rank));
  affected = to_blame;
  dissent.in_frozen = !to_blame.empty();
  for (std::size_t i = 0; i < parameter_set_count; ++i) {
    const auto set = static_cast<ParameterSet>(i);
    for (const std::vector<int>& group : groups_of(records, set)) {
      const auto digest = [&](int rank) { return at(records, rank).sets[i]; };
      if (std::ranges::all_of(group, [&](int rank) { return digest(rank) == digest(group[0]); })) continue;
      affected.insert(group.begin(), group.end());
      dissent.in_frozen |= is_frozen(set);
      std::vector<int> members = group;
      if (is_frozen(set)) std::erase_if(members, [&](int rank) { return at(records, rank).frozen_changed; });
      if (members.empty()) continue;
      const std::optional<std::vector<int>> others = minority_of(members, records, i);
      is_known &= others.has_value();
      if (others.has_value()) to_blame.insert(others->begin(), others->end());
    }
  }
  if (is_known) dissent.to_blame.assign(to_blame.begin(), to_blame.end());
  dissent.affected.assign(affected.begin(), affected.end());
  return dissent;
}

namespace {

// Returns the first tensors that a rank to blame holds otherwise than another one; empty if they are not known.
std::string tensors_of(int culprit, std::span<const int> to_blame, Records records, Details details) {
  const ParameterDetail& mine = details[static_cast<std::size_t>(culprit)];
  if (!mine.changed.empty()) return mine.changed;
  for (std::size_t rank = 0; rank < records.size(); ++rank) {
    const ParameterDetail& other = details[rank];
    const bool is_right = std::ranges::find(to_blame, static_cast<int>(rank)) == to_blame.end();
    if (!is_right || records[rank].pipeline != at(records, culprit).pipeline ||
        other.held.size() != mine.held.size())
      continue;
    for (std::size_t bucket = 0; bucket < mine.held.size(); ++bucket) {
      for (const std::size_t replicated : {std::size_t{0}, std::size_t{1}}) {
        const bool must_agree = replicated == 1 || records[rank].tensor == at(records, culprit).tensor;
        if (must_agree && mine.held[bucket].digests[replicated] != other.held[bucket].digests[replicated])
          return mine.held[bucket].tensors[replicated];
      }
    }
  }
  return "";
}

std::string describe(std::span<const int> to_blame, Records records, Details details) {
  if (to_blame.empty()) return "it is not known whose have changed";
  std::vector<std::string> all;
  for (const int rank : to_blame) {
    const ParameterRecord& record = at(records, rank);
    const std::string tensors = tensors_of(rank, to_blame, records, details);
    all.push_back(fmt::format("rank {} (host {}) computed with parameters that had changed in its memory{}{}",
                              record.rank, record.host, tensors.empty() ? "" : ": ", tensors));
  }
  return fmt::format("{}", fmt::join(all, "; "));
}

// Decides what follows, and says so. `is_lost`: no second attempt was made, because the state does not count.
void conclude(const Worker& worker, bool is_lost, std::span<const int> to_blame, Records records,
              JudgedParameters& judged) {
  const bool lasts = !is_lost && judged.attempt.parameters_differ();
  const bool is_repeated = to_blame.size() == 1 && at(records, to_blame[0]).hardware.earlier_findings > 0;
  std::string consequence;
  if ((is_lost || lasts || is_repeated) && can_spare(worker.rank(), to_blame)) {
    judged.leaving_ranks.assign(to_blame.begin(), to_blame.end());
    judged.report.action = verdict_values::evict;
    consequence = to_blame.size() == 1 ? "that rank leaves the run, which goes on without it"
                                       : "they leave the run, which goes on without them";
  } else if (is_lost) {
    judged.report.action = verdict_values::rollback;
    consequence = "the run goes back";
  } else if (lasts) {
    judged.report.action = verdict_values::stop;
    consequence =
        "they differ again in the second attempt, so the update was not made. Replace that hardware, or "
        "start again without it";
  } else {
    judged.report.action = verdict_values::redo;
    consequence = "they are those of their owners again, and the step was computed again";
  }
  judged.ends_step = judged.report.action != verdict_values::redo;
  const bool goes_back = is_lost || (lasts && worker.rank().config.verdict.on_wrong_rank == "rollback");
  if (!goes_back) judged.trusted_step.reset();
  if (judged.trusted_step.has_value()) {
    consequence += fmt::format("{} step {} or before",
                               judged.report.action == verdict_values::rollback ? " to" : ", from",
                               *judged.trusted_step);
  }
  judged.report.reason += "; " + consequence;
}

void note_findings(const Worker& worker, bool lasts, std::span<const int> to_blame, Records records,
                   VerdictEvent& report) {
  const std::string_view kind = lasts ? finding_kinds::lasts : finding_kinds::memory;
  for (const int rank : to_blame) {
    const ParameterRecord& culprit = at(records, rank);
    if (to_blame.size() > 1) {
      note_finding(worker.rank(), culprit.host, culprit.hardware, kind, report.step);
      continue;
    }
    report.rank = culprit.rank;
    report.host = culprit.host;
    note_finding(worker.rank(), culprit.hardware, kind, report);
  }
}

}  // namespace

Result<JudgedParameters> judge_parameters(Worker& worker, const Attempt& first) {
  const RankContext& rank = worker.rank();
  const ParameterDigests& digests = worker.checks().parameters;
  HF_TRY(const std::vector<ParameterRecord> records,
         gather(rank.communicator, rank.waiter, held_parameters_of(worker)));
  const ParameterDissent dissent = dissent_of(records);
  const bool is_lost = dissent.in_frozen;
  ParameterDetail detail;
  if (std::ranges::binary_search(dissent.affected, rank.communicator.rank()))
    detail = {.changed = digests.changed_frozen_tensors(), .held = digests.held()};
  JudgedParameters judged{.attempt = first};
  if (!is_lost) {
    const std::vector<AttemptBits> bits = {attempt_bits(worker, first)};
    HF_TRY(judged.attempt, attempt_again(worker, bits, /*audit_retry=*/0));
    detail.restored = judged.attempt.restored_parameters;
  }
  HF_TRY(const std::vector<ParameterDetail> details, gather(rank.communicator, rank.waiter, detail));
  std::vector<int> to_blame;
  for (std::size_t each = 0; each < details.size(); ++each)
    if (details[each].restored) to_blame.push_back(static_cast<int>(each));
  if (to_blame.empty()) to_blame = dissent.to_blame;

  judged.trusted_step = worker.state().step;
  for (const ParameterRecord& each : records)
    judged.trusted_step = std::min(*judged.trusted_step, each.sound_step);
  judged.report = {.step = worker.state().step + 1,
                   .what = std::string(verdict_values::corruption),
                   .of = "state",
                   .attempts = is_lost ? 1 : 2,
                   .differing_ranks = static_cast<int>(to_blame.size())};
  judged.report.reason = fmt::format("step {}: {}: {}", judged.report.step,
                                     dissent.in_frozen ? "frozen parameters have changed in memory"
                                                       : "copies of parameters are not the same on all ranks",
                                     describe(to_blame, records, details));
  conclude(worker, is_lost, to_blame, records, judged);
  note_findings(worker, !is_lost && judged.attempt.parameters_differ(), to_blame, records, judged.report);
  return judged;
}

}  // namespace holdfast::train
