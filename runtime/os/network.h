// Network: plain TCP between the hosts of a run, separate from the transport of MPI: for what must work when
// MPI does not, and for threads that may not call it.
//
//   HF_TRY(const std::unique_ptr<Listener> listener, network.listen(""));
//   HF_TRY(const std::vector<std::string> addresses, network.own_addresses(""));
//   inform_others(addresses, listener->port());
//   HF_TRY(const std::unique_ptr<Connection> connection, network.connect({address, port}, timeout_ms));
//   HF_TRY_VOID(connection->send(message, timeout_ms));
//
// Nothing here is encrypted, and anything that reaches the port may connect: processes of a run use it
// through SealedNetwork (sealed_network.h). A peer whose host is gone is noticed within
// Connection::silence_timeout_ms, also where nothing is sent.
//
// Threads: a socket belongs to one thread at a time, but any thread may call shut_down(). Errors:
// ExitCode::communication, with the peer's address and the system's reason. A peer that is gone is an error,
// never a signal.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/result.h"

namespace holdfast::os {

// Closed by the destructor.
class Socket {
 public:
  virtual ~Socket() = default;
  // Makes every call fail from now on, including one in which another thread waits.
  virtual void shut_down() = 0;
  virtual int handle() const = 0;  // for Network::wait_any_readable()
};

class Connection : public Socket {
 public:
  static constexpr std::int64_t silence_timeout_ms = 15'000;

  // Both move all bytes within `timeout_ms`, or return an error. What was moved until then is lost: after an
  // error the connection is of no use.
  virtual Result<void> send(std::span<const std::byte> source, std::int64_t timeout_ms) = 0;
  virtual Result<void> receive(std::span<std::byte> target, std::int64_t timeout_ms) = 0;
  // Both move as much as is possible without waiting, and return the number of bytes. Error: the peer has
  // closed, or is gone, and everything that it sent has been received.
  virtual Result<std::size_t> send_some(std::span<const std::byte> source) = 0;
  virtual Result<std::size_t> receive_some(std::span<std::byte> target) = 0;
  virtual const std::string& peer() const = 0;  // "10.0.0.7 port 40112", for sentences
};

class Listener : public Socket {
 public:
  virtual std::uint16_t port() const = 0;
  // Returns null when no connection arrived within the time; 0: without waiting.
  virtual Result<std::unique_ptr<Connection>> accept(std::int64_t timeout_ms) = 0;
};

struct NetworkAddress {
  std::string host;  // numeric, such as 10.0.0.7 or fe80::1; names are not looked up, which may take minutes
  std::uint16_t port = 0;
};

class Network {
 public:
  virtual ~Network() = default;
  // Listens on a free port of the interface that has this numeric address; empty: of every interface.
  virtual Result<std::unique_ptr<Listener>> listen(const std::string& address) = 0;
  // Listens on a port that a user has chosen; 0: a free one. Networks that are not the system's have no such ports.
  virtual Result<std::unique_ptr<Listener>> listen_on(const NetworkAddress& address) {
    if (address.port == 0) return listen(address.host);
    return fail(ExitCode::communication, "port {} cannot be chosen in this network", address.port);
  }
  // Connects within the time, unless `*stopped` becomes true: another thread sets it to end the attempt,
  // which then is an error at most stop_look_ms later. Null: nothing stops it.
  static constexpr std::int64_t stop_look_ms = 50;
  Result<std::unique_ptr<Connection>> connect(const NetworkAddress& address, std::int64_t timeout_ms,
                                              const std::atomic<bool>* stopped = nullptr) {
    return make_connection(address, timeout_ms, stopped);
  }
  // Begins to connect, without waiting. send_some() and receive_some() of the connection return 0 while it is
  // being made; the error that prevents it is theirs.
  virtual Result<std::unique_ptr<Connection>> begin_connection(const NetworkAddress& address) = 0;
  // Returns numeric addresses by which other hosts may reach this one, never empty. With an empty
  // `interface`: first that of the default route, then those of the other interfaces that are up; loopback
  // only where there is nothing else. Otherwise those of this interface: a name such as eth0, or an address.
  virtual Result<std::vector<std::string>> own_addresses(const std::string& interface) = 0;
  // Waits, at most for `timeout_ms`, until one of the sockets has something to receive or accept, or an
  // error; returns whether one has.
  virtual bool wait_any_readable(std::span<Socket* const> sockets, std::int64_t timeout_ms) = 0;
  // Returns the indices of the sockets that have something to receive or accept, or an error, without waiting:
  // one call of the system for thousands of sockets, most of which have nothing.
  virtual std::vector<std::size_t> find_readable(std::span<Socket* const> sockets) = 0;

 private:
  virtual Result<std::unique_ptr<Connection>> make_connection(const NetworkAddress& address,
                                                              std::int64_t timeout_ms,
                                                              const std::atomic<bool>* stopped) = 0;
};

// Returns the object that Env::network() of the real operating system returns.
Network& posix_network();

}  // namespace holdfast::os
