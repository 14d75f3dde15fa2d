#include "runtime/os/sealed_network.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "runtime/os/sealed_session.h"

namespace holdfast::os {
namespace {

constexpr std::int64_t ns_in_a_ms = 1'000'000;

class SealedConnection final : public Connection {
 public:
  SealedConnection(Env& env, std::unique_ptr<Connection> inner, SealedSession session)
      : env_(&env), inner_(std::move(inner)), session_(std::move(session)) {}

  void shut_down() override { inner_->shut_down(); }
  int handle() const override { return inner_->handle(); }
  const std::string& peer() const override { return inner_->peer(); }
  // Returns whether the other end has said something that takes the secret.
  bool has_spoken() const { return has_spoken_; }
  // Returns whether what it said is not what one of this run says.
  bool is_refused() const { return is_refused_; }

  Result<void> send(std::span<const std::byte> source, std::int64_t timeout_ms) override {
    const std::int64_t end_ns = env_->monotonic_ns() + timeout_ms * ns_in_a_ms;
    HF_TRY_VOID(establish(end_ns));
    while (!source.empty()) {
      source = source.subspan(session_.seal(source));
      HF_TRY_VOID(flush(end_ns));
    }
    return {};
  }

  Result<void> receive(std::span<std::byte> target, std::int64_t timeout_ms) override {
    const std::int64_t end_ns = env_->monotonic_ns() + timeout_ms * ns_in_a_ms;
    HF_TRY_VOID(establish(end_ns));
    while (!target.empty()) {
      target = target.subspan(session_.take(target));
      if (!target.empty()) HF_TRY_VOID(await(end_ns));
    }
    return {};
  }

  Result<std::size_t> send_some(std::span<const std::byte> source) override {
    HF_TRY(const bool established, establish_some());
    if (!established) return std::size_t{0};
    if (sealing_ == 0 && !source.empty()) sealing_ = session_.seal(source);
    HF_TRY(const bool flushed, flush_some());
    return flushed ? std::exchange(sealing_, 0) : std::size_t{0};
  }

  Result<std::size_t> receive_some(std::span<std::byte> target) override {
    HF_TRY(const bool established, establish_some());
    if (!established || target.empty()) return std::size_t{0};
    while (true) {
      if (const std::size_t count = session_.take(target); count > 0) return count;
      HF_TRY(const bool more, await_some());
      if (!more) return std::size_t{0};
    }
  }

  // Goes on as far as it goes without waiting; whether both have proved themselves, and nothing of that is
  // left to be sent.
  Result<bool> establish_some() {
    while (true) {
      HF_TRY(const bool flushed, sealing_ > 0 ? Result<bool>(true) : flush_some());
      if (session_.is_established()) return flushed;
      HF_TRY(const bool more, await_some());
      if (!more) return false;
    }
  }

 private:
  std::int64_t left_ms(std::int64_t end_ns) const {
    return std::max<std::int64_t>(0, (end_ns - env_->monotonic_ns() + ns_in_a_ms - 1) / ns_in_a_ms);
  }
  Result<void> establish(std::int64_t end_ns) {
    while (true) {
      HF_TRY_VOID(flush(end_ns));
      if (session_.is_established()) return {};
      HF_TRY_VOID(await(end_ns));
    }
  }
  Result<void> flush(std::int64_t end_ns) {
    const std::span<const std::byte> outgoing = session_.outgoing();
    if (outgoing.empty()) return {};
    HF_TRY_VOID(inner_->send(outgoing, left_ms(end_ns)));
    session_.sent(outgoing.size());
    return {};
  }
  Result<void> await(std::int64_t end_ns) {
    const std::span<std::byte> awaited = session_.awaited();
    HF_TRY_VOID(inner_->receive(awaited, left_ms(end_ns)));
    return hear(awaited.size());
  }
  // Returns whether nothing is left.
  Result<bool> flush_some() {
    while (!session_.outgoing().empty()) {
      HF_TRY(const std::size_t count, inner_->send_some(session_.outgoing()));
      if (count == 0) return false;
      session_.sent(count);
    }
    return true;
  }
  // Returns whether something came.
  Result<bool> await_some() {
    HF_TRY(const std::size_t count, inner_->receive_some(session_.awaited()));
    if (count > 0) HF_TRY_VOID(hear(count));
    return count > 0;
  }
  Result<void> hear(std::size_t count) {
    const std::size_t before = session_.outgoing().size();
    Result<void> heard = session_.arrived(count, peer());
    has_spoken_ = has_spoken_ || session_.outgoing().size() > before;  // it is answered
    is_refused_ = !heard.ok();
    return heard;
  }

  Env* env_;
  std::unique_ptr<Connection> inner_;
  SealedSession session_;
  std::size_t sealing_ = 0;  // bytes of the caller's in the record that is being sent
  bool has_spoken_ = false, is_refused_ = false;
};

// "10.0.0.7" of "10.0.0.7 port 40112".
std::string address_of(const Connection& connection) {
  return connection.peer().substr(0, connection.peer().find(' '));
}

class SealedListener final : public Listener {
 public:
  SealedListener(Env& env, const Secret& secret, std::string purpose, std::unique_ptr<Listener> inner)
      : env_(&env), secret_(secret), purpose_(std::move(purpose)), inner_(std::move(inner)) {}

  void shut_down() override { inner_->shut_down(); }
  int handle() const override { return inner_->handle(); }
  std::uint16_t port() const override { return inner_->port(); }

  Result<std::unique_ptr<Connection>> accept(std::int64_t timeout_ms) override {
    const std::int64_t begin_ns = env_->monotonic_ns(), end_ns = begin_ns + timeout_ms * ns_in_a_ms;
    const std::int64_t pause_ns = begin_ns - looked_ns_ - SealedNetwork::longest_pause_ms * ns_in_a_ms;
    for (Stranger& each : strangers_) each.came_ns += std::max<std::int64_t>(0, pause_ns);
    while (true) {
      const Result<void> met = meet();  // earlier callers count even where no more can come
      std::unique_ptr<Connection> known = next_known();
      looked_ns_ = env_->monotonic_ns();
      if (known != nullptr) return known;
      HF_TRY_VOID(met);
      const std::int64_t left_ms = (end_ns - looked_ns_ + ns_in_a_ms - 1) / ns_in_a_ms;
      if (left_ms <= 0) return std::unique_ptr<Connection>();
      wait(left_ms);
    }
  }

 private:
  struct Stranger {
    std::unique_ptr<SealedConnection> connection;
    std::string address;
    std::int64_t came_ns = 0;
  };

  // Bounded, so that a flood does not keep it from those that it knows. What a newcomer says is looked at
  // before the next one comes, who may take its place.
  Result<void> meet() {
    constexpr int max_at_once = 1'000;
    for (int met = 0; met < max_at_once; ++met) {
      HF_TRY(std::unique_ptr<Connection> came, inner_->accept(0));
      if (came == nullptr) return {};
      const std::string address = address_of(*came);
      make_room(address);
      SealedSession session(secret_, purpose_, SealedSession::Role::listener);
      strangers_.push_back(
          {.connection = std::make_unique<SealedConnection>(*env_, std::move(came), std::move(session)),
           .address = address,
           .came_ns = env_->monotonic_ns()});
      if (!strangers_.back().connection->establish_some().ok()) strangers_.pop_back();
    }
    return {};
  }

  // They are in the order in which they came.
  void make_room(const std::string& address) {
    std::map<std::string, std::size_t> counts;
    for (const Stranger& each : strangers_) ++counts[each.address];
    const auto drop_oldest_of = [&](const std::string of) {
      const auto silent = std::ranges::find_if(strangers_, [&](const Stranger& each) {
        return each.address == of && !each.connection->has_spoken();
      });
      strangers_.erase(silent != strangers_.end() ? silent
                                                  : std::ranges::find(strangers_, of, &Stranger::address));
    };
    if (counts[address] >= SealedNetwork::max_of_one_address) return drop_oldest_of(address);
    if (strangers_.size() < SealedNetwork::max_strangers) return;
    drop_oldest_of(std::ranges::max_element(strangers_, {}, [&](const Stranger& each) {
                     return counts[each.address];
                   })->address);
  }

  // Returns the first that has proved itself. Drops those that have closed, said something else, or taken too
  // long.
  std::unique_ptr<Connection> next_known() {
    const std::int64_t now_ns = env_->monotonic_ns();
    for (auto each = strangers_.begin(); each != strangers_.end();) {
      const Result<bool> established = each->connection->establish_some();
      if (established.ok() && *established) {
        std::unique_ptr<Connection> known = std::move(each->connection);
        strangers_.erase(each);
        return known;
      }
      const bool late = now_ns - each->came_ns > SealedNetwork::patience_ms * ns_in_a_ms;
      each = established.ok() && !late ? std::next(each) : strangers_.erase(each);
    }
    return nullptr;
  }

  void wait(std::int64_t left_ms) {
    constexpr std::int64_t longest_ms = SealedNetwork::longest_pause_ms;  // finds callers that take too long
    std::vector<Socket*> sockets = {inner_.get()};
    for (const Stranger& each : strangers_) sockets.push_back(each.connection.get());
    env_->network().wait_any_readable(sockets, std::min(left_ms, strangers_.empty() ? left_ms : longest_ms));
  }

  Env* env_;
  Secret secret_;
  std::string purpose_;
  std::unique_ptr<Listener> inner_;
  std::vector<Stranger> strangers_;
  std::int64_t looked_ns_ = env_->monotonic_ns();  // the last time
};

// Waits until both know each other.
Result<void> wait_until_known(Env& env, SealedConnection& connection, std::int64_t end_ns,
                              const std::atomic<bool>& stopped) {
  while (true) {
    HF_TRY(const bool established, connection.establish_some());
    if (established) return {};
    if (stopped)
      return fail(ExitCode::communication, "this process has ended the attempt to reach {}",
                  connection.peer());
    if (env.monotonic_ns() >= end_ns)
      return fail(ExitCode::communication, "{} does not say whether it belongs to this run",
                  connection.peer());
    std::array<Socket*, 1> sockets = {&connection};
    env.network().wait_any_readable(sockets, Network::stop_look_ms);
  }
}

}  // namespace

SealedNetwork::SealedNetwork(Env& env, const Secret& secret, std::string purpose)
    : env_(&env), secret_(secret), purpose_(std::move(purpose)) {}

Result<std::unique_ptr<Listener>> SealedNetwork::listen(const std::string& address) {
  HF_TRY(std::unique_ptr<Listener> inner, env_->network().listen(address));
  return std::unique_ptr<Listener>(
      std::make_unique<SealedListener>(*env_, secret_, purpose_, std::move(inner)));
}

Result<std::unique_ptr<Connection>> SealedNetwork::make_connection(const NetworkAddress& address,
                                                                   std::int64_t timeout_ms,
                                                                   const std::atomic<bool>* stopped) {
  HF_TRY(std::unique_ptr<Connection> inner, env_->network().connect(address, timeout_ms, stopped));
  return seal(std::move(inner));
}

Result<std::unique_ptr<Connection>> SealedNetwork::begin_connection(const NetworkAddress& address) {
  HF_TRY(std::unique_ptr<Connection> inner, env_->network().begin_connection(address));
  return seal(std::move(inner));
}

std::unique_ptr<Connection> SealedNetwork::seal(std::unique_ptr<Connection> inner) const {
  return std::make_unique<SealedConnection>(*env_, std::move(inner),
                                            SealedSession(secret_, purpose_, SealedSession::Role::caller));
}

Result<std::unique_ptr<Connection>> SealedNetwork::connect_known(const NetworkAddress& address,
                                                                 std::int64_t connect_ms,
                                                                 std::int64_t known_ms,
                                                                 const std::atomic<bool>& stopped) {
  const std::int64_t end_ns = env_->monotonic_ns() + known_ms * ns_in_a_ms;
  while (true) {
    HF_TRY(std::unique_ptr<Connection> inner, env_->network().connect(address, connect_ms, &stopped));
    auto connection = std::make_unique<SealedConnection>(
        *env_, std::move(inner), SealedSession(secret_, purpose_, SealedSession::Role::caller));
    const Result<void> known = wait_until_known(*env_, *connection, end_ns, stopped);
    if (known.ok()) return std::unique_ptr<Connection>(std::move(connection));
    if (connection->is_refused() || stopped || env_->monotonic_ns() >= end_ns) return known.error();
    env_->sleep_us(1'000 * stop_look_ms);
  }
}

Result<std::vector<std::string>> SealedNetwork::own_addresses(const std::string& interface) {
  return env_->network().own_addresses(interface);
}

bool SealedNetwork::wait_any_readable(std::span<Socket* const> sockets, std::int64_t timeout_ms) {
  return env_->network().wait_any_readable(sockets, timeout_ms);
}

std::vector<std::size_t> SealedNetwork::find_readable(std::span<Socket* const> sockets) {
  return env_->network().find_readable(sockets);
}

}  // namespace holdfast::os
