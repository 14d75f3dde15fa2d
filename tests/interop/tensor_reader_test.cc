#include "runtime/interop/tensor_reader.h"

#include <set>

#include "tests/interop/exchange_fixture.h"

namespace holdfast::test {
namespace {

class TensorReaderTest : public testing::TestWithParam<const char*> {
 protected:
  Checkpoint saved(int tensor_lanes, std::size_t files = 3) {
    Result<Checkpoint> checkpoint = Checkpoint::open(
        posix_env(),
        save_weights(small_spec(GetParam(), tensor_lanes), directory_ / std::to_string(tensor_lanes), files));
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    return std::move(checkpoint).value();
  }
  TemporaryDirectory directory_;
};

TEST_P(TensorReaderTest, AnyElementsOfAnyCut) {
  for (const int lanes : {1, 2, 4}) {
    Checkpoint checkpoint = saved(lanes);
    const std::vector<ParameterSpec> parameters = parameter_specs(small_spec(GetParam(), lanes));
    TensorReader reader(checkpoint, parameters);
    for (const ParameterSpec& parameter : parameters) {
      const std::uint64_t elements = parameter.elements();
      for (const auto& [first, count] : std::vector<std::pair<std::uint64_t, std::uint64_t>>{
               {0, elements},
               {elements / 3, elements / 2},
               {elements - 1, 1},
               {0, std::min<std::uint64_t>(elements, 4096)}}) {
        std::vector<float> values(count, -1.0F);
        const Result<void> read =
            reader.read(parameter.name, "weight", first, std::as_writable_bytes(std::span(values)));
        ASSERT_TRUE(read.ok()) << read.error().message;
        for (std::uint64_t i = 0; i < count; ++i) {
          ASSERT_EQ(values[i], value_at(parameter.name, first + i))
              << parameter.name << " in " << lanes << " slices, element " << first + i;
        }
      }
    }
  }
}

// What is wanted of one cut, in another one: all blocks that hold an element of it, none twice, none else.
TEST_P(TensorReaderTest, PiecesInOtherSlices) {
  for (const int from : {1, 2, 4}) {
    for (const int to : {1, 2, 4}) {
      for (const ParameterSpec& parameter : parameter_specs(small_spec(GetParam(), to))) {
        const int slices = parameter.cut == Cut::none ? 1 : to,
                  stored = parameter.cut == Cut::none ? 1 : from;
        ShardSpec wanted{.tensor = parameter.name,
                         .kind = "moment1",
                         .global_shape = parameter.shape,
                         .slice = static_cast<std::uint32_t>(slices / 2),
                         .slices = static_cast<std::uint32_t>(slices)};
        wanted.block_count = wanted.slice_blocks();
        std::set<std::pair<int, std::uint64_t>> expected, found;
        for (std::uint64_t element = 0; element < wanted.element_count(); ++element) {
          const std::uint64_t place =
              runs_of_slice(parameter, slices / 2, slices, element, 1).front().tensor_offset;
          const TensorRun run = runs_of_tensor(parameter, stored, place, 1).front();
          expected.emplace(run.slice, run.run.slice_offset / block_elements);
        }
        std::size_t blocks = 0;
        for (const ShardSpec& piece :
             pieces_in_slices({parameter}, {wanted, wanted}, static_cast<std::uint32_t>(from))) {
          EXPECT_EQ(piece.kind, "moment1");
          EXPECT_EQ(piece.slices, static_cast<std::uint32_t>(stored));
          EXPECT_LE(piece.first_block + piece.block_count, piece.slice_blocks());
          blocks += piece.block_count;
          for (std::uint64_t i = 0; i < piece.block_count; ++i)
            found.emplace(static_cast<int>(piece.slice), piece.first_block + i);
        }
        EXPECT_EQ(found, expected) << parameter.name << " from " << from << " to " << to;
        EXPECT_EQ(blocks, expected.size());
      }
    }
  }
}

TEST_P(TensorReaderTest, PiecesOfAnyCutFromAnyCut) {
  for (const int from : {1, 2, 4}) {
    Checkpoint checkpoint = saved(from);
    TensorReader reader(checkpoint, parameter_specs(small_spec(GetParam(), from)));
    for (const int to : {1, 2, 4}) {
      for (const ParameterSpec& parameter : parameter_specs(small_spec(GetParam(), to))) {
        const int slices = parameter.cut == Cut::none ? 1 : to;
        ShardSpec wanted{.tensor = parameter.name,
                         .kind = "weight",
                         .global_shape = parameter.shape,
                         .slice = static_cast<std::uint32_t>(slices - 1),
                         .slices = static_cast<std::uint32_t>(slices)};
        wanted.first_block = wanted.slice_blocks() > 1 ? 1 : 0;
        wanted.block_count = wanted.slice_blocks() - wanted.first_block;
        std::vector<float> values(wanted.element_count(), -1.0F);
        const Result<void> read = reader.read_piece(wanted, std::as_writable_bytes(std::span(values)));
        ASSERT_TRUE(read.ok()) << read.error().message;
        for (const SliceRun& run :
             runs_of_slice(parameter, slices - 1, slices, wanted.first_element(), wanted.element_count())) {
          for (std::uint64_t i = 0; i < run.count; ++i) {
            ASSERT_EQ(values[run.slice_offset - wanted.first_element() + i],
                      value_at(parameter.name, run.tensor_offset + i))
                << parameter.name << " from " << from << " to " << to;
          }
        }
      }
    }
  }
}

// As a run reads moments that it keeps in the other type.
TEST_P(TensorReaderTest, PiecesOfAnotherTypeAreRoundedToNearest) {
  Checkpoint checkpoint = saved(2);
  TensorReader reader(checkpoint, parameter_specs(small_spec(GetParam(), 2)));
  for (const int to : {1, 2}) {
    for (const ParameterSpec& parameter : parameter_specs(small_spec(GetParam(), to))) {
      const int slices = parameter.cut == Cut::none ? 1 : to;
      ShardSpec wanted{.tensor = parameter.name,
                       .kind = "weight",
                       .dtype = DType::bf16,
                       .global_shape = parameter.shape,
                       .slice = static_cast<std::uint32_t>(slices - 1),
                       .slices = static_cast<std::uint32_t>(slices)};
      wanted.block_count = wanted.slice_blocks();
      std::vector<BFloat16> values(wanted.element_count());
      const Result<void> read = reader.read_piece(wanted, std::as_writable_bytes(std::span(values)));
      ASSERT_TRUE(read.ok()) << read.error().message;
      for (const SliceRun& run : runs_of_slice(parameter, slices - 1, slices, 0, wanted.element_count())) {
        for (std::uint64_t i = 0; i < run.count; ++i) {
          ASSERT_EQ(values[run.slice_offset + i].bits,
                    to_bfloat16(value_at(parameter.name, run.tensor_offset + i)).bits)
              << parameter.name << " in " << slices << " slices";
        }
      }
    }
  }
}

TEST_P(TensorReaderTest, SaysWhatIsNotThere) {
  Checkpoint checkpoint = saved(2);
  TensorReader reader(checkpoint, parameter_specs(small_spec(GetParam(), 2)));
  std::vector<std::byte> target(4 * 64);
  const Result<void> missing = reader.read("final_norm.weight", "moment1", 0, target);
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ExitCode::checkpoint);
  EXPECT_NE(missing.error().message.find("holds no tensor 'final_norm.weight' (moment1)"), std::string::npos);
  ShardSpec other{.tensor = "final_norm.weight", .kind = "weight", .global_shape = {128}};
  other.block_count = 1;
  std::vector<std::byte> larger(other.byte_count());
  const Result<void> shape = reader.read_piece(other, larger);
  ASSERT_FALSE(shape.ok());
  EXPECT_NE(shape.error().message.find("of shape [64], but fp32 of shape [128] is wanted"), std::string::npos)
      << shape.error().message;
}

INSTANTIATE_TEST_SUITE_P(Styles, TensorReaderTest, testing::Values("llama", "gpt2"));

TEST(TensorRuns, AreTheInverseOfSliceRuns) {
  for (const char* style : {"llama", "gpt2"}) {
    for (const ParameterSpec& parameter : parameter_specs(small_spec(style, 2))) {
      if (parameter.cut == Cut::none) continue;
      constexpr int slices = 2;
      // Each element of the tensor has its slice, and its place there.
      std::vector<std::pair<int, std::uint64_t>> places(parameter.elements());
      for (int slice = 0; slice < slices; ++slice) {
        for (const SliceRun& run :
             runs_of_slice(parameter, slice, slices, 0, parameter.elements() / slices)) {
          for (std::uint64_t i = 0; i < run.count; ++i)
            places[run.tensor_offset + i] = {slice, run.slice_offset + i};
        }
      }
      for (const std::uint64_t first : {std::uint64_t{0}, parameter.elements() / 3}) {
        std::uint64_t next = first;
        for (const TensorRun& each : runs_of_tensor(parameter, slices, first, parameter.elements() / 2)) {
          ASSERT_EQ(each.run.tensor_offset, next) << parameter.name;
          for (std::uint64_t i = 0; i < each.run.count; ++i, ++next)
            ASSERT_EQ(places[next], std::pair(each.slice, each.run.slice_offset + i)) << parameter.name;
        }
        ASSERT_EQ(next, first + parameter.elements() / 2);
      }
    }
  }
}

}  // namespace
}  // namespace holdfast::test
