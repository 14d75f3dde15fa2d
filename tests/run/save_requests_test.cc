#include "runtime/run/requests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "runtime/os/env.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

using AnswerState = SaveAnswer::State;

class SaveRequestsTest : public testing::Test {
 protected:
  std::string ask(RequestKind kind = RequestKind::attended) {
    Result<std::string> path = request_save(env_, paths_, kind);
    EXPECT_TRUE(path.ok());
    return std::move(path).value();
  }
  bool exists(const std::string& path) {
    const Result<FileStatus> status = env_.status(path);
    return status.ok() && status->exists;
  }
  void wait_until(const std::function<bool()>& condition) {
    for (int i = 0; i < 6000 && !condition(); ++i) env_.sleep_us(5000);
    ASSERT_TRUE(condition());
  }

  Env& env_ = posix_env();
  TemporaryDirectory directory_;
  RunPaths paths_{directory_ / "run"};
};

TEST_F(SaveRequestsTest, TheAnswerSaysWhichStep) {
  const std::unique_ptr<SaveRequests> requests = SaveRequests::begin(env_, paths_).value();
  EXPECT_FALSE(requests->waiting());
  const std::string path = ask();
  wait_until([&] { return requests->waiting(); });
  requests->begun(12);
  EXPECT_FALSE(requests->waiting());
  wait_until([&] { return read_save_answer(env_, path).state == AnswerState::begun; });
  requests->ended(10, {});
  requests->ended(12, {});
  wait_until([&] { return read_save_answer(env_, path).state == AnswerState::saved; });
  EXPECT_EQ(read_save_answer(env_, path).step, 12u);
  EXPECT_FALSE(requests->waiting());
}

TEST_F(SaveRequestsTest, WhatWasAskedBeforeTheStartWaitsFromTheFirstMoment) {
  for (int i = 0; i < 20; ++i) {
    ask();
    EXPECT_TRUE(SaveRequests::begin(env_, paths_).value()->waiting());
  }
}

TEST_F(SaveRequestsTest, AFailureIsAnAnswer) {
  const std::unique_ptr<SaveRequests> requests = SaveRequests::begin(env_, paths_).value();
  const std::string path = ask();
  wait_until([&] { return requests->waiting(); });
  requests->begun(3);
  requests->ended(3, fail(ExitCode::checkpoint, "the disk\nis full"));
  wait_until([&] { return read_save_answer(env_, path).state == AnswerState::failed; });
  EXPECT_EQ(read_save_answer(env_, path).sentence, "the disk is full");
}

// It was asked for behind the copy of the first, and so may want something newer.
TEST_F(SaveRequestsTest, ARequestBesideASaveGetsASaveOfItsOwn) {
  const std::unique_ptr<SaveRequests> requests = SaveRequests::begin(env_, paths_).value();
  const std::string first = ask();
  wait_until([&] { return requests->waiting(); });
  requests->begun(5);
  const std::string second = ask();
  wait_until([&] { return requests->waiting(); });
  requests->ended(5, {});
  EXPECT_TRUE(requests->waiting());
  requests->begun(6);
  requests->ended(6, {});
  wait_until([&] { return read_save_answer(env_, second).state == AnswerState::saved; });
  EXPECT_EQ(read_save_answer(env_, first).step, 5u);
  EXPECT_EQ(read_save_answer(env_, second).step, 6u);
}

// Of a leader that died, or whose ranks lost another one.
TEST_F(SaveRequestsTest, TheNextLeaderAnswersWhatIsLeft) {
  const std::string asked = ask(), begun = ask(), saved = ask();
  ASSERT_TRUE(env_.replace_text(begun, "begun 7\n").ok());
  ASSERT_TRUE(env_.replace_text(saved, "saved 7\n").ok());
  {
    const std::unique_ptr<SaveRequests> requests = SaveRequests::begin(env_, paths_).value();
    wait_until([&] { return requests->waiting(); });
    requests->begun(8);
    requests->ended(8, {});
  }  // what is left to be written is
  EXPECT_EQ(read_save_answer(env_, begun).step, 8u);
  EXPECT_EQ(read_save_answer(env_, asked).state, AnswerState::saved);
  EXPECT_EQ(read_save_answer(env_, saved).step, 7u);
  forget_answered_requests(env_, paths_);
  EXPECT_FALSE(exists(saved));
}

TEST_F(SaveRequestsTest, AnotherStartIsWantedUntilItBegins) {
  const std::unique_ptr<SaveRequests> requests = SaveRequests::begin(env_, paths_).value();
  EXPECT_FALSE(requests->restart_request().wanted);
  ASSERT_TRUE(request_restart(env_, paths_, /*hosts_leaving=*/1).ok());
  wait_until([&] { return requests->restart_request().wanted; });
  EXPECT_EQ(requests->restart_request().hosts_leaving, 1);
  EXPECT_FALSE(requests->waiting()) << "it asks for no save";
  forget_answered_requests(env_, paths_);
  wait_until([&] { return !requests->restart_request().wanted; });
}

TEST_F(SaveRequestsTest, WhatNobodyWaitsForGoesWithItsAnswer) {
  const std::unique_ptr<SaveRequests> requests = SaveRequests::begin(env_, paths_).value();
  const std::string path = ask(RequestKind::unattended);
  wait_until([&] { return requests->waiting(); });
  requests->begun(1);
  requests->ended(1, {});
  wait_until([&] { return !exists(path); });
}

TEST_F(SaveRequestsTest, WhoLeavesIsNotAnswered) {
  const std::unique_ptr<SaveRequests> requests = SaveRequests::begin(env_, paths_).value();
  const std::string path = ask();
  wait_until([&] { return requests->waiting(); });
  ASSERT_TRUE(env_.remove(path).ok());
  wait_until([&] { return !requests->waiting(); });
  requests->begun(1);
  requests->ended(1, {});
  EXPECT_FALSE(exists(path));
}

}  // namespace
}  // namespace holdfast::test
