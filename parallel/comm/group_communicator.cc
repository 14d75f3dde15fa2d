#include "parallel/comm/group_communicator.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "parallel/comm/host_transport.h"
#include "runtime/core/check.h"

namespace holdfast::parallel {
namespace {

constexpr int tags_of_a_group = 1 << 13;
static_assert(tag_exchange + HostTransport::tag_count <= tags_of_a_group);
static_assert(static_cast<int>(TagGroup::tensor) < static_cast<int>(TagGroup::active) &&
              std::has_single_bit(static_cast<unsigned>(TagGroup::active)));

Axis axis_of(TagGroup group) {
  switch (group) {
    case TagGroup::data:
      return Axis::data;
    case TagGroup::activations:
    case TagGroup::gradients:
    case TagGroup::wrapped_activations:
    case TagGroup::wrapped_gradients:
    case TagGroup::tied_weights:
      return Axis::pipeline;
    case TagGroup::tensor:
    case TagGroup::active:
      break;
  }
  return Axis::tensor;
}

}  // namespace

Axis axis_of_tag(int tag) {
  const bool is_exchange = tag % tags_of_a_group >= tag_exchange;
  return is_exchange ? axis_of(static_cast<TagGroup>(tag / tags_of_a_group)) : Axis::control;
}

GroupCommunicator::GroupCommunicator(Communicator& parent, std::vector<int> members, TagGroup tags)
    : parent_(&parent), members_(std::move(members)), tag_base_(static_cast<int>(tags) * tags_of_a_group) {
  const auto self = std::find(members_.begin(), members_.end(), parent.rank());
  HF_CHECK(self != members_.end(), "rank {} is not in its own group", parent.rank());
  rank_ = static_cast<int>(self - members_.begin());
}

}  // namespace holdfast::parallel
