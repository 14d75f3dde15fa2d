#include "watchdog/guard_network.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <span>

namespace holdfast::watchdog {
namespace {

constexpr std::int64_t ns_per_ms = 1'000'000;
constexpr std::int64_t table_look_ns = 50 * ns_per_ms;
constexpr std::int64_t call_again_ns = 300 * ns_per_ms;
constexpr std::int64_t least_stuck_limit_ns = 1'000 * ns_per_ms;
constexpr std::int64_t stuck_beats = 3;  // less than a silence, so that there is time for another connection
constexpr std::size_t max_ended = 4'096, spare_callers = 16, max_named = 8;

}  // namespace

Result<std::unique_ptr<GuardNetwork>> GuardNetwork::begin(Env& env, Board& board, const std::string& name,
                                                          const GuardNetworkFacts& facts) {
  std::unique_ptr<GuardNetwork> network(new GuardNetwork(env, board, name, facts.secret));
  HF_TRY(network->listener_, network->network_.listen(facts.listen_address));
  board.header().guard_port = network->listener_->port();
  return network;
}

bool GuardNetwork::find_table(std::int64_t now_ns) {
  if (table_ != nullptr) return true;
  if (looked_for_table_ns_ != 0 && now_ns - looked_for_table_ns_ < table_look_ns) return false;
  looked_for_table_ns_ = now_ns;
  Result<std::unique_ptr<PeerHostTable>> table = PeerHostTable::open(*env_, name_);
  if (!table.ok()) return false;
  table_ = std::move(table).value();
  const PeerHostTableSetup setup = table_->setup();
  sight_ = std::make_unique<PeerHostMonitor>(setup);
  start_ = setup.start;
  beat_every_ns_ = beat_ms_of(setup.hosts.size()) * ns_per_ms;
  stuck_limit_ns_ = std::max(least_stuck_limit_ns, stuck_beats * beat_every_ns_);
  hear_until_ns_ = now_ns + heard_within_ms * ns_per_ms;
  next_call_ = static_cast<std::size_t>(setup.own_host) + 1;  // not all call the same host at once
  peers_.resize(setup.hosts.size());
  for (std::size_t host = 0; host < peers_.size(); ++host) {
    if (static_cast<int>(host) != setup.own_host) peers_[host].addresses = setup.hosts[host].addresses;
  }
  return true;
}

void GuardNetwork::tick(std::int64_t now_ns, bool late) {
  if (!find_table(now_ns)) return;
  // Messages that came meanwhile are read first: there may be no others.
  listen_to_callers(now_ns);
  if (late) {
    sight_->looked_late(now_ns);
    if (hear_until_ns_ != 0) hear_until_ns_ = now_ns + heard_within_ms * ns_per_ms;
  }
  call_some(now_ns);
  if (now_ns - beat_ns_ >= beat_every_ns_) beat(now_ns);
  for (Peer& peer : peers_) send(peer, now_ns);
  show(now_ns);
}

void GuardNetwork::show(std::int64_t now_ns) {
  std::vector<std::int32_t> missed = sight_->missed(now_ns);
  silent_changed_ = silent_changed_ || missed != missed_;
  missed_ = std::move(missed);
  const std::vector<std::int32_t> out_of_reach = sight_->out_of_reach(now_ns);
  for (int host = 0; host < table_->hosts(); ++host) {
    const bool away = std::ranges::binary_search(out_of_reach, host);
    if (away != (table_->silent_since_ns(host) != 0))
      table_->say_silent(host, away ? sight_->heard_ns(host) : 0);
  }
}

std::optional<std::vector<std::string>> GuardNetwork::take_silent() {
  if (!std::exchange(silent_changed_, false)) return std::nullopt;
  std::vector<std::string> silent;
  for (const std::int32_t host : missed_) silent.push_back(table_->name_of(host));
  if (hear_until_ns_ != 0) return silent;
  for (const std::int32_t host : sight_->never_heard()) silent.push_back(table_->name_of(host));
  return silent;
}

void GuardNetwork::listen_to_callers(std::int64_t now_ns) {
  accept_callers();
  std::vector<Socket*> sockets;
  sockets.reserve(callers_.size());
  for (const Caller& caller : callers_) sockets.push_back(caller.connection.get());
  for (const std::size_t index : network_.find_readable(sockets)) {
    if (!listen_to(callers_[index], now_ns)) callers_[index].connection.reset();
  }
  std::erase_if(callers_, [](const Caller& caller) { return caller.connection == nullptr; });
}

// The connections that are accepted are of this run, and each peer calls again only when it is not heard.
void GuardNetwork::accept_callers() {
  while (callers_.size() < 2 * peers_.size() + spare_callers) {
    Result<std::unique_ptr<Connection>> came = listener_->accept(0);
    if (!came.ok() || *came == nullptr) return;
    callers_.push_back(Caller{.connection = std::move(came).value()});
  }
}

// False: it has nothing more to say.
bool GuardNetwork::listen_to(Caller& caller, std::int64_t now_ns) {
  std::array<std::byte, 16'384> part;
  bool open = true;
  while (open) {
    const Result<std::size_t> count = caller.connection->receive_some(part);
    open = count.ok();
    if (!open || *count == 0) break;
    caller.received.insert(caller.received.end(), part.begin(),
                           part.begin() + static_cast<std::ptrdiff_t>(*count));
    while (caller.received.size() >= frame_head_bytes) {
      const Result<std::size_t> length = frame_bytes(std::span(caller.received).first(frame_head_bytes));
      if (!length.ok()) return false;
      if (caller.received.size() < *length) break;
      const Result<GuardMessage> message = message_of(std::span(caller.received).first(*length));
      if (!message.ok() || message->start != start_) return false;
      understand(caller, *message, now_ns);
      caller.received.erase(caller.received.begin(),
                            caller.received.begin() + static_cast<std::ptrdiff_t>(*length));
    }
  }
  // A guard that called again has another connection, and one that is cut off cannot close this one.
  const auto same = [&](const Caller& other) {
    return &other != &caller && other.connection != nullptr && other.host == caller.host;
  };
  if (!open && caller.host >= 0 && std::ranges::none_of(callers_, same)) sight_->closed(caller.host, now_ns);
  return open;
}

void GuardNetwork::note_ended(const GuardMessage& message, std::int64_t now_ns) {
  Peer& peer = peers_[static_cast<std::size_t>(message.host)];
  if (std::exchange(peer.ended_generation, message.generation) != message.generation) peer.ended_known = 0;
  if (peer.ended_known >= message.ended.size()) return;
  const std::vector<WatchedRank> before = sight_->ranks(now_ns);
  for (const EndedProcess& each : std::span(message.ended).subspan(peer.ended_known)) {
    if (table_->has_ended(message.host, each.identity())) continue;
    note_lost_spare(each, message, before);
    table_->say_ended(each);
  }
  peer.ended_known = message.ended.size();
}

// The earlier messages tell whether the ended process was a spare.
void GuardNetwork::note_lost_spare(const EndedProcess& ended, const GuardMessage& message,
                                   const std::vector<WatchedRank>& before) {
  const std::string host = table_->name_of(message.host);
  for (const WatchedRank& rank : before) {
    const bool same = rank.host == host && rank.slot.identity() == ended.identity();
    if (same && !rank.ended && !rank.slot.left && rank.slot.phase == Phase::spare)
      lost_spares_.push_back(rank);
  }
}

void GuardNetwork::understand(Caller& caller, const GuardMessage& message, std::int64_t now_ns) {
  if (!sight_->accepts(message)) return;
  note_ended(message, now_ns);
  sight_->heard(message, now_ns);
  caller.host = message.host;
  if (message.port != 0 && message.port != table_->port_of(message.host)) {
    table_->moved(message.host, message.port);
    peers_[static_cast<std::size_t>(message.host)].connection.reset();
  }
}

// Returns whether a host that is not heard needs a new connection. The kernel retries on the old one less and
// less often; a new one gets through as soon as the network does.
bool GuardNetwork::needs_call(std::size_t host, std::int64_t now_ns) {
  Peer& peer = peers_[host];
  if (peer.addresses.empty() || table_->port_of(static_cast<int>(host)) == 0) return false;
  const std::int64_t heard_ns = std::max(sight_->heard_ns(static_cast<int>(host)), peer.answered_ns);
  const bool stuck = peer.is_answered && now_ns - heard_ns > stuck_limit_ns_;
  if (peer.connection != nullptr && stuck) peer.connection.reset();
  return peer.connection == nullptr && now_ns - peer.called_ns >= call_again_ns;
}

// Begins some connections; send() completes them.
void GuardNetwork::call_some(std::int64_t now_ns) {
  std::size_t called = 0;
  for (std::size_t tried = 0; tried < peers_.size() && called < calls_per_tick; ++tried) {
    const std::size_t host = next_call_++ % peers_.size();
    if (!needs_call(host, now_ns)) continue;
    ++called;
    Peer& peer = peers_[host];
    const std::uint16_t port = table_->port_of(static_cast<int>(host));
    peer.called_ns = now_ns;
    peer.is_answered = peer.is_behind = false;
    peer.stuck_since_ns = 0;
    Result<std::unique_ptr<Connection>> connection =
        network_.begin_connection({peer.addresses[peer.address], port});
    if (connection.ok()) {
      peer.connection = std::move(connection).value();
      peer.unsent = frame(now_ns);  // it is told at once
    } else {
      give_up(peer);
    }
  }
}

void GuardNetwork::give_up(Peer& peer) {
  constexpr std::int64_t longer = 2;
  peer.connection.reset();
  peer.unsent.clear();
  peer.address = (peer.address + 1) % peer.addresses.size();
  peer.patience_ns = std::min(longest_call_ms * ns_per_ms, longer * peer.patience_ns);
}

void GuardNetwork::beat(std::int64_t now_ns) {
  beat_ns_ = now_ns;
  for (Peer& peer : peers_) {
    if (peer.connection == nullptr) continue;
    // A newer one says all that the one before says.
    peer.is_behind = !peer.unsent.empty();
    if (!peer.is_behind) peer.unsent = frame(now_ns);
  }
}

// Returns the heartbeat of this tick.
const std::vector<std::byte>& GuardNetwork::frame(std::int64_t now_ns) {
  if (framed_ns_ == now_ns && !frame_.empty()) return frame_;
  ++number_;
  framed_ns_ = now_ns;
  return frame_ = frame_of(own_message(now_ns));
}

void GuardNetwork::send(Peer& peer, std::int64_t now_ns) {
  if (peer.connection == nullptr || peer.unsent.empty()) return;
  const Result<std::size_t> count = peer.connection->send_some(peer.unsent);
  if (count.ok() && *count > 0) {
    if (!std::exchange(peer.is_answered, true)) peer.answered_ns = now_ns;
    peer.patience_ns = first_call_ms * ns_per_ms;
    peer.unsent.erase(peer.unsent.begin(), peer.unsent.begin() + static_cast<std::ptrdiff_t>(*count));
    peer.stuck_since_ns = 0;
    if (peer.unsent.empty() && std::exchange(peer.is_behind, false)) peer.unsent = frame(now_ns);
    return;
  }
  if (!peer.is_answered) {
    if (!count.ok() || now_ns - peer.called_ns >= peer.patience_ns) give_up(peer);
    return;
  }
  if (peer.stuck_since_ns == 0) peer.stuck_since_ns = now_ns;
  if (count.ok() && now_ns - peer.stuck_since_ns < stuck_limit_ns_) return;
  peer.connection.reset();
  peer.stuck_since_ns = 0;
}

GuardMessage GuardNetwork::own_message(std::int64_t now_ns) {
  GuardMessage message{.start = start_,
                       .host = table_->own_host(),
                       .generation = board_->header().guard_generation,
                       .number = number_,
                       .sent_ns = now_ns,
                       .port = listener_->port(),
                       .silent = sight_->silent(now_ns),
                       .ended = ended_};
  for (std::uint32_t index = 0; index < board_->slots(); ++index) {
    SlotView slot = read_slot(board_->slot(index));
    const bool gone = std::ranges::any_of(
        ended_, [&](const EndedProcess& each) { return each.identity() == slot.identity(); });
    if (slot.process > 0 && !gone) message.ranks.push_back(std::move(slot));
  }
  return message;
}

void GuardNetwork::ended(const SlotView& slot) {
  if (slot.process <= 0 || ended_.size() >= max_ended) return;
  ended_.push_back({.host = -1,  // this one; whoever hears it knows which that is
                    .launched_rank = slot.launched_rank,
                    .process = slot.process,
                    .started_ticks = slot.started_ticks});
  beat_ns_ = framed_ns_ = 0;  // the others wait for it
}

bool GuardNetwork::is_cut_off() const {
  if (table_ == nullptr || !has_peers()) return false;
  const auto away = [&](int host) {
    return host == table_->own_host() || std::ranges::binary_search(missed_, host);
  };
  if (table_->own_host() != 0) return away(0);
  for (int host = 0; host < table_->hosts(); ++host) {
    if (!away(host)) return false;
  }
  return true;
}

std::string GuardNetwork::take_never_heard(std::int64_t now_ns) {
  if (table_ == nullptr || hear_until_ns_ == 0 || now_ns < hear_until_ns_) return {};
  hear_until_ns_ = 0;
  const std::vector<std::int32_t> hosts = sight_->never_heard();
  silent_changed_ = silent_changed_ || !hosts.empty();
  std::string names;
  for (const std::int32_t host : std::span(hosts).first(std::min(hosts.size(), max_named))) {
    const std::vector<std::string>& addresses = peers_[static_cast<std::size_t>(host)].addresses;
    names += fmt::format("{}{} ({})", names.empty() ? "" : ", ", table_->name_of(host),
                         addresses.empty() ? "no address" : addresses.front());
  }
  if (hosts.size() > max_named) names += fmt::format(" and {} more", hosts.size() - max_named);
  return names;
}

std::vector<std::string> GuardNetwork::leaves_because_of(std::int64_t now_ns) const {
  std::vector<std::string> names;
  if (sight_ == nullptr || missed_.empty()) return names;
  for (const std::int32_t host : sight_->leaves_because_of(now_ns)) names.push_back(table_->name_of(host));
  return names;
}

std::vector<WatchedRank> GuardNetwork::distant_ranks(std::int64_t now_ns) const {
  return sight_ == nullptr ? std::vector<WatchedRank>() : sight_->ranks(now_ns);
}

}  // namespace holdfast::watchdog
