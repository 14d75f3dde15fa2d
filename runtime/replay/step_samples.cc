#include "runtime/replay/step_samples.h"

#include <algorithm>
#include <span>

namespace holdfast::replay {

Result<std::vector<LaneSamples>> samples_of_step(const DataSet& data, std::uint64_t seed,
                                                 const BatchShape& shape, std::uint64_t cursor,
                                                 std::int64_t vocabulary) {
  constexpr std::size_t tokens_kept = 32;
  const auto length = static_cast<std::size_t>(shape.sequence_length);
  const auto of_lane = static_cast<std::uint64_t>(shape.microbatches_per_lane * shape.microbatch_size);
  const SampleOrder order = data.order(seed);
  std::vector<std::int32_t> tokens(length + 1), inputs(length), targets(length);
  std::vector<std::int32_t> first_key(data.masks_documents() ? length : 0);
  std::vector<LaneSamples> lanes(static_cast<std::size_t>(shape.lanes));
  for (LaneSamples& lane : lanes) {
    for (std::uint64_t index = 0; index < of_lane; ++index, ++cursor) {
      const SampleId id = order.at(cursor);
      HF_TRY_VOID(data.read(id, tokens, vocabulary));
      HF_TRY(const std::uint64_t counted,
             data.fill_row(id, tokens, {.inputs = inputs, .targets = targets, .first_key = first_key}));
      lane.counted_targets += counted;
      if (index > 0) continue;
      lane.first = id;
      lane.tokens.assign(tokens.begin(),
                         tokens.begin() + static_cast<std::ptrdiff_t>(std::min(tokens_kept, tokens.size())));
    }
  }
  return lanes;
}

}  // namespace holdfast::replay
