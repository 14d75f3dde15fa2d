#include "runtime/launch/host_meeting.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstring>
#include <utility>

#include "runtime/core/record.h"
#include "runtime/core/text.h"
#include "runtime/os/background_job.h"

namespace holdfast::launch {
namespace {

constexpr const char* purpose = "meeting";
// A connection may take so long, because the system sends its first packet once more after a second. A host that is
// busy may take longer for the proof that follows.
constexpr std::int64_t connect_ms = 1'300, known_ms = 5'000;
constexpr std::int64_t stay_ms = 120'000;  // longer than the launcher waits for the proofs of others
constexpr std::int64_t send_ms = 1'000, accept_ms = 5;

Secret secret_of(const std::string& nonce) {
  Secret::Bytes bytes{};
  std::memcpy(bytes.data(), nonce.data(), std::min(bytes.size(), nonce.size()));
  return Secret(bytes);
}

Result<void> tell(Connection& connection, const std::string& text) {
  const auto size = static_cast<std::uint32_t>(text.size());
  std::vector<std::byte> bytes(sizeof size + text.size());
  std::memcpy(bytes.data(), &size, sizeof size);
  std::memcpy(bytes.data() + sizeof size, text.data(), text.size());
  return connection.send(bytes, send_ms);
}

// Call is what a host does to reach another one in one network: it tries all of its addresses there at once.
class Call {
 public:
  Call(Env& env, const Secret& secret, int place, std::uint16_t port,
       const std::vector<std::string>& addresses)
      : place_(place), where_(fmt::format("{}", fmt::join(addresses, ", "))) {
    for (const std::string& address : addresses) {
      auto job = std::make_unique<BackgroundJob<bool>>();
      const bool starts =
          job->start(env, "host meeting", [this, &env, secret, address, port]() -> Result<bool> {
            SealedNetwork network(env, secret, purpose);
            if (!network.connect_known({.host = address, .port = port}, connect_ms, known_ms, is_reached_)
                     .ok())
              return false;
            is_reached_ = true;
            return true;
          });
      if (starts) attempts_.push_back(std::move(job));
    }
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call() { is_reached_ = true; }  // ends the attempts

  int place() const { return place_; }
  const std::string& where() const { return where_; }
  bool is_over() const {
    return is_reached_ || std::ranges::all_of(attempts_, [](const auto& each) { return each->finished(); });
  }
  bool has_failed() const { return !attempts_.empty() && !is_reached_; }

 private:
  int place_;
  std::string where_;
  std::atomic<bool> is_reached_ = false;
  std::vector<std::unique_ptr<BackgroundJob<bool>>> attempts_;  // last, because they use the others
};

struct Door {
  std::vector<std::string> addresses = {};
  std::uint16_t port = 0;
};

Door parse_door(const std::string& text) {
  Door door;
  const std::size_t at = text.find('@');
  if (at == std::string::npos) return door;
  std::from_chars(text.data(), text.data() + at, door.port);
  door.addresses = split_list(std::string_view(text).substr(at + 1));
  return door;
}

// Returns a connection to the launcher, by whichever of its addresses answers first; null: none does.
std::unique_ptr<Connection> enter(Env& env, const Secret& secret, const Door& door) {
  std::atomic<bool> is_in = false;
  std::vector<std::unique_ptr<BackgroundJob<std::unique_ptr<Connection>>>> attempts;
  for (const std::string& address : door.addresses) {
    auto job = std::make_unique<BackgroundJob<std::unique_ptr<Connection>>>();
    const bool starts =
        job->start(env, "host meeting", [&, address]() -> Result<std::unique_ptr<Connection>> {
          SealedNetwork network(env, secret, purpose);
          HF_TRY(std::unique_ptr<Connection> made,
                 network.connect_known({.host = address, .port = door.port}, connect_ms, known_ms, is_in));
          is_in = true;
          return made;
        });
    if (starts) attempts.push_back(std::move(job));
  }
  std::unique_ptr<Connection> entered;
  for (const auto& attempt : attempts) {
    Result<std::unique_ptr<Connection>> made = attempt->take();
    if (made.ok() && entered == nullptr) entered = std::move(made).value();
  }
  return entered;
}

// HostGuest is one host at the meeting.
class HostGuest {
 public:
  HostGuest(Env& env, const Secret& secret, std::unique_ptr<Connection> launcher,
            std::unique_ptr<Listener> listener, HostNetworks own)
      : env_(&env),
        secret_(secret),
        launcher_(std::move(launcher)),
        listener_(std::move(listener)),
        own_(std::move(own)) {}

  // Returns when the launcher closes the meeting, or seems to have forgotten it.
  void stay() {
    const std::int64_t until_ns = env_->monotonic_ns() + stay_ms * 1'000'000;
    while (env_->monotonic_ns() < until_ns) {
      Result<std::unique_ptr<Connection>> caller = listener_->accept(accept_ms);
      if (caller.ok() && *caller != nullptr) callers_.push_back(std::move(caller).value());
      const Result<std::optional<std::string>> told = messages_.next(*launcher_);
      if (!told.ok()) return;
      if (told->has_value() && !has_called_) call(**told);
      const bool reports = has_called_ && !has_reported_ &&
                           std::ranges::all_of(calls_, [](const auto& each) { return each->is_over(); });
      if (reports && !report().ok()) return;
    }
  }

 private:
  bool is_own(const std::string& address) const {
    return std::ranges::any_of(
        own_, [&](const auto& network) { return std::ranges::find(network, address) != network.end(); });
  }

  // An address that this host has, too, as hosts have for their containers, is not called: it is this host.
  void call(const std::string& text) {
    has_called_ = true;
    const Result<HostCallees> callees = record_from_text<HostCallees>(text);
    if (!callees.ok()) return;
    for (const HostArrival& callee : callees->hosts) {
      for (std::vector<std::string> addresses : callee.networks) {
        std::erase_if(addresses, [&](const std::string& address) { return is_own(address); });
        if (addresses.empty()) continue;
        calls_.push_back(std::make_unique<Call>(*env_, secret_, callee.place, callee.port, addresses));
      }
    }
  }

  Result<void> report() {
    has_reported_ = true;
    HostReport report;
    for (const auto& each : calls_) {
      if (each->has_failed()) report.unreached.push_back({.place = each->place(), .where = each->where()});
    }
    return tell(*launcher_, record_to_text(report));
  }

  Env* env_;
  Secret secret_;
  std::unique_ptr<Connection> launcher_;
  std::unique_ptr<Listener> listener_;
  HostNetworks own_;
  MeetingMessages messages_;
  std::vector<std::unique_ptr<Connection>> callers_;
  std::vector<std::unique_ptr<Call>> calls_;
  bool has_called_ = false, has_reported_ = false;
};

}  // namespace

Result<std::optional<std::string>> MeetingMessages::next(Connection& connection) {
  while (true) {
    HF_TRY(const std::size_t count, connection.receive_some(std::span(bytes_).subspan(filled_)));
    filled_ += count;
    if (filled_ < bytes_.size()) {
      if (count == 0) return std::optional<std::string>();
      continue;
    }
    std::uint32_t size = 0;
    std::memcpy(&size, bytes_.data(), head_bytes);
    if (size == 0 || size > max_bytes)
      return fail(ExitCode::communication, "{} sent no message of a meeting", connection.peer());
    if (filled_ == head_bytes + size) break;
    bytes_.resize(head_bytes + size);
  }
  std::string text(reinterpret_cast<const char*>(bytes_.data()) + head_bytes, filled_ - head_bytes);
  bytes_.resize(head_bytes);
  filled_ = 0;
  return std::optional(std::move(text));
}

Result<std::unique_ptr<HostMeeting>> HostMeeting::open(Env& env, const std::string& nonce,
                                                       std::size_t hosts) {
  std::unique_ptr<HostMeeting> meeting(new HostMeeting(env, hosts));
  SealedNetwork network(env, secret_of(nonce), purpose);
  HF_TRY(meeting->addresses_, network.own_addresses(""));
  HF_TRY(meeting->listener_, network.listen(""));
  return meeting;
}

std::string HostMeeting::door() const {
  return fmt::format("{}@{}", listener_->port(), fmt::join(addresses_, ","));
}

bool HostMeeting::has_come(std::size_t place) const {
  return std::ranges::any_of(guests_, [&](const Guest& guest) {
    return guest.connection != nullptr && guest.arrival.has_value() &&
           static_cast<std::size_t>(guest.arrival->place) == place;
  });
}

void HostMeeting::look() {
  if (is_over_) return;
  while (true) {
    Result<std::unique_ptr<Connection>> came = listener_->accept(0);
    if (!came.ok() || *came == nullptr) break;
    guests_.push_back({.connection = std::move(came).value()});
  }
  for (Guest& guest : guests_) {
    if (guest.connection != nullptr) hear(guest);
  }
  if (begun_ns_ < 0) return;
  const bool is_late = env_->monotonic_ns() - begun_ns_ > report_ms * 1'000'000;
  is_over_ = is_late || std::ranges::all_of(guests_, [](const Guest& guest) {
               return guest.connection == nullptr || guest.report.has_value();
             });
  if (!is_over_) return;
  for (Guest& guest : guests_) guest.connection.reset();
  listener_.reset();
}

void HostMeeting::hear(Guest& guest) {
  const Result<std::optional<std::string>> text = guest.messages.next(*guest.connection);
  if (text.ok() && text->has_value()) take(guest, **text);
  const bool is_late = begun_ns_ >= 0 && !guest.arrival.has_value();
  if (!text.ok() || is_late) guest.connection.reset();
}

void HostMeeting::take(Guest& guest, const std::string& text) const {
  if (!guest.arrival.has_value()) {
    const Result<HostArrival> arrival = record_from_text<HostArrival>(text);
    const bool is_new = begun_ns_ < 0 && arrival.ok() && arrival->place >= 0 &&
                        static_cast<std::size_t>(arrival->place) < hosts_ &&
                        !has_come(static_cast<std::size_t>(arrival->place));
    if (is_new) guest.arrival = *arrival;
  } else if (const Result<HostReport> report = record_from_text<HostReport>(text); report.ok()) {
    guest.report = *report;
  }
}

void HostMeeting::begin() {
  if (begun_ns_ >= 0) return;
  begun_ns_ = env_->monotonic_ns();
  std::vector<Guest*> there;
  for (Guest& guest : guests_) {
    if (guest.connection != nullptr && guest.arrival.has_value()) there.push_back(&guest);
  }
  std::ranges::sort(there, {}, [](const Guest* guest) { return guest->arrival->place; });
  for (std::size_t i = 0; i < there.size(); ++i) {
    HostCallees callees;
    for (const int callee : callees_of(static_cast<int>(i), static_cast<int>(there.size())))
      callees.hosts.push_back(*there[static_cast<std::size_t>(callee)]->arrival);
    if (!tell(*there[i]->connection, record_to_text(callees)).ok()) there[i]->connection.reset();
  }
}

bool HostMeeting::has_reported(int place) const {
  return std::ranges::any_of(
      guests_, [&](const Guest& guest) { return guest.report.has_value() && guest.arrival->place == place; });
}

std::vector<LinkFault> HostMeeting::faults(std::span<const LaunchHost> hosts) const {
  std::vector<LinkFault> faults;
  for (const Guest& guest : guests_) {
    if (!guest.report.has_value()) continue;
    for (const HostReport::Unreached& unreached : guest.report->unreached) {
      if (!has_reported(unreached.place)) continue;  // it may have gone before it was called
      faults.push_back({.from = hosts[static_cast<std::size_t>(guest.arrival->place)].name,
                        .of = hosts[static_cast<std::size_t>(unreached.place)].name,
                        .where = unreached.where});
    }
  }
  std::ranges::stable_sort(faults, {}, &LinkFault::from);
  return faults;
}

void attend_meeting(Env& env, const MeetingWords& words, const std::string& nonce) {
  const Secret secret = secret_of(nonce);
  const Door door = parse_door(words.door);
  if (door.port == 0) return;
  HostNetworks networks = addresses_to_reach(env.network(), words.mpi, words.interface);
  SealedNetwork network(env, secret, purpose);
  Result<std::unique_ptr<Listener>> listener = network.listen("");
  if (!listener.ok()) return;
  std::unique_ptr<Connection> launcher = enter(env, secret, door);
  if (launcher == nullptr) return;
  const HostArrival arrival{.place = words.place, .port = (*listener)->port(), .networks = networks};
  if (!tell(*launcher, record_to_text(arrival)).ok()) return;
  HostGuest(env, secret, std::move(launcher), std::move(listener).value(), std::move(networks)).stay();
}

}  // namespace holdfast::launch
