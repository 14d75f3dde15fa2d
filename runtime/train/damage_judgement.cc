#include "runtime/train/damage_judgement.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "parallel/comm/device_wait.h"
#include "parallel/comm/gather.h"
#include "parallel/comm/rank_sum.h"
#include "runtime/integrity/hardware_findings.h"
#include "runtime/optim/schedule.h"
#include "runtime/rank/spare_ranks.h"
#include "runtime/rank/watch.h"
#include "runtime/run/numbers_log.h"
#include "runtime/train/run_state_check.h"

namespace holdfast::train {
namespace {

// DamageRecord says what the newest update of one rank found; no blocks: nothing. The learning rates are set
// where it was made with a wrong one.
struct DamageRecord {
  int rank = 0;  // global
  std::string host = {};
  std::uint64_t blocks = 0;
  std::string tensor = {};
  std::uint64_t first_element = 0, elements = 0;
  bool is_of_update = false;
  double used_rate = 0.0, right_rate = 0.0;  // is_of_update
  bool has_frozen = false;                   // some of them are of frozen tensors,
  std::uint64_t frozen_sound_step = 0;       // which were sound at this step
  HeldRunState run_state = {};
  OwnHardware hardware = {};
  bool holds_other_run_state = false;  // follows from the records of all ranks

  bool is_of_memory() const { return blocks > 0 || holds_other_run_state; }
  bool is_damage() const { return is_of_memory() || is_of_update; }

  static void visit_fields(auto& self, auto&& visit) {
    visit("rank", self.rank);
    visit("host", self.host);
    visit("blocks", self.blocks);
    visit("tensor", self.tensor);
    visit("first_element", self.first_element);
    visit("elements", self.elements);
    visit("is_of_update", self.is_of_update);
    visit("used_rate", self.used_rate);
    visit("right_rate", self.right_rate);
    visit("has_frozen", self.has_frozen);
    visit("frozen_sound_step", self.frozen_sound_step);
    visit("run_state", self.run_state);
    visit("hardware", self.hardware);
  }
};

// Returns the factors that the last update of this rank should have had, computed from the step once more.
UpdateFactors right_factors(const Worker& worker, UpdateScalars scalars) {
  const Config& config = worker.rank().config;
  scalars.learning_rate = learning_rate_at(config.optimizer, scalars.step, config.training.steps);
  return update_factors(config.optimizer, scalars);
}

bool made_wrong_update(Worker& worker) {
  const auto& last = worker.optimizer().last_update();
  return last.has_value() && last->factors != right_factors(worker, last->scalars);
}

DamageRecord record_of(Worker& worker) {
  const Communicator& all = worker.rank().communicator;
  DamageRecord record{.rank = all.global_rank(all.rank()),
                      .host = worker.rank().env.host_name(),
                      .run_state = {.digest = to_hex(digest_of_run_state(worker.state())),
                                    .is_at = worker.position().is_at(worker.state()),
                                    .step = worker.position().step_of(worker.state())},
                      .hardware = own_hardware(worker.rank())};
  if (made_wrong_update(worker)) {
    const auto& last = worker.optimizer().last_update();
    record.is_of_update = true;
    record.used_rate = last->factors.learning_rate;
    record.right_rate = right_factors(worker, last->scalars).learning_rate;
  }
  const std::optional<StateFinding> finding = worker.optimizer().finding();
  if (!finding.has_value()) return record;
  record.blocks = finding->block_count;
  record.tensor = finding->first_block.tensor;
  record.first_element = finding->first_block.first_element();
  record.elements = finding->first_block.element_count();
  record.has_frozen = finding->frozen_sound_step.has_value();
  record.frozen_sound_step = finding->frozen_sound_step.value_or(0);
  return record;
}

// Marks the ranks whose state of the run, apart from tensors, has changed.
RunStateDissent compare_run_states(std::span<DamageRecord> records) {
  std::vector<HeldRunState> held;
  for (const DamageRecord& each : records) held.push_back(each.run_state);
  RunStateDissent dissent = dissent_of(held);
  if (!dissent.is_known) return dissent;
  for (const int rank : dissent.changed) records[static_cast<std::size_t>(rank)].holds_other_run_state = true;
  return dissent;
}

std::string describe(const DamageRecord& record) {
  if (record.blocks == 0 && record.holds_other_run_state) {
    return fmt::format("rank {} (host {}): {}", record.rank, record.host,
                       record.run_state.is_at
                           ? "the step, the position in the data, or the numbers of the last steps"
                           : "the step or the position in the data");
  }
  if (record.blocks == 0) {
    return fmt::format("rank {} (host {}): the learning rate was {:.6g}, expected {:.6g}", record.rank,
                       record.host, record.used_rate, record.right_rate);
  }
  return fmt::format("rank {} (host {}): {}, elements {} to {}{}", record.rank, record.host, record.tensor,
                     record.first_element, record.first_element + record.elements - 1,
                     record.blocks > 1 ? fmt::format(" and {} more blocks", record.blocks - 1) : "");
}

void note_findings(const RankContext& rank, std::span<const DamageRecord> records, VerdictEvent& report) {
  for (const DamageRecord& record : records) {
    if (!record.is_damage()) continue;
    const std::string_view kind = record.is_of_memory() ? finding_kinds::memory : finding_kinds::once;
    if (report.rank.has_value()) {
      note_finding(rank, record.hardware, kind, report);
    } else {
      note_finding(rank, record.host, record.hardware, kind, report.step);
    }
  }
}

// Returns the newest step whose state is sound. The update of step n has read the state of step n - 1, and that of
// step n - 2 was read, and found sound, by the update before. Frozen tensors that were sound at step n may have
// changed while the state of step n was saved. What was loaded was sound.
std::uint64_t trusted_step(std::uint64_t read_by, std::span<const DamageRecord> records,
                           std::uint64_t loaded) {
  std::uint64_t trusted = read_by > 2 ? read_by - 2 : 0;
  for (const DamageRecord& record : records) {
    if (record.has_frozen)
      trusted = std::min(trusted, std::max<std::uint64_t>(1, record.frozen_sound_step) - 1);
  }
  return std::max(trusted, loaded);
}

}  // namespace

bool finds_damage(Worker& worker) {
  return worker.optimizer().finding().has_value() || made_wrong_update(worker);
}

Digest run_state_term(const Worker& worker) {
  const Communicator& all = worker.rank().communicator;
  return run_state_term(digest_of_run_state(worker.state()), worker.position().is_at(worker.state()),
                        all.rank(), all.size());
}

bool can_spare_a_replica(const Worker& worker) {
  return worker.workload().lanes.ranks() > worker.rank().config.elastic.min_data_parallel;
}

Result<DamagedState> judge_damage(Worker& worker, std::uint64_t read_by) {
  const std::uint64_t ahead = read_by - worker.state().step;
  HF_TRY(std::vector<DamageRecord> records,
         gather(worker.rank().communicator, worker.rank().waiter, record_of(worker)));
  const RunStateDissent dissent = compare_run_states(records);
  read_by = dissent.step + ahead;  // the step of this rank may be what has changed
  DamagedState damaged{.trusted_step = trusted_step(read_by, records, worker.first_step())};
  std::vector<std::string> found;
  std::vector<int> ranks;
  bool is_of_memory = false;
  for (std::size_t rank = 0; rank < records.size(); ++rank) {
    if (!records[rank].is_damage()) continue;
    is_of_memory |= records[rank].is_of_memory();
    ranks.push_back(static_cast<int>(rank));
    found.push_back(describe(records[rank]));
  }
  if (!dissent.is_known) {
    is_of_memory = true;
    found.emplace_back(
        "the step, the position in the data, or the numbers of the last steps, it is not known of which "
        "rank");
  }
  damaged.report = {.step = read_by,
                    .what = "corruption",
                    .action = "rollback",
                    .of = std::string(is_of_memory ? verdict_values::state : verdict_values::update),
                    .differing_ranks = static_cast<int>(ranks.size())};
  const bool of_tensors =
      std::ranges::any_of(records, [](const DamageRecord& each) { return each.blocks > 0; });
  if (ranks.size() == 1 && dissent.is_known) {
    const DamageRecord& culprit = records[static_cast<std::size_t>(ranks[0])];
    damaged.report.rank = culprit.rank;
    damaged.report.host = culprit.host;
  }
  // Each has found the damage of its own memory, so it is known of every one of several.
  if (dissent.is_known && can_spare(worker.rank(), ranks)) damaged.leaving_ranks = ranks;
  if (!damaged.leaving_ranks.empty()) damaged.report.action = "evict";
  damaged.report.reason = fmt::format("step {}: {}: {}; the run goes back to step {} or before{}", read_by,
                                      !is_of_memory ? "an update was not the one that its step has"
                                      : of_tensors  ? "weights or moments changed in memory"
                                                    : "what the run knows of its steps changed in memory",
                                      fmt::join(found, "; "), damaged.trusted_step,
                                      damaged.leaving_ranks.empty()       ? ""
                                      : damaged.leaving_ranks.size() == 1 ? ", without that rank"
                                                                          : ", without those ranks");
  note_findings(worker.rank(), records, damaged.report);
  return damaged;
}

namespace {

struct FindingSum {
  std::int64_t damaged = 0;  // ranks whose last update found damage
  Digest run_state = {};     // of run_state_term()

  static constexpr void visit_words(auto& self, auto&& visit) {
    visit(self.damaged);
    visit(self.run_state);
  }
};

Result<std::optional<DamagedState>> gather_findings(Worker& worker, std::uint64_t read_by) {
  const RankContext& rank = worker.rank();
  FindingSum sum{.damaged = finds_damage(worker) ? 1 : 0, .run_state = run_state_term(worker)};
  HF_TRY_VOID(sum_over_ranks(rank.communicator, rank.waiter, sum));
  if (sum.damaged == 0 && sum.run_state == Digest{}) return std::optional<DamagedState>();
  HF_TRY(DamagedState found, judge_damage(worker, read_by));
  return std::optional(std::move(found));
}

}  // namespace

Result<std::optional<DamagedState>> look_for_damage(Worker& worker) {
  const RankContext& rank = worker.rank();
  wait_for_device(rank.device, rank.communicator);
  if (!worker.optimizer().finding().has_value()) {
    worker.optimizer().launch_frozen_check(rank.device, worker.state().step);
    wait_for_device(rank.device, rank.communicator);
  }
  return gather_findings(worker, worker.state().step);
}

Result<std::optional<DamagedState>> examine_state(Worker& worker) {
  const RankContext& rank = worker.rank();
  wait_for_device(rank.device, rank.communicator);
  worker.optimizer().check_state(rank.device, worker.state().step, [&rank] {
    wait_for_device(rank.device, rank.communicator);
    mark(rank.watch);  // a large shard takes seconds, which is no hang
  });
  return gather_findings(worker, worker.state().step + 1);
}

}  // namespace holdfast::train
