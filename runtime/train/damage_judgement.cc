#include "runtime/train/damage_judgement.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "parallel/comm/device_wait.h"
#include "parallel/comm/gather.h"
#include "runtime/optim/schedule.h"
#include "runtime/rank/watch.h"
#include "runtime/run/numbers_log.h"
#include "runtime/train/hardware_findings.h"

namespace holdfast::inline train {
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
  OwnHardware hardware = {};

  bool is_damage() const { return blocks > 0 || is_of_update; }

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

std::string describe(const DamageRecord& record) {
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
    const std::string_view kind = record.blocks > 0 ? finding_kinds::memory : finding_kinds::once;
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

bool can_spare_a_replica(const Worker& worker) {
  return worker.workload().lanes.ranks() > worker.rank().config.elastic.min_data_parallel;
}

Result<DamagedState> judge_damage(Worker& worker, std::uint64_t read_by) {
  HF_TRY(const std::vector<DamageRecord> records,
         gather(worker.rank().communicator, worker.rank().waiter, record_of(worker)));
  DamagedState damaged{.trusted_step = trusted_step(read_by, records, worker.first_step())};
  std::vector<std::string> found;
  std::vector<int> ranks;
  bool is_of_memory = false;
  for (std::size_t rank = 0; rank < records.size(); ++rank) {
    if (!records[rank].is_damage()) continue;
    is_of_memory |= records[rank].blocks > 0;
    ranks.push_back(static_cast<int>(rank));
    found.push_back(describe(records[rank]));
  }
  damaged.report = {.step = read_by,
                    .what = "corruption",
                    .action = "rollback",
                    .of = std::string(is_of_memory ? verdict_values::state : verdict_values::update),
                    .differing_ranks = static_cast<int>(ranks.size())};
  if (ranks.size() == 1) {
    const DamageRecord& culprit = records[static_cast<std::size_t>(ranks[0])];
    damaged.report.rank = culprit.rank;
    damaged.report.host = culprit.host;
    if (can_spare_a_replica(worker)) damaged.leaving_ranks = ranks;
  }
  if (!damaged.leaving_ranks.empty()) damaged.report.action = "evict";
  damaged.report.reason = fmt::format(
      "step {}: {}: {}; the run goes back to step {} or before{}", read_by,
      is_of_memory ? "weights or moments changed in memory" : "an update was not the one that its step has",
      fmt::join(found, "; "), damaged.trusted_step,
      !damaged.leaving_ranks.empty() ? ", without that rank" : "");
  note_findings(worker.rank(), records, damaged.report);
  return damaged;
}

namespace {

Result<std::optional<DamagedState>> gather_findings(Worker& worker, std::uint64_t read_by) {
  const RankContext& rank = worker.rank();
  std::array<std::int64_t, 1> damaged = {finds_damage(worker) ? 1 : 0};
  HF_TRY_VOID(all_reduce_sum(rank.communicator, rank.waiter, damaged));
  if (damaged[0] == 0) return std::optional<DamagedState>();
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

}  // namespace holdfast::inline train
