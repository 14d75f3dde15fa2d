// Power cuts: the operations of saves, replacements and retention are recorded, and every state of the disk
// that a crash between any two of them may leave (tests/support/crash_states.h) must hold the checkpoint
// before or the one after, whole; and once a save has returned, that one.
//
// tools/test --long goes on until a million different states were checked, in as many slices as it takes:
//
//   HOLDFAST_TEST_CRASH_STATES=N         different states, of all slices together, instead of 10,000
//   HOLDFAST_TEST_CRASH_RECORD=FILE      what earlier slices have checked, and this one after them
//   HOLDFAST_TEST_CRASH_MINUTES=M        this slice ends after so many minutes
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/ranges.h>

#include <cstdlib>
#include <set>
#include <sstream>
#include <unordered_set>

#include "checkpoint/find_checkpoint.h"
#include "runtime/core/digest.h"
#include "runtime/os/paths.h"
#include "tests/checkpoint/saved_state.h"
#include "tests/support/crash_states.h"

namespace holdfast::test {
namespace {

constexpr const char* run_directory = "/run";
using Kind = RecordedOperation::Kind;

// What one save of the script put there. Its number, from 1, is also the seed of its content.
struct Save {
  std::uint64_t step;
  std::int64_t keep;
};
// Older ones stay, go, are replaced by other content, and by the same.
constexpr std::array<Save, 5> script = {{{1, 2}, {2, 2}, {3, 1}, {3, 1}, {4, 2}}};

// Each save writes its first tensor anew and refers to the second, which never changes, by links.
std::vector<StateTensor> content_of(std::uint64_t save) {
  std::vector<StateTensor> state = tiny_state(100 * save);
  state[1].bytes = tiny_state(1)[1].bytes;
  return state;
}

// Marks 2n and 2n + 1 stand before and after the n-th save.
std::vector<RecordedOperation> record_script() {
  MemoryEnv memory;
  RecordingEnv env(memory);
  FaultPoints none;
  EXPECT_TRUE(make_durable_directories(env, run_directory).ok());
  for (std::uint64_t number = 1; number <= script.size(); ++number) {
    const Save& one = script[number - 1];
    CheckpointStore store(env, none, run_directory);
    env.mark(2 * number);
    const ShardWriteOptions delta{.is_constant = [](const ShardSpec& spec) { return spec.kind == "moment1"; },
                                  .parent_directory = store.newest_directory()};
    const Result<void> saved =
        save_checkpoint(env, store, content_of(number), manifest_of_step(one.step), 2, delta);
    EXPECT_TRUE(saved.ok()) << saved.error().message;
    env.mark(2 * number + 1);
    EXPECT_TRUE(store.retain(one.keep).ok());
  }
  return env.log();
}

// The saves that may be found at a cut: the last that has returned, 0 when none, and the last that has begun.
struct Allowed {
  std::uint64_t returned = 0;
  std::uint64_t begun = 0;
};
std::vector<Allowed> allowed_at_cuts(const std::vector<RecordedOperation>& log) {
  std::vector<Allowed> result(1);
  for (const RecordedOperation& operation : log) {
    Allowed next = result.back();
    if (operation.kind == Kind::mark && operation.size % 2 == 0) next.begun = operation.size / 2;
    if (operation.kind == Kind::mark && operation.size % 2 == 1) next.returned = operation.size / 2;
    result.push_back(next);
  }
  return result;
}

bool holds(Checkpoint& checkpoint, std::uint64_t save) {
  if (checkpoint.manifest().step != script[save - 1].step) return false;
  for (const StateTensor& tensor : content_of(save)) {
    std::vector<std::byte> bytes(tensor.bytes.size());
    const Checkpoint::Wanted wanted{.spec = tensor.spec, .target = bytes};
    if (!checkpoint.read(std::span(&wanted, 1)).ok() || bytes != tensor.bytes) return false;
  }
  return true;
}

// Empty when the state is as it must be.
std::string warning(Env& env, const Allowed& allowed) {
  Result<std::optional<FoundCheckpoint>> found = find_checkpoint(env, run_directory);
  if (!found.ok()) return allowed.returned == 0 ? "" : found.error().message;
  if (!found->has_value()) return allowed.returned == 0 ? "" : "nothing is found";
  Checkpoint& checkpoint = (*found)->checkpoint;
  for (const std::uint64_t save : {allowed.returned, allowed.begun}) {
    if (save > 0 && holds(checkpoint, save)) return "";
  }
  return fmt::format("step {} is found, and its content is that of neither save", checkpoint.manifest().step);
}

// What is left behind is not in the way of the run that goes on.
std::string warning_of_successor(Env& env) {
  FaultPoints none;
  CheckpointStore store(env, none, run_directory);
  const Result<void> saved = save_checkpoint(env, store, tiny_state(7), manifest_of_step(9), 1);
  if (!saved.ok()) return "the next save fails: " + saved.error().message;
  if (Result<void> retained = store.retain(1); !retained.ok()) return retained.error().message;
  const Result<std::optional<FoundCheckpoint>> found = find_checkpoint(env, run_directory);
  const bool is_there = found.ok() && found->has_value() && (*found)->checkpoint.manifest().step == 9;
  return is_there ? "" : "the next save is not found";
}

std::uint64_t digest_of_files(const MemoryEnv& env) {
  std::uint64_t digest = 0;
  for (const auto& [path, content] : env.nodes()) {
    digest = mix64(digest, digest_of(path).low);
    if (content == nullptr) continue;
    digest = mix64(
        digest,
        digest_of(std::string_view(reinterpret_cast<const char*>(content->data()), content->size())).low);
  }
  return digest;
}

constexpr std::int64_t minutes_max = 1'000'000;

// What was checked of one recorded script, by one slice after another.
struct Checked {
  std::uint64_t next_sample = 0;
  std::unordered_set<std::uint64_t> states;  // digests
  std::string first_warning;
};

// Says which samples of a cut are worth making: where many in a row had been seen before, one in up to 64.
class Worth {
 public:
  bool has(std::uint64_t sample) const {
    return sample < all_of || sample % std::min(1 + misses_ / 8, rarest) == 0;
  }
  void note(bool is_new) { misses_ = is_new ? 0 : misses_ + 1; }

 private:
  static constexpr std::uint64_t all_of = 256, rarest = 64;  // each change alone is among the first
  std::uint64_t misses_ = 0;
};

// Sample by sample, each at every cut, until `wanted` states were checked, there are no more, the time is
// over, or one is wrong.
void check_states(const std::vector<RecordedOperation>& operations, std::size_t wanted, Checked& checked,
                  std::int64_t minutes = minutes_max) {
  const CrashLog log(operations);
  std::vector<CrashLog::Point> points;
  for (std::size_t cut = 0; cut <= operations.size(); ++cut) points.push_back(log.crash_before(cut));
  const std::vector<Allowed> allowed = allowed_at_cuts(operations);
  std::unordered_set<std::uint64_t>& seen = checked.states;
  const std::int64_t end_ns = posix_env().monotonic_ns() + minutes * 60'000'000'000;
  std::vector<Worth> worth(points.size());
  bool is_exhausted = false;
  for (std::uint64_t& sample = checked.next_sample; seen.size() < wanted && !is_exhausted; ++sample) {
    if (posix_env().monotonic_ns() > end_ns) return;
    is_exhausted = true;
    for (std::size_t cut = 0; cut < points.size(); ++cut) {
      if (points[cut].is_exhausted(sample)) continue;
      is_exhausted = false;
      if (!worth[cut].has(sample)) continue;
      MemoryEnv env = points[cut].state(sample);
      // The same files may be allowed at one cut and wrong at another.
      const std::uint64_t times = mix64(allowed[cut].returned, allowed[cut].begun);
      const bool is_new = seen.insert(mix64(digest_of_files(env), times)).second;
      worth[cut].note(is_new);
      if (!is_new) continue;
      std::string wrong = warning(env, allowed[cut]);
      if (wrong.empty() && seen.size() % 64 == 0) wrong = warning_of_successor(env);
      if (wrong.empty()) continue;
      const std::string next = cut < operations.size() ? text_of(operations[cut]) : "none";
      checked.first_warning =
          fmt::format("sample {} of a crash before operation {} ({}): {}", sample, cut, next, wrong);
      return;
    }
  }
}

std::string variable(const char* name, const std::string& otherwise) {
  const char* const given = std::getenv(name);
  return given == nullptr ? otherwise : given;
}

// A record begins with the script's digest: that of another one counts for nothing.
std::uint64_t digest_of_script(const std::vector<RecordedOperation>& operations) {
  std::uint64_t digest = 0;
  for (const RecordedOperation& operation : operations)
    digest = mix64(digest, digest_of(text_of(operation)).low);
  return digest;
}

Checked read_record(const std::string& path, std::uint64_t script_digest) {
  Checked checked;
  const Result<std::string> text = path.empty() ? Result<std::string>("") : posix_env().read_text(path);
  std::istringstream words(text.ok() ? *text : "");
  std::uint64_t of_script = 0, state = 0;
  if (!(words >> of_script) || of_script != script_digest) return checked;
  words >> checked.next_sample;
  while (words >> state) checked.states.insert(state);
  return checked;
}

Result<void> write_record(const std::string& path, std::uint64_t script_digest, const Checked& checked) {
  if (path.empty()) return {};
  return posix_env().replace_text(
      path, fmt::format("{} {}\n{}\n", script_digest, checked.next_sample, fmt::join(checked.states, "\n")));
}

TEST(CrashStates, OldOrNewIsFoundWholeInEveryOne) {
  const std::size_t wanted = std::stoull(variable("HOLDFAST_TEST_CRASH_STATES", "10000"));
  const std::string minutes = variable("HOLDFAST_TEST_CRASH_MINUTES", "");
  const std::string record = variable("HOLDFAST_TEST_CRASH_RECORD", "");
  const std::vector<RecordedOperation> operations = record_script();
  Checked checked = read_record(record, digest_of_script(operations));
  const std::size_t before = checked.states.size();
  check_states(operations, wanted, checked, minutes.empty() ? minutes_max : std::stoll(minutes));
  const auto is_link = [](const RecordedOperation& operation) { return operation.kind == Kind::link; };
  EXPECT_GE(std::ranges::count_if(operations, is_link), 3);
  ASSERT_EQ(checked.first_warning, "");
  HF_ASSERT_OK(write_record(record, digest_of_script(operations), checked));
  EXPECT_TRUE(!minutes.empty() || checked.states.size() >= wanted);
  std::printf("%zu different states, %zu of them now\n", checked.states.size(),
              checked.states.size() - before);
}

// Else a record of another process would count for nothing.
TEST(CrashStates, TheScriptIsTheSameEveryTime) {
  EXPECT_EQ(digest_of_script(record_script()), digest_of_script(record_script()));
}

// What the states are made of, on one file of two sectors.
TEST(CrashStates, WhatWasSyncedIsThereAndNothingElseIsSure) {
  MemoryEnv memory;
  RecordingEnv env(memory);
  const auto file = env.open("/file", OpenMode::create).value();
  ASSERT_TRUE(file->write_at(0, std::vector<std::byte>(1024, std::byte{1})).ok());
  ASSERT_TRUE(file->sync().ok());
  ASSERT_TRUE(env.sync_directory("/").ok());
  ASSERT_TRUE(env.rename("/file", "/moved").ok());
  const CrashLog log(env.log());
  const auto all_after = [&](std::size_t cut) {
    const CrashLog::Point point = log.crash_before(cut);
    std::set<std::string> result;
    for (std::uint64_t sample = 0; sample < 300; ++sample) {
      const MemoryEnv state = point.state(sample);
      std::string text;
      for (const auto& [path, content] : state.nodes()) {
        text += path;
        for (std::size_t i = 0; i < content->size(); i += 512) {
          const std::byte byte = (*content)[i + 100];
          text += byte == std::byte{1} ? " new" : byte == std::byte{0} ? " zero" : " garbage";
        }
      }
      result.insert(text);
    }
    return result;
  };
  EXPECT_THAT(all_after(2),
              testing::IsSupersetOf({"", "/file", "/file new new", "/file new zero", "/file zero new",
                                     "/file zero zero", "/file garbage new", "/file new garbage"}));
  EXPECT_THAT(all_after(3), testing::UnorderedElementsAre("", "/file new new"));
  EXPECT_THAT(all_after(4), testing::ElementsAre("/file new new"));
  EXPECT_THAT(all_after(5), testing::UnorderedElementsAre("/file new new", "/moved new new"));
}

// The test sees what it is for: without the syncs of files, or of directories, there are states that hold
// neither.
TEST(CrashStates, LeavingOutSyncsIsFound) {
  for (const Kind left_out : {Kind::sync, Kind::sync_directory}) {
    std::vector<RecordedOperation> log = record_script();
    std::erase_if(log, [&](const RecordedOperation& operation) {
      return operation.kind == left_out && operation.path != "/";
    });
    Checked checked;
    check_states(log, 20'000, checked);
    EXPECT_NE(checked.first_warning, "");
  }
}

}  // namespace
}  // namespace holdfast::test
