// RankTransport is the transport of device memory between some ranks of the run, whatever moves it: the host's messages,
// pinned buffers on top of them, or NCCL, which may come later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "parallel/comm/group_communicator.h"
#include "parallel/comm/host_transport.h"
#include "parallel/comm/transport.h"
#include "parallel/data/pinned_transport.h"
#include "runtime/core/memory_plan.h"
#include "runtime/device/device.h"

namespace holdfast::rank {

class RankTransport {
 public:
  // Makes the transport. `members`: as for GroupCommunicator; `run` outlives this object. `open`: as for
  // HostTransport.
  RankTransport(Communicator& run, std::vector<int> members, TagGroup tags,
                std::size_t open = HostTransport::open_max)
      : group_(run, std::move(members), tags), host_(group_, open) {}
  // Announces use() for later, when others have transport() already.
  void expect_another() { expects_another_ = true; }
  // Uses another transport of the same group from now on, which moves the device's memory itself (NCCL's).
  // Requires that no exchange is open.
  void use(std::unique_ptr<Transport> other) {
    if (replaceable_ != nullptr) replaceable_->replace(*other);
    other_ = std::move(other);
  }
  // Reserves what one exchange of at most `largest_bytes` needs, if the host does not see the device's
  // memory; otherwise does nothing. Call it before the transport is used.
  void reserve(Device& device, std::uint64_t largest_bytes, MemoryPlan& plan) {
    if (device.host_sees_memory() || group_.size() == 1 || other_ != nullptr) return;
    pinned_ = std::make_unique<PinnedTransport>(host_, device, largest_bytes, plan);
    if (expects_another_) replaceable_ = std::make_unique<ReplaceableTransport>(*pinned_);
  }
  void bind(const MemoryArena& arena) {
    if (pinned_ != nullptr) pinned_->bind(arena);
  }
  Transport& transport() {
    if (replaceable_ != nullptr) return *replaceable_;
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
  std::unique_ptr<ReplaceableTransport> replaceable_;
  bool expects_another_ = false;
};

}  // namespace holdfast::rank
