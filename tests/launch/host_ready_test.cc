// Readiness of hosts: the question, and how a host tells the launcher's run directory from another one.
#include "runtime/launch/host_ready.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/config/loader.h"
#include "runtime/launch/host_command.h"
#include "tests/launch/variables_env.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;

constexpr const char* token = "0123456789abcdef";

ReadyQuestion some_question() {
  return {.token = token,
          .nonce = std::string(32, 'a'),
          .shares_directory = true,
          .config_digest = std::string(32, 'b'),
          .ranks = 12,
          .ranks_here = 4,
          .meeting = {.door = "40112@10.0.0.1", .place = 2, .mpi = "+e1", .interface = "e 0"},
          .directory = "/home/a b",
          .config = "run.toml",
          .overrides = {"--run.seed=2", "--", "--threads=1"}};
}

TEST(ReadyQuestion, IsReadAsItWasWritten) {
  ReadyQuestion question = some_question();
  EXPECT_EQ(parse_ready_question(words_of(question)), question);
  question.shares_directory = false;
  question.config_digest = "";
  question.overrides.clear();
  question.meeting = {};
  EXPECT_EQ(parse_ready_question(words_of(question)), question);
  const MeetQuestion meet{.nonce = question.nonce, .meeting = some_question().meeting};
  EXPECT_EQ(parse_meet_question(words_of(meet)), meet);
  EXPECT_EQ(parse_meet_question({"meet", "../x", "-", "0", "-", "-"}), std::nullopt);
  EXPECT_EQ(parse_meet_question({"meet", question.nonce, "-", "-1", "-", "-"}), std::nullopt);
}

TEST(ReadyQuestion, OtherWordsAreRefused) {
  const std::vector<std::string> words = words_of(some_question());
  for (std::size_t i = 0; i < 13; ++i) {
    // Any text may be a place where nobody is, an interface, or the name of a directory.
    if (i == 7 || i == 9 || i == 10 || i == 11) continue;
    std::vector<std::string> other = words;
    other[i] = "../x";
    EXPECT_EQ(parse_ready_question(other), std::nullopt) << i;
  }
  for (const std::string ranks : {"0", "-1", "2x", ""}) {
    std::vector<std::string> other = words;
    other[5] = ranks;
    EXPECT_EQ(parse_ready_question(other), std::nullopt) << ranks;
    other = words;
    other[6] = ranks;
    EXPECT_EQ(parse_ready_question(other), std::nullopt) << ranks;
  }
  EXPECT_EQ(parse_ready_question({words.begin(), words.begin() + 13}), std::nullopt) << "no config";
  const auto prove = [](const ReadyQuestion&) -> Result<void> {
    ADD_FAILURE() << "asked";
    return {};
  };
  EXPECT_THAT(run_host_command(posix_env(), {"ready", token}, prove).error().message,
              HasSubstr("launch --on-host is for the launcher itself"));
}

TEST(ReadyQuestion, TheLineHasTheVariablesThatRanksGet) {
  VariablesEnv env(std::map<std::string, std::string>{{"HOLDFAST_RUN_SEED", "7"}, {"HOME", "/root"}});
  const std::vector<std::string> line = ready_line(env, "/bin/holdfast", some_question());
  ASSERT_GT(line.size(), 5U);
  EXPECT_THAT(
      std::vector(line.begin(), line.begin() + 6),
      testing::ElementsAre("env", "HOLDFAST_RUN_SEED=7", "/bin/holdfast", "launch", "--on-host", "ready"));
  EXPECT_EQ(parse_ready_question({line.begin() + 5, line.end()}), some_question());
}

TEST(RoomOfHost, RanksTakeTheSpacesInTurn) {
  const std::vector<RankSpace> host = {{.name = "this host", .bytes = 7'000}};
  EXPECT_EQ(room_for_ranks(7, host, 1'000, 0), (RoomOfHost{.ranks = 7}));
  EXPECT_EQ(room_for_ranks(8, host, 1'000, 0).ranks, 7);
  EXPECT_EQ(room_for_ranks(8, host, 8'000, 0).ranks, 0);
  EXPECT_EQ(room_for_ranks(8, std::vector<RankSpace>{{.name = "this host"}}, 8'000, 0).ranks, 8)
      << "not known";
  std::vector<RankSpace> gpus = {{.name = "GPU-a", .bytes = 2'000}, {.name = "GPU-b", .bytes = 1'000}};
  EXPECT_EQ(room_for_ranks(4, gpus, 1'000, 0).ranks, 3);
  EXPECT_EQ(room_for_ranks(4, gpus, 100, 1),
            (RoomOfHost{.ranks = 2, .why = "GPU-a is for 1 rank (parallel.ranks_per_gpu)"}));
  gpus[1].trouble = "it computes wrong products";
  EXPECT_EQ(room_for_ranks(2, gpus, 100, 1), (RoomOfHost{.ranks = 1, .why = "it computes wrong products"}));
}

TEST(RoomOfHost, IsReadAsItWasSaid) {
  const RoomOfHost room{.ranks = 7, .why = "a rank needs 2 GiB: more"};
  EXPECT_EQ(find_room_line("here n1\n" + line_of(room) + "\nready\n"), room);
  EXPECT_EQ(find_room_line("here n1\nready\n"), std::nullopt);
  EXPECT_EQ(find_room_line("room for many: x\nroom for 0: y\nready\n"), std::nullopt);
}

TEST(HostReady, AnErrorIsOneLineWithItsCode) {
  const auto prove = [](const ReadyQuestion& question) -> Result<void> {
    EXPECT_EQ(question, some_question());
    return fail(ExitCode::data, "a is empty\nb does not exist\n");
  };
  const Result<int> done = run_host_command(posix_env(), words_of(some_question()), prove);
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().code, ExitCode::data);
  EXPECT_EQ(done.error().message, "a is empty; b does not exist");
  const auto is_ready = [](const ReadyQuestion&) { return Result<void>(); };
  EXPECT_EQ(run_host_command(posix_env(), words_of(some_question()), is_ready).value(), 0);
}

class RunDirectorySight : public testing::Test {
 protected:
  Result<bool> sees(const RunPaths& there, bool shares) {
    ReadyQuestion question = some_question();
    question.nonce = nonce;
    question.shares_directory = shares;
    return sees_run_directory(posix_env(), there, question);
  }

  TemporaryDirectory directory;
  RunPaths paths{directory / "run"};
  std::string nonce;

  void SetUp() override {
    ASSERT_TRUE(posix_env().make_directories(paths.launch()).ok());
    ASSERT_TRUE(write_ready_nonce(posix_env(), paths, token).ok());
    nonce = write_ready_nonce(posix_env(), paths, token).value();
  }
};

TEST_F(RunDirectorySight, TheNonceIsSeenWhereTheDirectoryIsTheSame) {
  EXPECT_EQ(sees(paths, true).value(), true);
  EXPECT_EQ(sees(paths, false).value(), true);
}

TEST_F(RunDirectorySight, AnotherDirectoryIsAFaultWhereTheHostsShareIt) {
  const RunPaths there{directory / "elsewhere"};
  EXPECT_EQ(sees(there, false).value(), false);
  Result<bool> seen = sees(there, true);
  ASSERT_FALSE(seen.ok());
  EXPECT_EQ(seen.error().code, ExitCode::checkpoint);
  EXPECT_EQ(seen.error().reach, Reach::host);
  EXPECT_THAT(seen.error().message,
              HasSubstr("what the launcher has just written there is missing; mount it here"));
  ASSERT_TRUE(posix_env().make_directories(there.launch()).ok());
  ASSERT_TRUE(write_ready_nonce(posix_env(), there, token).ok());
  EXPECT_EQ(sees(there, false).value(), false);
  seen = sees(there, true);
  ASSERT_FALSE(seen.ok());
  EXPECT_THAT(seen.error().message,
              HasSubstr("it is another directory, or an older state of it; mount it here"));
}

TEST_F(RunDirectorySight, OnlyARecordOfSeveralHostsProvesThatTheyShareIt) {
  const auto log = [&](const std::string& hosts) {
    ASSERT_TRUE(posix_env()
                    .replace_text(paths.events(), R"({"event":"start","ranks":4,"hosts":{)" + hosts + "}}\n")
                    .ok());
  };
  EXPECT_FALSE(hosts_share_directory(posix_env(), paths));
  log(R"("n0":4)");
  EXPECT_FALSE(hosts_share_directory(posix_env(), paths));
  log(R"("n0":2,"n1":2)");
  EXPECT_TRUE(hosts_share_directory(posix_env(), paths));
  ASSERT_TRUE(posix_env().replace_text(paths.place_name(), "n0").ok());
  EXPECT_FALSE(hosts_share_directory(posix_env(), paths));
}

TEST(HostReady, TheDigestOfAConfigFollowsFromItsValues) {
  const TemporaryDirectory directory;
  const std::string path = directory / "run.toml", copy = directory / "copy.toml";
  const std::string text =
      "[run]\ndirectory = \"r\"\n[model]\nlayers = 1\nheads = 1\nwidth = 8\n"
      "[data]\nsources = [{ path = \"text.txt\", format = \"text\" }]\n[training]\nsteps = "
      "3\nsequence_length = 8\n";
  ASSERT_TRUE(posix_env().replace_text(path, text).ok());
  ASSERT_TRUE(posix_env().replace_text(copy, "# a comment\n" + text).ok());
  const auto digest = [](const std::string& file, const std::vector<std::string>& words) {
    const Result<LoadedConfig> loaded = load_config(posix_env(), file, parse_overrides(words).value());
    EXPECT_TRUE(loaded.ok()) << loaded.error().message;
    return config_digest(loaded->config);
  };
  EXPECT_EQ(digest(path, {}), digest(copy, {"--training.steps=3"}));
  EXPECT_NE(digest(path, {}), digest(path, {"--training.steps=4"}));
  EXPECT_EQ(digest(path, {}).size(), 32U);
}

}  // namespace
}  // namespace holdfast::test
