// What MegatronWriter writes is what open_megatron() reads, and it is whole or not there.
#include <gmock/gmock.h>

#include <filesystem>

#include "runtime/data/megatron.h"
#include "tests/data/token_files.h"
#include "tests/support/forwarding_env.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class MegatronWriterTest : public testing::Test {
 protected:
  std::vector<std::string> names() {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(directory.path()))
      found.push_back(entry.path().filename().string());
    std::ranges::sort(found);
    return found;
  }
  static Result<void> finish(const std::unique_ptr<MegatronWriter>& writer) {
    return MegatronWriter::finish(std::array{writer.get()});
  }
  std::unique_ptr<MegatronWriter> writer_of(const std::string& name) {
    auto writer = MegatronWriter::create(posix_env(), directory / name, 300);
    HF_CHECK(writer.ok() && (*writer)->append(std::vector<std::uint32_t>{1}).ok());
    HF_CHECK((*writer)->end_document().ok());
    return std::move(writer).value();
  }
  // Writes documents that end with the largest token of the vocabulary.
  void expect_type(std::int64_t vocabulary, TokenType type) {
    SCOPED_TRACE(vocabulary);
    const std::string name = directory / std::to_string(vocabulary);
    const auto largest = static_cast<std::uint32_t>(vocabulary - 1);
    auto writer = MegatronWriter::create(posix_env(), name, vocabulary);
    HF_ASSERT_OK(writer);
    HF_ASSERT_OK((*writer)->append(std::vector<std::uint32_t>{0, 1}));
    HF_ASSERT_OK((*writer)->append(std::vector<std::uint32_t>{largest}));
    HF_ASSERT_OK((*writer)->end_document());
    HF_ASSERT_OK((*writer)->append(std::vector<std::uint32_t>{2, largest}));
    HF_ASSERT_OK((*writer)->end_document());
    EXPECT_FALSE(std::filesystem::exists(name + ".bin"));
    HF_ASSERT_OK(finish(*writer));
    const auto file = open_megatron(posix_env(), name, true);
    HF_ASSERT_OK(file);
    EXPECT_EQ(file->type, type);
    EXPECT_EQ(file->token_count, 5u);
    EXPECT_THAT(file->document_starts.value(), ElementsAre(0, 3));
    const auto source = TokenSource::open(posix_env(), {.path = name, .format = "megatron"}, 4);
    HF_ASSERT_OK(source);
    std::vector<std::int32_t> tokens(5);
    HF_ASSERT_OK((*source)->read(0, tokens, vocabulary));
    EXPECT_THAT(tokens, ElementsAre(0, 1, largest, 2, largest));
  }

  TemporaryDirectory directory;
};

TEST_F(MegatronWriterTest, TheVocabularySaysHowWideTokensAre) {
  expect_type(256, TokenType::u16);
  expect_type(65536, TokenType::u16);
  expect_type(65537, TokenType::i32);
  expect_type(200000, TokenType::i32);
}

TEST_F(MegatronWriterTest, WhatIsNotFinishedGoesAndWhatIsThereStays) {
  const std::string name = directory / "set";
  {
    auto writer = MegatronWriter::create(posix_env(), name, 300);
    HF_ASSERT_OK(writer);
    HF_ASSERT_OK((*writer)->append(std::vector<std::uint32_t>{1}));
    EXPECT_THAT(names(), ElementsAre("set.bin.partial", "set.idx.partial", "set.partial"));
  }
  EXPECT_TRUE(names().empty());
  write_bytes(name + ".bin.partial", "of a writer that was killed");
  HF_ASSERT_OK(MegatronWriter::create(posix_env(), name, 300));
  write_bytes(name + ".idx", "somebody's");
  const auto refused = MegatronWriter::create(posix_env(), name, 300);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, HasSubstr("set.idx exists already; remove it"));
  EXPECT_THAT(names(), ElementsAre("set.idx"));
}

TEST_F(MegatronWriterTest, ASecondWriterIsRefusedAndHarmsNothing) {
  auto first = writer_of("set");
  for (int i = 0; i < 2; ++i) {
    const auto second = MegatronWriter::create(posix_env(), directory / "set", 300);
    ASSERT_FALSE(second.ok());
    EXPECT_EQ(second.error().code, ExitCode::config);
    EXPECT_THAT(second.error().message, HasSubstr("set.idx are being written by another process"));
  }
  HF_ASSERT_OK(finish(first));
  first.reset();
  HF_ASSERT_OK(open_megatron(posix_env(), directory / "set", false));
  EXPECT_THAT(names(), ElementsAre("set.bin", "set.idx"));
}

// Records the order in which files are synced and get their names.
class OrderEnv final : public ForwardingEnv {
 public:
  OrderEnv() : ForwardingEnv(posix_env()) {}
  Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode) override {
    HF_TRY(std::unique_ptr<File> file, ForwardingEnv::open(path, mode));
    return std::unique_ptr<File>(std::make_unique<SyncedFile>(std::move(file), steps));
  }
  Result<void> link(const std::string& source, const std::string& target) override {
    steps.push_back("name " + target.substr(target.rfind('/') + 1));
    return ForwardingEnv::link(source, target);
  }
  std::vector<std::string> steps;

 private:
  class SyncedFile final : public ForwardingFile {
   public:
    SyncedFile(std::unique_ptr<File> inner, std::vector<std::string>& steps)
        : ForwardingFile(std::move(inner)), steps_(steps) {}
    Result<void> sync() override {
      steps_.emplace_back("sync");
      return ForwardingFile::sync();
    }
    std::vector<std::string>& steps_;
  };
};

TEST_F(MegatronWriterTest, AllIsOnDiskBeforeTheFirstNameAndIndicesComeLast) {
  OrderEnv env;
  const auto kept = MegatronWriter::create(env, directory / "kept", 300);
  const auto held = MegatronWriter::create(env, directory / "held", 300);
  HF_ASSERT_OK(kept);
  HF_ASSERT_OK(held);
  HF_ASSERT_OK(MegatronWriter::finish(std::array{kept->get(), held->get()}));
  EXPECT_THAT(env.steps, ElementsAre("sync", "sync", "sync", "sync", "name kept.bin", "name held.bin",
                                     "name kept.idx", "name held.idx"));
}

class LinklessEnv final : public ForwardingEnv {
 public:
  LinklessEnv() : ForwardingEnv(posix_env()) {}
  Result<void> link(const std::string&, const std::string&) override {
    return fail(ExitCode::checkpoint, "no links here");
  }
};

TEST_F(MegatronWriterTest, AFileSystemWithoutLinksWillDo) {
  LinklessEnv env;
  {
    const auto writer = MegatronWriter::create(env, directory / "set", 300);
    HF_ASSERT_OK(writer);
    HF_ASSERT_OK((*writer)->append(std::vector<std::uint32_t>{1}));
    HF_ASSERT_OK((*writer)->end_document());
    HF_ASSERT_OK(finish(*writer));
  }
  HF_ASSERT_OK(open_megatron(posix_env(), directory / "set", false));
  EXPECT_THAT(names(), ElementsAre("set.bin", "set.idx"));
}

// What has come under one of the names meanwhile stays, and so does nothing else, of either dataset.
TEST_F(MegatronWriterTest, AFileThatComesMeanwhileIsNotReplaced) {
  for (const std::string name : {"kept.bin", "kept.idx", "held.bin", "held.idx"}) {
    SCOPED_TRACE(name);
    {
      const auto kept = writer_of("kept"), held = writer_of("held");
      write_bytes(directory / name, "somebody's");
      const auto outcome = MegatronWriter::finish(std::array{kept.get(), held.get()});
      ASSERT_FALSE(outcome.ok());
      EXPECT_THAT(outcome.error().message, HasSubstr(name + " exists already; remove it"));
    }
    EXPECT_THAT(names(), ElementsAre(name));
    EXPECT_EQ(posix_env().text_or_empty(directory / name), "somebody's");
    std::filesystem::remove(directory / name);
  }
}

}  // namespace
}  // namespace holdfast::test
