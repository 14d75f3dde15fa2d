#include "runtime/metrics/metrics_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

class MetricsServerTest : public testing::Test {
 protected:
  void SetUp() override {
    page_->set("holdfast_step 7\n# EOF\n");
    auto server = MetricsServer::listen(env_, {.host = "127.0.0.1", .port = 0}, "", page_);
    ASSERT_TRUE(server.ok()) << server.error().message;
    server_ = std::move(server).value();
  }
  std::unique_ptr<Connection> client(const std::string& text) {
    auto connection = env_.network().connect({.host = "127.0.0.1", .port = server_->port()}, 2'000);
    EXPECT_TRUE(connection.ok());
    if (!text.empty()) {
      EXPECT_TRUE((*connection)->send(std::as_bytes(std::span(text)), 2'000).ok());
    }
    return std::move(connection).value();
  }
  // Returns what comes until the end of the connection.
  std::string all_of(Connection& connection) {
    std::string text;
    std::vector<std::byte> piece(std::size_t{64} << 10);
    const std::int64_t until_ns = env_.monotonic_ns() + 8'000'000'000;
    while (env_.monotonic_ns() < until_ns) {
      const Result<std::size_t> count = connection.receive_some(piece);
      if (!count.ok()) break;
      text.append(reinterpret_cast<const char*>(piece.data()), *count);
      if (*count == 0) env_.sleep_us(1'000);
    }
    return text;
  }
  std::string asked(const std::string& text) { return all_of(*client(text)); }

  static inline const std::string question = "GET /metrics HTTP/1.1\r\nHost: n0\r\n\r\n";
  Env& env_ = posix_env();
  std::shared_ptr<MetricsPage> page_ = std::make_shared<MetricsPage>();
  std::unique_ptr<MetricsServer> server_;
};

TEST_F(MetricsServerTest, AnswersWithTheNewestPage) {
  EXPECT_THAT(asked(question), EndsWith("\r\n\r\nholdfast_step 7\n# EOF\n"));
  page_->set(std::string(3'000'000, '8'));  // more than a socket takes at once
  EXPECT_THAT(asked(question), EndsWith(std::string(3'000'000, '8')));
  EXPECT_THAT(asked("GET / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404"));
}

// Clients that send nothing, or slowly, or garbage, or do not take their answer, or go.
TEST_F(MetricsServerTest, OthersAreServedBesideBadClients) {
  std::vector<std::unique_ptr<Connection>> bad;
  for (const char* text : {"", "GET /met", "\x16\x03\x01\x02", "GET /metrics HTTP/1.1\r\nA: b\r\n", ""})
    bad.push_back(client(text));
  client("GET")->shut_down();
  page_->set(std::string(30'000'000, '8'));
  bad.push_back(client(question));  // and never reads it
  env_.sleep_us(100'000);
  page_->set("holdfast_step 8\n# EOF\n");
  const std::int64_t begin_ns = env_.monotonic_ns();
  EXPECT_THAT(asked(question), HasSubstr("holdfast_step 8"));
  EXPECT_LT(env_.monotonic_ns() - begin_ns, 2'000'000'000);
  EXPECT_THAT(asked(std::string(20'000, 'x')), StartsWith("HTTP/1.1 431"));
}

TEST_F(MetricsServerTest, SlowClientsAreNotWaitedForForever) {
  std::vector<std::unique_ptr<Connection>> slow;
  for (std::size_t i = 0; i < MetricsServer::clients_max; ++i) slow.push_back(client("G"));
  const std::int64_t begin_ns = env_.monotonic_ns();
  EXPECT_THAT(asked(question), HasSubstr("holdfast_step 7")) << "when their time is over";
  EXPECT_LT(env_.monotonic_ns() - begin_ns, (MetricsServer::client_ms + 2'500) * 1'000'000);
}

TEST_F(MetricsServerTest, APortThatIsTakenIsASentence) {
  const auto other = MetricsServer::listen(env_, {.host = "127.0.0.1", .port = server_->port()}, "", page_);
  ASSERT_FALSE(other.ok());
  EXPECT_THAT(other.error().message, HasSubstr("Address already in use"));
  const std::uint16_t port = server_->port();
  server_.reset();
  EXPECT_TRUE(MetricsServer::listen(env_, {.host = "127.0.0.1", .port = port}, "", page_).ok())
      << "it is free again";
}

TEST(MetricsListen, Addresses) {
  EXPECT_EQ(listen_address_of("127.0.0.1:9400")->port, 9400);
  EXPECT_EQ(listen_address_of(":9400")->host, "");
  EXPECT_EQ(listen_address_of("[::1]:0")->host, "::1");
  for (const char* bad :
       {"9400", "n0:9400", "127.0.0.1", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:9400/metrics"})
    EXPECT_EQ(listen_address_of(bad).error().code, ExitCode::config) << bad;
}

// Two that make it at the same time, as a start and a command, have the same one, and nothing else is left.
TEST(MetricsListen, ManyMakeOneToken) {
  Env& env = posix_env();
  for (int round = 0; round < 20; ++round) {
    const TemporaryDirectory folder;
    const RunPaths paths{folder.path()};
    std::vector<std::string> tokens(4);
    {
      std::vector<std::jthread> makers;
      makers.reserve(tokens.size());
      for (std::string& token : tokens)
        makers.emplace_back([&env, &paths, &token] {
          const Result<std::string> made = metrics_token(env, paths);
          token = made.ok() ? *made : made.error().message;
        });
    }
    EXPECT_EQ(tokens[0].size(), 64U);
    EXPECT_THAT(tokens, testing::Each(tokens[0]));
    EXPECT_EQ(env.list(folder.path())->size(), 1U);
  }
}

TEST(MetricsListen, TheTokenIsOfTheRunAndASecret) {
  const TemporaryDirectory folder;
  Env& env = posix_env();
  const RunPaths paths{folder.path()};
  const Result<std::string> token = metrics_token(env, paths);
  ASSERT_TRUE(token.ok()) << token.error().message;
  EXPECT_EQ(token->size(), 64U);
  EXPECT_EQ(*metrics_token(env, paths), *token);
  std::filesystem::permissions(paths.metrics_token(), std::filesystem::perms::group_read,
                               std::filesystem::perm_options::add);
  EXPECT_THAT(metrics_token(env, paths).error().message, HasSubstr("may be read by other users"));
}

}  // namespace
}  // namespace holdfast::test
