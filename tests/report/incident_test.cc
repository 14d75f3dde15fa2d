// One fault of a run with its causes and costs, from logs whose times are known.
#include "runtime/report/incident.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "runtime/core/json.h"
#include "runtime/report/incident_page.h"
#include "runtime/report/report_bundle.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr std::int64_t begin_us = 1'796'000'000'000'000;

// LoggedRun is an event log in the making, with a clock that moves by what it logs.
class LoggedRun {
 public:
  void start(int ranks, const std::string& hosts, const std::string& resumed = "null") {
    add(fmt::format(R"("event":"start","ranks":{},"hosts":{},"steps":1000,"resumed_from_step":{})", ranks,
                    hosts, resumed));
  }
  void steps(std::uint64_t first, std::uint64_t last, int step_ms) {
    for (std::uint64_t step = first; step <= last; ++step) {
      now_us += step_ms * 1000;
      add(fmt::format(R"("event":"step","step":{},"loss":1.5,"step_duration_ms":{})", step, step_ms));
    }
  }
  void fault(std::uint64_t step, const std::string& lost, const std::string& reason,
             FaultCause cause = FaultCause::rank_died) {
    add(fmt::format(
        R"("event":"fault","step":{},"what":"rank","cause":"{}","lost":"{}","noticed_us":{},"reason":"{}")",
        step, name_of(cause), lost, now_us, reason));
  }
  void recovery(const std::string& reason, int before, int after, const std::string& hosts, int lost,
                std::uint64_t from, const std::string& place = "ram") {
    add(fmt::format(
        R"("event":"recovery","reason":"{}","level":1,"ranks_before":{},"ranks_after":{},"hosts":{},"lost_steps":{},)"
        R"("resumed_from_step":{},"resumed_from":"{}","duration_ms":250.0)",
        reason, before, after, hosts, lost, from, place));
  }
  void add(const std::string& fields) { text_ += fmt::format("{{{},\"time_us\":{}}}\n", fields, now_us); }
  void wait(std::int64_t pause_ms) { now_us += pause_ms * 1000; }

  Result<Incident> incident(std::size_t number) const {
    const TemporaryDirectory directory;
    EXPECT_TRUE(posix_env().replace_text(directory.path() + "/events.jsonl", text_).ok());
    return read_incident(posix_env(), RunPaths{directory.path()}, number);
  }

  std::int64_t now_us = begin_us;

 private:
  std::string text_;
};

constexpr const char *two_hosts = R"({"a":2,"b":2})", *three_ranks = R"({"a":2,"b":1})",
                     *one_host = R"({"a":2})";

// Rank 2 dies in step 41, three fifths of a step after the one before; the run goes on from step 30 after 0.4 s.
LoggedRun run_with_a_death() {
  LoggedRun run;
  run.start(4, two_hosts);
  run.steps(1, 40, 100);
  run.wait(60);
  run.fault(40, "rank 2 (host b)", "rank 0 lost rank 2: its process or host died");
  run.wait(400);
  run.steps(31, 31, 150);
  run.recovery("loss", 4, 3, three_ranks, 10, 30);
  run.steps(32, 60, 150);
  run.recovery("growth", 3, 4, two_hosts, 0, 60);
  run.steps(61, 80, 100);
  return run;
}

TEST(Incident, CostsOfADeath) {
  const Incident one = run_with_a_death().incident(1).value();
  EXPECT_EQ(one.playbook().kind, "rank-died");
  EXPECT_EQ(one.count, 1u);
  EXPECT_EQ(one.ranks_before, 4);
  EXPECT_EQ(one.ranks_after, 3);
  EXPECT_NEAR(one.cost.unnoticed_s, 0.06, 1e-9);
  EXPECT_NEAR(one.cost.pause_s, 0.4, 1e-9);
  EXPECT_NEAR(one.cost.again_s, 10 * 0.15, 1e-9);
  EXPECT_NEAR(one.cost.slower_s, 20 * 0.05, 1e-9);  // steps 41 to 60; then there are as many ranks again
  EXPECT_THAT(one.decisions, ElementsAre(HasSubstr("3 of 4 ranks"), HasSubstr("step 30, in RAM")));
  EXPECT_THAT(one.lost_hosts, IsEmpty());
}

TEST(Incident, HasThePriceOfAllRanks) {
  Incident one = run_with_a_death().incident(1).value();
  EXPECT_EQ(one.price_of(900.0), "");
  EXPECT_THAT(incident_page("runs/a", one, {}),
              HasSubstr("the newest start of the log has no cost.per_rank_hour"));
  one.price = {.per_rank_hour = 3.0, .currency = "<$>"};
  EXPECT_EQ(one.price_of(900.0), "<$>3.00");  // 4 ranks for a quarter of an hour
  EXPECT_THAT(incident_page("runs/a", one, {}), AllOf(HasSubstr("&lt;$&gt;"), Not(HasSubstr("<$>"))));
}

TEST(Incident, SaysWhatWouldHaveBeenCheaper) {
  Incident one = run_with_a_death().incident(1).value();
  one.snapshot_s = 0.002;  // 2 % of a step
  EXPECT_THAT(cheaper_ways(one),
              ElementsAre(HasSubstr("`checkpoint.ram_every_steps = 2` it would have been at most 0.2 s, "
                                    "for 1.0 % of the time")));
  one.recovery->resumed_from = "disk";
  EXPECT_THAT(cheaper_ways(one), ElementsAre(HasSubstr("checkpoint.replicas")));
  one.cost = {.unnoticed_s = 4.0, .pause_s = 0.1, .again_s = 0.1, .slower_s = 0.1};
  EXPECT_THAT(cheaper_ways(one), ElementsAre(HasSubstr("nothing that a key")));  // a death is noticed at once
  one.faults[0].cause = FaultCause::rank_hangs;
  EXPECT_THAT(cheaper_ways(one), ElementsAre(HasSubstr("watchdog.floor")));
  one.cost = {.unnoticed_s = 0.1, .pause_s = 0.1, .again_s = 0.1, .slower_s = 20.0};
  EXPECT_THAT(cheaper_ways(one), ElementsAre(HasSubstr("3 instead of 4 ranks")));
  one = run_with_a_death().incident(1).value();  // nobody knows what a snapshot costs
  EXPECT_THAT(cheaper_ways(one), ElementsAre(HasSubstr("nothing that a key")));
  one.cost = {.unnoticed_s = 0.0, .pause_s = 30.0};
  one.faults[0].level = FaultLevel::restart;
  one.usual_pause_s = 0.25;
  EXPECT_THAT(cheaper_ways(one), ElementsAre(HasSubstr("recoveries in place of this run took 0.25 s")));
}

TEST(Incident, AHostThatIsGoneAndTwoFaultsMendedTogether) {
  LoggedRun run;
  run.start(4, two_hosts);
  run.steps(1, 40, 100);
  run.fault(40, "rank 2 (host b)", "rank 0 lost rank 2: its process or host died");
  run.wait(100);
  run.fault(40, "rank 3 (host b)", "rank 0 lost rank 3: its process or host died");
  run.wait(300);
  run.steps(40, 40, 100);
  run.recovery("loss", 4, 2, one_host, 1, 39);
  run.steps(41, 50, 100);
  run.wait(2'000);
  run.fault(50, "rank 1 (host a)", "rank 0 lost rank 1: its process or host died");
  for (const std::size_t number : {1u, 2u}) {
    const Incident both = run.incident(number).value();
    EXPECT_EQ(both.faults.size(), 2u);
    EXPECT_EQ(both.count, 3u);
    EXPECT_EQ(both.playbook().kind, "host-lost");
    EXPECT_THAT(both.lost_hosts, ElementsAre("b"));
    EXPECT_NEAR(both.cost.pause_s, 0.4, 1e-9);
    EXPECT_NEAR(both.cost.again_s, 0.1, 1e-9);
  }
  const Incident last = run.incident(3).value();  // nobody has gone on so far
  EXPECT_EQ(last.faults.size(), 1u);
  EXPECT_EQ(last.ranks_before, 2);
  EXPECT_NEAR(last.cost.unnoticed_s, 2.0, 1e-9);
  EXPECT_NEAR(last.usual_pause_s, 0.25, 1e-9);
  EXPECT_THAT(last.decisions, ElementsAre("nothing so far"));
}

// What a run did between its last step and the incident, or was not there for, is not what the incident cost.
TEST(Incident, CountsNeitherPausesNorEvaluations) {
  LoggedRun run;
  run.start(2, one_host);
  run.steps(1, 40, 100);
  run.add(R"("event":"finish","state":"saved","step":40,"exit_code":75,"reason":"asked to")");
  run.wait(50'000'000);
  run.start(2, one_host, "40");
  run.wait(30);
  run.fault(40, "rank 1 (host a)", "rank 0 lost rank 1: its process or host died");
  run.wait(100);
  run.steps(41, 41, 100);
  run.recovery("loss", 2, 1, R"({"a":1})", 0, 40);
  run.steps(42, 50, 100);
  run.wait(600'000);
  run.add(R"("event":"evaluation","step":50,"loss":1.5,"duration_ms":600000.0)");
  run.wait(20);
  run.fault(50, "rank 0 (host a)", "rank 0 died");
  EXPECT_NEAR(run.incident(1)->cost.unnoticed_s, 0.03, 1e-9);
  EXPECT_NEAR(run.incident(2)->cost.unnoticed_s, 0.02, 1e-9);
}

TEST(Incident, NothingRunsUntilSomebodyStartsItAgain) {
  LoggedRun run;
  run.start(2, one_host);
  run.steps(1, 40, 100);
  run.wait(7'200'000);  // killed with everything
  run.start(2, one_host, "30");
  run.wait(2'000);
  run.steps(31, 60, 100);
  const Incident one = run.incident(1).value();
  EXPECT_EQ(one.playbook().kind, "ended-without-a-word");
  EXPECT_NEAR(one.cost.absent_s, 7200.0, 1e-9);
  EXPECT_NEAR(one.cost.pause_s, 2.0, 1e-9);
  EXPECT_NEAR(one.cost.again_s, 1.0, 1e-9);
  EXPECT_THAT(incident_text(one), HasSubstr("nothing ran for 2h"));
}

// The place of a lost rank was taken by a spare, so that later steps are not slower for it.
TEST(Incident, ASpareTakesThePlace) {
  LoggedRun run;
  run.start(3, one_host);
  run.steps(1, 40, 100);
  run.fault(40, "rank 1 (host a)", "rank 0 lost rank 1: its process or host died");
  run.wait(100);
  run.steps(40, 40, 100);
  run.add(
      R"("event":"recovery","reason":"loss","level":1,"ranks_before":3,"ranks_after":2,"seats_before":2,"seats_after":2,)"
      R"("lost_steps":1,"resumed_from_step":39,"resumed_from":"ram","duration_ms":250.0)");
  run.steps(41, 400, 110);
  EXPECT_EQ(run.incident(1)->cost.slower_s, 0.0);
}

TEST(Incident, TheBundleHasNothingThatCommandsPrinted) {
  const TemporaryDirectory directory;
  const std::string run = directory.path() + "/run", bundle = directory.path() + "/bundle";
  ASSERT_TRUE(posix_env().make_directories(run).ok());
  const std::string log =
      R"({"event":"start","ranks":2,"steps":9,"resumed_from_step":null,"time_us":1796000000000000})"
      "\n"
      R"({"event":"fault","step":3,"what":"upload","cause":"upload-failed","reason":"it ended with exit code 1",)"
      R"("printed":"--token \"s3cret\" <b>s3cret</b>","attempts":3,"duration_ms":5.0,"time_us":1796000001000000})"
      "\n"
      // An older version has quoted it in the sentence.
      R"({"event":"fault","step":4,"what":"upload","reason":"it printed: s3cret","attempts":2,"time_us":1796000002000000})"
      "\n"
      R"({"event":"finish","state":"failed","reason":"it failed; it printed: s3cret","exit_code":1,"time_us":1796000003000000})"
      "\n"
      R"({"event":"fault","step":4,"reason":"s3cret)";
  ASSERT_TRUE(posix_env().replace_text(run + "/events.jsonl", log).ok());
  ASSERT_TRUE(posix_env()
                  .replace_text(run + "/status.json",
                                R"({"state":"failed","reason":"it failed; it printed: s3cret"})")
                  .ok());
  const Result<std::string> written = write_bundle(posix_env(), RunPaths{run}, bundle, "test");
  ASSERT_TRUE(written.ok()) << written.error().message;
  const std::vector<std::string> names = posix_env().list(bundle).value();
  EXPECT_THAT(names, Contains("incident-1.html"));
  for (const std::string& name : names) {
    const std::string text = posix_env().text_or_empty(bundle + "/" + name);
    EXPECT_THAT(text, Not(HasSubstr("s3cret"))) << name;
  }
  EXPECT_THAT(posix_env().text_or_empty(bundle + "/report.html"), HasSubstr("it ended with exit code 1"));
  EXPECT_THAT(posix_env().text_or_empty(bundle + "/events.jsonl"),
              AllOf(HasSubstr(R"("reason":"it ended with exit code 1","attempts":3)"),
                    HasSubstr("older version)\",\"attempts\":2")));
  EXPECT_FALSE(posix_env().status(run + "/report.html")->exists) << "the run is not written to";
}

TEST(Incident, ARankThatWasSentAwayForItsNumbers) {
  LoggedRun run;
  run.start(4, two_hosts);
  run.steps(1, 40, 100);
  const std::string why = "step 40: weights or optimizer state changed in memory: rank 2";
  run.add(fmt::format(
      R"("event":"verdict","step":40,"kind":"corruption","action":"evict","of":"state","reason":"{}")", why));
  run.fault(40, "rank 2 (host b)", "the others say otherwise", FaultCause::rank_evicted);
  const Incident one = run.incident(1).value();
  EXPECT_EQ(one.playbook().kind, "memory-changed");
  EXPECT_THAT(one.decisions, ElementsAre("verdict of step 40: corruption, so evict"));
}

TEST(Incident, WhatIsNotThere) {
  EXPECT_THAT(run_with_a_death().incident(2).error().message,
              HasSubstr("has no incident 2: it has 1 (number 1)"));
  LoggedRun quiet;
  quiet.start(2, one_host);
  EXPECT_THAT(quiet.incident(1).error().message, HasSubstr("nothing failed in it"));
  EXPECT_EQ(quiet.incident(1).error().code, ExitCode::config);
}

TEST(Incident, ThePageHasTheWordsOfOthersAsText) {
  LoggedRun run;
  run.start(4, two_hosts);
  run.steps(1, 3, 100);
  run.fault(3, "rank 2 (host <b>)", "<script>alert(1)</script> `code");
  run.add(R"("event":"exclude","step":3,"host":"<i>","reason":"bad & worse")");
  const std::string page = incident_page("runs/<x>", run.incident(1).value(), {});
  for (const char* raw : {"<script>", "<b>", "<i>", "<x>"}) EXPECT_THAT(page, Not(HasSubstr(raw)));
  EXPECT_THAT(page, HasSubstr("bad &amp; worse"));
  EXPECT_THAT(page, HasSubstr("<code>code</code></li>"));
}

TEST(Playbook, EveryKindOnceWithAnAnswer) {
  std::set<std::string_view> kinds;
  for (const PlaybookEntry& each : playbook()) {
    EXPECT_TRUE(kinds.insert(each.kind).second) << each.kind;
    EXPECT_FALSE(each.what.empty() || each.run_does.empty() || each.you_do.empty() || each.page.empty())
        << each.kind;
  }
}

TEST(Playbook, EveryCauseAndEveryVerdictHasAnEntry) {
  std::set<std::string_view> found;
  for (const std::string_view cause : fault_cause_names) {
    const FaultEntry fault{.cause = fault_cause_named(cause)};
    EXPECT_EQ(playbook_entry(fault, nullptr, /*lost_host=*/false).kind, cause);
    found.insert(cause);
  }
  EXPECT_EQ(playbook_entry(FaultEntry{.cause = FaultCause::rank_died}, nullptr, true).kind, "host-lost");
  EXPECT_EQ(playbook_entry(FaultEntry{.cause = FaultCause::rank_hangs}, nullptr, true).kind, "rank-hangs");
  for (const auto& [kind, of] : {std::pair{"nonfinite", "loss"},
                                 {"exploded", "loss"},
                                 {"spike", "loss"},
                                 {"corruption", "state"},
                                 {"corruption", "update"},
                                 {"corruption", "links"}})
    found.insert(playbook_entry(VerdictEvent{.what = kind, .of = of}).kind);
  EXPECT_EQ(found.size(), fault_cause_names.size() + 5);
}

TEST(Playbook, ALogOfAnOlderVersionHasNoKinds) {
  LoggedRun run;
  run.start(2, one_host);
  run.steps(1, 3, 100);
  run.add(R"("event":"fault","step":3,"what":"rank","lost":"rank 1","reason":"rank 1 hangs: step 4")");
  EXPECT_EQ(run.incident(1)->playbook().kind, "unknown");
}

}  // namespace
}  // namespace holdfast::test
