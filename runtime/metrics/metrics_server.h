// MetricsServer: answers scrapers by HTTP (metrics.listen; docs/metrics.md) on a thread of its own. What it shows is what the
// sink has put on the page last, so no scraper makes the run work.
//
// A client has 5 s for all of it, and few are served at once, so one that sends slowly, or takes its answer slowly, holds
// up nobody but those who come with it. Nothing that a client sends is kept or told.
//
// Threads: one owner; MetricsPage: any. Errors (communication): the address cannot be listened on.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/os/network.h"
#include "runtime/os/thread.h"
#include "runtime/run/run_directory.h"

namespace holdfast::metrics {

// The newest text of the metrics.
class MetricsPage {
 public:
  void set(std::string text) {
    auto page = std::make_shared<const std::string>(std::move(text));
    const std::lock_guard lock(mutex_);
    page_ = std::move(page);
  }
  std::shared_ptr<const std::string> get() const {
    const std::lock_guard lock(mutex_);
    return page_;
  }

 private:
  mutable std::mutex mutex_;  // guards page_
  std::shared_ptr<const std::string> page_ = std::make_shared<const std::string>("# EOF\n");
};

class MetricsServer {
 public:
  static constexpr std::int64_t client_ms = 5'000;
  static constexpr std::size_t clients_max = 8;
  // `token`: what clients must know; empty: nothing.
  static Result<std::unique_ptr<MetricsServer>> listen(Env& env, const NetworkAddress& address,
                                                       std::string token,
                                                       std::shared_ptr<const MetricsPage> page);
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  std::uint16_t port() const { return listener_->port(); }

 private:
  struct Client {
    std::unique_ptr<Connection> connection = {};
    std::int64_t until_ns = 0;
    std::string received = {};
    std::string answer = {};  // empty: the question is not whole
    std::size_t sent = 0;
  };
  MetricsServer(Env& env, std::unique_ptr<Listener> listener, std::string token,
                std::shared_ptr<const MetricsPage> page);
  void work();
  void accept_clients();
  bool serve(Client& client) const;
  bool read(Client& client) const;

  Env* env_;
  std::unique_ptr<Listener> listener_;
  std::string token_;
  std::shared_ptr<const MetricsPage> page_;
  std::vector<Client> clients_;
  std::atomic<bool> ends_ = false;
  std::unique_ptr<Thread> thread_;  // last, because it uses the others
};

// Returns metrics.listen as an address, or an error (config) with what was expected.
Result<NetworkAddress> listen_address_of(const std::string& listen);
// Returns the token of the run, which it makes where there is none: 64 hexadecimal digits in RUN/metrics_token, which its
// owner alone may read. Errors: it cannot be made, or (config) others may read it.
Result<std::string> metrics_token(Env& env, const RunPaths& paths);

}  // namespace holdfast::metrics
