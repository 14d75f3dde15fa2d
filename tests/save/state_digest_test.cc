#include "runtime/save/state_digest.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <bit>
#include <sstream>

#include "runtime/core/random.h"
#include "tests/save/checkpoint_fixture.h"

namespace holdfast::test {
namespace {

constexpr const char* digested_model_text =
    "[training]\nsteps = 10\nsequence_length = 16\n[model]\nlayers = 2\nheads = 4\nwidth = 64\nvocabulary = "
    "256\n";

// Every element has a value of its own.
void fill_distinct(const ShardSpec& piece, std::span<float> values) {
  const RandomStream stream(7, digest_of(piece.kind + " " + piece.tensor).low);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = stream.normal(piece.first_element() + i);
}

class StateDigestTest : public testing::Test {
 protected:
  std::vector<std::string> lines_of(const std::string& run, const CheckpointContent& content) {
    Result<Checkpoint> checkpoint =
        Checkpoint::open(posix_env(), write_checkpoint(directory_ / run, content));
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    const Result<StateDigest> digest = digest_checkpoint(*checkpoint);
    EXPECT_TRUE(digest.ok()) << digest.error().message;
    std::istringstream text(to_text(*digest));
    std::vector<std::string> lines;
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    return lines;
  }

  CheckpointContent content() const {
    return {.config = resolved_config(digested_model_text),
            .state = example_state(),
            .ranks = 1,
            .fill = fill_distinct};
  }

  // The lines that differ from the whole content's.
  std::vector<std::size_t> changed_lines(const CheckpointContent& changed) {
    const std::vector<std::string> before = lines_of("before", content());
    const std::vector<std::string> after = lines_of("after", changed);
    std::vector<std::size_t> changes;
    for (std::size_t i = 0; i < before.size(); ++i) {
      if (before[i] != after.at(i)) changes.push_back(i);
    }
    return changes;
  }

  // One bit of one element of one tensor of one kind, before it is written (so with the right checksums).
  static FillValues flip_bit(const std::string& kind, const std::string& tensor, std::uint64_t element) {
    return [=](const ShardSpec& piece, std::span<float> values) {
      fill_distinct(piece, values);
      if (piece.kind != kind || piece.tensor != tensor || element < piece.first_element()) return;
      const std::uint64_t at = element - piece.first_element();
      if (at < values.size())
        values[at] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(values[at]) ^ 1u);
    };
  }

  TemporaryDirectory directory_;
};

TEST_F(StateDigestTest, HasFiveLines) {
  const std::vector<std::string> lines = lines_of("run", content());
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines[0], "step 50");
  const char* names[] = {"weights ", "optimizer ", "data ", "loss "};
  for (std::size_t i = 1; i < lines.size(); ++i) {
    EXPECT_TRUE(lines[i].starts_with(names[i - 1])) << lines[i];
    Digest digest;
    EXPECT_TRUE(from_hex(lines[i].substr(lines[i].find(' ') + 1), digest)) << lines[i];
  }
}

TEST_F(StateDigestTest, DoesNotDependOnTheLayout) {
  const std::vector<std::string> one = lines_of("one", content());
  for (const int ranks : {2, 3, 7}) {
    CheckpointContent cut = content();
    cut.ranks = ranks;
    EXPECT_EQ(lines_of(fmt::format("ranks-{}", ranks), cut), one) << ranks;
  }
}

// Tensors that are read in several parts, with short ones before and behind them: what programs before this
// one said.
TEST_F(StateDigestTest, LongTensorsHaveTheDigestThatTheyAlwaysHad) {
  CheckpointContent content = this->content();
  std::string text = digested_model_text;
  text.replace(text.find("256"), 3, "70000");
  content.config = resolved_config(text);
  content.fill = [](const ShardSpec& piece, std::span<float> values) {
    const std::uint64_t start = piece.first_element() + piece.tensor.size() + piece.kind.back();
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>((start + i) % 1009);
  };
  for (const int ranks : {1, 2}) {
    content.ranks = ranks;
    const std::vector<std::string> lines = lines_of(fmt::format("ranks-{}", ranks), content);
    EXPECT_EQ(lines[1], "weights 59794c2db337cc7e2efa8b6c2d30c384");
    EXPECT_EQ(lines[2], "optimizer a4de74bbdf94fb0866b418197063803e");
  }
}

TEST_F(StateDigestTest, OneBitOfAWeightChangesOneLine) {
  CheckpointContent flipped = content();
  flipped.ranks = 2;
  flipped.fill = flip_bit("weight", "layers.1.feed_forward.down.weight", 64 * 192 - 1);
  EXPECT_EQ(changed_lines(flipped), std::vector<std::size_t>{1});
}

TEST_F(StateDigestTest, OneBitOfAMomentChangesOneLine) {
  for (const char* kind : {"moment1", "moment2"}) {
    CheckpointContent flipped = content();
    flipped.fill = flip_bit(kind, "final_norm.weight", 0);
    EXPECT_EQ(changed_lines(flipped), std::vector<std::size_t>{2}) << kind;
  }
}

TEST_F(StateDigestTest, DataAndLossHaveLinesOfTheirOwn) {
  CheckpointContent later_cursor = content();
  later_cursor.state.data_cursor += 1;
  EXPECT_EQ(changed_lines(later_cursor), std::vector<std::size_t>{3});
  CheckpointContent other_data = content();
  other_data.state.data_digest.low ^= 1;
  EXPECT_EQ(changed_lines(other_data), std::vector<std::size_t>{3});
  CheckpointContent other_loss = content();
  other_loss.state.loss_digest.high ^= 1;
  EXPECT_EQ(changed_lines(other_loss), std::vector<std::size_t>{4});
}

TEST_F(StateDigestTest, SwappedTensorsAreAnotherState) {
  CheckpointContent swapped = content();
  swapped.fill = [](const ShardSpec& piece, std::span<float> values) {
    ShardSpec source = piece;
    if (piece.tensor == "layers.0.attention_norm.weight") source.tensor = "layers.1.attention_norm.weight";
    if (piece.tensor == "layers.1.attention_norm.weight") source.tensor = "layers.0.attention_norm.weight";
    fill_distinct(source, values);
  };
  EXPECT_EQ(changed_lines(swapped), (std::vector<std::size_t>{1, 2}));
}

}  // namespace
}  // namespace holdfast::test
