#include "runtime/interop/tensor_reader.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <tuple>

namespace holdfast::interop {
namespace {

// Elements that are converted at once of a piece of another number of slices, or another type: 4 MiB of fp32.
constexpr std::uint64_t converted_at_once = std::uint64_t{1} << 20;

// Returns the whole blocks of a slice around elements [begin, end).
ShardSpec blocks_around(const ShardSpec& stored, int slice, std::uint64_t begin, std::uint64_t end) {
  ShardSpec spec = stored;
  spec.slice = static_cast<std::uint32_t>(slice);
  spec.first_block = begin / block_elements;
  spec.block_count = (end + block_elements - 1) / block_elements - spec.first_block;
  return spec;
}

bool is_convertible(DType dtype) {
  return dtype == DType::fp32 || dtype == DType::bf16;
}

// Converts fp32 to bf16, or bf16 to fp32.
void convert(std::span<const std::byte> source, DType source_type, std::span<std::byte> target) {
  const std::size_t count = source.size() / bytes_of(source_type);
  for (std::size_t i = 0; i < count; ++i) {
    float wide = 0;
    BFloat16 narrow;
    if (source_type == DType::fp32) {
      std::memcpy(&wide, source.data() + i * sizeof(wide), sizeof(wide));
      narrow = to_bfloat16(wide);
      std::memcpy(target.data() + i * sizeof(narrow), &narrow, sizeof(narrow));
    } else {
      std::memcpy(&narrow, source.data() + i * sizeof(narrow), sizeof(narrow));
      wide = to_float(narrow);
      std::memcpy(target.data() + i * sizeof(wide), &wide, sizeof(wide));
    }
  }
}

struct Range {
  std::uint64_t begin = std::numeric_limits<std::uint64_t>::max(), end = 0;
  void cover(std::uint64_t first, std::uint64_t count) {
    begin = std::min(begin, first);
    end = std::max(end, first + count);
  }
};

}  // namespace

TensorReader::TensorReader(Checkpoint& checkpoint, std::vector<ParameterSpec> parameters, int threads)
    : TensorReader({.place = checkpoint.directory(),
                    .tensors = checkpoint.tensors(),
                    .read =
                        [&checkpoint, threads](std::span<const Checkpoint::Wanted> wanted) {
                          return checkpoint.read(wanted, threads);
                        }},
                   std::move(parameters)) {
  checkpoint_ = &checkpoint;
  threads_ = threads;
}

TensorReader::TensorReader(StoredTensors source, std::vector<ParameterSpec> parameters)
    : source_(std::move(source)) {
  for (ParameterSpec& parameter : parameters) {
    std::string name = parameter.name;
    parameters_.emplace(std::move(name), std::move(parameter));
  }
  for (ShardSpec& whole : source_.tensors) {
    if (whole.slice == 0) stored_.emplace(std::pair(whole.tensor, whole.kind), std::move(whole));
  }
}

Result<const ShardSpec*> TensorReader::find(const std::string& tensor, const std::string& kind) const {
  const auto found = stored_.find({tensor, kind});
  if (found != stored_.end()) return &found->second;
  return fail(ExitCode::checkpoint, "{} holds no tensor '{}' ({}); use a checkpoint of a model that has it",
              source_.place, tensor, kind);
}

Result<const ParameterSpec*> TensorReader::parameter_of(const ShardSpec& stored) const {
  const auto found = parameters_.find(stored.tensor);
  if (found != parameters_.end() && found->second.shape == stored.global_shape) return &found->second;
  return fail(ExitCode::checkpoint,
              "{}: tensor '{}' ({}) of shape [{}] is stored in {} slices, but the model has no such tensor; "
              "its slices cannot be put together without the config that made them",
              source_.place, stored.tensor, stored.kind, fmt::join(stored.global_shape, ", "), stored.slices);
}

Result<void> TensorReader::read(const std::string& tensor, const std::string& kind, std::uint64_t first,
                                std::span<std::byte> target) {
  HF_TRY(const ShardSpec* stored, find(tensor, kind));
  const std::uint64_t element_bytes = bytes_of(stored->dtype), count = target.size() / element_bytes;
  HF_CHECK(first + count <= stored->tensor_elements(), "elements [{}, {}) of '{}', which has {}", first,
           first + count, tensor, stored->tensor_elements());
  ParameterSpec uncut;
  const ParameterSpec* parameter = &uncut;
  if (stored->slices > 1) {
    HF_TRY(parameter, parameter_of(*stored));
  }
  const std::vector<TensorRun> runs =
      runs_of_tensor(*parameter, static_cast<int>(stored->slices), first, count);
  std::vector<Range> ranges(stored->slices);
  for (const TensorRun& each : runs)
    ranges[static_cast<std::size_t>(each.slice)].cover(each.run.slice_offset, each.run.count);

  of_slices_.resize(stored->slices);
  std::vector<Checkpoint::Wanted> wanted;
  for (std::size_t slice = 0; slice < ranges.size(); ++slice) {
    if (ranges[slice].end == 0) continue;
    ShardSpec blocks =
        blocks_around(*stored, static_cast<int>(slice), ranges[slice].begin, ranges[slice].end);
    ranges[slice].begin = blocks.first_element();
    if (runs.size() == 1 && blocks.byte_count() == target.size()) {
      wanted.push_back({std::move(blocks), target});
      return source_.read(wanted);
    }
    of_slices_[slice].resize(blocks.byte_count());
    wanted.push_back({std::move(blocks), of_slices_[slice]});
  }
  HF_TRY_VOID(source_.read(wanted));
  for (const TensorRun& each : runs) {
    const auto slice = static_cast<std::size_t>(each.slice);
    std::memcpy(target.data() + (each.run.tensor_offset - first) * element_bytes,
                of_slices_[slice].data() + (each.run.slice_offset - ranges[slice].begin) * element_bytes,
                each.run.count * element_bytes);
  }
  return {};
}

Result<void> TensorReader::check_shape(const ShardSpec& stored, const ShardSpec& wanted) const {
  const bool converts = is_convertible(stored.dtype) && is_convertible(wanted.dtype);
  if ((stored.dtype == wanted.dtype || converts) && stored.global_shape == wanted.global_shape) return {};
  return fail(
      ExitCode::checkpoint,
      "{}: tensor '{}' ({}) exists as {} of shape [{}], but {} of shape [{}] is wanted; use the model keys "
      "that the state was made with",
      source_.place, wanted.tensor, wanted.kind, name_of(stored.dtype), fmt::join(stored.global_shape, ", "),
      name_of(wanted.dtype), fmt::join(wanted.global_shape, ", "));
}

Result<void> TensorReader::read_piece(const ShardSpec& wanted, std::span<std::byte> target) {
  HF_TRY(const ShardSpec* stored, find(wanted.tensor, wanted.kind));
  HF_TRY_VOID(check_shape(*stored, wanted));
  if (stored->dtype == wanted.dtype) return read_as_stored(*stored, wanted, target);
  ShardSpec part = wanted;
  part.dtype = stored->dtype;
  const std::uint64_t end_block = wanted.first_block + wanted.block_count;
  for (; part.first_block < end_block; part.first_block += part.block_count) {
    part.block_count = std::min(converted_at_once / block_elements, end_block - part.first_block);
    of_stored_type_.resize(part.byte_count());
    HF_TRY_VOID(read_as_stored(*stored, part, of_stored_type_));
    convert(of_stored_type_, part.dtype,
            target.subspan((part.first_element() - wanted.first_element()) * bytes_of(wanted.dtype)));
  }
  return {};
}

// Reads a piece of the type that is stored.
Result<void> TensorReader::read_as_stored(const ShardSpec& stored, const ShardSpec& wanted,
                                          std::span<std::byte> target) {
  if (stored.slices == wanted.slices) {
    const Checkpoint::Wanted piece{.spec = wanted, .target = target};
    return source_.read({&piece, 1});
  }
  HF_TRY(const ParameterSpec* parameter, parameter_of(stored));
  const std::uint64_t element_bytes = bytes_of(wanted.dtype);
  const std::uint64_t columns = parameter->shape.size() > 1 ? parameter->shape[1] : 1;
  const std::uint64_t end = wanted.first_element() + wanted.element_count();
  for (std::uint64_t first = wanted.first_element(); first < end; first += converted_at_once) {
    const std::vector<SliceRun> runs =
        runs_of_slice(*parameter, static_cast<int>(wanted.slice), static_cast<int>(wanted.slices), first,
                      std::min(converted_at_once, end - first));
    // Parts of neighbouring rows are read together, with what lies between them.
    for (std::size_t begin = 0, stop = 0; begin < runs.size(); begin = stop) {
      Range range;
      for (; stop < runs.size() && (stop == begin || runs[stop].tensor_offset < range.end + columns); ++stop)
        range.cover(runs[stop].tensor_offset, runs[stop].count);
      rows_.resize((range.end - range.begin) * element_bytes);
      HF_TRY_VOID(read(wanted.tensor, wanted.kind, range.begin, rows_));
      for (std::size_t i = begin; i < stop; ++i) {
        std::memcpy(target.data() + (runs[i].slice_offset - wanted.first_element()) * element_bytes,
                    rows_.data() + (runs[i].tensor_offset - range.begin) * element_bytes,
                    runs[i].count * element_bytes);
      }
    }
  }
  return {};
}

std::vector<ShardSpec> pieces_in_slices(const std::vector<ParameterSpec>& parameters,
                                        const std::vector<ShardSpec>& wanted, std::uint32_t stored_slices) {
  std::map<std::string_view, const ParameterSpec*> parameter_of;
  for (const ParameterSpec& parameter : parameters) parameter_of.emplace(parameter.name, &parameter);
  struct Slice {
    ShardSpec spec;
    std::map<std::uint64_t, std::uint64_t> blocks = {};  // first block of each run of blocks, and its end
    // Runs come almost in order, so there are few of them at any time.
    void add(std::uint64_t first, std::uint64_t end) {
      auto next = blocks.upper_bound(first);
      if (next != blocks.begin() && std::prev(next)->second >= first) first = (--next)->first;
      for (; next != blocks.end() && next->first <= end; next = blocks.erase(next))
        end = std::max(end, next->second);
      blocks[first] = end;
    }
  };
  std::map<std::tuple<std::string, std::string, int>, Slice> slices;
  for (const ShardSpec& piece : wanted) {
    const ParameterSpec& parameter = *parameter_of.at(piece.tensor);
    ShardSpec stored = piece;
    stored.slices = parameter.cut == Cut::none ? 1 : stored_slices;
    for (const SliceRun& run :
         runs_of_slice(parameter, static_cast<int>(piece.slice), static_cast<int>(piece.slices),
                       piece.first_element(), piece.element_count())) {
      for (const TensorRun& each :
           runs_of_tensor(parameter, static_cast<int>(stored.slices), run.tensor_offset, run.count)) {
        stored.slice = static_cast<std::uint32_t>(each.slice);
        Slice& slice =
            slices.try_emplace({piece.tensor, piece.kind, each.slice}, Slice{stored}).first->second;
        const std::uint64_t end = each.run.slice_offset + each.run.count;
        slice.add(each.run.slice_offset / block_elements, (end + block_elements - 1) / block_elements);
      }
    }
  }
  std::vector<ShardSpec> pieces;
  for (auto& [key, slice] : slices) {
    for (const auto& [first, end] : slice.blocks) {
      ShardSpec& piece = pieces.emplace_back(slice.spec);
      piece.first_block = first;
      piece.block_count = end - first;
    }
  }
  return pieces;
}

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

}  // namespace holdfast::interop
