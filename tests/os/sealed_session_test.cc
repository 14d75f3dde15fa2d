// Two ends that share a secret understand each other; whatever else speaks, or changes what they say, is
// refused.
#include "runtime/os/sealed_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/support/test_secret.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;
using Bytes = std::vector<std::byte>;

Bytes drain(SealedSession& session) {
  Bytes bytes(session.outgoing().begin(), session.outgoing().end());
  if (!bytes.empty()) session.sent(bytes.size());
  return bytes;
}

// Gives the bytes to the session; what it then has for its user.
Result<Bytes> feed(SealedSession& session, std::span<const std::byte> bytes) {
  Bytes taken;
  while (!bytes.empty()) {
    const std::span<std::byte> awaited = session.awaited();
    const std::size_t count = std::min(awaited.size(), bytes.size());
    std::ranges::copy(bytes.first(count), awaited.begin());
    bytes = bytes.subspan(count);
    HF_TRY_VOID(session.arrived(count, "10.0.0.7 port 5"));
    Bytes part(std::size_t{1} << 10);
    while (const std::size_t got = session.take(part))
      taken.insert(taken.end(), part.begin(), part.begin() + static_cast<std::ptrdiff_t>(got));
  }
  return taken;
}

struct SealedEnds {
  explicit SealedEnds(const std::string& purpose = "test", const Secret& here = secret_of(1),
                      const Secret& there = secret_of(1))
      : caller(here, purpose, SealedSession::Role::caller),
        listener(there, "test", SealedSession::Role::listener) {}
  // Whether both have proved themselves.
  bool meet() {
    hello = drain(caller);
    if (!feed(listener, hello).ok()) return false;
    answer = drain(listener);
    if (!feed(caller, answer).ok()) return false;
    proof = drain(caller);
    return feed(listener, proof).ok() && caller.is_established() && listener.is_established();
  }
  SealedSession caller, listener;
  Bytes hello, answer, proof;
};

Bytes some_bytes(std::size_t count) {
  std::minstd_rand random(1);
  Bytes bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(SealedSession, BothWaysAndInPieces) {
  SealedEnds pair;
  ASSERT_TRUE(pair.meet());
  for (const std::size_t size :
       {std::size_t{1}, std::size_t{1000}, 3 * SealedSession::record_bytes_max + 5}) {
    const Bytes all = some_bytes(size);
    for (auto [from, to] :
         {std::pair(&pair.caller, &pair.listener), std::pair(&pair.listener, &pair.caller)}) {
      std::span<const std::byte> left = all;
      Bytes wire;
      while (!left.empty()) {
        left = left.subspan(from->seal(left));
        const Bytes part = drain(*from);
        wire.insert(wire.end(), part.begin(), part.end());
      }
      const Result<Bytes> came = feed(*to, wire);
      ASSERT_TRUE(came.ok()) << came.error().message;
      EXPECT_TRUE(*came == all);
    }
  }
}

TEST(SealedSession, AnotherSecretOrPurposeProvesNothing) {
  EXPECT_FALSE(SealedEnds("test", secret_of(1), secret_of(2)).meet());
  EXPECT_FALSE(SealedEnds("another purpose").meet());
  SealedEnds pair("test", secret_of(1), secret_of(2));
  const Result<Bytes> heard = [&] { return feed(pair.listener, drain(pair.caller)); }();
  ASSERT_FALSE(heard.ok());
  EXPECT_EQ(heard.error().code, ExitCode::communication);
  EXPECT_EQ(heard.error().message, "10.0.0.7 port 5 did not prove that it belongs to this run");
}

TEST(SealedSession, EveryChangedByteOfTheHandshakeIsSeen) {
  SealedEnds whole;
  ASSERT_TRUE(whole.meet());
  const std::size_t total = whole.hello.size() + whole.answer.size() + whole.proof.size();
  for (std::size_t at = 0; at < total; ++at) {
    SealedEnds pair;
    std::size_t offset = 0;
    const auto pass = [&](SealedSession& from, SealedSession& to) {
      Bytes bytes = drain(from);
      if (at >= offset && at < offset + bytes.size()) bytes[at - offset] ^= std::byte{4};
      offset += bytes.size();
      return feed(to, bytes).ok();
    };
    const bool met = pass(pair.caller, pair.listener) && pass(pair.listener, pair.caller) &&
                     pass(pair.caller, pair.listener);
    EXPECT_FALSE(met) << "byte " << at;
  }
}

// What was said in one connection proves nothing in another, to either end.
TEST(SealedSession, AnOldConversationIsOfNoUse) {
  SealedEnds old;
  ASSERT_TRUE(old.meet());
  SealedSession listener(secret_of(1), "test", SealedSession::Role::listener);
  ASSERT_TRUE(feed(listener, old.hello).ok());
  EXPECT_FALSE(feed(listener, old.proof).ok());
  SealedSession caller(secret_of(1), "test", SealedSession::Role::caller);
  EXPECT_FALSE(feed(caller, old.answer).ok());
  SealedSession mirrored(secret_of(1), "test", SealedSession::Role::caller);
  const Bytes own = drain(mirrored);
  Bytes reflected(own.begin() + 8, own.begin() + 40);
  reflected.insert(reflected.end(), old.proof.begin(), old.proof.end());
  EXPECT_FALSE(feed(mirrored, reflected).ok());
}

Bytes record_of(SealedSession& session, std::string_view text) {
  session.seal(std::as_bytes(std::span(text)));
  return drain(session);
}

TEST(SealedSession, ChangedRepeatedReorderedAndForeignRecordsAreSeen) {
  const std::string text = "a record";
  const std::size_t bytes = [&] {
    SealedEnds pair;
    EXPECT_TRUE(pair.meet());
    return record_of(pair.caller, text).size();
  }();
  for (std::size_t at = 0; at < bytes; ++at) {
    SealedEnds pair;
    ASSERT_TRUE(pair.meet());
    Bytes record = record_of(pair.caller, text);
    record[at] ^= std::byte{1};
    const Bytes next = record_of(pair.caller, "and the next, which an altered length may reach into");
    record.insert(record.end(), next.begin(), next.end());
    const Result<Bytes> heard = feed(pair.listener, record);
    EXPECT_TRUE(!heard.ok() || heard->empty()) << "byte " << at;
    if (!heard.ok()) {
      EXPECT_THAT(heard.error().message, HasSubstr("was changed on the way"));
    }
  }
  {
    SealedEnds pair;
    ASSERT_TRUE(pair.meet());
    const Bytes record = record_of(pair.caller, text);
    ASSERT_TRUE(feed(pair.listener, record).ok());
    EXPECT_FALSE(feed(pair.listener, record).ok()) << "repeated";
  }
  {
    SealedEnds pair;
    ASSERT_TRUE(pair.meet());
    record_of(pair.caller, "left out");
    EXPECT_FALSE(feed(pair.listener, record_of(pair.caller, text)).ok()) << "reordered";
  }
  {
    SealedEnds pair;
    ASSERT_TRUE(pair.meet());
    EXPECT_FALSE(feed(pair.caller, record_of(pair.caller, text)).ok()) << "sent back";
  }
  {
    SealedEnds one, other;
    ASSERT_TRUE(one.meet() && other.meet());
    EXPECT_FALSE(feed(other.listener, record_of(one.caller, text)).ok()) << "of another connection";
  }
}

// A peer without the secret, saying anything: it is never taken for one that has it.
TEST(SealedSession, AStrangerIsNeverEstablished) {
  std::minstd_rand random(2);
  for (int round = 0; round < 2'000; ++round) {
    const bool calls = round % 2 == 0;
    SealedSession session(secret_of(1), "test",
                          calls ? SealedSession::Role::listener : SealedSession::Role::caller);
    Bytes said = some_bytes(200);
    for (std::byte& byte : said) byte = static_cast<std::byte>(random());
    SealedEnds pair;
    ASSERT_TRUE(pair.meet());
    if (calls) std::ranges::copy(pair.hello, said.begin());  // right up to here
    if (!calls && round % 4 == 1) std::ranges::copy(pair.answer, said.begin());
    said.resize(random() % said.size());
    drain(session);
    const Result<Bytes> heard = feed(session, said);
    EXPECT_FALSE(session.is_established());
    if (heard.ok()) {
      EXPECT_TRUE(heard->empty());
    }
  }
}

TEST(Secret, IsHandedOutSealed) {
  const Secret secret = secret_of(9);
  const SecretRequest request, another;
  const Result<std::string> sealed = seal_secret(secret, request.text());
  ASSERT_TRUE(sealed.ok());
  const Result<Secret> opened = request.open(*sealed);
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ(opened->bytes(), secret.bytes());
  EXPECT_FALSE(another.open(*sealed).ok()) << "it was for another one";
  EXPECT_FALSE(request.open("").ok());
  EXPECT_FALSE(request.open(sealed->substr(2)).ok());
  EXPECT_FALSE(seal_secret(secret, "no key").ok());
  EXPECT_THAT(*sealed, testing::Not(HasSubstr("0909090909090909")));
}

}  // namespace
}  // namespace holdfast::test
