// FaultyNetwork: a Network in front of another one whose connections break as a bad cable, a host that dies
// or a stranger would break them.
//
//   FaultyNetwork network(posix_network());
//   network.inject({.kind = NetworkFault::Kind::cut, .at = 1000});   // the 1,000th byte that is sent, once
//   network.inject({.kind = NetworkFault::Kind::refuse, .at = 2});   // the second connect()
//
// Bytes are counted over all connections since inject(), in the order of sending. Thread-safe.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/os/network.h"
#include "tests/support/forwarding_env.h"

namespace holdfast::test {

struct NetworkFault {
  enum class Kind {
    refuse,   // connect() is refused
    cut,      // what is sent before is sent, then the connection is closed
    corrupt,  // the byte arrives with one bit flipped
    swallow,  // this and what is sent after it on the connection never arrives, and nobody is told
  };
  Kind kind = Kind::cut;
  std::uint64_t at = 1;  // connect or byte, counted from 1
};

class FaultyNetwork final : public Network {
 public:
  explicit FaultyNetwork(Network& inner) : inner_(&inner) {}

  void inject(const NetworkFault& fault) {
    const std::lock_guard guard(mutex_);
    faults_.push_back({fault, 0});
  }
  std::uint64_t failure_count() const {
    const std::lock_guard guard(mutex_);
    return failures_;
  }
  std::uint64_t sent_bytes() const {
    const std::lock_guard guard(mutex_);
    return sent_bytes_;
  }

  Result<std::unique_ptr<Listener>> listen(const std::string& address) override {
    HF_TRY(std::unique_ptr<Listener> listener, inner_->listen(address));
    return std::unique_ptr<Listener>(std::make_unique<FaultyListener>(*this, std::move(listener)));
  }
  Result<std::unique_ptr<Connection>> make_connection(const NetworkAddress& address, std::int64_t timeout_ms,
                                                      const std::atomic<bool>* stopped) override {
    if (next(1, true).has_value()) return refused(address);
    HF_TRY(std::unique_ptr<Connection> connection, inner_->connect(address, timeout_ms, stopped));
    return wrap(std::move(connection));
  }
  Result<std::unique_ptr<Connection>> begin_connection(const NetworkAddress& address) override {
    if (next(1, true).has_value()) return refused(address);
    HF_TRY(std::unique_ptr<Connection> connection, inner_->begin_connection(address));
    return wrap(std::move(connection));
  }
  Result<std::vector<std::string>> own_addresses(const std::string& interface) override {
    return inner_->own_addresses(interface);
  }
  bool wait_any_readable(std::span<Socket* const> sockets, std::int64_t timeout_ms) override {
    return inner_->wait_any_readable(sockets, timeout_ms);  // by their handles
  }
  std::vector<std::size_t> find_readable(std::span<Socket* const> sockets) override {
    return inner_->find_readable(sockets);
  }

 private:
  static Error refused(const NetworkAddress& address) {
    return fail(ExitCode::communication, "cannot connect to {} port {}: Connection refused", address.host,
                address.port);
  }
  struct Armed {
    NetworkFault fault;
    std::uint64_t seen = 0;
  };
  struct Hit {
    NetworkFault::Kind kind;
    std::size_t offset;  // of the byte, in what is sent
  };

  class FaultyConnection final : public Connection {
   public:
    FaultyConnection(FaultyNetwork& network, std::unique_ptr<Connection> inner)
        : network_(&network), inner_(std::move(inner)) {}
    void shut_down() override { inner_->shut_down(); }
    int handle() const override { return inner_->handle(); }
    const std::string& peer() const override { return inner_->peer(); }
    Result<void> receive(std::span<std::byte> target, std::int64_t timeout_ms) override {
      return inner_->receive(target, timeout_ms);
    }
    Result<std::size_t> receive_some(std::span<std::byte> target) override {
      return inner_->receive_some(target);
    }
    Result<void> send(std::span<const std::byte> source, std::int64_t timeout_ms) override {
      HF_TRY(const bool sent, send_with_fault(source, timeout_ms));
      return sent ? Result<void>() : inner_->send(source, timeout_ms);
    }
    Result<std::size_t> send_some(std::span<const std::byte> source) override {
      constexpr std::int64_t timeout_ms = 10'000;
      HF_TRY(const bool sent, send_with_fault(source, timeout_ms));
      return sent ? source.size() : inner_->send_some(source);
    }

   private:
    // False: nothing is wrong with these bytes.
    Result<bool> send_with_fault(std::span<const std::byte> source, std::int64_t timeout_ms) {
      if (swallows_) return true;
      const std::optional<Hit> hit = network_->next(source.size(), false);
      if (!hit.has_value()) return false;
      std::vector<std::byte> bytes(source.begin(), source.end());
      if (hit->kind == NetworkFault::Kind::corrupt) {
        bytes[hit->offset] ^= std::byte{16};
      } else {
        bytes.resize(hit->offset);
      }
      HF_TRY_VOID(inner_->send(bytes, timeout_ms));
      swallows_ = hit->kind == NetworkFault::Kind::swallow;
      if (hit->kind != NetworkFault::Kind::cut) return true;
      inner_->shut_down();
      return fail(ExitCode::communication, "cannot send to {}: Broken pipe", peer());
    }

    FaultyNetwork* network_;
    std::unique_ptr<Connection> inner_;
    bool swallows_ = false;
  };

  class FaultyListener final : public Listener {
   public:
    FaultyListener(FaultyNetwork& network, std::unique_ptr<Listener> inner)
        : network_(&network), inner_(std::move(inner)) {}
    void shut_down() override { inner_->shut_down(); }
    int handle() const override { return inner_->handle(); }
    std::uint16_t port() const override { return inner_->port(); }
    Result<std::unique_ptr<Connection>> accept(std::int64_t timeout_ms) override {
      HF_TRY(std::unique_ptr<Connection> connection, inner_->accept(timeout_ms));
      if (connection == nullptr) return connection;
      return network_->wrap(std::move(connection));
    }

   private:
    FaultyNetwork* network_;
    std::unique_ptr<Listener> inner_;
  };

  Result<std::unique_ptr<Connection>> wrap(std::unique_ptr<Connection> connection) {
    return std::unique_ptr<Connection>(std::make_unique<FaultyConnection>(*this, std::move(connection)));
  }

  // Counts a connect, or bytes that are sent; the fault that hits them, if any.
  std::optional<Hit> next(std::uint64_t count, bool is_connect) {
    const std::lock_guard guard(mutex_);
    if (!is_connect) sent_bytes_ += count;
    std::optional<Hit> hit;
    for (Armed& armed : faults_) {
      if ((armed.fault.kind == NetworkFault::Kind::refuse) != is_connect) continue;
      const std::uint64_t before = armed.seen;
      armed.seen += count;
      if (hit.has_value() || before >= armed.fault.at || armed.seen < armed.fault.at) continue;
      hit = Hit{armed.fault.kind, armed.fault.at - before - 1};
    }
    if (hit.has_value()) ++failures_;
    return hit;
  }

  Network* inner_;
  mutable std::mutex mutex_;
  std::vector<Armed> faults_;
  std::uint64_t sent_bytes_ = 0;
  std::uint64_t failures_ = 0;
};

// An Env with it.
class FaultyNetworkEnv final : public ForwardingEnv {
 public:
  explicit FaultyNetworkEnv(Env& inner) : ForwardingEnv(inner), network_(inner.network()) {}
  FaultyNetwork& network() override { return network_; }

 private:
  FaultyNetwork network_;
};

}  // namespace holdfast::test
