#include "parallel/group/buddies.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace holdfast::parallel {
namespace {

// Member of a data group that could store a replica. Two members of one class never store replicas for each
// other.
struct Candidate {
  int kept = 0;     // number of replicas stored so far
  int member = -1;  // index in the group; -1: none
  int of_class = -1;
  bool operator<(const Candidate& other) const {
    if (member < 0 || other.member < 0) return member >= 0 && other.member < 0;
    return std::pair(kept, member) < std::pair(other.kept, other.member);
  }
};

// Holds the lowest candidate of a part of the group, and the lowest that is not of its class: whichever class
// is left out, one of the two is the lowest of the others.
struct Least {
  Candidate first, second;
  Candidate without(int of_class) const { return first.of_class == of_class ? second : first; }
};

Least min_of(const Least& left, const Least& right) {
  const bool from_left = !(right.first < left.first);
  const Least& better = from_left ? left : right;
  const Least& other = from_left ? right : left;
  return {.first = better.first, .second = std::min(better.second, other.without(better.first.of_class))};
}

// Chooses buddies in one data group, in O(log n) each, by a segment tree over the members.
class GroupPlanner {
 public:
  explicit GroupPlanner(const std::vector<int>& class_of_member)
      : leaves_(std::bit_ceil(class_of_member.size())), tree_(2 * leaves_) {
    for (std::size_t member = 0; member < class_of_member.size(); ++member)
      tree_[leaves_ + member].first = {.member = static_cast<int>(member),
                                       .of_class = class_of_member[member]};
    for (std::size_t node = leaves_; node-- > 1;) tree_[node] = min_of(tree_[2 * node], tree_[2 * node + 1]);
  }

  // Returns the member of another class that stores the fewest replicas and, among equals, comes next in the
  // group; -1: there is none.
  int choose(std::size_t member) {
    const int of_class = tree_[leaves_ + member].first.of_class;
    const Candidate after = least(member + 1, leaves_).without(of_class);
    const Candidate before = least(0, member).without(of_class);
    const Candidate best =
        before.member >= 0 && (after.member < 0 || before.kept < after.kept) ? before : after;
    if (best.member >= 0) keep_one_more(static_cast<std::size_t>(best.member));
    return best.member;
  }

 private:
  Least least(std::size_t begin, std::size_t end) const {
    Least found;
    for (begin += leaves_, end += leaves_; begin < end; begin /= 2, end /= 2) {
      if (begin % 2 == 1) found = min_of(found, tree_[begin++]);
      if (end % 2 == 1) found = min_of(found, tree_[--end]);
    }
    return found;
  }

  void keep_one_more(std::size_t member) {
    std::size_t node = leaves_ + member;
    ++tree_[node].first.kept;
    while ((node /= 2) > 0) tree_[node] = min_of(tree_[2 * node], tree_[2 * node + 1]);
  }

  std::size_t leaves_;
  std::vector<Least> tree_;  // [1] is the root, the children of [i] are [2i] and [2i + 1]
};

// Returns the class of each member, which is its host. In a group inside one host each member is a class of
// its own, so that it has buddies at all.
std::vector<int> classes_of(const std::vector<int>& group, const std::vector<int>& host_numbers) {
  std::vector<int> classes;
  for (const int rank : group) classes.push_back(host_numbers[static_cast<std::size_t>(rank)]);
  if (std::ranges::count(classes, classes.front()) == std::ssize(classes))
    for (std::size_t member = 0; member < classes.size(); ++member)
      classes[member] = static_cast<int>(member);
  return classes;
}

}  // namespace

std::vector<int> buddies_of(const Mesh& mesh, std::span<const std::string> host_of_rank) {
  HF_CHECK(std::ssize(host_of_rank) == mesh.shape().ranks());
  const std::vector<int> host_numbers = numbers_of_hosts(host_of_rank);
  std::vector<int> buddies(host_of_rank.size(), -1);
  for (const int first : mesh.replica(mesh.rank_at({}))) {  // one rank of each data group
    const std::vector<int> group = mesh.data_group(first);
    GroupPlanner planner(classes_of(group, host_numbers));
    for (std::size_t member = 0; member < group.size(); ++member) {
      const int buddy = planner.choose(member);
      if (buddy >= 0)
        buddies[static_cast<std::size_t>(group[member])] = group[static_cast<std::size_t>(buddy)];
    }
  }
  return buddies;
}

bool all_cross_hosts(std::span<const int> buddies, std::span<const std::string> host_of_rank) {
  if (buddies.empty()) return false;
  for (std::size_t rank = 0; rank < buddies.size(); ++rank) {
    if (buddies[rank] < 0 || host_of_rank[static_cast<std::size_t>(buddies[rank])] == host_of_rank[rank])
      return false;
  }
  return true;
}

bool any_crosses_hosts(std::span<const int> buddies, std::span<const std::string> host_of_rank) {
  for (std::size_t rank = 0; rank < buddies.size(); ++rank) {
    if (buddies[rank] >= 0 && host_of_rank[static_cast<std::size_t>(buddies[rank])] != host_of_rank[rank])
      return true;
  }
  return false;
}

}  // namespace holdfast::parallel
