// RankExchange: the exchange of device memory between some ranks of the run, with all that it needs below it:
// their group of the run's communicator, and pinned buffers where the host does not see the device's memory.
#pragma once

#include <memory>
#include <vector>

#include "kernels/device.h"
#include "parallel/comm/group_communicator.h"
#include "parallel/comm/host_exchange.h"
#include "parallel/data/pinned_exchange.h"

namespace holdfast {

class RankExchange {
 public:
  // `members`: as GroupCommunicator takes them; `run` outlives this object. `open_max`: HostExchange's.
  RankExchange(Communicator& run, std::vector<int> members, TagGroup tags,
               std::size_t open_max = Exchange::ranks_max)
      : group_(run, std::move(members), tags), host_(group_, open_max) {}
  // From now on by another exchange of the same group (NCCL's), which moves the device's memory by itself.
  void use(std::unique_ptr<Exchange> other) { other_ = std::move(other); }
  // Before it is used, where the host does not see the device's memory: reserves what one exchange of at most
  // `largest_bytes` needs. Nothing happens elsewhere.
  void reserve(Device& device, std::uint64_t largest_bytes, MemoryPlan& plan) {
    if (device.host_sees_memory() || group_.size() == 1 || other_ != nullptr) return;
    pinned_ = std::make_unique<PinnedExchange>(host_, device, largest_bytes, plan);
  }
  void bind(const MemoryArena& arena) {
    if (pinned_ != nullptr) pinned_->bind(arena);
  }
  Exchange& exchange() {
    if (other_ != nullptr) return *other_;
    if (pinned_ != nullptr) return *pinned_;
    return host_;
  }
  Communicator& group() { return group_; }

 private:
  GroupCommunicator group_;
  HostExchange host_;
  std::unique_ptr<PinnedExchange> pinned_;
  std::unique_ptr<Exchange> other_;
};

}  // namespace holdfast
