// Whole runs in which a bit of the state that is no tensor changes in the memory of a rank.
#include <gmock/gmock.h>

#include "tests/elastic/recovery_fixture.h"

namespace holdfast::test {
namespace {

class RunStateTest : public RecoveryTest {
 protected:
  struct Change {
    const char* what;
    int ranks;
    const char* faults;
    int deaths;
    std::vector<std::string> overrides = {};
  };
  static const std::vector<Change>& changes() {
    static const std::vector<Change> all = {
        {"position of one of three", 3, "step.begin@9:1=flip:run_state:4:1", 1},
        {"position of the writer", 3, "step.end@9:0=flip:run_state:2:1", 1},
        {"step of one of three", 3, "step.begin@9:2=flip:run_state:20:0", 1},
        {"step of one of two, to one that was", 2, "step.begin@9:1=flip:run_state:3:0", 1},
        {"step of a rank at its end", 3, "step.end@9:1=flip:run_state:20:0", 1},
        {"losses of one of three", 3, "step.begin@9:0=flip:run_state:1:2", 1},
        {"losses of one of two", 2, "step.begin@9:0=flip:run_state:1:2", 0},
        {"position of the only rank", 1, "step.end@9=flip:run_state:4:1", 0},
        {"step of the only rank", 1, "step.begin@9=flip:run_state:3:0", 0},
        {"position of the writer, unless the verdict guards",
         3,
         "step.end@9:0=flip:run_state:2:1",
         1,
         {"verdict.preset=watch"}},
        {"positions of two of four", 4, "step.begin@9:1=flip:run_state:4:1,step.begin@9:2=flip:run_state:5:1",
         2},
        {"weights of two of four", 4, "step.begin@9:1=flip:weights:22:5,step.begin@9:3=flip:moment1:22:5", 2},
        {"positions of two of two", 2, "step.begin@9:0=flip:run_state:4:1,step.begin@9:1=flip:run_state:5:1",
         0},
        {"losses of a stage", 4, "step.begin@9:3=flip:run_state:1:2", 1, {"parallel.pipeline=2"}},
    };
    return all;
  }
};

TEST_F(RunStateTest, TheBitsAreThoseOfTheUndisturbedRun) {
  const std::string end = reference();
  int number = 0;
  for (const Change& each : changes()) {
    SCOPED_TRACE(each.what);
    const std::string run = fmt::format("changed-{}", ++number);
    std::vector<std::string> overrides = each.overrides;
    overrides.emplace_back("checkpoint.ram_every_steps=1");
    EXPECT_EQ(survive({.run = run, .ranks = each.ranks, .overrides = overrides, .faults = each.faults}),
              each.deaths);
    EXPECT_EQ(digest(run), end);
    const std::vector<Json> verdicts = events(run, "verdict");
    EXPECT_EQ(verdicts.size(), 1U);
    for (const Json& verdict : verdicts) {
      EXPECT_EQ(verdict["kind"], "corruption");
      EXPECT_EQ(verdict["of"], "state");
      EXPECT_EQ(verdict["action"], each.deaths > 0 ? "evict" : "rollback") << verdict.dump();
      EXPECT_THAT(verdict["step"].get<int>(), testing::AnyOf(9, 10)) << "by the next vote";
    }
  }
}

}  // namespace
}  // namespace holdfast::test
