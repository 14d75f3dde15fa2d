#include "runtime/replay/replay_source.h"

#include <gtest/gtest.h>

namespace holdfast::test {
namespace {

// 0 until step 100, then 1 until 150, where 2 went on; 3 went back to step 120 of 1.
Lineage branched() {
  return {.run_id = std::string(32, '7'),
          .generations = {{.number = 1, .parent = {.generation = 0, .step = 100}},
                          {.number = 2, .parent = {.generation = 1, .step = 150}},
                          {.number = 3, .parent = {.generation = 1, .step = 120}}}};
}

TEST(GenerationOfStep, IsThatOfTheRunAsItGoesOn) {
  for (const std::uint64_t step : {1U, 100U}) EXPECT_EQ(generation_of_step(branched(), step), 0U);
  for (const std::uint64_t step : {101U, 120U}) EXPECT_EQ(generation_of_step(branched(), step), 1U);
  for (const std::uint64_t step : {121U, 160U}) EXPECT_EQ(generation_of_step(branched(), step), 3U);
  EXPECT_EQ(generation_of_step({}, 5), 0U);
}

TEST(LeadsToStep, OnlyStatesOfItsGenerationAndTheOneItBeganFrom) {
  const struct {
    std::uint64_t generation, step, wanted;
    bool leads;
  } cases[] = {{0, 50, 60, true},    {0, 60, 60, false},   {0, 99, 101, false},  {0, 100, 101, true},
               {1, 110, 115, true},  {1, 110, 121, false}, {1, 120, 121, true},  {1, 130, 140, false},
               {2, 155, 160, false}, {3, 125, 160, true},  {3, 160, 160, false}, {1, 115, 110, false}};
  for (const auto& each : cases) {
    EXPECT_EQ(leads_to_step(branched(), {.generation = each.generation, .step = each.step}, each.wanted),
              each.leads)
        << each.generation << " " << each.step << " " << each.wanted;
  }
  EXPECT_TRUE(leads_to_step({}, {.generation = 0, .step = 4}, 5));
}

}  // namespace
}  // namespace holdfast::test
