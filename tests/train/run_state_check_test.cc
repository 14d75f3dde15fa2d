// What is found of changes of the state that is no tensor.
#include "runtime/train/run_state_check.h"

#include <gtest/gtest.h>

#include <functional>

#include "runtime/integrity/state_check.h"

namespace holdfast::test {
namespace {

RunState state_at(std::uint64_t step) {
  RunState state{.run_id = "run", .generation = 2, .step = step, .data_cursor = 100 + 8 * step};
  state.jumps = {{.at_step = 3, .data_cursor = 124}};
  for (std::uint64_t each = 1; each <= step; ++each)
    state.numbers.add(
        {.step = each, .loss = 2.0, .grad_norm = 0.5 * static_cast<double>(each), .counted_targets = 1});
  state.numbers.skip(2);
  return state;
}

TEST(RunPosition, FollowsTheSteps) {
  RunState state = state_at(5);
  RunPosition position;
  EXPECT_TRUE(position.is_at(state)) << "nothing is known before it begins";
  position.begin(state, 8);
  for (int step = 0; step < 3; ++step) {
    EXPECT_TRUE(position.is_at(state));
    ++state.step;
    state.data_cursor += 8;
    position.made_step();
  }
  EXPECT_TRUE(position.is_at(state));
  for (const int bit : {0, 3, 20, 63}) {
    RunState changed = state;
    changed.step ^= std::uint64_t{1} << bit;
    EXPECT_FALSE(position.is_at(changed));
    EXPECT_EQ(position.step_of(changed), 8U);
    changed = state;
    changed.data_cursor ^= std::uint64_t{1} << bit;
    EXPECT_FALSE(position.is_at(changed));
    EXPECT_EQ(position.step_of(changed), 8U);
  }
}

TEST(RunStateCheck, TheDigestIsOfWhatIsTheSameOnAllRanks) {
  const Digest digest = digest_of_run_state(state_at(5));
  const std::function<void(RunState&)> changes[] = {
      [](RunState& state) { ++state.generation; },
      [](RunState& state) { ++state.step; },
      [](RunState& state) { ++state.data_cursor; },
      [](RunState& state) { state.run_id = "sun"; },
      [](RunState& state) { ++state.data_digest.low; },
      [](RunState& state) { ++state.loss_digest.high; },
      [](RunState& state) { ++state.data_fingerprint.low; },
      [](RunState& state) { ++state.jumps[0].times; },
      [](RunState& state) { state.jumps.clear(); },
      [](RunState& state) { state.left_out = {{.begin = 24, .end = 48}}; },
      [](RunState& state) { state.numbers.skip(4); },
      [](RunState& state) {
        state.numbers.add({.step = 6, .loss = 1, .grad_norm = 1, .counted_targets = 1});
      }};
  for (const auto& change : changes) {
    RunState changed = state_at(5);
    change(changed);
    EXPECT_NE(digest_of_run_state(changed), digest);
  }
  RunState own = state_at(5);
  own.shm_run_id = "other";
  own.audited_step = 4;
  EXPECT_EQ(digest_of_run_state(own), digest);
  RunState later = state_at(6);  // the place in the ring is not part of it
  later.numbers.set_window(8);
  EXPECT_EQ(digest_of_run_state(later), digest_of_run_state(state_at(6)));
}

Digest sum_of(std::span<const Digest> digests, int not_at = -1) {
  Digest sum;
  for (std::size_t rank = 0; rank < digests.size(); ++rank)
    sum += run_state_term(digests[rank], static_cast<int>(rank) != not_at, static_cast<int>(rank),
                          static_cast<int>(digests.size()));
  return sum;
}

TEST(RunStateCheck, TheTermsCancelWhereAllHoldTheSame) {
  for (const std::size_t ranks : {1U, 2U, 3U, 64U}) {
    std::vector<Digest> digests(ranks, digest_of("state"));
    EXPECT_EQ(sum_of(digests), Digest{});
    EXPECT_NE(sum_of(digests, static_cast<int>(ranks) - 1), Digest{});
    if (ranks == 1) continue;
    digests[ranks / 2] = digest_of("other");
    EXPECT_NE(sum_of(digests), Digest{});
  }
}

TEST(RunStateCheck, TheRankThatMostContradictHasChanged) {
  const HeldRunState a{.digest = "a", .step = 9}, b{.digest = "b", .step = 9};
  const HeldRunState lost{.digest = "c", .is_at = false, .step = 9};
  struct Case {
    std::vector<HeldRunState> ranks;
    std::vector<int> changed;
    bool is_known;
  };
  for (const Case& each :
       {Case{{a, a, a}, {}, true}, Case{{a, b, a}, {1}, true}, Case{{a, b}, {0, 1}, false},
        Case{{a, lost}, {1}, true}, Case{{lost}, {0}, true}, Case{{lost, a, b, a}, {0, 2}, true},
        Case{{a, b, lost}, {0, 1, 2}, false}, Case{{a, a, b, b}, {0, 1, 2, 3}, false}}) {
    const RunStateSuspects suspects = attribute(std::span<const HeldRunState>(each.ranks));
    EXPECT_EQ(suspects.ranks, each.changed);
    EXPECT_EQ(suspects.is_known, each.is_known);
    EXPECT_EQ(suspects.step, 9U);
  }
}

}  // namespace
}  // namespace holdfast::test
