#include "runtime/train/host_watch.h"

#include <fmt/core.h>

#include <algorithm>
#include <sstream>

#include "runtime/core/network.h"
#include "runtime/core/tell.h"
#include "runtime/train/watch.h"
#include "watchdog/host_table.h"

namespace holdfast {
namespace {

// A guard begins with its rank, which has then waited for MPI; so it is rarely waited for.
std::uint32_t port_of_guard(Env& env, RankWatch* watch) {
  constexpr std::int64_t patience_ns = 1'000'000'000, look_us = 2'000;
  if (watch == nullptr) return 0;
  const std::int64_t begin_ns = env.monotonic_ns();
  while (watch->board().header().guard_port == 0 && env.monotonic_ns() - begin_ns < patience_ns)
    env.sleep_us(look_us);
  return watch->board().header().guard_port;
}

// "host port address address ...", behind a number of which rank 0's names the start.
std::string own_facts(Env& env, RankWatch* watch) {
  std::string text = fmt::format("{} {} {}", env.random_u64(), env.host_name(), port_of_guard(env, watch));
  const Result<std::vector<std::string>> addresses =
      env.network().own_addresses(env.variable(network_variable));
  for (const std::string& address : addresses.ok() ? *addresses : std::vector<std::string>())
    text += " " + address;
  return text;
}

HostTableSetup setup_of(const std::vector<std::string>& texts, const std::string& own_host) {
  HostTableSetup setup;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    std::istringstream stream(texts[rank]);
    std::uint64_t number = 0;
    HostFacts facts;
    stream >> number >> facts.name >> facts.port;
    if (rank == 0) setup.start = number;
    for (std::string address; stream >> address;) facts.addresses.push_back(address);
    const auto known = std::ranges::find(setup.hosts, facts.name, &HostFacts::name);
    if (known == setup.hosts.end()) {
      setup.hosts.push_back(std::move(facts));
    } else if (known->port == 0) {
      *known = std::move(facts);
    }
  }
  const auto own = std::ranges::find(setup.hosts, own_host, &HostFacts::name);
  setup.own_host = static_cast<int>(own - setup.hosts.begin());
  return setup;
}

}  // namespace

Result<void> join_hosts(const TrainInputs& inputs, const Waiter& waiter, const WatchdogConfig& config) {
  Env& env = inputs.env;
  if (inputs.membership == nullptr) return {};
  HF_TRY(const std::vector<std::string> texts,
         all_gather_text(inputs.communicator, waiter, own_facts(env, inputs.watch)));
  HostTableSetup setup = setup_of(texts, env.host_name());
  if (setup.hosts.size() < 2 || inputs.watch == nullptr) return {};
  constexpr std::int64_t least_ms = 1'000;
  setup.silence_ms = std::max(least_ms, config.floor_ms);
  Result<std::unique_ptr<HostTable>> made = HostTable::open_or_create(env, watched_board(env), setup);
  if (!made.ok()) {
    tell("host {} does not notice when others are out of reach: {}", env.host_name(), made.error().message);
    return {};
  }
  const std::shared_ptr<HostTable> table = std::move(made).value();
  const auto about = [table](const Member& member, const auto& question) {
    const int host = table->find(member.host);
    return host >= 0 && host != table->own_host() && question(host);
  };
  inputs.membership->use({.has_ended =
                              [table, about](const Member& member) {
                                return about(member, [&](int host) {
                                  return table->has_ended(host, member.process_id, member.started_ticks);
                                });
                              },
                          .out_of_reach =
                              [table, about](const Member& member) {
                                return about(member,
                                             [&](int host) { return table->silent_since_ns(host) != 0; });
                              }});
  return {};
}

}  // namespace holdfast
