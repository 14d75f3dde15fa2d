#include "runtime/train/audit_judgement.h"

#include <fmt/ranges.h>

#include <array>
#include <map>
#include <string>

#include "parallel/comm/gather.h"

namespace holdfast::inline train {
namespace {

constexpr std::size_t trials = 2;

// AuditFinding holds what one rank computed in the trials; a digest is empty where it had not that role.
struct AuditFinding {
  std::string host = {};
  int rank = 0;                            // global
  int data = 0, pipeline = 0, tensor = 0;  // coordinate
  std::array<std::string, trials> as_owner = {}, as_auditor = {};

  static void visit_fields(auto& self, auto&& visit) {
    visit("host", self.host);
    visit("rank", self.rank);
    visit("data", self.data);
    visit("pipeline", self.pipeline);
    visit("tensor", self.tensor);
    visit("as_owner", self.as_owner);
    visit("as_auditor", self.as_auditor);
  }
};

using Digests = std::array<AuditDigests, trials>;

AuditFinding finding_of(const Worker& worker, const Digests& digests) {
  const MeshCoordinate& coordinate = worker.rank().coordinate;
  const Communicator& all = worker.rank().communicator;
  AuditFinding finding{.host = worker.rank().env.host_name(),
                       .rank = all.global_rank(all.rank()),
                       .data = coordinate.data,
                       .pipeline = coordinate.pipeline,
                       .tensor = coordinate.tensor};
  const auto text = [](const std::optional<Digest>& digest) {
    return digest.has_value() ? to_hex(*digest) : std::string();
  };
  for (std::size_t i = 0; i < trials; ++i) {
    finding.as_owner[i] = text(digests[i].as_owner);
    finding.as_auditor[i] = text(digests[i].as_auditor);
  }
  return finding;
}

// Returns the trials of each pair of ranks that are at the same stage and slice.
std::map<std::pair<int, int>, std::array<AuditTrial, trials>> trials_by_pair(
    std::span<const AuditFinding> findings, const std::array<LaneAudit, trials>& audits) {
  std::map<std::pair<int, int>, std::array<AuditTrial, trials>> pairs;
  for (const AuditFinding& finding : findings) {
    std::array<AuditTrial, trials>& pair = pairs[{finding.pipeline, finding.tensor}];
    for (std::size_t i = 0; i < trials; ++i) {
      pair[i].audit = audits[i];
      if (finding.data == audits[i].owner) HF_CHECK(from_hex(finding.as_owner[i], pair[i].owner));
      if (finding.data == audits[i].auditor) HF_CHECK(from_hex(finding.as_auditor[i], pair[i].auditor));
    }
  }
  return pairs;
}

std::string sentence_of(const AuditedStep& step, std::span<const AuditFinding> findings,
                        const LaneAudit& audit) {
  std::string who = "it is not known which of the two";
  if (!step.to_blame.empty()) {
    std::vector<std::string> names;
    for (const int rank : step.to_blame) {
      const AuditFinding& finding = findings[static_cast<std::size_t>(rank)];
      names.push_back(fmt::format("rank {} (host {})", finding.rank, finding.host));
    }
    who =
        fmt::format("{}{} computed wrong numbers", names.size() > 1 ? "one of " : "", fmt::join(names, ", "));
  }
  return fmt::format(
      "step {}: lane {} was computed by replicas {} and {}, and the bits of its gradients are not the "
      "same{}; {}",
      step.report.step, audit.lane, audit.owner, audit.auditor,
      step.lasts ? ", nor are they when it is computed again" : ", but they are when it is computed again",
      who);
}

}  // namespace

Result<AuditedStep> judge_audit(Worker& worker, const Attempt& first) {
  const std::array<AttemptBits, 1> bits = {attempt_bits(worker, first)};
  AuditedStep step;
  HF_TRY(step.attempt, attempt_again(worker, bits));
  const std::array<LaneAudit, trials> audits = {first.audit.value(), step.attempt.audit.value()};
  HF_TRY(const std::vector<AuditFinding> findings,
         gather(worker.rank().communicator, worker.rank().waiter,
                finding_of(worker, {first.digests, step.attempt.digests})));
  using Who = AuditBlame::Who;
  const auto pairs = trials_by_pair(findings, audits);
  bool is_known = true;
  for (std::size_t rank = 0; rank < findings.size(); ++rank) {
    const AuditFinding& finding = findings[rank];
    const auto& pair = pairs.at({finding.pipeline, finding.tensor});
    const AuditBlame blame = blame_after(pair[0], pair[1]);
    if (blame.who == Who::unknown) is_known = false;
    const bool is_owner = blame.who == Who::owner && finding.data == audits[0].owner;
    const bool is_auditor = blame.who == Who::auditor && finding.data == audits[0].auditor;
    if (is_owner || is_auditor) step.to_blame.push_back(static_cast<int>(rank));
  }
  if (!is_known) step.to_blame.clear();
  step.lasts = step.attempt.audit_failed();
  step.report = {.step = worker.state().step + 1,
                 .what = "corruption",
                 .of = "grad_norm",
                 .value = step.attempt.grad_norm,
                 .attempts = trials,
                 .differing_ranks = static_cast<int>(step.to_blame.size()),
                 .lane = audits[0].lane};
  if (step.to_blame.size() == 1) {
    const AuditFinding& culprit = findings[static_cast<std::size_t>(step.to_blame[0])];
    step.report.rank = culprit.rank;
    step.report.host = culprit.host;
  }
  step.report.reason = sentence_of(step, findings, audits[0]);
  return step;
}

}  // namespace holdfast::inline train
