// MemoryNetwork: a Network within one process, for tests on a clock of their own. What is sent has arrived
// when the call returns, so nothing depends on when the kernel delivers it.
//
//   MemoryNetwork network;
//   const std::unique_ptr<Listener> listener = network.listen("").value();
//   const auto connection = network.connect({"127.0.0.1", listener->port()}, 0).value();
//
// With set_far(), a connection takes a while until it is made, as between hosts that are far from each other.
// Nothing in it waits: receive() is an error where less has arrived, connect() where nobody listens, and
// wait_any_readable() is not for it. For one thread.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/check.h"
#include "runtime/os/network.h"

namespace holdfast::test {

class MemoryNetwork final : public Network {
 public:
  // Lets each connection take `connect_ns` of `clock`, an error of connect() where it has less time.
  void set_far(std::int64_t connect_ns, std::function<std::int64_t()> clock) {
    connect_ns_ = connect_ns;
    clock_ = std::move(clock);
  }
  Result<std::unique_ptr<Listener>> listen(const std::string&) override {
    const std::uint16_t port = next_port_++;
    auto waiting = std::make_shared<Waiting>();
    listeners_[port] = waiting;
    return std::unique_ptr<Listener>(std::make_unique<MemoryListener>(port, std::move(waiting)));
  }
  Result<std::unique_ptr<Connection>> make_connection(const NetworkAddress& address, std::int64_t timeout_ms,
                                                      const std::atomic<bool>*) override {
    if (timeout_ms * 1'000'000 < connect_ns_)
      return fail(ExitCode::communication, "cannot connect to port {}: no answer within {} ms", address.port,
                  timeout_ms);
    return begin_connection(address);
  }
  Result<std::unique_ptr<Connection>> begin_connection(const NetworkAddress& address) override {
    const std::shared_ptr<Waiting> listener = listeners_[address.port].lock();
    if (listener == nullptr)
      return fail(ExitCode::communication, "cannot connect to port {}: Connection refused", address.port);
    auto there = std::make_shared<Pipe>(), back = std::make_shared<Pipe>();
    listener->push_back(make_end(there, back));
    std::unique_ptr<Connection> near = make_end(back, there);
    if (connect_ns_ == 0) return near;
    return std::unique_ptr<Connection>(
        std::make_unique<FarConnection>(std::move(near), clock_() + connect_ns_, clock_));
  }
  Result<std::vector<std::string>> own_addresses(const std::string&) override {
    return std::vector<std::string>{"127.0.0.1"};
  }
  bool wait_any_readable(std::span<Socket* const>, std::int64_t) override {
    HF_CHECK(false, "a MemoryNetwork does not wait");
    return false;
  }
  std::vector<std::size_t> find_readable(std::span<Socket* const> sockets) override {
    std::vector<std::size_t> found;
    for (std::size_t index = 0; index < sockets.size(); ++index) {
      const std::shared_ptr<Pipe> in = ends_[static_cast<std::size_t>(sockets[index]->handle())].lock();
      if (in == nullptr || !in->bytes.empty() || in->closed) found.push_back(index);
    }
    return found;
  }

 private:
  // From one end of a connection to the other.
  struct Pipe {
    std::vector<std::byte> bytes = {};
    bool closed = false;
  };
  using Waiting = std::deque<std::unique_ptr<Connection>>;  // to be accepted

  class MemoryConnection final : public Connection {
   public:
    MemoryConnection(int handle, std::shared_ptr<Pipe> in, std::shared_ptr<Pipe> out)
        : handle_(handle), in_(std::move(in)), out_(std::move(out)) {}
    MemoryConnection(const MemoryConnection&) = delete;
    MemoryConnection& operator=(const MemoryConnection&) = delete;
    ~MemoryConnection() override { in_->closed = out_->closed = true; }
    void shut_down() override { in_->closed = out_->closed = true; }
    int handle() const override { return handle_; }
    const std::string& peer() const override { return peer_; }
    Result<std::size_t> send_some(std::span<const std::byte> source) override {
      if (out_->closed) return fail(ExitCode::communication, "cannot send to {}: Broken pipe", peer_);
      out_->bytes.insert(out_->bytes.end(), source.begin(), source.end());
      return source.size();
    }
    Result<std::size_t> receive_some(std::span<std::byte> target) override {
      if (in_->bytes.empty() && in_->closed) return fail(ExitCode::communication, "{} has closed", peer_);
      const std::size_t count = std::min(target.size(), in_->bytes.size());
      const auto end = in_->bytes.begin() + static_cast<std::ptrdiff_t>(count);
      std::copy(in_->bytes.begin(), end, target.begin());
      in_->bytes.erase(in_->bytes.begin(), end);
      return count;
    }
    Result<void> send(std::span<const std::byte> source, std::int64_t) override {
      HF_TRY_VOID(send_some(source));
      return {};
    }
    Result<void> receive(std::span<std::byte> target, std::int64_t) override {
      HF_TRY(const std::size_t count, receive_some(target));
      if (count < target.size()) return fail(ExitCode::communication, "nothing more came from {}", peer_);
      return {};
    }

   private:
    int handle_;
    std::shared_ptr<Pipe> in_, out_;
    std::string peer_ = fmt::format("memory-{}", handle_);  // each as if it came from a host of its own
  };

  // A connection that is made at a time to come.
  class FarConnection final : public Connection {
   public:
    FarConnection(std::unique_ptr<Connection> inner, std::int64_t made_ns,
                  std::function<std::int64_t()> clock)
        : inner_(std::move(inner)), made_ns_(made_ns), clock_(std::move(clock)) {}
    void shut_down() override { inner_->shut_down(); }
    int handle() const override { return inner_->handle(); }
    const std::string& peer() const override { return inner_->peer(); }
    Result<std::size_t> send_some(std::span<const std::byte> source) override {
      return clock_() < made_ns_ ? std::size_t{0} : inner_->send_some(source);
    }
    Result<std::size_t> receive_some(std::span<std::byte> target) override {
      return clock_() < made_ns_ ? std::size_t{0} : inner_->receive_some(target);
    }
    Result<void> send(std::span<const std::byte> source, std::int64_t timeout_ms) override {
      return inner_->send(source, timeout_ms);
    }
    Result<void> receive(std::span<std::byte> target, std::int64_t timeout_ms) override {
      return inner_->receive(target, timeout_ms);
    }

   private:
    std::unique_ptr<Connection> inner_;
    std::int64_t made_ns_;
    std::function<std::int64_t()> clock_;
  };

  class MemoryListener final : public Listener {
   public:
    MemoryListener(std::uint16_t port, std::shared_ptr<Waiting> waiting)
        : port_(port), waiting_(std::move(waiting)) {}
    void shut_down() override { waiting_.reset(); }
    int handle() const override { return -1; }
    std::uint16_t port() const override { return port_; }
    Result<std::unique_ptr<Connection>> accept(std::int64_t) override {
      if (waiting_ == nullptr) return fail(ExitCode::communication, "port {} is shut down", port_);
      if (waiting_->empty()) return std::unique_ptr<Connection>();
      std::unique_ptr<Connection> first = std::move(waiting_->front());
      waiting_->pop_front();
      return first;
    }

   private:
    std::uint16_t port_;
    std::shared_ptr<Waiting> waiting_;
  };

  std::unique_ptr<Connection> make_end(const std::shared_ptr<Pipe>& in, std::shared_ptr<Pipe> out) {
    ends_.push_back(in);
    return std::make_unique<MemoryConnection>(static_cast<int>(ends_.size()) - 1, in, std::move(out));
  }

  std::vector<std::weak_ptr<Pipe>> ends_;  // by handle: what the end receives from
  std::map<std::uint16_t, std::weak_ptr<Waiting>> listeners_;
  std::uint16_t next_port_ = 1;
  std::int64_t connect_ns_ = 0;
  std::function<std::int64_t()> clock_ = {};
};

}  // namespace holdfast::test
