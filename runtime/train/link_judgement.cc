#include "runtime/train/link_judgement.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <utility>

#include "parallel/comm/gather.h"
#include "runtime/integrity/hardware_findings.h"
#include "runtime/integrity/link_blame.h"
#include "runtime/run/numbers_log.h"
#include "runtime/train/damage_judgement.h"

namespace holdfast::train {
namespace {

// LinkRecord holds what one rank knows of its links in an attempt.
struct LinkRecord {
  std::string host = {};
  int rank = 0;  // global
  std::vector<LinkEnd> ends = {};
  std::uint64_t sound_step =
      0;  // newest step up to which its links delivered what was sent, as far as audits say
  OwnHardware hardware = {};

  static void visit_fields(auto& self, auto&& visit) {
    visit("host", self.host);
    visit("rank", self.rank);
    visit("ends", self.ends);
    visit("sound_step", self.sound_step);
    visit("hardware", self.hardware);
  }
};

// All links are compared at each step with an audit, also those of ranks that do not take part in it.
std::uint64_t sound_step_of_links(const Worker& worker) {
  const auto every = static_cast<std::uint64_t>(worker.workload().audit_every_steps);
  const std::uint64_t compared = every == 0 ? 0 : worker.state().step / every * every;
  return compared > worker.first_step() ? std::max(compared, worker.sound_step()) : worker.sound_step();
}

LinkRecord link_record_of(Worker& worker) {
  const Communicator& all = worker.rank().communicator;
  LinkRecord record{.host = worker.rank().env.host_name(),
                    .rank = all.global_rank(all.rank()),
                    .sound_step = sound_step_of_links(worker),
                    .hardware = own_hardware(worker.rank())};
  const LinkDigests& links = worker.reduction().links();
  for (int peer = 0; peer < links.ranks(); ++peer) {
    if (links.global_rank(peer) == record.rank) continue;
    record.ends.push_back({.peer = links.global_rank(peer),
                           .sent_sum = links.sent(peer).sum,
                           .sent_weighted = links.sent(peer).weighted,
                           .received_sum = links.received(peer).sum,
                           .received_weighted = links.received(peer).weighted});
  }
  return record;
}

struct ComparedLinks {
  std::vector<LinkRecord> records = {};  // by rank of the communicator
  std::vector<Link> changed = {};
};

Result<ComparedLinks> compare_links(Worker& worker) {
  ComparedLinks compared;
  HF_TRY(compared.records, gather(worker.rank().communicator, worker.rank().waiter, link_record_of(worker)));
  std::vector<RankEnds> ranks;
  for (const LinkRecord& record : compared.records)
    ranks.push_back({.rank = record.rank, .ends = record.ends});
  compared.changed = changed_links(ranks);
  return compared;
}

// Returns the index in `records` of a global rank.
std::size_t index_of(std::span<const LinkRecord> records, int rank) {
  return static_cast<std::size_t>(std::ranges::find(records, rank, &LinkRecord::rank) - records.begin());
}

std::string name_of_rank(std::span<const LinkRecord> records, int rank) {
  return fmt::format("rank {} (host {})", rank, records[index_of(records, rank)].host);
}

std::string names_of(std::span<const LinkRecord> records, std::span<const Link> links) {
  constexpr std::size_t named_most = 8;
  std::vector<std::string> names;
  for (const Link& link : links.first(std::min(links.size(), named_most)))
    names.push_back(fmt::format("the link from {} to {}", name_of_rank(records, link.source),
                                name_of_rank(records, link.target)));
  if (links.size() > named_most) names.push_back(fmt::format("{} more", links.size() - named_most));
  return names.empty() ? "some link" : fmt::format("{}", fmt::join(names, ", "));
}

std::uint64_t last_sound_step(const Worker& worker, std::span<const LinkRecord> records,
                              std::span<const Link> links, std::optional<int> culprit) {
  std::uint64_t sound = worker.state().step;
  const auto take = [&](int rank) { sound = std::min(sound, records[index_of(records, rank)].sound_step); };
  if (culprit.has_value()) {
    take(*culprit);
    return sound;
  }
  for (const Link& link : links) {
    take(link.source);
    take(link.target);
  }
  return sound;
}

// Notes a finding about the rank that is an end of all of the links. Where it may be either of two, nobody's hardware
// gets one.
void blame(const RankContext& rank, const LinkRecord& culprit, bool lasts, VerdictEvent& report) {
  report.rank = culprit.rank;
  report.host = culprit.host;
  report.reason += fmt::format("; rank {} (host {}) is an end of all of them", culprit.rank, culprit.host);
  note_finding(rank, culprit.hardware, lasts ? finding_kinds::lasts : finding_kinds::once, report);
}

// Decides what follows from links that changed gradients. `culprit`: the record of the rank to blame, or null.
void conclude(const Worker& worker, bool lasts, const LinkRecord* culprit, std::size_t culprit_index,
              LinkedStep& step) {
  std::string consequence = "the numbers of the second attempt count";
  step.report.action = verdict_values::redo;
  if (lasts) {
    step.action = VerdictAction::stop;
    step.report.action = verdict_values::stop;
    consequence =
        "the update was not made. Test the cables, network cards and switches between these hosts, or on one "
        "host "
        "the path between its GPUs and their memory, or start again without one of them";
  }
  const bool is_repeated = culprit != nullptr && culprit->hardware.earlier_findings > 0;
  if (culprit != nullptr && (lasts || is_repeated) && can_spare_a_replica(worker)) {
    step.action = VerdictAction::stop;
    step.leaving_ranks = {static_cast<int>(culprit_index)};
    step.report.action = verdict_values::evict;
    consequence = "that rank leaves the run, which goes on without it";
  }
  if (step.trusted_step.has_value())
    consequence += fmt::format(", from step {} or before", *step.trusted_step);
  step.report.reason += "; " + consequence;
}

}  // namespace

Result<LinkedStep> judge_links(Worker& worker, const Attempt& first) {
  HF_TRY(ComparedLinks compared, compare_links(worker));
  const std::vector<AttemptBits> bits = {attempt_bits(worker, first)};
  LinkedStep step;
  // The same lane is audited by the same rank: the audit of this attempt is judged as that of a first one.
  HF_TRY(step.attempt, attempt_again(worker, bits, /*audit_retry=*/0));
  const bool lasts = step.attempt.links_failed();
  if (lasts) {
    HF_TRY(const ComparedLinks again, compare_links(worker));
    for (const Link& link : again.changed)
      if (std::ranges::find(compared.changed, link) == compared.changed.end())
        compared.changed.push_back(link);
    std::ranges::sort(compared.changed);
  }
  const std::span<const LinkRecord> records = compared.records;
  const std::optional<int> culprit = only_common_end(compared.changed);
  const std::uint64_t sound_step = last_sound_step(worker, records, compared.changed, culprit);
  if (lasts && worker.rank().config.verdict.on_wrong_rank == "rollback") step.trusted_step = sound_step;
  step.report = {.step = worker.state().step + 1,
                 .what = std::string(verdict_values::corruption),
                 .of = std::string(verdict_values::links),
                 .value = step.attempt.grad_norm,
                 .attempts = 2,
                 .differing_ranks = static_cast<int>(step.attempt.sums.differs_from_last)};
  step.report.reason =
      fmt::format("step {}: {} delivered other gradients than were sent, {}{}", step.report.step,
                  names_of(records, compared.changed),
                  lasts ? "and so when they were sent again" : "but the right ones when they were sent again",
                  lasts ? fmt::format("; weights may be wrong since step {}", sound_step) : "");
  const std::size_t index = culprit.has_value() ? index_of(records, *culprit) : 0;
  const LinkRecord* const record = culprit.has_value() ? &records[index] : nullptr;
  if (record != nullptr) blame(worker.rank(), *record, lasts, step.report);
  conclude(worker, lasts, record, index, step);
  return step;
}

}  // namespace holdfast::train
