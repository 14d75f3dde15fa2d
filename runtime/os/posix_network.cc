#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <optional>

#include <fmt/ranges.h>

#include "runtime/os/env.h"
#include "runtime/os/errno_reason.h"
#include "runtime/os/network.h"
#include "runtime/os/posix_file.h"
#include "runtime/os/tcp_totals.h"

namespace holdfast::os {
namespace {

constexpr std::int64_t ns_per_ms = 1'000'000;

// The sockets API takes every family's address as the same pointer.
struct Address {
  sockaddr_storage storage{};
  socklen_t bytes = sizeof(sockaddr_storage);
  sockaddr* pointer() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* pointer() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

// Returns 10.0.0.7, also where the kernel reports ::ffff:10.0.0.7.
std::string number_of(const sockaddr* address, socklen_t bytes) {
  std::array<char, NI_MAXHOST> text{};
  if (getnameinfo(address, bytes, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0) return "?";
  const std::string number = text.data();
  constexpr std::string_view mapped = "::ffff:";
  const bool is_mapped = number.starts_with(mapped) && number.find('.') != std::string::npos;
  return is_mapped ? number.substr(mapped.size()) : number;
}

std::uint16_t port_of(const Address& address) {
  const bool is_6 = address.storage.ss_family == AF_INET6;
  return ntohs(is_6 ? reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_port
                    : reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_port);
}

std::string text_of(const std::string& host, std::uint16_t port) {
  return fmt::format("{} port {}", host, port);
}

class Deadline {
 public:
  explicit Deadline(std::int64_t timeout_ms)
      : end_ns_(posix_env().monotonic_ns() + std::max<std::int64_t>(0, timeout_ms) * ns_per_ms) {}
  // The same one, or sooner.
  Deadline at_most(std::int64_t timeout_ms) const {
    return Deadline(std::min<std::int64_t>(left_ms(), timeout_ms));
  }
  // Returns the time left for poll(2), rounded up.
  int left_ms() const {
    const std::int64_t left = (end_ns_ - posix_env().monotonic_ns() + ns_per_ms - 1) / ns_per_ms;
    constexpr std::int64_t longest_ms = 1'000'000'000;
    return static_cast<int>(std::clamp<std::int64_t>(left, 0, longest_ms));
  }

 private:
  std::int64_t end_ns_;
};

// Returns false when the time is over.
bool wait_for(int descriptor, short events, const Deadline& deadline) {
  pollfd waited{.fd = descriptor, .events = events, .revents = 0};
  while (true) {
    const int ready = poll(&waited, 1, deadline.left_ms());
    if (ready > 0) return true;
    if (ready == 0 || errno != EINTR) return false;
  }
}

void set_option(int descriptor, int level, int option, int value) {
  // A kernel without the option notices the loss of a host later; everything else is as it was.
  static_cast<void>(setsockopt(descriptor, level, option, &value, sizeof(value)));
}

// Keepalive finds a peer that is gone while nothing is sent, the user timeout one that acknowledges nothing.
void configure(int descriptor) {
  constexpr int idle_s = 5, interval_s = 2, probes = 5;
  static_assert((idle_s + interval_s * probes) * 1000 == Connection::silence_timeout_ms);
  set_option(descriptor, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(descriptor, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, idle_s);
  set_option(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, interval_s);
  set_option(descriptor, IPPROTO_TCP, TCP_KEEPCNT, probes);
  set_option(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(Connection::silence_timeout_ms));
}

// Returns the reason why a connection could not be made, after poll(2) has found it writable; 0: it is made.
int connect_error(const Descriptor& descriptor) {
  int reason = 0;
  socklen_t bytes = sizeof(reason);
  if (getsockopt(descriptor.value(), SOL_SOCKET, SO_ERROR, &reason, &bytes) != 0) reason = errno;
  return reason;
}

class PosixConnection final : public Connection {
 public:
  PosixConnection(Descriptor descriptor, std::string peer, bool is_being_made = false)
      : descriptor_(std::move(descriptor)), peer_(std::move(peer)), is_being_made_(is_being_made) {
    configure(descriptor_.value());
  }

  void shut_down() override {
    stopped_ = true;
    shutdown(descriptor_.value(), SHUT_RDWR);
  }
  int handle() const override { return descriptor_.value(); }
  const std::string& peer() const override { return peer_; }

  Result<void> send(std::span<const std::byte> source, std::int64_t timeout_ms) override {
    const Deadline deadline(timeout_ms);
    while (!source.empty()) {
      HF_TRY(const std::size_t sent, send_some(source));
      source = source.subspan(sent);
      if (sent == 0 && !wait_for(descriptor_.value(), POLLOUT, deadline))
        return late("took nothing more", timeout_ms);
    }
    return {};
  }

  Result<void> receive(std::span<std::byte> target, std::int64_t timeout_ms) override {
    const Deadline deadline(timeout_ms);
    while (!target.empty()) {
      HF_TRY(const std::size_t received, receive_some(target));
      target = target.subspan(received);
      if (received == 0 && !wait_for(descriptor_.value(), POLLIN, deadline))
        return late("did not send what was awaited", timeout_ms);
    }
    return {};
  }

  Result<std::size_t> send_some(std::span<const std::byte> source) override {
    if (stopped_) return stopped();
    HF_TRY(const bool made, is_made());
    if (!made) return std::size_t{0};
    const ssize_t sent =
        retried([&] { return ::send(descriptor_.value(), source.data(), source.size(), MSG_NOSIGNAL); });
    if (sent >= 0) return static_cast<std::size_t>(sent);
    if (errno == EAGAIN || errno == EWOULDBLOCK) return std::size_t{0};
    return stopped_ ? stopped() : broken("send to", errno);
  }

  Result<std::size_t> receive_some(std::span<std::byte> target) override {
    if (stopped_) return stopped();
    HF_TRY(const bool made, is_made());
    if (!made || target.empty()) return std::size_t{0};
    const ssize_t received =
        retried([&] { return ::recv(descriptor_.value(), target.data(), target.size(), 0); });
    if (received > 0) return static_cast<std::size_t>(received);
    if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return std::size_t{0};
    if (stopped_) return stopped();
    if (received < 0) return broken("receive from", errno);
    return fail(ExitCode::communication, "{} has closed the connection", peer_);
  }

 private:
  template <typename Call>
  static ssize_t retried(Call call) {
    while (true) {
      const ssize_t moved = call();
      if (moved >= 0 || errno != EINTR) return moved;
    }
  }
  Result<bool> is_made() {
    if (!is_being_made_) return true;
    if (!wait_for(descriptor_.value(), POLLOUT, Deadline(0))) return false;
    const int reason = connect_error(descriptor_);
    if (reason != 0) return broken("connect to", reason);
    is_being_made_ = false;
    return true;
  }
  Error late(std::string_view what, std::int64_t timeout_ms) const {
    return fail(ExitCode::communication, "{} {} within {} ms", peer_, what, timeout_ms);
  }
  Error broken(std::string_view action, int reason) const {
    return fail(ExitCode::communication, "cannot {} {}: {}", action, peer_, reason_text(reason));
  }
  Error stopped() const {
    return fail(ExitCode::communication, "the connection to {} was ended by this process", peer_);
  }

  Descriptor descriptor_;
  std::string peer_;
  bool is_being_made_;
  std::atomic<bool> stopped_ = false;
};

class PosixListener final : public Listener {
 public:
  PosixListener(Descriptor descriptor, std::uint16_t port)
      : descriptor_(std::move(descriptor)), port_(port) {}

  void shut_down() override {
    stopped_ = true;
    shutdown(descriptor_.value(), SHUT_RDWR);  // wakes a waiting thread
  }
  int handle() const override { return descriptor_.value(); }
  std::uint16_t port() const override { return port_; }

  Result<std::unique_ptr<Connection>> accept(std::int64_t timeout_ms) override {
    const Deadline deadline(timeout_ms);
    while (!stopped_) {
      Address address;
      Descriptor accepted(
          accept4(descriptor_.value(), address.pointer(), &address.bytes, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (accepted.value() >= 0) {
        const std::string peer = text_of(number_of(address.pointer(), address.bytes), port_of(address));
        return std::unique_ptr<Connection>(std::make_unique<PosixConnection>(std::move(accepted), peer));
      }
      const int reason = errno;
      if (stopped_) break;
      // A connection that was closed before it could be accepted is no error of the listener.
      const bool gone = reason == EINTR || reason == ECONNABORTED || reason == EPROTO;
      if (!gone && reason != EAGAIN && reason != EWOULDBLOCK) {
        return fail(ExitCode::communication, "cannot accept a connection on port {}: {}", port_,
                    reason_text(reason));
      }
      if (!gone && !wait_for(descriptor_.value(), POLLIN, deadline)) return std::unique_ptr<Connection>();
    }
    return fail(ExitCode::communication, "port {} was closed by this process", port_);
  }

 private:
  Descriptor descriptor_;
  std::uint16_t port_;
  std::atomic<bool> stopped_ = false;
};

std::optional<Address> parse_number(const NetworkAddress& address) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found) != 0) return {};
  Address parsed;
  std::memcpy(&parsed.storage, found->ai_addr, found->ai_addrlen);
  parsed.bytes = found->ai_addrlen;
  freeaddrinfo(found);
  return parsed;
}

// Errno is set when there is none.
Descriptor listening_socket(const Address& address) {
  const int family = address.storage.ss_family;
  Descriptor descriptor(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (descriptor.value() < 0) return descriptor;
  if (family == AF_INET6) set_option(descriptor.value(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  // A port that was asked for may have been this run's a moment ago.
  if (port_of(address) != 0) set_option(descriptor.value(), SOL_SOCKET, SO_REUSEADDR, 1);
  const bool listens = bind(descriptor.value(), address.pointer(), address.bytes) == 0 &&
                       ::listen(descriptor.value(), SOMAXCONN) == 0;
  return listens ? std::move(descriptor) : Descriptor(-1);
}

// Listens at every interface where the address is empty.
Descriptor listening_socket(const NetworkAddress& address) {
  for (const char* const any : {"::", "0.0.0.0"}) {  // the first takes IPv4, too
    const std::optional<Address> own =
        parse_number({.host = address.host.empty() ? std::string(any) : address.host, .port = address.port});
    if (!own.has_value()) errno = EADDRNOTAVAIL;
    Descriptor descriptor = own.has_value() ? listening_socket(*own) : Descriptor(-1);
    if (descriptor.value() >= 0 || !address.host.empty()) return descriptor;
  }
  return Descriptor(-1);
}

// Returns the address from which a packet to a distant host would leave: nothing is sent, the kernel looks at
// its routes.
std::string address_of_default_route(int family, const char* far_away) {
  const std::optional<Address> target = parse_number({.host = far_away, .port = 9});
  const Descriptor descriptor(socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  Address own;
  const bool routed = target.has_value() && descriptor.value() >= 0 &&
                      ::connect(descriptor.value(), target->pointer(), target->bytes) == 0 &&
                      getsockname(descriptor.value(), own.pointer(), &own.bytes) == 0;
  return routed ? number_of(own.pointer(), own.bytes) : "";
}

struct Interface {
  std::string name, address;
  bool loopback = false, link_local = false;
};

// Returns the interfaces that are up, IPv4 first.
std::vector<Interface> interfaces() {
  std::vector<Interface> found;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return found;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
      if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != family) continue;
      if ((each->ifa_flags & IFF_UP) == 0) continue;
      const socklen_t bytes = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      const std::string address = number_of(each->ifa_addr, bytes);
      found.push_back({.name = each->ifa_name,
                       .address = address,
                       .loopback = (each->ifa_flags & IFF_LOOPBACK) != 0,
                       .link_local = address.starts_with("fe80:")});
    }
  }
  freeifaddrs(list);
  return found;
}

std::vector<std::string> addresses_by_preference(const std::vector<Interface>& there) {
  // Addresses that are kept for examples (RFC 5737, RFC 3849): every host routes them as it routes the world.
  std::vector<std::string> addresses;
  const auto add = [&](const std::string& address) {
    if (!address.empty() && std::ranges::find(addresses, address) == addresses.end())
      addresses.push_back(address);
  };
  add(address_of_default_route(AF_INET, "192.0.2.1"));
  add(address_of_default_route(AF_INET6, "2001:db8::1"));
  for (const Interface& each : there) {
    if (!each.loopback && !each.link_local) add(each.address);
  }
  if (addresses.empty()) add("127.0.0.1");
  return addresses;
}

class PosixNetwork final : public Network {
 public:
  Result<std::unique_ptr<Listener>> listen(const std::string& address) override {
    return listen_on({.host = address, .port = 0});
  }

  Result<std::unique_ptr<Listener>> listen_on(const NetworkAddress& address) override {
    Descriptor descriptor = listening_socket(address);
    Address own;
    if (descriptor.value() < 0 || getsockname(descriptor.value(), own.pointer(), &own.bytes) != 0) {
      return fail(ExitCode::communication, "this host gives no port to listen on{}{}: {}",
                  address.host.empty() ? "" : " at " + address.host,
                  address.port == 0 ? "" : fmt::format(" (port {} was asked for)", address.port),
                  reason_text(errno));
    }
    const std::uint16_t port = port_of(own);
    return std::unique_ptr<Listener>(std::make_unique<PosixListener>(std::move(descriptor), port));
  }

  Result<std::vector<std::string>> own_addresses(const std::string& interface) override {
    const std::vector<Interface> there = interfaces();
    if (interface.empty()) return addresses_by_preference(there);
    std::vector<std::string> chosen, known;
    for (const Interface& each : there) {
      if (each.name == interface || each.address == interface) chosen.push_back(each.address);
      known.push_back(fmt::format("{} ({})", each.name, each.address));
    }
    if (!chosen.empty()) return chosen;
    return fail(
        ExitCode::communication,
        "host {} has no network interface '{}'; those that are up are {}. Set network.interface to the "
        "name or the address of the one that the other hosts reach, or leave it out",
        posix_env().host_name(), interface, fmt::join(known, ", "));
  }

  bool wait_any_readable(std::span<Socket* const> sockets, std::int64_t timeout_ms) override {
    std::vector<pollfd> waited;
    for (const Socket* socket : sockets)
      waited.push_back({.fd = socket->handle(), .events = POLLIN, .revents = 0});
    const Deadline deadline(timeout_ms);
    while (true) {
      const int ready = poll(waited.data(), waited.size(), deadline.left_ms());
      if (ready >= 0 || errno != EINTR) return ready > 0;
    }
  }

  std::vector<std::size_t> find_readable(std::span<Socket* const> sockets) override {
    std::vector<pollfd> looked_at;
    looked_at.reserve(sockets.size());
    for (const Socket* socket : sockets)
      looked_at.push_back({.fd = socket->handle(), .events = POLLIN, .revents = 0});
    std::vector<std::size_t> found;
    if (poll(looked_at.data(), looked_at.size(), 0) <= 0) return found;
    for (std::size_t index = 0; index < looked_at.size(); ++index) {
      if (looked_at[index].revents != 0) found.push_back(index);
    }
    return found;
  }

  Result<std::unique_ptr<Connection>> begin_connection(const NetworkAddress& address) override {
    HF_TRY(Attempt attempt, begin(address));
    return std::unique_ptr<Connection>(std::make_unique<PosixConnection>(
        std::move(attempt.descriptor), text_of(address.host, address.port), !attempt.is_made));
  }

 private:
  struct Attempt {
    Descriptor descriptor{-1};
    bool is_made = false;
  };

  static Error refused(const NetworkAddress& address, const std::string& reason) {
    return fail(ExitCode::communication, "cannot connect to {}: {}", text_of(address.host, address.port),
                reason);
  }

  static Result<Attempt> begin(const NetworkAddress& address) {
    const std::optional<Address> target = parse_number(address);
    if (!target.has_value()) return refused(address, "that is no number of a host, such as 10.0.0.7");
    Attempt attempt{.descriptor = Descriptor(
                        socket(target->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0))};
    if (attempt.descriptor.value() < 0) return refused(address, reason_text(errno));
    attempt.is_made = ::connect(attempt.descriptor.value(), target->pointer(), target->bytes) == 0;
    if (!attempt.is_made && errno != EINPROGRESS && errno != EINTR)
      return refused(address, reason_text(errno));
    return attempt;
  }

  Result<std::unique_ptr<Connection>> make_connection(const NetworkAddress& address, std::int64_t timeout_ms,
                                                      const std::atomic<bool>* stopped) override {
    const Deadline deadline(timeout_ms);
    HF_TRY(Attempt attempt, begin(address));
    if (!attempt.is_made) {
      const auto is_stopped = [&] { return stopped != nullptr && *stopped; };
      while (!is_stopped() &&
             !wait_for(attempt.descriptor.value(), POLLOUT, deadline.at_most(stop_look_ms))) {
        if (deadline.left_ms() == 0)
          return refused(address, fmt::format("no answer within {} ms", timeout_ms));
      }
      if (is_stopped()) return refused(address, "this process has ended the attempt");
      if (const int reason = connect_error(attempt.descriptor); reason != 0)
        return refused(address, reason_text(reason));
    }
    return std::unique_ptr<Connection>(std::make_unique<PosixConnection>(
        std::move(attempt.descriptor), text_of(address.host, address.port)));
  }
};

}  // namespace

TcpTotals tcp_totals() {
  // The C library knows the older part of what the kernel tells (linux/tcp.h) alone.
  struct LongTcpInfo {
    tcp_info known;
    std::uint64_t rates_and_bytes[4];
    std::uint32_t segments_out, others[5];
    std::uint64_t times[4];
    std::uint32_t delivered[2];
    std::uint64_t bytes[2];
    std::uint32_t came_twice, reordered;  // of those sent again, by what the peer acknowledged (D-SACK)
  };
  constexpr int most_descriptors = 65'536;
  TcpTotals totals;
  for (int descriptor = 0; descriptor < most_descriptors; ++descriptor) {
    LongTcpInfo info{};
    socklen_t bytes = sizeof(info);
    if (getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) continue;
    totals.sent += info.segments_out;
    totals.lost += info.known.tcpi_total_retrans - std::min(info.known.tcpi_total_retrans, info.came_twice);
  }
  return totals;
}

Network& posix_network() {
  static PosixNetwork network;  // stateless
  return network;
}

}  // namespace holdfast::os
