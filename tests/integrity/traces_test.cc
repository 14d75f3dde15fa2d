// Recorded trainings, step by step through verdict_of(): the verdicts are those of recorded_verdicts.txt, where a
// reader sees what a changed threshold means for real runs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/integrity/verdict.h"
#include "runtime/integrity/verdict_policy.h"
#include "tests/integrity/verdict_fixture.h"

namespace holdfast::test {
namespace {

const std::filesystem::path folder = std::filesystem::path(HF_SOURCE_DIR) / "tests/integrity";

std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::filesystem::path> trace_files() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "traces"))
    files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

// Each line of a trace is "step loss grad_norm"; strtod, other than a stream, reads nan.
std::vector<StepNumbers> read_trace(const std::filesystem::path& path) {
  std::vector<StepNumbers> steps;
  std::istringstream lines(content_of(path));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('#')) continue;
    char* next = line.data();
    const std::uint64_t step = std::strtoull(next, &next, 10);
    const double loss = std::strtod(next, &next);
    steps.push_back(numbers_at(step, loss, std::strtod(next, &next)));
  }
  EXPECT_FALSE(steps.empty()) << path;
  return steps;
}

// Adds a line for each step that is not fine. Numbers that are not finite, or have exploded, are skipped, as the policy does.
void judge_trace(const std::filesystem::path& path, std::string& verdicts) {
  NumbersHistory history;
  for (const StepNumbers& numbers : read_trace(path)) {
    const Verdict verdict = verdict_of(history, numbers, {});
    if (verdict.kind != VerdictKind::fine) {
      verdicts += fmt::format("{} {} {} {}\n", path.stem().string(), numbers.step, name_of(verdict.kind),
                              verdict.of_norm ? "norm" : "loss");
    }
    if (verdict.kind == VerdictKind::nonfinite || verdict.kind == VerdictKind::exploded) {
      history.skip(numbers.step);
    } else {
      history.add(numbers);
    }
  }
}

TEST(RecordedTraces, VerdictsAreTheRecordedOnes) {
  std::string verdicts = "# trace, step, verdict, of what\n";
  for (const auto& path : trace_files()) judge_trace(path, verdicts);
  EXPECT_EQ(verdicts, content_of(folder / "recorded_verdicts.txt"));
}

// A run that is cut anywhere and goes on from its state judges as if it had not been cut.
TEST(RecordedTraces, AResumedRunJudgesAlike) {
  const std::vector<StepNumbers> steps = read_trace(folder / "traces/tiny_late_rise.txt");
  NumbersHistory history, resumed;
  for (const StepNumbers& numbers : steps) {
    const Verdict whole = verdict_of(history, numbers, {});
    const Verdict cut = verdict_of(resumed, numbers, {});
    ASSERT_EQ(whole.kind, cut.kind) << numbers.step;
    ASSERT_EQ(std::bit_cast<std::uint64_t>(whole.score), std::bit_cast<std::uint64_t>(cut.score))
        << numbers.step;
    history.add(numbers);
    resumed.add(numbers);
    if (numbers.step % 7 == 0) resumed = *NumbersHistory::from_text(resumed.text());
  }
}

}  // namespace
}  // namespace holdfast::test
