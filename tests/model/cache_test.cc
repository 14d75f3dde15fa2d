// Sequences that are continued from a cache of keys and values, beside forwards of the whole sequences: the same
// bits, for the model of every golden file, also in sliding windows.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/support/golden.h"
#include "tests/support/model_rig.h"

namespace holdfast::test {
namespace {

struct CachedModel {
  const char* golden;
  std::int64_t window = 0, sinks = 0;
  friend std::ostream& operator<<(std::ostream& stream, const CachedModel& each) {
    return stream << each.golden;
  }
};

class CacheTest : public testing::TestWithParam<CachedModel> {
 protected:
  CacheTest() {
    rig_.set_weights(
        [this](const ParameterSpec& parameter) { return golden_.floats("initial/" + parameter.name); });
    tokens_ = golden_.tokens("inputs", 0);
    rig_.set_tokens(tokens_, golden_.tokens("targets", 0));
    for (std::int64_t row = 0; row < shape_.rows(); ++row) whole_.push_back(rig_.forward_logits(row));
  }

  // Continues each of these sequences by `count` tokens from `position` on, and compares the logits of every row.
  void expect_rows(const std::vector<int>& sequences, std::int64_t position, std::int64_t count) {
    std::vector<std::int32_t> tokens;
    std::vector<ContinuedRows> parts;
    std::vector<float> expected;
    for (const int sequence : sequences) {
      parts.push_back({.sequence = sequence, .position = position, .rows = count});
      for (std::int64_t i = 0; i < count; ++i) {
        const auto row = static_cast<std::size_t>(sequence * shape_.sequence_length + position + i);
        tokens.push_back(tokens_[row]);
        expected.insert(expected.end(), whole_[row].begin(), whole_[row].end());
      }
    }
    EXPECT_EQ(rig_.continued_logits(tokens, parts, 0, std::ssize(tokens)), expected)
        << "from " << position << " on, " << count;
  }

  ModelSpec spec() const {
    ModelSpec spec = make_model_spec(golden_.config("fp32"));
    spec.attention_window = GetParam().window;
    spec.attention_sinks = GetParam().sinks;
    return spec;
  }

  Golden golden_{GetParam().golden};
  BatchShapeBT shape_{.batch = golden_.batch(), .sequence_length = golden_.sequence_length()};
  ModelRig rig_{spec(),
                shape_,
                {.mode = Model::Mode::forward_only, .cached_sequences = static_cast<int>(shape_.batch)}};
  std::vector<std::int32_t> tokens_;
  std::vector<std::vector<float>> whole_;
};

TEST_P(CacheTest, RowsHaveTheLogitsOfTheWholeSequence) {
  std::vector<int> all;
  for (int sequence = 0; sequence < shape_.batch; ++sequence) all.push_back(sequence);
  std::vector<int> backwards(all.rbegin(), all.rend());
  constexpr std::int64_t prompt = 5;
  for (const int sequence : backwards) expect_rows({sequence}, 0, prompt);
  expect_rows(all, prompt, 2);
  for (std::int64_t position = prompt + 2; position < shape_.sequence_length; ++position)
    expect_rows(position % 2 == 0 ? all : backwards, position, 1);
  // A sequence that begins again replaces what is there.
  expect_rows({1}, 3, 4);
  expect_rows({1}, 0, shape_.sequence_length);
}

INSTANTIATE_TEST_SUITE_P(Models, CacheTest,
                         testing::Values(CachedModel{"gpt2"}, CachedModel{"llama"}, CachedModel{"llama_tied"},
                                         CachedModel{"llama3"}, CachedModel{"qwen2"}, CachedModel{"qwen3"},
                                         CachedModel{"llama", 7}, CachedModel{"llama3", 9, 2},
                                         CachedModel{"gpt2", 1, 4}),
                         [](const auto& test) {
                           const CachedModel& each = test.param;
                           return each.window == 0
                                      ? std::string(each.golden)
                                      : fmt::format("{}_{}_and_{}", each.golden, each.window, each.sinks);
                         });

}  // namespace
}  // namespace holdfast::test
