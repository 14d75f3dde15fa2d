// Tests that a recovery is still decided as it was before the decisions became pure functions.
//
// recorded_recoveries.txt holds decisions of runs that were disturbed at random (how it was recorded stands at
// its head). Each case gives what the ranks knew, and what the code before recovery_plan.h decided from it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "parallel/group/rank_assignment.h"
#include "runtime/elastic/recovery_plan.h"

namespace holdfast::test {
namespace {

using Words = std::vector<std::string>;

struct RecordedCase {
  std::string kind, title;   // the title has the seeds and the faults before it
  std::vector<Words> facts;  // lines of what the ranks knew, a name first
  std::string decision;      // lines of what was decided
};

Words words_of(const std::string& line) {
  std::istringstream stream(line);
  Words words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

std::vector<RecordedCase> recorded_cases() {
  std::ifstream file(HF_SOURCE_DIR "/tests/elastic/recorded_recoveries.txt");
  std::vector<RecordedCase> cases;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line.front() == '#') continue;
    if (line.starts_with("  -> ")) {
      cases.back().decision += line.substr(5) + "\n";
    } else if (line.starts_with("  ")) {
      cases.back().facts.push_back(words_of(line));
    } else {
      cases.push_back({.kind = words_of(line).front(), .title = line, .facts = {}, .decision = {}});
    }
  }
  return cases;
}

// Splits "a<MARK>b"; the second part is empty without a mark.
std::pair<std::string, std::string> split(const std::string& text, char mark) {
  const std::size_t at = text.find(mark);
  return at == std::string::npos ? std::pair(text, std::string())
                                 : std::pair(text.substr(0, at), text.substr(at + 1));
}

std::vector<std::uint64_t> numbers_of(const std::string& text, char mark) {
  std::istringstream stream(text);
  std::vector<std::uint64_t> numbers;
  for (std::string number; std::getline(stream, number, mark);) numbers.push_back(std::stoull(number));
  return numbers;
}

// Reads an inventory from words like "step=3"; what is not named has its default.
RecoveryInventory inventory_of(std::span<const std::string> words) {
  RecoveryInventory inventory;
  for (const std::string& word : words) {
    const auto [name, value] = split(word, '=');
    if (name == "host") inventory.host = value;
    if (name == "launched") inventory.launched_ranks = std::stoi(value);
    if (name == "joined") inventory.joined = true;
    if (name == "log") inventory.log_opened = value == "open";
    if (name == "step") inventory.step = std::stoull(value);
    if (name == "peak") inventory.gemm_peak = std::stod(value);
    if (name == "memory") inventory.shm_run_id = value;
    if (name == "verdict") inventory.verdict = value;
    if (name == "lost") inventory.lost_some = true;
    if (name == "lost_starter") inventory.lost_starter = true;
    if (name == "redone") inventory.redone = std::stoi(value);
    if (name == "redone_step") inventory.redone_step = std::stoull(value);
    if (name == "at") inventory.noticed_us = std::stoll(value);
    if (name == "reported") inventory.reported = true;
    if (name == "noticed") inventory.noticed = value;
  }
  return inventory;
}

// Writes an inventory as inventory_of() reads it.
std::string written(const RecoveryInventory& inventory) {
  std::string text;
  const auto say = [&](bool said, const std::string& word) {
    if (said) text += " " + word;
  };
  say(!inventory.host.empty(), "host=" + inventory.host);
  say(inventory.launched_ranks != 0, fmt::format("launched={}", inventory.launched_ranks));
  say(inventory.joined, "joined");
  say(inventory.log_opened.has_value(), inventory.log_opened == true ? "log=open" : "log=closed");
  say(inventory.step != 0, fmt::format("step={}", inventory.step));
  say(inventory.gemm_peak > 0.0, fmt::format("peak={:g}", inventory.gemm_peak));
  say(!inventory.shm_run_id.empty(), "memory=" + inventory.shm_run_id);
  say(!inventory.verdict.empty(), "verdict=" + inventory.verdict);
  say(inventory.lost_some, "lost");
  say(inventory.lost_starter, "lost_starter");
  say(inventory.redone != 0, fmt::format("redone={}", inventory.redone));
  say(inventory.redone_step != 0, fmt::format("redone_step={}", inventory.redone_step));
  say(inventory.noticed_us != 0, fmt::format("at={}", inventory.noticed_us));
  say(inventory.reported, "reported");
  say(!inventory.noticed.empty(), "noticed=" + inventory.noticed);
  return text;
}

std::string written(const Result<RankAssignment>& assignment) {
  if (!assignment.ok())
    return fmt::format("error {} {}\n", static_cast<int>(assignment.error().code),
                       assignment.error().message);
  const MeshShape& shape = assignment->shape;
  const std::vector<int>& spares = assignment->spares;
  return fmt::format("assignment {}x{}x{} active {} spares {}\n", shape.data, shape.pipeline, shape.tensor,
                     fmt::join(assignment->active_ranks, ","),
                     spares.empty() ? "none" : fmt::format("{}", fmt::join(spares, ",")));
}

std::string written(const RecoveryPlan& plan) {
  std::string text = "known" + written(plan.known) + "\n";
  if (plan.error.has_value()) return text + written(Result<RankAssignment>(*plan.error));
  if (plan.action == RecoveryAction::start_again) return text + "start again\n";
  if (plan.action == RecoveryAction::admit_joiners) return text + "admit joiners\n";
  return text + written(Result<RankAssignment>(*plan.assignment));
}

struct RankFacts {
  std::vector<RecoveryInventory> inventories;  // by rank
  AssignmentRequest request;
};

RankFacts rank_facts_of(const RecordedCase& recorded) {
  RankFacts facts;
  for (const Words& words : recorded.facts) {
    if (words[0] == "request") {
      facts.request = {.data_max = std::stoi(words[1]),
                       .data_min = std::stoi(words[2]),
                       .pipeline = std::stoi(words[3]),
                       .tensor = std::stoi(words[4])};
    } else {
      const auto count = static_cast<std::size_t>(std::stoi(words[1]));
      facts.inventories.insert(facts.inventories.end(), count, inventory_of(std::span(words).subspan(2)));
    }
  }
  return facts;
}

std::string recovery_of(const RecordedCase& recorded) {
  const RankFacts facts = rank_facts_of(recorded);
  return written(plan_recovery(facts.inventories, facts.request));
}

// Ranks that joined are admitted whatever the retries, and get coordinates like the others.
std::string growth_of(const RecordedCase& recorded) {
  const RankFacts facts = rank_facts_of(recorded);
  std::vector<std::string> hosts;
  for (const RecoveryInventory& inventory : facts.inventories) hosts.push_back(inventory.host);
  return "known" + written(merge_inventories(facts.inventories)) + "\n" +
         written(assign_ranks(facts.request, hosts));
}

// Reads "WRITER.GENERATION.STEP".
SnapshotStep snapshot_step_of(const std::string& text) {
  const std::vector<std::uint64_t> numbers = numbers_of(text, '.');
  return {.writer = numbers.at(0), .generation = numbers.at(1), .step = numbers.at(2)};
}

// Reads "WRITER.GENERATION.STEP/RANKS:RANK,RANK", the parts of a snapshot.
void add_parts(const std::string& text, std::vector<SnapshotIdentity>& snapshots) {
  const auto [name, parts] = split(text, ':');
  const auto [step, ranks] = split(name, '/');
  const SnapshotStep of = snapshot_step_of(step);
  for (const std::uint64_t rank : numbers_of(parts, ',')) {
    snapshots.push_back({.run = {},
                         .host = {},
                         .writer = of.writer,
                         .generation = of.generation,
                         .step = of.step,
                         .rank = static_cast<std::uint32_t>(rank),
                         .ranks = static_cast<std::uint32_t>(std::stoul(ranks))});
  }
}

std::string snapshot_of(const RecordedCase& recorded) {
  StartPoint start;
  std::uint64_t steps = 0;
  std::vector<std::vector<SnapshotIdentity>> snapshots;
  for (const Words& words : recorded.facts) {
    if (words[0] == "checkpoint") {
      start.generation = numbers_of(words[1], '.').at(0);
      start.step = numbers_of(words[1], '.').at(1);
    } else if (words[0] == "steps") {
      steps = std::stoull(words[1]);
    } else if (words[0] == "generation") {  // generation NUMBER from GENERATION.STEP
      const std::vector<std::uint64_t> parent = numbers_of(words[3], '.');
      start.lineage.generations.push_back(
          {.number = std::stoull(words[1]), .parent = {.generation = parent.at(0), .step = parent.at(1)}});
    } else if (words[0] == "skipped") {
      start.passed_over.push_back(snapshot_step_of(words[1]));
    } else {
      std::vector<SnapshotIdentity> on_host;
      for (std::size_t i = 2; i < words.size(); ++i) add_parts(words[i], on_host);
      snapshots.insert(snapshots.end(), static_cast<std::size_t>(std::stoi(words[1])), on_host);
    }
  }
  const std::optional<SnapshotStep> planned = plan_snapshot(snapshots, start, steps);
  if (!planned.has_value()) return "none\n";
  return fmt::format("{}.{}.{}\n", planned->writer, planned->generation, planned->step);
}

std::string state_source_of(const RecordedCase& recorded) {
  StartPoint start;
  for (const Words& words : recorded.facts) {
    if (words[0] == "checkpoint") start.checkpoint = "step-1";
    if (words[0] == "snapshot") start.snapshot = SnapshotStep{};
    if (words[0] == "unusable") start.unusable = "no checkpoint is whole";
  }
  switch (source_of(start)) {
    case StateSource::ram:
      return "ram\n";
    case StateSource::disk:
      return "disk\n";
    case StateSource::start:
      return "start\n";
    case StateSource::nothing:
      return "nothing\n";
  }
  return "";
}

std::string decision_of(const RecordedCase& recorded) {
  if (recorded.kind == "recovery") return recovery_of(recorded);
  if (recorded.kind == "growth") return growth_of(recorded);
  if (recorded.kind == "snapshot") return snapshot_of(recorded);
  return state_source_of(recorded);
}

TEST(RecordedRecoveries, AreDecidedAsBefore) {
  const std::vector<RecordedCase> cases = recorded_cases();
  std::set<std::string> kinds;
  for (const RecordedCase& recorded : cases) {
    kinds.insert(recorded.kind);
    EXPECT_EQ(decision_of(recorded), recorded.decision) << recorded.title;
  }
  EXPECT_EQ(kinds, (std::set<std::string>{"growth", "recovery", "snapshot", "source"}));
  EXPECT_GT(cases.size(), 100U);
}

}  // namespace
}  // namespace holdfast::test
