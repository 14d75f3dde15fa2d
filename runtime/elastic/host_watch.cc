#include "runtime/elastic/host_watch.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <utility>

#include "parallel/comm/gather.h"
#include "runtime/os/console.h"
#include "runtime/os/processes.h"
#include "runtime/rank/run_secret.h"
#include "runtime/rank/watch.h"
#include "watchdog/board.h"
#include "watchdog/peer_host_monitor.h"
#include "watchdog/peer_host_table.h"

namespace holdfast::elastic {
namespace {

// Returns the port of this host's guard, and tells the guard at which address others may reach it.
std::uint16_t port_of_guard(Env& env, RankWatch* watch, const GuardNetworkFacts& facts) {
  constexpr std::int64_t patience_ns = 1'000'000'000, look_us = 2'000;
  if (watch == nullptr) return 0;
  BoardHeader& header = watch->board().header();
  write_guard_network(header, facts);
  const std::int64_t begin_ns = env.monotonic_ns();
  while (header.guard_port == 0 && env.monotonic_ns() - begin_ns < patience_ns) env.sleep_us(look_us);
  return static_cast<std::uint16_t>(header.guard_port);
}

ReportedHost own_facts(Env& env) {
  return {.number = env.random_u64(),
          .host = env.host_name(),
          .host_id = env.host_id(),
          .name_space = env.processes().own_namespace()};
}

// Returns the names of hosts by their ids.
std::map<std::string, std::string> names_by_id(const ReportedHosts& hosts) {
  std::map<std::string, std::string> names;
  for (const auto& [id, index] : hosts.index_of)
    names[id] = hosts.facts[static_cast<std::size_t>(index)].name;
  return names;
}

}  // namespace

ReportedHosts different_hosts(const std::vector<ReportedHost>& reported) {
  ReportedHosts hosts;
  std::map<std::string, int> named;
  for (const ReportedHost& each : reported) {
    const auto [known, is_new] =
        hosts.index_of.try_emplace(each.host_id, static_cast<int>(hosts.facts.size()));
    if (is_new) {
      const int alike = ++named[each.host];
      hosts.facts.push_back({.name = alike == 1 ? each.host : fmt::format("{}#{}", each.host, alike)});
    }
    HostFacts& facts = hosts.facts[static_cast<std::size_t>(known->second)];
    if (!is_new && facts.port != 0) continue;
    facts.port = each.guard_port;
    facts.addresses = each.addresses;
  }
  return hosts;
}

std::string host_with_several_guards(const std::vector<ReportedHost>& reported) {
  std::map<std::string, std::set<std::string>> name_spaces;  // by host id
  for (const ReportedHost& each : reported) name_spaces[each.host_id].insert(each.name_space);
  const auto several = [&](const ReportedHost& each) { return name_spaces.at(each.host_id).size() > 1; };
  const auto found = std::ranges::find_if(reported, several);
  return found == reported.end() ? "" : found->host;
}

Result<void> join_hosts(const TrainInputs& inputs, const Waiter& waiter, const Config& config,
                        const Secret& secret) {
  Env& env = inputs.env;
  const Result<ListenAddress> place = listen_address(env, config, false);
  HF_TRY_VOID(agree_on_outcome(inputs.communicator, waiter, outcome_of(place), env.host_name()));
  if (inputs.membership == nullptr) return {};
  ReportedHost own = own_facts(env);
  HF_TRY(std::vector<ReportedHost> reported, gather(inputs.communicator, waiter, own));
  if (different_hosts(reported).facts.size() < 2) return {};
  if (const std::string host = host_with_several_guards(reported); !host.empty()) {
    if (inputs.communicator.rank() == 0)
      print_message(
          "host {} has ranks in several PID namespaces, which have a guard each, so nobody notices when "
          "hosts "
          "are unreachable: give each of its containers a host name of its own",
          host);
    return {};
  }
  own.addresses = place->reported;
  own.guard_port = port_of_guard(env, inputs.watch, {.secret = secret, .listen_address = place->address});
  HF_TRY(reported, gather(inputs.communicator, waiter, own));
  ReportedHosts hosts = different_hosts(reported);
  if (inputs.watch == nullptr) return {};
  constexpr std::int64_t min_ms = 1'000;
  const std::map<std::string, std::string> name_of = names_by_id(hosts);
  const std::size_t count = hosts.facts.size();
  const PeerHostTableSetup setup{
      .start = reported.front().number,
      .own_host = hosts.index_of.at(env.host_id()),
      .silence_ms = silence_ms_of(count, std::max(min_ms, config.watchdog.floor_ms)),
      .hosts = std::move(hosts.facts)};
  Result<std::unique_ptr<PeerHostTable>> made = PeerHostTable::open_or_create(env, watched_board(env), setup);
  if (!made.ok()) {
    print_message("host {} does not notice when others are unreachable: {}", env.host_name(),
                  made.error().message);
    return {};
  }
  const std::shared_ptr<PeerHostTable> table = std::move(made).value();
  inputs.membership->use(knowledge_of(table, name_of));
  return {};
}

Membership::HostKnowledge knowledge_of(const std::shared_ptr<PeerHostTable>& table,
                                       const std::map<std::string, std::string>& name_of) {
  // The table may list the hosts in another order: it may have existed before. It does not change any more.
  const std::vector<HostFacts> listed = table->setup().hosts;
  std::map<std::string, int> index_of_name, index_of;
  for (std::size_t index = 0; index < listed.size(); ++index)
    index_of_name[listed[index].name] = static_cast<int>(index);
  for (const auto& [id, name] : name_of) {
    const auto found = index_of_name.find(name);
    if (found != index_of_name.end() && found->second != table->own_host()) index_of[id] = found->second;
  }
  const auto about = [index_of = std::move(index_of)](const Member& member, const auto& question) {
    const auto host = index_of.find(member.host_id);
    return host != index_of.end() && question(host->second);
  };
  return {.has_ended =
              [table, about](const Member& member) {
                return about(member, [&](int host) { return table->has_ended(host, member.identity()); });
              },
          .out_of_reach =
              [table, about](const Member& member) {
                return about(member, [&](int host) { return table->silent_since_ns(host) != 0; });
              },
          .may_miss_a_member = [table] { return table->may_miss_a_host(); }};
}

}  // namespace holdfast::elastic
