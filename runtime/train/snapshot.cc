#include "runtime/train/snapshot.h"

#include <algorithm>

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
    : worker_(&worker), slot_(memory, specs_of(saved_state(worker))) {
  for (const StatePiece& piece : saved_state(worker)) sources_.push_back(piece.bytes);
  identity_.run = digest_of(worker.state().run_id);
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
  copy();
  return worker_->device_outcome();
}

void Snapshot::complete() {
  HF_FAULT_POINT(worker_->faults(), "snapshot.before_copy");
  if (worker_->device().host_sees_memory()) copy();
  HF_FAULT_POINT(worker_->faults(), "snapshot.before_seal");
  slot_.seal(identity_, manifest_);
  HF_FAULT_POINT(worker_->faults(), "snapshot.after_seal");
}

void Snapshot::copy() {
  const bool direct = worker_->device().host_sees_memory();
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    if (i == sources_.size() / 2) HF_FAULT_POINT(worker_->faults(), "snapshot.mid_copy");
    for (std::size_t done = 0; done < sources_[i].size(); done += HostAccess::buffer_bytes) {
      const auto part = sources_[i].subspan(
          done, std::min<std::size_t>(HostAccess::buffer_bytes, sources_[i].size() - done));
      slot_.copy(i, done, direct ? part : worker_->host_access().to_read(part));
    }
  }
}

}  // namespace holdfast
