#include "runtime/train/damage_judgement.h"

#include <fmt/ranges.h>

#include <array>
#include <string>
#include <vector>

#include "parallel/comm/device_wait.h"
#include "parallel/comm/gather.h"
#include "runtime/rank/watch.h"
#include "runtime/train/hardware_findings.h"

namespace holdfast::inline train {
namespace {

// DamageRecord says what the newest update of one rank found; no blocks: nothing.
struct DamageRecord {
  int rank = 0;  // global
  std::string host = {};
  std::uint64_t blocks = 0;
  std::string tensor = {};
  std::uint64_t first_element = 0, elements = 0;
  OwnHardware hardware = {};

  static void visit_fields(auto& self, auto&& visit) {
    visit("rank", self.rank);
    visit("host", self.host);
    visit("blocks", self.blocks);
    visit("tensor", self.tensor);
    visit("first_element", self.first_element);
    visit("elements", self.elements);
    visit("hardware", self.hardware);
  }
};

DamageRecord record_of(Worker& worker) {
  const Communicator& all = worker.rank().communicator;
  DamageRecord record{.rank = all.global_rank(all.rank()),
                      .host = worker.rank().env.host_name(),
                      .hardware = own_hardware(worker.rank())};
  const std::optional<StateFinding> finding = worker.optimizer().finding();
  if (!finding.has_value()) return record;
  record.blocks = finding->block_count;
  record.tensor = finding->first_block.tensor;
  record.first_element = finding->first_block.first_element();
  record.elements = finding->first_block.element_count();
  return record;
}

std::string describe(const DamageRecord& record) {
  return fmt::format("rank {} (host {}): {}, elements {} to {}{}", record.rank, record.host, record.tensor,
                     record.first_element, record.first_element + record.elements - 1,
                     record.blocks > 1 ? fmt::format(" and {} more blocks", record.blocks - 1) : "");
}

void note_findings(const RankContext& rank, std::span<const DamageRecord> records, VerdictEvent& report) {
  for (const DamageRecord& record : records) {
    if (record.blocks == 0) continue;
    if (report.rank.has_value()) {
      note_finding(rank, record.hardware, finding_kinds::memory, report);
    } else {
      note_finding(rank, record.host, record.hardware, finding_kinds::memory, report.step);
    }
  }
}

}  // namespace

bool can_spare_a_replica(const Worker& worker) {
  return worker.workload().lanes.ranks() > worker.rank().config.elastic.min_data_parallel;
}

// The update of step n has read the state of step n - 1. That of step n - 2 was read, and found sound, by the
// update before.
Result<DamagedState> judge_damage(Worker& worker, std::uint64_t read_by) {
  HF_TRY(const std::vector<DamageRecord> records,
         gather(worker.rank().communicator, worker.rank().waiter, record_of(worker)));
  DamagedState damaged{.trusted_step = read_by > 2 ? read_by - 2 : 0};
  std::vector<std::string> found;
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < records.size(); ++rank) {
    if (records[rank].blocks == 0) continue;
    ranks.push_back(static_cast<int>(rank));
    found.push_back(describe(records[rank]));
  }
  damaged.report = {.step = read_by,
                    .what = "corruption",
                    .action = "rollback",
                    .of = "state",
                    .differing_ranks = static_cast<int>(ranks.size())};
  if (ranks.size() == 1) {
    const DamageRecord& culprit = records[static_cast<std::size_t>(ranks[0])];
    damaged.report.rank = culprit.rank;
    damaged.report.host = culprit.host;
    if (can_spare_a_replica(worker)) damaged.leaving_ranks = ranks;
  }
  if (!damaged.leaving_ranks.empty()) damaged.report.action = "evict";
  damaged.report.reason = fmt::format(
      "step {}: weights or moments changed in memory between two updates: {}; the run goes back to "
      "step {} or before{}",
      read_by, fmt::join(found, "; "), damaged.trusted_step,
      !damaged.leaving_ranks.empty() ? ", without that rank" : "");
  note_findings(worker.rank(), records, damaged.report);
  return damaged;
}

namespace {

Result<std::optional<DamagedState>> gather_findings(Worker& worker, std::uint64_t read_by) {
  const RankContext& rank = worker.rank();
  std::array<std::int64_t, 1> damaged = {worker.optimizer().finding().has_value() ? 1 : 0};
  HF_TRY_VOID(all_reduce_sum(rank.communicator, rank.waiter, damaged));
  if (damaged[0] == 0) return std::optional<DamagedState>();
  HF_TRY(DamagedState found, judge_damage(worker, read_by));
  return std::optional(std::move(found));
}

}  // namespace

Result<std::optional<DamagedState>> look_for_damage(Worker& worker) {
  wait_for_device(worker.rank().device, worker.rank().communicator);
  return gather_findings(worker, worker.state().step);
}

Result<std::optional<DamagedState>> examine_state(Worker& worker) {
  wait_for_device(worker.rank().device, worker.rank().communicator);
  // A large shard takes seconds, which is no hang.
  RankWatch* const watch = worker.rank().watch;
  worker.optimizer().check_state(worker.state_view().host_access, [watch] { mark(watch); });
  return gather_findings(worker, worker.state().step + 1);
}

}  // namespace holdfast::inline train
