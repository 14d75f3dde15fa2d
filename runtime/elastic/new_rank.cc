#include "runtime/elastic/new_rank.h"

#include <fmt/core.h>

#include <algorithm>

#include "runtime/core/record.h"
#include "runtime/elastic/planned_rank.h"
#include "runtime/os/console.h"
#include "runtime/os/machine_facts.h"
#include "runtime/save/snapshot.h"
#include "runtime/train/worker.h"

namespace holdfast::elastic {

Result<NewRankTask> plan_new_rank(const PlacedRank& rank, int data_ranks) {
  if (!rank.device.host_sees_memory()) return NewRankTask{};
  MeshShape shape = rank.mesh.shape();
  shape.data = data_ranks;
  shape.spares = 0;
  const Mesh mesh(shape);
  NewRankTask task;
  for (int stage = 0; stage < shape.pipeline; ++stage) {
    const int number = mesh.rank_at({.data = 0, .pipeline = stage, .tensor = 0});
    HF_TRY(const std::unique_ptr<PlannedWorker> planned,
           PlannedWorker::make(rank.env, rank.config, mesh, number));
    Worker& worker = planned->worker();
    const MemoryPlan& plan = worker.memory_plan();
    task.device_bytes = std::max(task.device_bytes, plan.total_bytes(MemoryKind::device));
    task.host_bytes = std::max(task.host_bytes, plan.total_bytes(MemoryKind::host_visible));
    task.slot_bytes = std::max(task.slot_bytes, worker.state_view().snapshots.bytes());
  }
  return task;
}

void prepare_new_rank(Env& env, const std::string& task, const KeptMemoryOptions& options,
                      ProcessMemory& prepared) {
  const NewRankTask reported = record_from_text<NewRankTask>(task).value();  // a rank of this binary wrote it
  const std::uint64_t needed_bytes = reported.device_bytes + reported.host_bytes;
  const std::uint64_t reserve_bytes = needed_bytes / 8;  // for the other ranks, which go on
  constexpr std::int64_t look_again_us = 50'000;
  const std::int64_t end_ns = env.monotonic_ns() + reported.timeout_ms * 1'000'000;
  for (;;) {
    const std::optional<MemoryRoom> room = memory_room(env);
    if (!room.has_value() || room->available_bytes >= needed_bytes + reserve_bytes) break;
    const bool comes_with_growth = room->available_bytes + reported.given_back_bytes >= needed_bytes;
    if (comes_with_growth || env.monotonic_ns() >= end_ns) return;
    if (options.progress) options.progress();
    env.sleep_us(look_again_us);
  }
  static_cast<void>(prepared.kept.prepare(MemoryKind::device, reported.device_bytes, options).ok());
  static_cast<void>(prepared.kept.prepare(MemoryKind::host_visible, reported.host_bytes, options).ok());
  constexpr int slots = SnapshotMemory::slots_at_once;
  for (int slot = 0; slot < slots && reported.slot_bytes > 0; ++slot) {
    const std::optional<MemoryRoom> room = memory_room(env);
    if (room.has_value() && room->available_bytes < reported.slot_bytes + reserve_bytes) return;
    const std::string name = snapshot_name(digest_of(reported.shm_run_id), env.random_u64(), 0, slot);
    Result<std::unique_ptr<SharedMemory>> memory = env.create_shared_memory(name, reported.slot_bytes);
    if (!memory.ok()) return;
    (*memory)->hold(SharedMemory::Hold::shared);
    fault_in((*memory)->bytes(), options.threads, options.progress);
    prepared.slots.keep(name, std::move(memory).value());
  }
}

}  // namespace holdfast::elastic
