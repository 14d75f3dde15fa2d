#include "parallel/group/mesh.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <unordered_map>

#include "runtime/os/env.h"

namespace holdfast::parallel {
namespace {

struct Host {
  std::string name;
  std::vector<int> ranks;
  int groups_of(int size) const { return static_cast<int>(ranks.size()) / size; }
};

// Returns the hosts in the order of their first ranks.
std::vector<Host> hosts_of(std::span<const std::string> host_of_rank) {
  std::vector<Host> hosts;
  std::unordered_map<std::string_view, std::size_t> index_of;
  for (std::size_t rank = 0; rank < host_of_rank.size(); ++rank) {
    const std::string& name = host_of_rank[rank];
    const auto [host, is_new] = index_of.try_emplace(name, hosts.size());
    if (is_new) hosts.push_back({.name = name, .ranks = {}});
    hosts[host->second].ranks.push_back(static_cast<int>(rank));
  }
  return hosts;
}

int groups_with_room(const std::vector<Host>& hosts, int size) {
  return std::transform_reduce(hosts.begin(), hosts.end(), 0, std::plus<>(),
                               [size](const Host& host) { return host.groups_of(size); });
}

// Returns the error. The host that wastes the most ranks explains best why there is no room.
Error no_room(const MeshShape& shape, const std::vector<Host>& hosts) {
  const auto left_over = [&shape](const Host& host) { return std::ssize(host.ranks) % shape.tensor; };
  const Host& host = *std::ranges::max_element(hosts, {}, left_over);
  const int groups = shape.data * shape.pipeline;
  int tensor = shape.tensor / 2;
  while (tensor > 1 && groups_with_room(hosts, tensor) * tensor < shape.active()) tensor /= 2;
  return fail(
      ExitCode::config,
      "parallel.tensor = {} needs {} group{} of {} ranks, each inside one host, but the hosts have room for "
      "{} ({} has {} rank{}): start a multiple of {} ranks on every host, or lower parallel.tensor to {}",
      shape.tensor, groups, groups == 1 ? "" : "s", shape.tensor, groups_with_room(hosts, shape.tensor),
      host_name_of(host.name), host.ranks.size(), host.ranks.size() == 1 ? "" : "s", shape.tensor,
      std::max(1, tensor));
}

std::vector<int> first_ranks(int count) {
  std::vector<int> ranks(static_cast<std::size_t>(count));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

std::vector<int> numbers_of_hosts(std::span<const std::string> host_of_rank) {
  std::unordered_map<std::string_view, int> number_of;
  std::vector<int> numbers;
  numbers.reserve(host_of_rank.size());
  for (const std::string& host : host_of_rank)
    numbers.push_back(number_of.try_emplace(host, static_cast<int>(number_of.size())).first->second);
  return numbers;
}

Mesh::Mesh(const MeshShape& shape, std::span<const std::string> host_of_rank)
    : Mesh(shape, first_ranks(shape.active()), numbers_of_hosts(host_of_rank)) {}

Mesh::Mesh(const MeshShape& shape, std::vector<int> active_ranks, std::vector<int> hosts)
    : shape_(shape),
      active_ranks_(std::move(active_ranks)),
      index_of_rank_(static_cast<std::size_t>(shape.ranks()), -1),
      hosts_(std::move(hosts)) {
  HF_CHECK(hosts_.empty() || std::ssize(hosts_) == shape.ranks());
  HF_CHECK(shape.data >= 1 && shape.pipeline >= 1 && shape.tensor >= 1 && shape.spares >= 0);
  HF_CHECK(std::ssize(active_ranks_) == shape.active());
  for (std::size_t coordinate = 0; coordinate < active_ranks_.size(); ++coordinate) {
    int& place = index_of_rank_[static_cast<std::size_t>(active_ranks_[coordinate])];
    HF_CHECK(place < 0, "rank {} has two coordinates", active_ranks_[coordinate]);
    place = static_cast<int>(coordinate);
  }
  for (int rank = 0; rank < shape.ranks(); ++rank) {
    if (is_spare(rank)) spares_.push_back(rank);
  }
}

Result<Mesh> Mesh::placed(const MeshShape& shape, std::span<const std::string> host_of_rank) {
  HF_CHECK(std::ssize(host_of_rank) == shape.ranks());
  const std::vector<Host> hosts = hosts_of(host_of_rank);
  if (groups_with_room(hosts, shape.tensor) < shape.data * shape.pipeline) return no_room(shape, hosts);
  std::vector<int> active_ranks;
  for (const Host& host : hosts) {
    const auto whole = host.groups_of(shape.tensor) * shape.tensor;
    active_ranks.insert(active_ranks.end(), host.ranks.begin(), host.ranks.begin() + whole);
  }
  active_ranks.resize(static_cast<std::size_t>(shape.active()));
  return Mesh(shape, std::move(active_ranks), numbers_of_hosts(host_of_rank));
}

bool Mesh::is_spare(int rank) const {
  HF_CHECK(0 <= rank && rank < shape_.ranks());
  return index_of_rank_[static_cast<std::size_t>(rank)] < 0;
}

MeshCoordinate Mesh::coordinate_of(int rank) const {
  HF_CHECK(!is_spare(rank), "rank {} is a spare", rank);
  const int coordinate = index_of_rank_[static_cast<std::size_t>(rank)];
  return {.data = coordinate / (shape_.pipeline * shape_.tensor),
          .pipeline = coordinate / shape_.tensor % shape_.pipeline,
          .tensor = coordinate % shape_.tensor};
}

int Mesh::rank_at(const MeshCoordinate& coordinate) const {
  HF_CHECK(0 <= coordinate.data && coordinate.data < shape_.data);
  HF_CHECK(0 <= coordinate.pipeline && coordinate.pipeline < shape_.pipeline);
  HF_CHECK(0 <= coordinate.tensor && coordinate.tensor < shape_.tensor);
  const int index =
      (coordinate.data * shape_.pipeline + coordinate.pipeline) * shape_.tensor + coordinate.tensor;
  return active_ranks_[static_cast<std::size_t>(index)];
}

std::vector<int> Mesh::host_numbers(std::span<const int> ranks) const {
  std::vector<int> hosts;
  for (const int rank : ranks) hosts.push_back(hosts_.empty() ? 0 : hosts_[static_cast<std::size_t>(rank)]);
  return hosts;
}

std::vector<int> Mesh::group(int rank, MeshAxes axes) const {
  struct Range {
    int begin, end;
  };
  const auto along = [](bool free, int mine, int degree) {
    return free ? Range{0, degree} : Range{mine, mine + 1};
  };
  const MeshCoordinate mine = coordinate_of(rank);
  const Range data = along(axes.data, mine.data, shape_.data),
              pipeline = along(axes.pipeline, mine.pipeline, shape_.pipeline),
              tensor = along(axes.tensor, mine.tensor, shape_.tensor);
  std::vector<int> ranks;
  for (int d = data.begin; d < data.end; ++d) {
    for (int p = pipeline.begin; p < pipeline.end; ++p) {
      for (int t = tensor.begin; t < tensor.end; ++t)
        ranks.push_back(rank_at({.data = d, .pipeline = p, .tensor = t}));
    }
  }
  return ranks;
}

}  // namespace holdfast::parallel
