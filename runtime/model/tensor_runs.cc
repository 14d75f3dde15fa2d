#include "runtime/model/tensor_runs.h"

#include <algorithm>

namespace holdfast::model {

std::vector<TensorRun> runs_of_tensor(const ParameterSpec& parameter, int slices, std::uint64_t first,
                                      std::uint64_t count) {
  const std::uint64_t end = first + count;
  if (parameter.cut == Cut::none || slices == 1)
    return {{.slice = 0, .run = {.tensor_offset = first, .slice_offset = first, .count = count}}};
  const auto k = static_cast<std::uint64_t>(slices);
  const std::uint64_t columns = parameter.shape.size() > 1 ? parameter.shape[1] : 1;
  std::vector<TensorRun> runs;
  // A stretch of the tensor that every slice has one part of, the parts one after another.
  const auto add_stretch = [&](std::uint64_t begin, std::uint64_t part, std::uint64_t slice_begin) {
    for (std::uint64_t next = std::max(first, begin); next < std::min(end, begin + part * k);) {
      const std::uint64_t slice = (next - begin) / part, inside = (next - begin) % part;
      const std::uint64_t size = std::min(part - inside, end - next);
      runs.push_back({.slice = static_cast<int>(slice),
                      .run = {.tensor_offset = next, .slice_offset = slice_begin + inside, .count = size}});
      next += size;
    }
  };
  if (parameter.cut == Cut::columns) {
    const std::uint64_t part = columns / k;
    for (std::uint64_t row = first / columns; row * columns < end; ++row)
      add_stretch(row * columns, part, row * part);
    return runs;
  }
  const std::vector<std::uint64_t> whole = {parameter.shape[0]};
  std::uint64_t before = 0;  // rows of the groups before
  for (const std::uint64_t rows : parameter.row_groups.empty() ? whole : parameter.row_groups) {
    add_stretch(before * columns, rows / k * columns, before / k * columns);
    before += rows;
  }
  return runs;
}

}  // namespace holdfast::model
