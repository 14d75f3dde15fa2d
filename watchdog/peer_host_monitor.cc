#include "watchdog/peer_host_monitor.h"

#include <algorithm>
#include <utility>

namespace holdfast::inline watchdog {

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
  host.deaf = std::ranges::find(message.silent, own_host_) != message.silent.end();
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
    host.deaf = false;
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

bool PeerHostMonitor::out_of_reach(int host, std::int64_t now_ns) const {
  const Host& of = hosts_[static_cast<std::size_t>(host)];
  if (of.closed_ns != 0) return is_lost_behind_guard(of, now_ns);
  return of.watched && (of.deaf || is_silent(host, now_ns));
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
    if (!host.watched || host.closed_ns != 0 || out_of_reach(index, now_ns)) continue;
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

}  // namespace holdfast::inline watchdog
