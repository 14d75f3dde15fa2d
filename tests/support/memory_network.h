// MemoryNetwork: a Network within one process, for tests on a clock of their own. What is sent has arrived
// when the call returns, so nothing depends on when the kernel delivers it.
//
//   MemoryNetwork network;
//   const std::unique_ptr<Listener> listener = network.listen("").value();
//   const auto connection = network.connect({"127.0.0.1", listener->port()}, 0).value();
//
// Nothing in it waits: receive() is an error where less has arrived, connect() where nobody listens, and
// wait_any_readable() is not for it. For one thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/check.h"
#include "runtime/os/network.h"

namespace holdfast {

class MemoryNetwork final : public Network {
 public:
  Result<std::unique_ptr<Listener>> listen(const std::string&) override {
    const std::uint16_t port = next_port_++;
    auto waiting = std::make_shared<Waiting>();
    listeners_[port] = waiting;
    return std::unique_ptr<Listener>(std::make_unique<MemoryListener>(port, std::move(waiting)));
  }
  Result<std::unique_ptr<Connection>> make_connection(const NetworkAddress& address, std::int64_t,
                                                      const std::atomic<bool>*) override {
    const std::shared_ptr<Waiting> listener = listeners_[address.port].lock();
    if (listener == nullptr)
      return fail(ExitCode::communication, "cannot connect to port {}: Connection refused", address.port);
    auto there = std::make_shared<Pipe>(), back = std::make_shared<Pipe>();
    listener->push_back(std::make_unique<MemoryConnection>(there, back));
    return std::unique_ptr<Connection>(std::make_unique<MemoryConnection>(back, there));
  }
  Result<std::vector<std::string>> own_addresses(const std::string&) override {
    return std::vector<std::string>{"127.0.0.1"};
  }
  bool wait_any_readable(std::span<Socket* const>, std::int64_t) override {
    HF_CHECK(false, "a MemoryNetwork does not wait");
    return false;
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
    MemoryConnection(std::shared_ptr<Pipe> in, std::shared_ptr<Pipe> out)
        : in_(std::move(in)), out_(std::move(out)) {}
    MemoryConnection(const MemoryConnection&) = delete;
    MemoryConnection& operator=(const MemoryConnection&) = delete;
    ~MemoryConnection() override { in_->closed = out_->closed = true; }
    void shut_down() override { in_->closed = out_->closed = true; }
    int handle() const override { return -1; }
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
    std::shared_ptr<Pipe> in_, out_;
    std::string peer_ = "memory";
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

  std::map<std::uint16_t, std::weak_ptr<Waiting>> listeners_;
  std::uint16_t next_port_ = 1;
};

}  // namespace holdfast
