#include "parallel/group/mesh.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <unordered_map>

#include "runtime/os/env.h"

namespace holdfast {
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

// The host that wastes the most ranks explains best why there is no room.
Error no_room(const MeshShape& shape, const std::vector<Host>& hosts) {
  const auto left_over = [&shape](const Host& host) { return std::ssize(host.ranks) % shape.tensor; };
  const Host& host = *std::ranges::max_element(hosts, {}, left_over);
  const int groups = shape.data * shape.pipeline;
  int tensor = shape.tensor / 2;
  while (tensor > 1 && groups_with_room(hosts, tensor) * tensor < shape.seats()) tensor /= 2;
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

Mesh::Mesh(const MeshShape& shape) : Mesh(shape, first_ranks(shape.seats())) {}

Mesh::Mesh(const MeshShape& shape, std::vector<int> rank_of_seat)
    : shape_(shape),
      rank_of_seat_(std::move(rank_of_seat)),
      seat_of_rank_(static_cast<std::size_t>(shape.ranks()), -1) {
  HF_CHECK(shape.data >= 1 && shape.pipeline >= 1 && shape.tensor >= 1 && shape.spares >= 0);
  HF_CHECK(std::ssize(rank_of_seat_) == shape.seats());
  for (std::size_t seat = 0; seat < rank_of_seat_.size(); ++seat) {
    int& place = seat_of_rank_[static_cast<std::size_t>(rank_of_seat_[seat])];
    HF_CHECK(place < 0, "rank {} has two seats", rank_of_seat_[seat]);
    place = static_cast<int>(seat);
  }
  for (int rank = 0; rank < shape.ranks(); ++rank) {
    if (is_spare(rank)) spares_.push_back(rank);
  }
}

Result<Mesh> Mesh::placed(const MeshShape& shape, std::span<const std::string> host_of_rank) {
  HF_CHECK(std::ssize(host_of_rank) == shape.ranks());
  const std::vector<Host> hosts = hosts_of(host_of_rank);
  if (groups_with_room(hosts, shape.tensor) < shape.data * shape.pipeline) return no_room(shape, hosts);
  std::vector<int> rank_of_seat;
  for (const Host& host : hosts) {
    const auto whole = host.groups_of(shape.tensor) * shape.tensor;
    rank_of_seat.insert(rank_of_seat.end(), host.ranks.begin(), host.ranks.begin() + whole);
  }
  rank_of_seat.resize(static_cast<std::size_t>(shape.seats()));
  return Mesh(shape, std::move(rank_of_seat));
}

bool Mesh::is_spare(int rank) const {
  HF_CHECK(0 <= rank && rank < shape_.ranks());
  return seat_of_rank_[static_cast<std::size_t>(rank)] < 0;
}

MeshSeat Mesh::seat_of(int rank) const {
  HF_CHECK(!is_spare(rank), "rank {} is a spare", rank);
  const int seat = seat_of_rank_[static_cast<std::size_t>(rank)];
  return {.data = seat / (shape_.pipeline * shape_.tensor),
          .pipeline = seat / shape_.tensor % shape_.pipeline,
          .tensor = seat % shape_.tensor};
}

int Mesh::rank_at(const MeshSeat& seat) const {
  HF_CHECK(0 <= seat.data && seat.data < shape_.data);
  HF_CHECK(0 <= seat.pipeline && seat.pipeline < shape_.pipeline);
  HF_CHECK(0 <= seat.tensor && seat.tensor < shape_.tensor);
  const int index = (seat.data * shape_.pipeline + seat.pipeline) * shape_.tensor + seat.tensor;
  return rank_of_seat_[static_cast<std::size_t>(index)];
}

std::vector<int> Mesh::group(int rank, MeshAxes axes) const {
  struct Range {
    int begin, end;
  };
  const auto along = [](bool free, int mine, int degree) {
    return free ? Range{0, degree} : Range{mine, mine + 1};
  };
  const MeshSeat mine = seat_of(rank);
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

}  // namespace holdfast
