// Connections between processes that share a secret, beside strangers of every kind: idle, talkative, many.
#include "runtime/os/sealed_network.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/support/test_secret.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;

constexpr std::int64_t patience_ms = 20'000;

std::span<const std::byte> bytes_in(std::string_view text) {
  return std::as_bytes(std::span(text));
}

class SealedNetworkTest : public testing::Test {
 protected:
  NetworkAddress address() const { return {.host = "127.0.0.1", .port = listener_->port()}; }
  std::unique_ptr<Connection> stranger() { return posix_network().connect(address(), patience_ms).value(); }
  // What one who has the secret says arrives, whoever else is there.
  void expect_heard(const std::string& text) {
    std::jthread caller([this, text] {
      const std::atomic<bool> stopped = false;
      const Result<std::unique_ptr<Connection>> connection =
          network_.connect_known(address(), patience_ms, patience_ms, stopped);
      ASSERT_TRUE(connection.ok()) << connection.error().message;
      const Result<void> sent = (*connection)->send(bytes_in(text), patience_ms);
      EXPECT_TRUE(sent.ok()) << sent.error().message;
      std::array<std::byte, 2> thanks;
      const Result<void> heard = (*connection)->receive(thanks, patience_ms);
      EXPECT_TRUE(heard.ok()) << heard.error().message;
    });
    const Result<std::unique_ptr<Connection>> accepted = listener_->accept(patience_ms);
    ASSERT_TRUE(accepted.ok() && *accepted != nullptr);
    std::string heard(text.size(), ' ');
    ASSERT_TRUE((*accepted)->receive(std::as_writable_bytes(std::span(heard)), patience_ms).ok());
    EXPECT_EQ(heard, text);
    EXPECT_TRUE((*accepted)->send(bytes_in("ok"), patience_ms).ok());
  }

  SealedNetwork network_{posix_env(), secret_of(1), "test"};
  std::unique_ptr<Listener> listener_ = network_.listen("127.0.0.1").value();
};

TEST_F(SealedNetworkTest, WhatIsSaidArrives) {
  expect_heard("good morning");
  expect_heard(std::string(1'000'000, 'x'));
}

TEST_F(SealedNetworkTest, StrangersHoldNobodyUp) {
  std::vector<std::unique_ptr<Connection>> strangers;
  for (std::size_t i = 0; i < SealedNetwork::max_strangers; ++i) strangers.push_back(stranger());
  static_cast<void>(strangers.front()->send(bytes_in("GET / HTTP/1.1\r\n\r\nand so on, for long"), 100).ok());
  static_cast<void>(strangers.back()->send(bytes_in("HFSEAL01 and then nothing"), 100).ok());
  expect_heard("beside idle ones");
}

TEST_F(SealedNetworkTest, AFloodHoldsNobodyUp) {
  std::atomic<bool> over = false;
  std::jthread flood([&] {
    std::vector<std::unique_ptr<Connection>> held(100);
    for (std::size_t i = 0; !over; ++i) {
      Result<std::unique_ptr<Connection>> connection = posix_network().connect(address(), 100);
      if (connection.ok()) held[i % held.size()] = std::move(connection).value();
    }
  });
  for (int i = 0; i < 5; ++i) expect_heard("beside a flood");
  over = true;
}

TEST_F(SealedNetworkTest, AnEndedAttemptIsOverSoon) {
  std::atomic<bool> stopped = false;
  std::jthread end([&] {
    posix_env().sleep_us(100'000);
    stopped = true;
  });
  const auto nobody =
      network_.connect_known(address(), patience_ms, patience_ms, stopped);  // it is not accepted
  ASSERT_FALSE(nobody.ok());
  EXPECT_THAT(nobody.error().message, HasSubstr("this process has ended the attempt"));
}

TEST_F(SealedNetworkTest, WhoSaysNothingIsDropped) {
  const std::unique_ptr<Connection> idle = stranger();
  const Result<std::unique_ptr<Connection>> nobody = listener_->accept(SealedNetwork::patience_ms + 1'000);
  ASSERT_TRUE(nobody.ok());
  EXPECT_EQ(*nobody, nullptr);
  std::array<std::byte, 1> more;
  const Result<std::size_t> heard = idle->receive_some(more);
  EXPECT_FALSE(heard.ok()) << "the connection was closed";
}

TEST_F(SealedNetworkTest, AnotherSecretIsRefusedAtBothEnds) {
  SealedNetwork other(posix_env(), secret_of(2), "test");
  std::jthread caller([&] {
    const auto connection = other.connect(address(), patience_ms);
    ASSERT_TRUE(connection.ok());
    const Result<void> sent = (*connection)->send(bytes_in("let me in"), patience_ms);
    EXPECT_FALSE(sent.ok()) << "it is dropped at its first word";
  });
  const Result<std::unique_ptr<Connection>> accepted = listener_->accept(500);
  ASSERT_TRUE(accepted.ok());
  EXPECT_EQ(*accepted, nullptr);
}

TEST_F(SealedNetworkTest, AnEndWakesWhoWaits) {
  std::jthread end([&] {
    posix_env().sleep_us(100'000);
    listener_->shut_down();
  });
  EXPECT_FALSE(listener_->accept(patience_ms).ok());
}

TEST_F(SealedNetworkTest, ListensWhereItIsTold) {
  const Result<std::unique_ptr<Listener>> elsewhere = network_.listen("192.0.2.1");
  ASSERT_FALSE(elsewhere.ok());
  EXPECT_THAT(elsewhere.error().message,
              HasSubstr("no port to listen on at 192.0.2.1: Cannot assign requested address"));
  const std::unique_ptr<Listener> there = network_.listen("127.0.0.2").value();
  EXPECT_FALSE(posix_network().connect({.host = "127.0.0.1", .port = there->port()}, patience_ms).ok());
  EXPECT_TRUE(posix_network().connect({.host = "127.0.0.2", .port = there->port()}, patience_ms).ok());
}

}  // namespace
}  // namespace holdfast::test
