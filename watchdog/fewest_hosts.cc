#include "watchdog/fewest_hosts.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <tuple>
#include <utility>

namespace holdfast::watchdog {
namespace {

using Pair = std::pair<std::size_t, std::size_t>;  // indices of hosts
using Cover = std::set<std::size_t>;

// The search takes 2^n steps at most.
constexpr std::size_t max_searched = 12;

class CoverSearch {
 public:
  CoverSearch(std::span<const SilentPair> pairs, std::span<const LinkedHost> hosts)
      : hosts_(hosts), missed_(hosts.size()) {
    const auto index_of = [&](const std::string& name) {
      return static_cast<std::size_t>(std::ranges::find(hosts, name, &LinkedHost::name) - hosts.begin());
    };
    for (const SilentPair& pair : pairs) {
      const std::size_t from = index_of(pair.from), of = index_of(pair.of);
      if (from == of || from == hosts.size() || of == hosts.size()) continue;
      ++missed_[of];
      edges_.insert(std::minmax(from, of));
    }
  }

  Cover find() {
    const Cover all = greedy(edges_);
    best_ = all;
    if (all.size() <= max_searched) search(edges_, {});
    return best_;
  }

 private:
  static std::set<Pair> without(const std::set<Pair>& edges, std::size_t host) {
    std::set<Pair> rest;
    for (const Pair& edge : edges) {
      if (edge.first != host && edge.second != host) rest.insert(edge);
    }
    return rest;
  }

  // Lower is better.
  auto cost(const Cover& cover) const {
    int suspicions = 0, missed = 0;
    bool has_own = false;
    long sum = 0;
    for (const std::size_t host : cover) {
      suspicions += hosts_[host].suspicions;
      missed += missed_[host];
      has_own = has_own || hosts_[host].is_own;
      sum += static_cast<long>(host);
    }
    return std::tuple(cover.size(), -suspicions, has_own, -missed, -sum);
  }

  Cover greedy(std::set<Pair> edges) const {
    Cover cover;
    while (!edges.empty()) {
      std::vector<int> degree(missed_.size());
      for (const Pair& edge : edges) ++degree[edge.first], ++degree[edge.second];
      const auto most = static_cast<std::size_t>(std::ranges::max_element(degree) - degree.begin());
      cover.insert(most);
      edges = without(edges, most);
    }
    return cover;
  }

  void search(const std::set<Pair>& edges, const Cover& chosen) {
    if (chosen.size() > best_.size()) return;
    if (edges.empty()) {
      if (cost(chosen) < cost(best_)) best_ = chosen;
      return;
    }
    for (const std::size_t host : {edges.begin()->first, edges.begin()->second}) {
      Cover with = chosen;
      with.insert(host);
      search(without(edges, host), with);
    }
  }

  std::span<const LinkedHost> hosts_;
  std::set<Pair> edges_;
  std::vector<int> missed_;  // by host, how often it was missed
  Cover best_;
};

}  // namespace

std::vector<std::string> fewest_hosts(std::span<const SilentPair> pairs, std::span<const LinkedHost> hosts) {
  std::vector<std::string> names;
  for (const std::size_t host : CoverSearch(pairs, hosts).find()) names.push_back(hosts[host].name);
  return names;
}

}  // namespace holdfast::watchdog
