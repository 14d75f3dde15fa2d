// What the hosts of a run rely on when they talk beside MPI. The twin in front of the real network keeps the
// same contract until it is told to break it.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <future>
#include <thread>

#include "runtime/os/tcp_totals.h"
#include "tests/support/faulty_network.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;

constexpr std::int64_t patient_ms = 20'000, brief_ms = 60;

std::vector<std::byte> pattern(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 37 + i / 251);
  return bytes;
}

struct Pair {
  std::unique_ptr<Connection> near, far;
};

Pair connect_pair(Network& network) {
  const std::unique_ptr<Listener> listener = network.listen("").value();
  Pair pair;
  pair.near = network.connect({.host = "127.0.0.1", .port = listener->port()}, patient_ms).value();
  pair.far = listener->accept(patient_ms).value();
  return pair;
}

class NetworkTest : public testing::TestWithParam<bool> {
 protected:
  Network& network() { return GetParam() ? env_.network() : posix_network(); }

 private:
  FaultyNetworkEnv env_{posix_env()};
};

TEST_P(NetworkTest, MovesBytesBothWays) {
  Pair pair = connect_pair(network());
  const std::vector<std::byte> sent = pattern(1000);
  std::vector<std::byte> there(1000), back(1000);
  ASSERT_TRUE(pair.near->send(sent, patient_ms).ok());
  ASSERT_TRUE(pair.far->receive(there, patient_ms).ok());
  ASSERT_TRUE(pair.far->send(there, patient_ms).ok());
  ASSERT_TRUE(pair.near->receive(back, patient_ms).ok());
  EXPECT_EQ(back, sent);
  EXPECT_THAT(pair.near->peer(), testing::MatchesRegex("127\\.0\\.0\\.1 port [0-9]+"));
  EXPECT_THAT(pair.far->peer(), testing::MatchesRegex("127\\.0\\.0\\.1 port [0-9]+"));
}

// More than the buffers of both ends hold, so that both wait for each other.
TEST_P(NetworkTest, MovesLargeMessages) {
  Pair pair = connect_pair(network());
  const std::vector<std::byte> sent = pattern(48 << 20);
  std::vector<std::byte> received(sent.size());
  std::future<bool> sending =
      std::async(std::launch::async, [&] { return pair.near->send(sent, patient_ms).ok(); });
  ASSERT_TRUE(pair.far->receive(received, patient_ms).ok());
  EXPECT_TRUE(sending.get());
  EXPECT_TRUE(received == sent);
}

TEST_P(NetworkTest, TotalsCountWhatSocketsOfTheProcessSend) {
  const Pair pair = connect_pair(network());
  const TcpTotals before = tcp_totals();
  const std::vector<std::byte> sent = pattern(4'000'000);
  std::vector<std::byte> there(sent.size());
  std::future<Result<void>> arrival =
      std::async(std::launch::async, [&] { return pair.far->receive(there, patient_ms); });
  ASSERT_TRUE(pair.near->send(sent, patient_ms).ok());
  ASSERT_TRUE(arrival.get().ok());
  const TcpTotals after = tcp_totals();
  EXPECT_GT(after.sent, before.sent + sent.size() / 65'536) << "a segment is not larger";
  EXPECT_LT(after.lost - before.lost, (after.sent - before.sent) / 10) << "nothing is lost here";
}

TEST_P(NetworkTest, NobodyListens) {
  const std::uint16_t port = network().listen("").value()->port();  // closed at once
  const auto refused = network().connect({.host = "127.0.0.1", .port = port}, patient_ms);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ExitCode::communication);
  EXPECT_EQ(refused.error().message,
            fmt::format("cannot connect to 127.0.0.1 port {}: Connection refused", port));
}

// A port whose queue is full answers nobody, as a host that is gone does.
class FullPort {
 public:
  explicit FullPort(Network& network) {
    const int loopback = static_cast<int>(htonl(INADDR_LOOPBACK));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = static_cast<in_addr_t>(loopback);
    socklen_t bytes = sizeof(address);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    HF_CHECK(::bind(socket_, generic, bytes) == 0 && ::listen(socket_, 0) == 0);
    HF_CHECK(::getsockname(socket_, generic, &bytes) == 0);
    port_ = ntohs(address.sin_port);
    constexpr int max_places = 16;
    for (int i = 0; i < max_places; ++i) {
      Result<std::unique_ptr<Connection>> taken = network.connect(this->address(), brief_ms);
      if (!taken.ok()) return;
      places_.push_back(std::move(taken).value());
    }
    HF_CHECK(false, "the queue of a port has no end");
  }
  ~FullPort() { ::close(socket_); }
  FullPort(const FullPort&) = delete;
  FullPort& operator=(const FullPort&) = delete;
  NetworkAddress address() const { return {.host = "127.0.0.1", .port = port_}; }

 private:
  int socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  std::uint16_t port_ = 0;
  std::vector<std::unique_ptr<Connection>> places_;
};

TEST_P(NetworkTest, NobodyAnswersInTime) {
  const FullPort port(network());
  const auto late = network().connect(port.address(), brief_ms);
  ASSERT_FALSE(late.ok());
  EXPECT_THAT(late.error().message, HasSubstr("no answer within 60 ms"));
}

TEST_P(NetworkTest, AnAttemptToConnectCanBeEnded) {
  const FullPort port(network());
  std::atomic<bool> stopped = false;
  std::future<Result<std::unique_ptr<Connection>>> attempt =
      std::async(std::launch::async, [&] { return network().connect(port.address(), patient_ms, &stopped); });
  EXPECT_EQ(attempt.wait_for(std::chrono::milliseconds(brief_ms)), std::future_status::timeout);
  const std::int64_t stopped_ns = posix_env().monotonic_ns();
  stopped = true;
  const Result<std::unique_ptr<Connection>> ended = attempt.get();
  EXPECT_LE(posix_env().monotonic_ns() - stopped_ns, 500'000'000);
  ASSERT_FALSE(ended.ok());
  EXPECT_THAT(ended.error().message, HasSubstr("this process has ended the attempt"));
}

TEST_P(NetworkTest, NamesAreNotLookedUp) {
  const auto named = network().connect({.host = "localhost", .port = 1}, patient_ms);
  ASSERT_FALSE(named.ok());
  EXPECT_EQ(named.error().message,
            "cannot connect to localhost port 1: that is no number of a host, such as 10.0.0.7");
}

TEST_P(NetworkTest, NobodyComesInTime) {
  const std::unique_ptr<Listener> listener = network().listen("").value();
  for (const std::int64_t timeout_ms : {std::int64_t{0}, brief_ms}) {
    const auto nobody = listener->accept(timeout_ms);
    ASSERT_TRUE(nobody.ok());
    EXPECT_EQ(nobody.value(), nullptr);
  }
}

TEST_P(NetworkTest, ASilentPeerIsLate) {
  Pair pair = connect_pair(network());
  std::vector<std::byte> target(8);
  ASSERT_TRUE(pair.far->send(pattern(3), patient_ms).ok());
  const Result<void> late = pair.near->receive(target, brief_ms);
  ASSERT_FALSE(late.ok());
  EXPECT_EQ(late.error().message,
            pair.near->peer() + fmt::format(" did not send what was awaited within {} ms", brief_ms));
}

TEST_P(NetworkTest, APeerThatDoesNotReadIsLate) {
  Pair pair = connect_pair(network());
  const Result<void> late = pair.near->send(std::vector<std::byte>(64 << 20), brief_ms);
  ASSERT_FALSE(late.ok());
  EXPECT_THAT(late.error().message, HasSubstr("took nothing more within"));
}

// What it has sent before arrives; only then it is an error.
TEST_P(NetworkTest, APeerThatHasClosed) {
  Pair pair = connect_pair(network());
  const std::vector<std::byte> sent = pattern(10);
  ASSERT_TRUE(pair.far->send(sent, patient_ms).ok());
  pair.far.reset();
  std::vector<std::byte> received(10);
  ASSERT_TRUE(pair.near->receive(received, patient_ms).ok());
  EXPECT_EQ(received, sent);
  const Result<void> closed = pair.near->receive(received, patient_ms);
  ASSERT_FALSE(closed.ok());
  EXPECT_EQ(closed.error().message, pair.near->peer() + " has closed the connection");
  EXPECT_FALSE(pair.near->receive_some(received).ok());
}

TEST_P(NetworkTest, APeerThatGoesInTheMiddleOfAMessage) {
  Pair pair = connect_pair(network());
  std::vector<std::byte> target(100);
  std::future<Result<void>> receiving =
      std::async(std::launch::async, [&] { return pair.near->receive(target, patient_ms); });
  ASSERT_TRUE(pair.far->send(pattern(60), patient_ms).ok());
  pair.far.reset();
  EXPECT_THAT(receiving.get().error().message, HasSubstr("has closed the connection"));
}

// The default action of SIGPIPE would end the process.
TEST_P(NetworkTest, SendingToOneWhoHasGoneIsAnErrorAndNoSignal) {
  Pair pair = connect_pair(network());
  pair.far.reset();
  const auto before = std::signal(SIGPIPE, SIG_DFL);
  Result<void> sent;
  for (int i = 0; i < 1000 && sent.ok(); ++i) sent = pair.near->send(pattern(100'000), patient_ms);
  std::signal(SIGPIPE, before);
  ASSERT_FALSE(sent.ok());
  EXPECT_THAT(sent.error().message, HasSubstr("cannot send to 127.0.0.1 port"));
}

TEST_P(NetworkTest, AnyThreadMayEndAWait) {
  Pair pair = connect_pair(network());
  const std::unique_ptr<Listener> listener = network().listen("").value();
  std::vector<std::byte> target(8);
  std::future<Result<void>> receiving =
      std::async(std::launch::async, [&] { return pair.near->receive(target, patient_ms); });
  std::future<bool> accepting =
      std::async(std::launch::async, [&] { return listener->accept(patient_ms).ok(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  pair.near->shut_down();
  listener->shut_down();
  EXPECT_THAT(receiving.get().error().message, HasSubstr("was ended by this process"));
  EXPECT_FALSE(accepting.get());
  EXPECT_FALSE(pair.near->send(target, patient_ms).ok());
  EXPECT_FALSE(listener->accept(0).ok());
}

TEST_P(NetworkTest, MovesWhatGoesWithoutWaiting) {
  Pair pair = connect_pair(network());
  std::vector<std::byte> target(100);
  EXPECT_EQ(pair.near->receive_some(target).value(), 0u);
  ASSERT_EQ(pair.far->send_some(pattern(40)).value(), 40u);
  const std::array<Socket*, 1> near = {pair.near.get()};
  ASSERT_TRUE(network().wait_any_readable(near, patient_ms));
  EXPECT_EQ(pair.near->receive_some(target).value(), 40u);
  EXPECT_TRUE(std::equal(target.begin(), target.begin() + 40, pattern(40).begin()));
  EXPECT_EQ(pair.near->receive_some(target).value(), 0u);
  std::size_t total = 0;  // until the buffers are full
  for (std::size_t sent = 1; sent > 0; total += sent) sent = pair.far->send_some(pattern(1 << 20)).value();
  EXPECT_GT(total, 1000u);
}

TEST_P(NetworkTest, WaitsForAnyOfManySockets) {
  Pair pair = connect_pair(network());
  const std::unique_ptr<Listener> listener = network().listen("").value();
  const std::array<Socket*, 3> sockets = {pair.near.get(), pair.far.get(), listener.get()};
  EXPECT_FALSE(network().wait_any_readable(sockets, 0));
  EXPECT_FALSE(network().wait_any_readable(sockets, brief_ms));
  const auto third = network().connect({.host = "127.0.0.1", .port = listener->port()}, patient_ms).value();
  EXPECT_TRUE(network().wait_any_readable(sockets, patient_ms));
  ASSERT_NE(listener->accept(0).value(), nullptr);
  EXPECT_FALSE(network().wait_any_readable(sockets, 0));
  pair.far.reset();
  const std::array<Socket*, 1> near = {pair.near.get()};
  EXPECT_TRUE(network().wait_any_readable(near, patient_ms)) << "a peer that is gone wakes, too";
}

TEST_P(NetworkTest, OwnAddressesReachThisHost) {
  const std::vector<std::string> addresses = network().own_addresses("").value();
  ASSERT_FALSE(addresses.empty());
  const std::unique_ptr<Listener> listener = network().listen("").value();
  EXPECT_TRUE(network().connect({.host = addresses.front(), .port = listener->port()}, patient_ms).ok());
  EXPECT_NE(listener->accept(patient_ms).value(), nullptr);
}

TEST_P(NetworkTest, AnInterfaceCanBeNamed) {
  const std::vector<std::string> loopback = network().own_addresses("lo").value();
  EXPECT_THAT(loopback, testing::Contains("127.0.0.1"));
  EXPECT_EQ(network().own_addresses("127.0.0.1").value(), std::vector<std::string>{"127.0.0.1"});
  const auto unknown = network().own_addresses("no0");
  ASSERT_FALSE(unknown.ok());
  EXPECT_THAT(unknown.error().message, HasSubstr("has no network interface 'no0'; those that are up are lo"));
  EXPECT_THAT(unknown.error().message, HasSubstr("Set network.interface"));
}

INSTANTIATE_TEST_SUITE_P(Real, NetworkTest, testing::Values(false));
INSTANTIATE_TEST_SUITE_P(Twin, NetworkTest, testing::Values(true));

// The twin itself.

TEST(FaultyNetworkTest, RefusesTheConnectItIsTold) {
  FaultyNetworkEnv env(posix_env());
  env.network().inject({.kind = NetworkFault::Kind::refuse, .at = 2});
  const std::unique_ptr<Listener> listener = env.network().listen("").value();
  const NetworkAddress address{.host = "127.0.0.1", .port = listener->port()};
  EXPECT_TRUE(env.network().connect(address, patient_ms).ok());
  EXPECT_THAT(env.network().connect(address, patient_ms).error().message, HasSubstr("Connection refused"));
  EXPECT_TRUE(env.network().connect(address, patient_ms).ok());
}

TEST(FaultyNetworkTest, CutsFlipsAndSwallowsAtTheByteItIsTold) {
  for (const NetworkFault::Kind kind :
       {NetworkFault::Kind::cut, NetworkFault::Kind::corrupt, NetworkFault::Kind::swallow}) {
    FaultyNetworkEnv env(posix_env());
    Pair pair = connect_pair(env.network());
    env.network().inject({.kind = kind, .at = 15});
    std::vector<std::byte> first(10), second(10), sent = pattern(10);
    ASSERT_TRUE(pair.near->send(sent, patient_ms).ok());
    EXPECT_EQ(pair.near->send(sent, patient_ms).ok(), kind != NetworkFault::Kind::cut);
    ASSERT_TRUE(pair.far->receive(first, patient_ms).ok());
    EXPECT_EQ(first, sent);
    EXPECT_EQ(pair.far->receive(second, brief_ms).ok(), kind == NetworkFault::Kind::corrupt);
    sent[4] ^= std::byte{16};
    EXPECT_EQ(second == sent, kind == NetworkFault::Kind::corrupt);
    EXPECT_EQ(env.network().failure_count(), 1u);
  }
}

}  // namespace
}  // namespace holdfast::test
