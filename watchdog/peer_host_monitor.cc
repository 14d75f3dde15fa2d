#include "watchdog/peer_host_monitor.h"

#include <utility>

namespace holdfast::watchdog {
namespace {

// Most links of one host that are taken for broken one by one; where more are, it or a whole network is cut off.
constexpr std::size_t most_links = 8;

bool lists(const std::vector<std::int32_t>& hosts, int host) {
  return std::ranges::find(hosts, host) != hosts.end();
}

}  // namespace

PeerHostMonitor::PeerHostMonitor(const PeerHostTableSetup& setup)
    : start_(setup.start), own_host_(setup.own_host), silence_ns_(setup.silence_ms * 1'000'000) {
  for (const HostFacts& facts : setup.hosts)
    hosts_.push_back(Host{.name = facts.name, .has_guard = facts.port != 0});
}

bool PeerHostMonitor::accepts(const GuardMessage& message) const {
  if (message.start != start_ || message.host < 0 || message.host == own_host_ ||
      static_cast<std::size_t>(message.host) >= hosts_.size())
    return false;
  const Host& host = hosts_[static_cast<std::size_t>(message.host)];
  const auto place = [](const GuardMessage& of) { return std::pair(of.generation, of.number); };
  return host.heard_ns == 0 || place(message) > place(host.last);
}

bool PeerHostMonitor::heard(const GuardMessage& message, std::int64_t now_ns) {
  if (!accepts(message)) return false;
  Host& host = hosts_[static_cast<std::size_t>(message.host)];
  host.watched = true;
  host.closed_ns = 0;
  host.heard_ns = host.received_ns = now_ns;
  const bool is_deaf = lists(message.silent, own_host_);
  if (is_deaf != (host.deaf_since_ns != 0)) host.deaf_since_ns = is_deaf ? now_ns : 0;
  host.last = message;
  return true;
}

// A connection is also closed because nothing has come through it for long.
void PeerHostMonitor::closed(int index, std::int64_t now_ns) {
  constexpr std::int64_t just_now = 2;  // half of the silence
  Host& host = hosts_[static_cast<std::size_t>(index)];
  if (now_ns - host.heard_ns < silence_ns_ / just_now) host.closed_ns = now_ns;
}

void PeerHostMonitor::looked_late(std::int64_t now_ns) {
  for (Host& host : hosts_) {
    if (host.heard_ns != 0) host.heard_ns = now_ns;
    if (host.closed_ns != 0) host.closed_ns = now_ns;
    host.deaf_since_ns = 0;
  }
}

bool PeerHostMonitor::is_silent(int host, std::int64_t now_ns) const {
  const Host& of = hosts_[static_cast<std::size_t>(host)];
  return of.watched && of.closed_ns == 0 && now_ns - of.heard_ns > silence_ns_;
}

bool PeerHostMonitor::is_lost_behind_guard(const Host& host, std::int64_t now_ns) const {
  constexpr std::int64_t silences_to_return = 2, silences_said = 1;
  const std::int64_t since_ns = now_ns - host.closed_ns;
  return since_ns > silences_to_return * silence_ns_ &&
         since_ns <= (silences_to_return + silences_said) * silence_ns_;
}

bool PeerHostMonitor::misses(int host, std::int64_t now_ns) const {
  const Host& of = hosts_[static_cast<std::size_t>(host)];
  if (of.closed_ns != 0) return is_lost_behind_guard(of, now_ns);
  return of.watched && (of.deaf_since_ns != 0 || is_silent(host, now_ns));
}

std::vector<std::int32_t> PeerHostMonitor::missed(std::int64_t now_ns) const {
  std::vector<std::int32_t> found;
  for (int host = 0; host < static_cast<int>(hosts_.size()); ++host) {
    if (misses(host, now_ns)) found.push_back(host);
  }
  return found;
}

std::int64_t PeerHostMonitor::missed_since_ns(int host, std::int64_t now_ns) const {
  const Host& of = hosts_[static_cast<std::size_t>(host)];
  return of.deaf_since_ns != 0 ? std::min(of.deaf_since_ns, now_ns) : of.heard_ns + silence_ns_;
}

bool PeerHostMonitor::is_heard(int host, std::int64_t now_ns) const {
  const Host& of = hosts_[static_cast<std::size_t>(host)];
  return of.watched && of.closed_ns == 0 && !misses(host, now_ns);
}

// Returns whether a host that this one hears hears the missed host, and there is still time for one of the two to leave.
// The first host cannot go on in place: mpirun is there, and does not hear the daemon of the other of a death.
bool PeerHostMonitor::is_heard_elsewhere(int missed, std::int64_t now_ns) const {
  constexpr std::int64_t silences_to_leave = 2;
  if (own_host_ == 0 || missed == 0 || hosts_[static_cast<std::size_t>(missed)].closed_ns != 0) return false;
  if (now_ns - missed_since_ns(missed, now_ns) > silences_to_leave * silence_ns_) return false;
  const std::vector<std::int32_t>& not_heard_there = hosts_[static_cast<std::size_t>(missed)].last.silent;
  for (int host = 0; host < static_cast<int>(hosts_.size()); ++host) {
    const bool hears = !lists(hosts_[static_cast<std::size_t>(host)].last.silent, missed);
    if (hears && !lists(not_heard_there, host) && is_heard(host, now_ns)) return true;
  }
  return false;
}

std::vector<std::int32_t> PeerHostMonitor::out_of_reach(std::int64_t now_ns) const {
  std::vector<std::int32_t> found = missed(now_ns);
  if (found.size() <= most_links)
    std::erase_if(found, [&](std::int32_t host) { return is_heard_elsewhere(host, now_ns); });
  return found;
}

// Returns the broken links of this host and those that hosts report which are heard here. Those to a host whose guard has ended do not
// count: it has left.
std::vector<SilentPair> PeerHostMonitor::broken_links(std::int64_t now_ns) const {
  std::vector<SilentPair> links;
  const auto name_of = [&](int host) { return hosts_[static_cast<std::size_t>(host)].name; };
  for (const std::int32_t host : missed(now_ns))
    links.push_back({.from = name_of(own_host_), .of = name_of(host)});
  for (int host = 0; host < static_cast<int>(hosts_.size()); ++host) {
    const Host& reporter = hosts_[static_cast<std::size_t>(host)];
    if (!reporter.watched || reporter.closed_ns != 0 || is_silent(host, now_ns)) continue;
    for (const std::int32_t of : reporter.last.silent) {
      const bool is_host = of >= 0 && static_cast<std::size_t>(of) < hosts_.size();
      if (is_host && hosts_[static_cast<std::size_t>(of)].closed_ns == 0)
        links.push_back({.from = name_of(host), .of = name_of(of)});
    }
  }
  // Which of the two said so is not known everywhere, and all guards have to find the same.
  const std::size_t count = links.size();
  for (std::size_t each = 0; each < count; ++each)
    links.push_back({.from = links[each].of, .of = links[each].from});
  return links;
}

// Waits until the other hosts have noticed, too: where one is cut off from all, no one else is to leave.
std::vector<std::int32_t> PeerHostMonitor::leaves_because_of(std::int64_t now_ns) const {
  std::vector<std::int32_t> lost = missed(now_ns);
  if (lost.empty() || lost.size() > most_links) return {};
  for (const std::int32_t host : lost) {
    const bool is_new = now_ns - missed_since_ns(host, now_ns) < silence_ns_ / 2;
    if (is_new || !is_heard_elsewhere(host, now_ns)) return {};
  }
  std::vector<LinkedHost> hosts;
  for (const Host& host : hosts_) hosts.push_back({.name = host.name});
  const std::vector<std::string> leaving = fewest_hosts(broken_links(now_ns), hosts);
  const std::string& own = hosts[static_cast<std::size_t>(own_host_)].name;
  return std::ranges::find(leaving, own) == leaving.end() ? std::vector<std::int32_t>() : lost;
}

std::int64_t PeerHostMonitor::heard_ns(int host) const {
  return hosts_[static_cast<std::size_t>(host)].received_ns;
}

std::vector<std::int32_t> PeerHostMonitor::silent(std::int64_t now_ns) const {
  std::vector<std::int32_t> found;
  for (int host = 0; host < static_cast<int>(hosts_.size()); ++host) {
    if (is_silent(host, now_ns)) found.push_back(host);
  }
  return found;
}

std::vector<std::int32_t> PeerHostMonitor::never_heard() const {
  std::vector<std::int32_t> found;
  for (int host = 0; host < static_cast<int>(hosts_.size()); ++host) {
    const Host& of = hosts_[static_cast<std::size_t>(host)];
    if (host != own_host_ && of.has_guard && !of.watched) found.push_back(host);
  }
  return found;
}

std::vector<WatchedRank> PeerHostMonitor::ranks(std::int64_t now_ns) const {
  std::vector<WatchedRank> found;
  for (int index = 0; index < static_cast<int>(hosts_.size()); ++index) {
    const Host& host = hosts_[static_cast<std::size_t>(index)];
    if (!host.watched || host.closed_ns != 0 || misses(index, now_ns)) continue;
    const std::int64_t ahead_ns = host.received_ns - host.last.sent_ns;
    for (SlotView slot : host.last.ranks) {
      for (std::int64_t* const time_ns :
           {&slot.begun_ns, &slot.heartbeat_ns, &slot.life_ns, &slot.wait_begun_ns, &slot.storage_begun_ns}) {
        if (*time_ns != 0) *time_ns += ahead_ns;
      }
      found.push_back({.slot = std::move(slot), .host = host.name, .own_host = false});
    }
    for (const EndedProcess& ended : host.last.ended) {
      SlotView slot;
      slot.process = ended.process;
      slot.started_ticks = ended.started_ticks;
      slot.launched_rank = ended.launched_rank;
      found.push_back({.slot = std::move(slot), .host = host.name, .own_host = false, .ended = true});
    }
  }
  return found;
}

}  // namespace holdfast::watchdog
