// RankTransport: the transport of device memory between some ranks of the run, with all that it needs below
// it: their group of the run's communicator, and pinned buffers where the host does not see the device's
// memory.
#pragma once

#include <memory>
#include <vector>

#include "kernels/device.h"
#include "parallel/comm/group_communicator.h"
#include "parallel/comm/host_transport.h"
#include "parallel/data/pinned_transport.h"

namespace holdfast::inline rank {

class RankTransport {
 public:
  // `members`: as GroupCommunicator takes them; `run` outlives this object. `open_max`: HostTransport's.
  RankTransport(Communicator& run, std::vector<int> members, TagGroup tags,
                std::size_t open_max = Transport::ranks_max)
      : group_(run, std::move(members), tags), host_(group_, open_max) {}
  // Moves device memory by another transport of the same group from now on (NCCL's), which moves the device's
  // memory by itself.
  void use(std::unique_ptr<Transport> other) { other_ = std::move(other); }
  // Before it is used, where the host does not see the device's memory: reserves what one exchange of at most
  // `largest_bytes` needs. Nothing happens elsewhere.
  void reserve(Device& device, std::uint64_t largest_bytes, MemoryPlan& plan) {
    if (device.host_sees_memory() || group_.size() == 1 || other_ != nullptr) return;
    pinned_ = std::make_unique<PinnedTransport>(host_, device, largest_bytes, plan);
  }
  void bind(const MemoryArena& arena) {
    if (pinned_ != nullptr) pinned_->bind(arena);
  }
  Transport& transport() {
    if (other_ != nullptr) return *other_;
    if (pinned_ != nullptr) return *pinned_;
    return host_;
  }
  Communicator& group() { return group_; }

 private:
  GroupCommunicator group_;
  HostTransport host_;
  std::unique_ptr<PinnedTransport> pinned_;
  std::unique_ptr<Transport> other_;
};

}  // namespace holdfast::inline rank
