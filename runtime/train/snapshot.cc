#include "runtime/train/snapshot.h"

#include <algorithm>
#include <atomic>

#include "parallel/device_wait.h"
#include "runtime/train/background_job.h"
#include "runtime/train/checkpoint_parts.h"

namespace holdfast {
namespace {

std::vector<ShardSpec> specs_of(const std::vector<StatePiece>& pieces) {
  std::vector<ShardSpec> specs;
  for (const StatePiece& piece : pieces) specs.push_back(piece.spec);
  return specs;
}

}  // namespace

Snapshot::Snapshot(Worker& worker, std::span<std::byte> memory, std::uint64_t writer)
    : worker_(&worker), memory_(memory), slot_(memory, specs_of(saved_state(worker))) {
  const std::vector<StatePiece> pieces = saved_state(worker);
  const std::uint64_t most_bytes =
      worker.device().host_sees_memory() ? SnapshotSlot::chunk_bytes : HostAccess::buffer_bytes;
  for (std::size_t piece = 0; piece < pieces.size(); ++piece) {
    const std::span<const std::byte> bytes = pieces[piece].bytes;
    for (std::uint64_t offset = 0; offset < bytes.size(); offset += most_bytes) {
      const std::uint64_t part_bytes = std::min(most_bytes, bytes.size() - offset);
      parts_.push_back({piece, offset, bytes.subspan(offset, part_bytes)});
    }
  }
  identity_.run = digest_of(worker.state().memory_id);
  identity_.host = digest_of(worker.env().host_name());
  identity_.writer = writer;
  identity_.rank = static_cast<std::uint32_t>(worker.communicator().rank());
  identity_.ranks = static_cast<std::uint32_t>(worker.communicator().size());
}

Result<void> Snapshot::begin() {
  state_ = worker_->state();
  identity_.generation = state_.generation;
  identity_.step = state_.step;
  manifest_ = make_manifest(*worker_, state_, {});
  slot_.begin();
  if (worker_->device().host_sees_memory()) return {};
  copy_from_device();
  return worker_->device_outcome();
}

void Snapshot::complete() {
  HF_FAULT_POINT(worker_->faults(), "snapshot.before_copy");
  if (worker_->device().host_sees_memory()) copy_from_host();
  HF_FAULT_POINT(worker_->faults(), "snapshot.before_seal");
  slot_.seal(identity_, manifest_);
  HF_FAULT_POINT(worker_->faults(), "snapshot.after_seal");
}

void Snapshot::copy_from_device() {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (i == parts_.size() / 2) HF_FAULT_POINT(worker_->faults(), "snapshot.mid_copy");
    poll_peers(worker_->communicator());
    slot_.copy(parts_[i].piece, parts_[i].offset, worker_->host_access().to_read(parts_[i].source));
    if (worker_->watch() != nullptr) worker_->watch()->moved(parts_[i].source.size());
  }
}

void Snapshot::copy_from_host() {
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i < parts_.size(); i = next++) {
      if (i == parts_.size() / 2) HF_FAULT_POINT(worker_->faults(), "snapshot.mid_copy");
      slot_.copy(parts_[i].piece, parts_[i].offset, parts_[i].source);
      if (worker_->watch() != nullptr) worker_->watch()->moved(parts_[i].source.size());
    }
  };
  const BackgroundHelpers helpers(worker_->host_threads() - 1, work);
  work();
}

}  // namespace holdfast
