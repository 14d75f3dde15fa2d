#include "runtime/cli/link_trial.h"

#include <fmt/core.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <utility>

#include "parallel/comm/gather.h"
#include "runtime/cli/common/arguments.h"
#include "runtime/cli/rank_group.h"
#include "runtime/core/record.h"
#include "runtime/launch/launch_options.h"
#include "runtime/launch/mpirun_line.h"
#include "runtime/os/foreign_text.h"
#include "runtime/os/paths.h"
#include "runtime/os/processes.h"
#include "runtime/os/tcp_totals.h"

namespace holdfast::cli {
namespace {

constexpr std::string_view links_word = "links ";  // before the record in what rank 0 prints
constexpr std::int64_t link_timeout_ms = 30'000, start_timeout_ms = 90'000, round_ms = 2'000;
constexpr std::size_t large_bytes = std::size_t{4} << 20;
constexpr int large_messages = 8, small_messages = 65;
constexpr int link_tag = tag_exchange;

// LinksOfRank are those that a rank has measured.
struct LinksOfRank {
  std::vector<LinkTrial> links = {};
  static void visit_fields(auto& self, auto&& visit) { visit("links", self.links); }
};

// LinkEnd is one rank's side of a link.
class LinkEnd {
 public:
  LinkEnd(Communicator& communicator, const Waiter& waiter, int peer)
      : communicator_(communicator),
        waiter_(waiter),
        peer_(peer),
        sent_(large_bytes),
        received_(large_bytes) {}

  Result<LinkTrial> measure() {
    const TcpTotals before = tcp_totals();
    std::array<double, small_messages> trips_us{};
    for (double& trip_us : trips_us) {
      const std::int64_t begin_ns = waiter_.env().monotonic_ns();
      HF_TRY_VOID(trip());
      trip_us = static_cast<double>(waiter_.env().monotonic_ns() - begin_ns) * 1e-3;
    }
    HF_TRY_VOID(exchange());  // the first one connects, and is not timed
    const std::int64_t begin_ns = waiter_.env().monotonic_ns();
    for (int message = 0; message < large_messages; ++message) HF_TRY_VOID(exchange());
    const double seconds = static_cast<double>(waiter_.env().monotonic_ns() - begin_ns) * 1e-9;
    std::ranges::sort(trips_us);
    HF_TRY(const std::optional<double> lost_share, worse_share(lost_share_since(before)));
    return LinkTrial{
        .from = static_cast<std::size_t>(communicator_.rank()),
        .to = static_cast<std::size_t>(peer_),
        .MB_per_s = static_cast<double>(large_messages * large_bytes) * 1e-6 / std::max(seconds, 1e-9),
        .latency_us = trips_us[trips_us.size() / 2] / 2,
        .lost_share = lost_share};
  }

 private:
  // Returns what share of its segments this rank lost; negative: it sent none, or too few to tell.
  static double lost_share_since(const TcpTotals& before) {
    constexpr std::uint64_t min_sent = 1'000;
    const TcpTotals now = tcp_totals();
    if (now.sent < before.sent + min_sent) return -1.0;
    const std::uint64_t lost = now.lost - std::min(now.lost, before.lost);  // fewer: some had only been late
    return static_cast<double>(lost) / static_cast<double>(now.sent - before.sent);
  }
  // Returns the larger one of the shares of both ends.
  Result<std::optional<double>> worse_share(double own) {
    double other = 0.0;
    std::memcpy(sent_.data(), &own, sizeof(own));
    HF_TRY_VOID(trip());
    std::memcpy(&other, received_.data(), sizeof(other));
    const double worse = std::max(own, other);
    return worse < 0.0 ? std::optional<double>() : worse;
  }
  // Sends the first bytes there and receives those of the peer.
  Result<void> trip() {
    const bool begins = communicator_.rank() < peer_;
    if (begins) HF_TRY_VOID(send(sizeof(double)));
    HF_TRY_VOID(receive(sizeof(double)));
    if (!begins) HF_TRY_VOID(send(sizeof(double)));
    return {};
  }
  Result<void> send(std::size_t bytes) {
    HF_TRY(const Communicator::Request request,
           communicator_.send(std::span(sent_).first(bytes), peer_, link_tag));
    return waiter_.wait(communicator_, request, "link trial", peer_);
  }
  Result<void> receive(std::size_t bytes) {
    HF_TRY(const Communicator::Request request,
           communicator_.receive(std::span(received_).first(bytes), peer_, link_tag));
    return waiter_.wait(communicator_, request, "link trial", peer_);
  }
  Result<void> exchange() {
    HF_TRY(const Communicator::Request in, communicator_.receive(received_, peer_, link_tag));
    HF_TRY(const Communicator::Request out, communicator_.send(sent_, peer_, link_tag));
    const std::array<Communicator::Request, 2> requests = {in, out};
    const std::array<int, 2> peers = {peer_, peer_};
    return waiter_.wait(communicator_, requests, "link trial", peers);
  }

  Communicator& communicator_;
  const Waiter& waiter_;
  int peer_;
  std::vector<std::byte> sent_, received_;
};

// All ranks begin a round together, so that no other exchange takes from a link.
Result<void> measure_links(Env& env, Communicator& communicator) {
  const Waiter waiter(env, link_timeout_ms);
  LinksOfRank mine;
  for (int round = 0; round < rounds_of(communicator.size()); ++round) {
    HF_TRY_VOID(outcome_of(all_gather_text(communicator, waiter, "")));
    const int peer = partner_in_round(communicator.rank(), communicator.size(), round);
    if (peer < 0) continue;
    HF_TRY(const LinkTrial link, LinkEnd(communicator, waiter, peer).measure());
    if (link.from < link.to) mine.links.push_back(link);
  }
  HF_TRY(const std::vector<LinksOfRank> ranks, gather(communicator, waiter, mine));
  LinksOfRank all;
  for (const LinksOfRank& rank : ranks)
    all.links.insert(all.links.end(), rank.links.begin(), rank.links.end());
  if (communicator.rank() == 0) fmt::print("{}{}\n", links_word, record_to_text(all));
  return {};
}

std::optional<std::vector<LinkTrial>> find_links(const std::string& output, std::size_t hosts) {
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(links_word)) continue;
    Result<LinksOfRank> found = record_from_text<LinksOfRank>(line.substr(links_word.size()));
    if (!found.ok()) continue;
    const bool is_whole = found->links.size() == hosts * (hosts - 1) / 2 &&
                          std::ranges::all_of(found->links, [&](const LinkTrial& link) {
                            return link.from < link.to && link.to < hosts && link.MB_per_s > 0.0;
                          });
    if (is_whole) return std::move(found).value().links;
  }
  return std::nullopt;
}

std::string last_line(const std::string& text) {
  std::istringstream lines(text);
  std::string last;
  for (std::string line; std::getline(lines, line);) {
    if (line.find_first_not_of(" \t\r-") != std::string::npos) last = line;
  }
  return last.empty() ? std::string("it printed nothing") : printable(last);
}

}  // namespace

int partner_in_round(int rank, int size, int round) {
  const int even = size + size % 2, turning = even - 1;  // the last one stays, the others turn
  int partner = 0;
  if (rank == turning) {
    partner = round * (even / 2) % turning;  // the one that would meet itself
  } else {
    partner = ((round - rank) % turning + turning) % turning;
    if (partner == rank) partner = turning;
  }
  return partner < size ? partner : -1;
}

int try_links_as_rank(Env& env) {
  Result<RankGroup> group = join_ranks(env);
  if (!group.ok()) return complain(group.error());
  const Result<void> outcome = measure_links(env, group->communicator());
  std::fflush(stdout);
  if (!outcome.ok()) complain(outcome.error());
  const ExitCode code = outcome.ok() ? ExitCode::done : outcome.error().code;
  return leave_ranks(*group, static_cast<int>(code), outcome.ok() ? ExitCode::communication : code);
}

Result<std::vector<LinkTrial>> try_links(Env& env, const std::vector<LaunchHost>& hosts,
                                         const std::function<bool()>& is_stopped) {
  HF_TRY(LaunchPaths places, find_launch_paths(env, {}));
  places.home = home_of_user();
  LaunchShape shape{
      .ranks = static_cast<int>(hosts.size()), .several_hosts = true, .words = {"preflight", "--on-rank"}};
  for (const LaunchHost& host : hosts) shape.hosts += (shape.hosts.empty() ? "" : ",") + host.name + ":1";
  const CommandLine line = mpirun_line(env, {}, places, shape);
  const std::string folder = env.variable("TMPDIR").empty() ? "/tmp" : env.variable("TMPDIR");
  const std::string output = fmt::format("{}/holdfast-links-{:016x}", folder, env.random_u64());
  HF_TRY(const std::unique_ptr<Process> mpirun, env.processes().start({.arguments = line.arguments,
                                                                       .variables = line.variables,
                                                                       .output = output,
                                                                       .own_session = true,
                                                                       .die_with_parent = true}));
  constexpr std::int64_t look_ms = 100;
  const std::int64_t limit_ms = start_timeout_ms + rounds_of(shape.ranks) * round_ms;
  const std::int64_t until_ns = env.monotonic_ns() + limit_ms * 1'000'000;
  bool has_ended = false;
  while (!has_ended && !is_stopped() && env.monotonic_ns() < until_ns)
    has_ended = mpirun->wait_ended(look_ms);
  if (!has_ended) {
    static_cast<void>(mpirun->signal_group(SIGKILL).ok());
    mpirun->wait_ended(start_timeout_ms);
  }
  static_cast<void>(mpirun->end());
  const std::string text = text_within_or_empty(env, output, text_limits::hostfile);
  static_cast<void>(env.remove(output).ok());
  if (std::optional<std::vector<LinkTrial>> links = find_links(text, hosts.size()); links.has_value())
    return std::move(*links);
  return fail(ExitCode::communication, "{}: {}",
              has_ended ? "its ranks failed" : "its ranks did not end in time", last_line(text));
}

}  // namespace holdfast::cli
