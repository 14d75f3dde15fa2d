#include "runtime/train/audit_judgement.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "parallel/comm/gather.h"
#include "runtime/integrity/audit_blame.h"
#include "runtime/integrity/hardware_findings.h"
#include "runtime/train/product_judgement.h"

namespace holdfast::train {
namespace {

constexpr std::size_t trials = 2;

// AuditFinding holds what one rank computed in the trials; a digest is empty where it had not that role.
struct AuditFinding {
  std::string host = {};
  int rank = 0;                            // global
  int data = 0, pipeline = 0, tensor = 0;  // coordinate
  std::array<std::string, trials> as_owner = {}, as_auditor = {};
  bool restored_parameters = false;  // Attempt::restored_parameters
  std::uint64_t sound_step = 0;      // Worker::sound_step()
  OwnHardware hardware = {};

  static void visit_fields(auto& self, auto&& visit) {
    visit("host", self.host);
    visit("rank", self.rank);
    visit("data", self.data);
    visit("pipeline", self.pipeline);
    visit("tensor", self.tensor);
    visit("as_owner", self.as_owner);
    visit("as_auditor", self.as_auditor);
    visit("restored_parameters", self.restored_parameters);
    visit("sound_step", self.sound_step);
    visit("hardware", self.hardware);
  }
};

using Digests = std::array<AuditDigests, trials>;

AuditFinding finding_of(const Worker& worker, const Attempt& first, const Attempt& second) {
  const Digests digests = {first.digests, second.digests};
  const MeshCoordinate& coordinate = worker.rank().coordinate;
  const Communicator& all = worker.rank().communicator;
  AuditFinding finding{.host = worker.rank().env.host_name(),
                       .rank = all.global_rank(all.rank()),
                       .data = coordinate.data,
                       .pipeline = coordinate.pipeline,
                       .tensor = coordinate.tensor,
                       .restored_parameters = second.restored_parameters,
                       .sound_step = worker.sound_step(),
                       .hardware = own_hardware(worker.rank())};
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

struct BlamedRanks {
  std::vector<int> ranks = {};  // of the communicator, ascending; empty: it is not known
  bool has_auditor = false;     // some of them are of the replica that audited in the first trial
  bool by_parameters = false;   // they computed with parameters that were not those of the owners
};

// Returns the ranks of the audited pair of replicas whose parameters were restored between the trials, which
// explains all that differed in the first one.
BlamedRanks blame_for_parameters(std::span<const AuditFinding> findings, const LaneAudit& audit) {
  BlamedRanks blamed{.by_parameters = true};
  for (std::size_t rank = 0; rank < findings.size(); ++rank) {
    const AuditFinding& finding = findings[rank];
    if (finding.restored_parameters && (finding.data == audit.owner || finding.data == audit.auditor))
      blamed.ranks.push_back(static_cast<int>(rank));
  }
  return blamed;
}

// Returns all ranks of the copies of the model that the blamed ones are of: what one rank of a copy computes wrong
// goes to the others, so its own gradients may be right and theirs wrong. None where that is more than one copy.
BlamedRanks whole_copies(std::span<const AuditFinding> findings, BlamedRanks blamed) {
  std::set<int> copies;
  for (const int rank : blamed.ranks) copies.insert(findings[static_cast<std::size_t>(rank)].data);
  blamed.ranks.clear();
  if (copies.size() != 1) return blamed;
  for (std::size_t rank = 0; rank < findings.size(); ++rank)
    if (copies.contains(findings[rank].data)) blamed.ranks.push_back(static_cast<int>(rank));
  return blamed;
}

BlamedRanks blame(std::span<const AuditFinding> findings, const std::array<LaneAudit, trials>& audits) {
  using Who = AuditBlame::Who;
  const auto pairs = trials_by_pair(findings, audits);
  BlamedRanks blamed;
  bool is_known = true;
  for (std::size_t rank = 0; rank < findings.size(); ++rank) {
    const AuditFinding& finding = findings[rank];
    const auto& pair = pairs.at({finding.pipeline, finding.tensor});
    const AuditBlame blame = blame_after(pair[0], pair[1]);
    if (blame.who == Who::unknown) is_known = false;
    const bool is_owner = blame.who == Who::owner && finding.data == audits[0].owner;
    const bool is_auditor = blame.who == Who::auditor && finding.data == audits[0].auditor;
    if (is_owner || is_auditor) blamed.ranks.push_back(static_cast<int>(rank));
    blamed.has_auditor |= is_auditor;
  }
  if (!is_known) blamed = {};
  return whole_copies(findings, std::move(blamed));
}

// Returns the newest step that no rank that may be to blame has computed wrong, as far as audits say.
std::uint64_t last_sound_step(const Worker& worker, std::span<const int> to_blame,
                              std::span<const AuditFinding> findings, const LaneAudit& audit) {
  std::set<int> replicas = {audit.owner, audit.auditor};
  if (!to_blame.empty()) replicas.clear();
  for (const int rank : to_blame) replicas.insert(findings[static_cast<std::size_t>(rank)].data);
  std::uint64_t sound = worker.state().step;
  for (const AuditFinding& finding : findings)
    if (replicas.contains(finding.data)) sound = std::min(sound, finding.sound_step);
  return sound;
}

std::string sentence_of(const AuditedStep& step, std::span<const AuditFinding> findings,
                        const LaneAudit& audit, bool by_parameters) {
  std::string who = "it is not known which of the two";
  if (!step.to_blame.empty()) {
    std::vector<std::string> names;
    for (const int rank : step.to_blame) {
      const AuditFinding& finding = findings[static_cast<std::size_t>(rank)];
      names.push_back(fmt::format("rank {} (host {})", finding.rank, finding.host));
    }
    who = fmt::format("{}{} computed {}", names.size() > 1 ? "one of " : "", fmt::join(names, ", "),
                      by_parameters ? "with parameters that had changed in its memory" : "wrong numbers");
  }
  return fmt::format(
      "step {}: lane {} was computed by replicas {} and {}, and the bits of its gradients are not the "
      "same{}; {}{}",
      step.report.step, audit.lane, audit.owner, audit.auditor,
      step.lasts ? ", nor are they when it is computed again" : ", but they are when it is computed again",
      who, step.lasts ? fmt::format("; weights may be wrong since step {}", step.sound_step) : "");
}

}  // namespace

Result<AuditedStep> judge_audit(Worker& worker, const Attempt& first) {
  std::vector<AttemptBits> bits = {attempt_bits(worker, first)};
  AuditedStep step;
  HF_TRY(step.attempt, attempt_again(worker, bits, 1));
  const std::array<LaneAudit, trials> audits = {first.audit.value(), step.attempt.audit.value()};
  HF_TRY(const std::vector<AuditFinding> findings,
         gather(worker.rank().communicator, worker.rank().waiter, finding_of(worker, first, step.attempt)));
  step.lasts = step.attempt.audit_failed();
  BlamedRanks blamed = blame_for_parameters(findings, audits[0]);
  if (step.lasts || blamed.ranks.empty()) blamed = blame(findings, audits);
  step.to_blame = blamed.ranks;
  // A product with a known result may say which of two replicas that differ for good is wrong.
  if (step.lasts && step.to_blame.empty()) {
    HF_TRY(step.to_blame, ranks_with_wrong_products(worker));
  }
  int attempts = 2;
  if (!step.lasts && blamed.has_auditor && audits[1].auditor != audits[0].auditor) {
    bits.push_back(attempt_bits(worker, step.attempt));
    HF_TRY(step.attempt, attempt_again(worker, bits, worker.workload().lanes.ranks() - 1));
    step.lasts = step.attempt.audit_failed();
    ++attempts;
  }
  step.sound_step = last_sound_step(worker, step.to_blame, findings, audits[0]);
  step.report = {.step = worker.state().step + 1,
                 .what = "corruption",
                 .of = "grad_norm",
                 .value = step.attempt.grad_norm,
                 .attempts = attempts,
                 .differing_ranks = static_cast<int>(step.to_blame.size()),
                 .lane = audits[0].lane};
  step.report.reason = sentence_of(step, findings, audits[0], blamed.by_parameters);
  if (step.to_blame.size() != 1) {
    for (const int rank : step.to_blame) {
      const AuditFinding& one = findings[static_cast<std::size_t>(rank)];
      if (step.lasts)
        note_finding(worker.rank(), one.host, one.hardware, finding_kinds::lasts, step.report.step);
    }
    return step;
  }
  const AuditFinding& culprit = findings[static_cast<std::size_t>(step.to_blame[0])];
  step.report.rank = culprit.rank;
  step.report.host = culprit.host;
  step.is_repeated = culprit.hardware.earlier_findings > 0;
  note_finding(worker.rank(), culprit.hardware,
               blamed.by_parameters ? finding_kinds::memory
               : step.lasts         ? finding_kinds::lasts
                                    : finding_kinds::once,
               step.report);
  return step;
}

}  // namespace holdfast::train
