// A shard file on its way to the disk of another host: it arrives as it is, or not at all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "checkpoint/transfer.h"

namespace holdfast::test {
namespace {

class ShardCopyTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = testing::TempDir() + "shard-copy-" + std::to_string(posix_env().process_id());
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_ + "/source");
    std::string content(3'000'000, 'x');
    for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 31 % 251);
    std::ofstream(root_ + "/source/" + shard_.name, std::ios::binary) << content;
    shard_.bytes = content.size();
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  // Runs both ends; returns what the source and the keeper say of it.
  std::pair<Result<void>, Result<void>> copy(const TransferSource& sent, const TransferSource& kept) {
    const auto listener = posix_env().network().listen("");
    EXPECT_TRUE(listener.ok());
    Result<void> received;
    std::jthread keeper([&] {
      const auto connection = (*listener)->accept(10'000);
      received = receive_shard_copy(
          **connection, posix_env(), kept,
          [&](std::uint64_t step) { return root_ + "/target/" + std::to_string(step); }, faults_);
    });
    Result<void> outcome;
    {
      const auto connection = posix_env().network().connect({"127.0.0.1", (*listener)->port()}, 10'000);
      EXPECT_TRUE(connection.ok());
      outcome = send_shard_copy(**connection, posix_env(), sent, 20, root_ + "/source", shard_, faults_);
    }
    keeper.join();
    return {outcome, received};
  }

  std::string text_of(const std::string& path) { return posix_env().text_or_empty(root_ + path); }

  std::string root_;
  FaultPoints faults_;
  ShardFile shard_ = {.name = "shard-00003.hfs"};
  TransferSource ours_ = {.run = digest_of("run"), .writer = 5};
};

TEST_F(ShardCopyTest, ArrivesAsItIs) {
  const auto [sent, received] = copy(ours_, ours_);
  EXPECT_TRUE(sent.ok() && received.ok()) << (sent.ok() ? "" : sent.error().message);
  EXPECT_EQ(text_of("/target/20/shard-00003.hfs"), text_of("/source/shard-00003.hfs"));
}

TEST_F(ShardCopyTest, ThatOfAnotherStartIsRefused) {
  const auto [sent, received] = copy(ours_, {.run = ours_.run, .writer = 6});
  ASSERT_FALSE(sent.ok());
  EXPECT_THAT(sent.error().message, testing::HasSubstr("it keeps those of another run or start"));
  EXPECT_FALSE(received.ok());
  EXPECT_FALSE(std::filesystem::exists(root_ + "/target"));
}

TEST_F(ShardCopyTest, NothingIsOverwritten) {
  EXPECT_TRUE(copy(ours_, ours_).first.ok());
  const auto [sent, received] = copy(ours_, ours_);
  ASSERT_FALSE(sent.ok());
  EXPECT_THAT(sent.error().message, testing::HasSubstr("cannot be written"));
  EXPECT_FALSE(received.ok());
}

TEST_F(ShardCopyTest, NoNameLeadsOutOfTheDirectory) {
  shard_.name = "../escape";
  std::filesystem::copy(root_ + "/source/shard-00003.hfs", root_ + "/escape-source");
  std::filesystem::rename(root_ + "/escape-source", root_ + "/escape");
  const auto [sent, received] = copy(ours_, ours_);
  EXPECT_FALSE(sent.ok());
  EXPECT_FALSE(received.ok());
  EXPECT_FALSE(std::filesystem::exists(root_ + "/target"));
}

}  // namespace
}  // namespace holdfast::test
