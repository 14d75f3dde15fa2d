// What the guard of one host costs in a run on many: calls of the system and bytes for each tick, which have
// bounds here, and microseconds, which are printed (docs/measurements.md). One guard is real; a crowd in the
// same process sends it what the guards of the other hosts would, on a clock that the test moves.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "runtime/os/sealed_network.h"
#include "tests/support/forwarding_env.h"
#include "tests/support/memory_network.h"
#include "tests/support/test_secret.h"
#include "watchdog/guard_message.h"
#include "watchdog/guard_network.h"

namespace holdfast::test {
namespace {

constexpr std::int64_t ms = 1'000'000, tick_ms = 25;
constexpr int ranks_per_host = 8;

struct Calls {
  std::uint64_t connects = 0, sends = 0, receives = 0, looks = 0, bytes_sent = 0, bytes_received = 0;
  std::uint64_t all() const { return connects + sends + receives + looks; }
};

// A Network that counts what would be calls of the system.
class CountingNetwork final : public Network {
 public:
  CountingNetwork(Network& inner, Calls& calls) : inner_(&inner), calls_(&calls) {}
  Result<std::unique_ptr<Listener>> listen(const std::string& address) override {
    HF_TRY(std::unique_ptr<Listener> inner, inner_->listen(address));
    return std::unique_ptr<Listener>(std::make_unique<CountingListener>(std::move(inner), *calls_));
  }
  Result<std::unique_ptr<Connection>> begin_connection(const NetworkAddress& address) override {
    ++calls_->connects;
    HF_TRY(std::unique_ptr<Connection> inner, inner_->begin_connection(address));
    return std::unique_ptr<Connection>(std::make_unique<CountingConnection>(std::move(inner), *calls_));
  }
  Result<std::vector<std::string>> own_addresses(const std::string& interface) override {
    return inner_->own_addresses(interface);
  }
  bool wait_any_readable(std::span<Socket* const> sockets, std::int64_t timeout_ms) override {
    return inner_->wait_any_readable(sockets, timeout_ms);
  }
  std::vector<std::size_t> find_readable(std::span<Socket* const> sockets) override {
    ++calls_->looks;
    return inner_->find_readable(sockets);
  }

 private:
  class CountingConnection final : public Connection {
   public:
    CountingConnection(std::unique_ptr<Connection> inner, Calls& calls)
        : inner_(std::move(inner)), calls_(&calls) {}
    void shut_down() override { inner_->shut_down(); }
    int handle() const override { return inner_->handle(); }
    const std::string& peer() const override { return inner_->peer(); }
    Result<void> send(std::span<const std::byte> source, std::int64_t timeout_ms) override {
      return inner_->send(source, timeout_ms);
    }
    Result<void> receive(std::span<std::byte> target, std::int64_t timeout_ms) override {
      return inner_->receive(target, timeout_ms);
    }
    Result<std::size_t> send_some(std::span<const std::byte> source) override {
      ++calls_->sends;
      HF_TRY(const std::size_t count, inner_->send_some(source));
      calls_->bytes_sent += count;
      return count;
    }
    Result<std::size_t> receive_some(std::span<std::byte> target) override {
      ++calls_->receives;
      HF_TRY(const std::size_t count, inner_->receive_some(target));
      calls_->bytes_received += count;
      return count;
    }

   private:
    std::unique_ptr<Connection> inner_;
    Calls* calls_;
  };
  class CountingListener final : public Listener {
   public:
    CountingListener(std::unique_ptr<Listener> inner, Calls& calls)
        : inner_(std::move(inner)), calls_(&calls) {}
    void shut_down() override { inner_->shut_down(); }
    int handle() const override { return inner_->handle(); }
    std::uint16_t port() const override { return inner_->port(); }
    Result<std::unique_ptr<Connection>> accept(std::int64_t timeout_ms) override {
      ++calls_->looks;
      HF_TRY(std::unique_ptr<Connection> inner, inner_->accept(timeout_ms));
      if (inner == nullptr) return inner;
      return std::unique_ptr<Connection>(std::make_unique<CountingConnection>(std::move(inner), *calls_));
    }

   private:
    std::unique_ptr<Listener> inner_;
    Calls* calls_;
  };
  Result<std::unique_ptr<Connection>> make_connection(const NetworkAddress& address, std::int64_t timeout_ms,
                                                      const std::atomic<bool>* stopped) override {
    ++calls_->connects;
    HF_TRY(std::unique_ptr<Connection> inner, inner_->connect(address, timeout_ms, stopped));
    return std::unique_ptr<Connection>(std::make_unique<CountingConnection>(std::move(inner), *calls_));
  }

  Network* inner_;
  Calls* calls_;
};

// An Env with a network of its own and the clock of the test.
class ClockedEnv final : public ForwardingEnv {
 public:
  ClockedEnv(Network& network, const std::int64_t& now_ns)
      : ForwardingEnv(posix_env()), network_(&network), now_ns_(&now_ns) {}
  Network& network() override { return *network_; }
  std::int64_t monotonic_ns() override { return *now_ns_; }

 private:
  Network* network_;
  const std::int64_t* now_ns_;
};

class GuardScaleTest : public testing::TestWithParam<int> {
 protected:
  GuardScaleTest() {
    board_ = Board::open_or_create(env_, name_, {.slots = ranks_per_host, .ring_spans = 1}).value();
    board_->header().guard_generation = 1;
    for (int index = 0; index < ranks_per_host; ++index) {
      board_->slot(static_cast<std::uint32_t>(index)).launched_rank = index;
      board_->slot(static_cast<std::uint32_t>(index)).process = 1'000 + index;
    }
    guard_ = GuardNetwork::begin(env_, *board_, name_, {.secret = secret_of(7)}).value();
    crowd_listener_ = crowd_network_.listen("").value();
    PeerHostTableSetup setup{
        .start = 9, .own_host = 0, .silence_ms = silence_ms_of(hosts_, 5'000), .hosts = {}};
    for (std::size_t host = 0; host < hosts_; ++host)
      setup.hosts.push_back({.name = fmt::format("node-{:04}", host),
                             .addresses = {"127.0.0.1"},
                             .port = crowd_listener_->port()});
    table_ = PeerHostTable::open_or_create(env_, name_, setup).value();
  }
  ~GuardScaleTest() override {
    PeerHostTable::remove(env_, name_);
    static_cast<void>(env_.remove_shared_memory(name_).ok());
  }

  // One tick of the guard, and what the crowd does meanwhile.
  void tick() {
    const std::int64_t begin_ns = posix_env().monotonic_ns();
    guard_->tick(now_ns_, false);
    const std::int64_t took_ns = posix_env().monotonic_ns() - begin_ns;
    took_ns_ += took_ns;
    longest_ns_ = std::max(longest_ns_, took_ns);
    hear_guard();
    talk();
    now_ns_ += tick_ms * ms;
  }
  void hear_guard() {
    std::array<std::byte, 16'384> part;
    while (auto came = crowd_listener_->accept(0).value()) heard_.push_back(std::move(came));
    std::erase_if(heard_, [&](const auto& connection) {
      while (true) {
        const Result<std::size_t> count = connection->receive_some(part);
        if (!count.ok() || *count == 0) return !count.ok();
      }
    });
  }
  // Each of the crowd sends a heartbeat in its turn.
  void talk() {
    constexpr std::size_t calls_per_tick = 16;
    const NetworkAddress guard{"127.0.0.1", static_cast<std::uint16_t>(board_->header().guard_port)};
    for (std::size_t begun = 0; begun < calls_per_tick && crowd_.size() + 1 < hosts_; ++begun)
      crowd_.push_back({.connection = crowd_network_.begin_connection(guard).value()});
    for (std::size_t each = 0; each < crowd_.size(); ++each) {
      Peer& peer = crowd_[each];
      const std::int64_t beat_ns = beat_ms_of(hosts_) * ms;
      if (peer.unsent.empty() && now_ns_ - peer.sent_ns < beat_ns) continue;
      if (peer.unsent.empty()) {
        peer.unsent = frame_of(message(static_cast<int>(each) + 1, ++peer.number));
        peer.sent_ns = now_ns_;
      }
      const std::size_t count = peer.connection->send_some(peer.unsent).value();
      peer.unsent.erase(peer.unsent.begin(), peer.unsent.begin() + static_cast<std::ptrdiff_t>(count));
    }
  }
  GuardMessage message(int host, std::uint64_t number) const {
    GuardMessage message{
        .start = 9, .host = host, .generation = 1, .number = number, .sent_ns = now_ns_, .port = 0};
    for (int rank = 0; rank < ranks_per_host; ++rank) {
      SlotView slot;
      slot.process = 1'000 + rank;
      slot.launched_rank = host * ranks_per_host + rank;
      slot.begun_ns = slot.heartbeat_ns = now_ns_;
      slot.deadline_ns = 60'000 * ms;
      message.ranks.push_back(slot);
    }
    return message;
  }
  bool is_complete() const {
    return heard_.size() + 1 == hosts_ &&
           guard_->distant_ranks(now_ns_).size() == (hosts_ - 1) * ranks_per_host;
  }

  struct Peer {
    std::unique_ptr<Connection> connection = {};
    std::vector<std::byte> unsent = {};
    std::uint64_t number = 0;
    std::int64_t sent_ns = 0;
  };
  const std::size_t hosts_ = static_cast<std::size_t>(GetParam());
  const std::string name_ = fmt::format("holdfast-test-{}-{:016x}", getpid(), posix_env().random_u64());
  std::int64_t now_ns_ = 1'000'000 * ms, took_ns_ = 0, longest_ns_ = 0;
  Calls calls_;
  MemoryNetwork memory_;
  CountingNetwork counting_{memory_, calls_};
  ClockedEnv env_{counting_, now_ns_}, crowd_env_{memory_, now_ns_};
  SealedNetwork crowd_network_{crowd_env_, secret_of(7), "guard"};
  std::unique_ptr<Board> board_;
  std::unique_ptr<GuardNetwork> guard_;
  std::unique_ptr<PeerHostTable> table_;
  std::unique_ptr<Listener> crowd_listener_;
  std::vector<std::unique_ptr<Connection>> heard_;  // connections of the guard to the crowd
  std::vector<Peer> crowd_;
};

TEST_P(GuardScaleTest, CostsOfATickHaveABound) {
  constexpr int ticks = 400, warm_up_ticks = 600;
  constexpr std::uint64_t most_calls = 300, most_bytes_per_second = 4'200'000;
  int warm_up = 0;
  while (!is_complete() && ++warm_up < warm_up_ticks) tick();
  EXPECT_TRUE(is_complete()) << "all are connected within 15 s";
  for (int each = 0; each < ticks; ++each) tick();  // heartbeats of all come in turn
  calls_ = {};
  took_ns_ = longest_ns_ = 0;
  std::int64_t distant_ns = 0;
  std::size_t found = 0;
  for (int each = 0; each < ticks; ++each) {
    tick();
    const std::int64_t begin_ns = posix_env().monotonic_ns();
    const bool is_due = each % 20 == 0;  // as often as GuardMind asks
    if (is_due) found = guard_->distant_ranks(now_ns_).size();
    distant_ns += posix_env().monotonic_ns() - begin_ns;
  }
  EXPECT_EQ(found, (hosts_ - 1) * ranks_per_host);
  EXPECT_EQ(calls_.connects, 0u) << "no connection is torn down";
  EXPECT_FALSE(table_->may_miss_a_host());
  EXPECT_LE(calls_.all() / ticks, most_calls);
  const std::uint64_t bytes_per_second =
      (calls_.bytes_sent + calls_.bytes_received) / (ticks * tick_ms / 1'000);
  EXPECT_LE(bytes_per_second, most_bytes_per_second);

  constexpr int polls = 20;
  std::int64_t begin_ns = posix_env().monotonic_ns();
  std::size_t silent = 0;
  for (int poll = 0; poll < polls; ++poll) silent += table_->may_miss_a_host() ? 1 : 0;
  const std::int64_t poll_ns = (posix_env().monotonic_ns() - begin_ns) / polls;
  EXPECT_EQ(silent, 0u);
  fmt::print(
      "{} hosts x {} ranks: a tick {} us (longest {}), {} calls, {} KB/s; distant ranks {} us; a poll of "
      "the members {} ns; all connected after {} s\n",
      hosts_, ranks_per_host, took_ns_ / ticks / 1'000, longest_ns_ / 1'000, calls_.all() / ticks,
      bytes_per_second / 1'000, distant_ns / 20 / 1'000, poll_ns, warm_up * tick_ms / 1'000.0);
}

INSTANTIATE_TEST_SUITE_P(Hosts, GuardScaleTest, testing::Values(64, 128, 512, 1'024, 2'048),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace holdfast::test
