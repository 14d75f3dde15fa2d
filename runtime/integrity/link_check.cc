#include "runtime/integrity/link_check.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace holdfast::integrity {
namespace {

// All links are compared at each step with an audit, also those of ranks that do not take part in it.
std::uint64_t verified_step_of_links(const StepAccess& step) {
  const auto every = static_cast<std::uint64_t>(step.audit_every_steps);
  const std::uint64_t compared = every == 0 ? 0 : step.step / every * every;
  return compared > step.first_step ? std::max(compared, step.verified_step) : step.verified_step;
}

Result<LinkRecords> gather_ends(const StepAccess& step) {
  LinkEnds own;
  const LinkDigests& links = step.reduction.links();
  const int rank = step.rank.communicator.global_rank(step.rank.communicator.rank());
  for (int peer = 0; peer < links.ranks(); ++peer) {
    if (links.global_rank(peer) == rank) continue;
    own.ends.push_back({.peer = links.global_rank(peer),
                        .sent_sum = links.sent(peer).sum,
                        .sent_weighted = links.sent(peer).weighted,
                        .received_sum = links.received(peer).sum,
                        .received_weighted = links.received(peer).weighted});
  }
  return gather_records(step.rank, verified_step_of_links(step), own);
}

// Returns the index in `records` of a global rank.
std::size_t index_of(const LinkRecords& records, int rank) {
  return static_cast<std::size_t>(std::ranges::find(records, rank, &RankRecord::rank) - records.begin());
}

std::string names_of(const LinkRecords& records, std::span<const Link> links) {
  constexpr std::size_t named_most = 8;
  std::vector<std::string> names;
  const auto name = [&](int rank) { return records[index_of(records, rank)].name(); };
  for (const Link& link : links.first(std::min(links.size(), named_most)))
    names.push_back(fmt::format("the link from {} to {}", name(link.source), name(link.target)));
  if (links.size() > named_most) names.push_back(fmt::format("{} more", links.size() - named_most));
  return names.empty() ? "some link" : fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

std::vector<Link> changed_links(const LinkRecords& records) {
  std::map<Link, const LinkEnd*> sources;
  for (const CheckRecord<LinkEnds>& each : records)
    for (const LinkEnd& end : each.found.ends) sources[{.source = each.rank, .target = end.peer}] = &end;
  std::vector<Link> changed;
  for (const CheckRecord<LinkEnds>& each : records) {
    for (const LinkEnd& end : each.found.ends) {
      const Link link{.source = end.peer, .target = each.rank};
      const auto found = sources.find(link);
      if (found == sources.end()) continue;
      const LinkEnd& source = *found->second;
      if (source.sent_sum != end.received_sum || source.sent_weighted != end.received_weighted)
        changed.push_back(link);
    }
  }
  std::ranges::sort(changed);
  return changed;
}

std::optional<int> only_common_end(std::span<const Link> links) {
  if (links.empty()) return {};
  const auto is_common = [&](int rank) {
    return std::ranges::all_of(
        links, [rank](const Link& link) { return link.source == rank || link.target == rank; });
  };
  const bool source = is_common(links.front().source), target = is_common(links.front().target);
  if (source == target) return {};
  return source ? links.front().source : links.front().target;
}

Finding attribute(const LinkRecords& records, std::span<const Link> changed, bool lasts,
                  std::uint64_t verified_step) {
  const std::optional<int> suspect = only_common_end(changed);
  const auto take = [&](int rank) {
    verified_step = std::min(verified_step, records[index_of(records, rank)].verified_step);
  };
  if (suspect.has_value()) take(*suspect);
  for (const Link& link : suspect.has_value() ? std::span<const Link>() : changed) {
    take(link.source);
    take(link.target);
  }
  Finding finding{
      .of = VerdictSubject::links,
      .hardware = lasts ? HardwareState::lasts : HardwareState::recovered,
      .verified_step = verified_step,
      .kept = "the numbers of the second attempt count",
      .stopped =
          "the update was not made. Test the cables, network cards and switches between these hosts, "
          "or on one host the path between its GPUs and their memory, or start again without one of "
          "them"};
  std::string& reason = finding.report.reason;
  reason =
      fmt::format("{} delivered other gradients than were sent, {}{}", names_of(records, changed),
                  lasts ? "and so when they were sent again" : "but the right ones when they were sent again",
                  lasts ? fmt::format("; weights may be wrong since step {}", verified_step) : "");
  if (!suspect.has_value()) return finding;
  const std::size_t index = index_of(records, *suspect);
  reason += fmt::format("; {} is an end of all of them", records[index].name());
  finding.suspects = {{.index = static_cast<int>(index),
                       .record = records[index],
                       .kind = lasts ? finding_kinds::lasts : finding_kinds::once}};
  return finding;
}

Result<CheckedStep> check_links(const StepAccess& step, const Attempt& first) {
  if (!first.links_failed()) return CheckedStep{.attempt = first};
  HF_TRY(const LinkRecords records, gather_ends(step));
  std::vector<Link> changed = changed_links(records);
  const std::vector<AttemptBits> bits = {step.bits_of(first)};
  // The same lane is audited by the same rank: the audit of this attempt is checked as that of a first one.
  HF_TRY(const Attempt attempt, step.attempt_again(bits, /*audit_retry=*/0));
  if (attempt.links_failed()) {
    HF_TRY(const LinkRecords again, gather_ends(step));
    for (const Link& link : changed_links(again))
      if (std::ranges::find(changed, link) == changed.end()) changed.push_back(link);
    std::ranges::sort(changed);
  }
  Finding finding = attribute(records, changed, attempt.links_failed(), step.step);
  finding.report.step = step.step + 1;
  finding.report.value = attempt.numbers.grad_norm;
  finding.report.attempts = 2;
  finding.report.differing_ranks = static_cast<int>(attempt.votes.differs_from_last);
  finding.report.reason = fmt::format("step {}: {}", finding.report.step, finding.report.reason);
  return follow(step.rank, attempt, std::move(finding));
}

}  // namespace holdfast::integrity
