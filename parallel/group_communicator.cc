#include "parallel/group_communicator.h"

#include <algorithm>
#include <utility>

#include "parallel/host_exchange.h"
#include "runtime/core/check.h"

namespace holdfast {
namespace {

constexpr int tags_of_a_group = 1 << 13;
static_assert(tag_exchange + HostExchange::tag_count <= tags_of_a_group);

}  // namespace

GroupCommunicator::GroupCommunicator(Communicator& parent, std::vector<int> members, TagGroup tags)
    : parent_(&parent), members_(std::move(members)), tag_base_(static_cast<int>(tags) * tags_of_a_group) {
  const auto self = std::find(members_.begin(), members_.end(), parent.rank());
  HF_CHECK(self != members_.end(), "rank {} is not in its own group", parent.rank());
  rank_ = static_cast<int>(self - members_.begin());
}

}  // namespace holdfast
