#include <algorithm>

#include "checkpoint/shard_file.h"
#include "checkpoint/shard_format.h"
#include "runtime/core/digest.h"

namespace holdfast {
namespace {

using namespace shard_format;

constexpr const char* advice = "use another checkpoint or a copy of this file";

template <typename... Values>
Error damaged(const std::string& path, fmt::format_string<Values...> format, Values&&... values) {
  return fail(ExitCode::checkpoint, "{} is damaged: {}; {}", path,
              fmt::format(format, std::forward<Values>(values)...), advice);
}

// A read that fails is this checkpoint's problem, whatever the system called it.
Result<void> read_exactly(File& file, std::uint64_t offset, std::span<std::byte> target) {
  Result<void> result = file.read_at(offset, target);
  if (!result.ok()) return Error{ExitCode::checkpoint, result.error().message};
  return {};
}

template <typename Struct>
Result<Struct> read_struct(File& file, std::uint64_t offset) {
  Struct value;
  HF_TRY_VOID(read_exactly(file, offset, std::as_writable_bytes(std::span(&value, 1))));
  return value;
}

// Takes values off the front of the index; every step is checked against what is left.
class IndexCursor {
 public:
  explicit IndexCursor(std::span<const std::byte> bytes) : rest_(bytes) {}

  bool take(std::uint64_t bytes, std::span<const std::byte>& taken) {
    if (bytes > rest_.size()) return false;
    taken = rest_.first(bytes);
    rest_ = rest_.subspan(bytes);
    return true;
  }
  bool take_text(std::uint64_t bytes, std::string& text) {
    std::span<const std::byte> taken;
    if (!take(bytes, taken)) return false;
    text.assign(reinterpret_cast<const char*>(taken.data()), taken.size());
    return true;
  }
  template <typename T>
  bool take_array(std::uint64_t count, std::vector<T>& values) {
    std::span<const std::byte> taken;
    if (count > rest_.size() / sizeof(T) || !take(count * sizeof(T), taken)) return false;
    values.resize(count);
    if (count > 0) std::memcpy(values.data(), taken.data(), taken.size());
    return true;
  }
  bool take_padding(std::uint64_t bytes) {
    std::span<const std::byte> taken;
    return take(bytes, taken) && std::ranges::all_of(taken, [](std::byte b) { return b == std::byte{0}; });
  }
  bool empty() const { return rest_.empty(); }

 private:
  std::span<const std::byte> rest_;
};

// False when the record runs past the end of the index or names what does not exist.
bool take_record(IndexCursor& cursor, PieceRecord& record, ShardSpec& spec,
                 std::vector<std::uint32_t>& checksums) {
  std::span<const std::byte> bytes;
  if (!cursor.take(sizeof(PieceRecord), bytes)) return false;
  std::memcpy(&record, bytes.data(), sizeof(PieceRecord));
  if (record.dtype > static_cast<std::uint32_t>(DType::fp64)) return false;
  spec.slice = record.slice;
  spec.slices = std::uint32_t{record.other_slices} + 1;
  spec.dtype = static_cast<DType>(record.dtype);
  spec.first_block = record.first_block;
  spec.block_count = record.block_count;
  const std::uint64_t name_bytes = std::uint64_t{record.tensor_name_bytes} + record.kind_bytes;
  return cursor.take_array(record.dimension_count, spec.global_shape) &&
         cursor.take_text(record.tensor_name_bytes, spec.tensor) &&
         cursor.take_text(record.kind_bytes, spec.kind) && cursor.take_padding(padding_to_8(name_bytes)) &&
         cursor.take_array(record.chunk_count, checksums) &&
         cursor.take_padding(padding_to_8(4 * std::uint64_t{record.chunk_count}));
}

// The record's numbers against each other and against the length of the file, in an order that cannot
// overflow.
bool is_consistent(const PieceRecord& record, const ShardSpec& spec, std::uint64_t expected_offset,
                   std::uint64_t index_offset) {
  if (spec.slice >= spec.slices || spec.tensor_elements() % spec.slices != 0) return false;
  const std::uint64_t blocks = spec.slice_blocks();
  if (spec.first_block > blocks || spec.block_count > blocks - spec.first_block) return false;
  if (spec.element_count() > index_offset || spec.byte_count() != record.byte_count) return false;
  if (record.offset_bytes != expected_offset || expected_offset > index_offset) return false;
  return record.byte_count <= index_offset - expected_offset &&
         record.chunk_count == chunk_count(record.byte_count);
}

Result<void> check_header(const std::string& path, const Header& header, std::uint64_t step,
                          const std::string& run_id) {
  if (header.magic != header_magic) {
    return fail(ExitCode::checkpoint, "{} is not a Holdfast shard file (its first bytes are not HFSHARD); {}",
                path, advice);
  }
  if (header.crc32c != checksum_of(header)) return damaged(path, "the checksum of its header is wrong");
  if (header.version != version) {
    return fail(
        ExitCode::checkpoint,
        "{} has shard format version {}, this program reads version {}; use the program that wrote it", path,
        header.version, version);
  }
  if (header.header_bytes != sizeof(Header) || header.chunk_bytes != chunk_bytes ||
      header.alignment_bytes != alignment_bytes) {
    return damaged(path, "its header has impossible sizes");
  }
  const Digest run = digest_of(run_id);
  if (header.run_digest_high != run.high || header.run_digest_low != run.low) {
    return fail(ExitCode::checkpoint, "{} belongs to another run than the manifest beside it; {}", path,
                advice);
  }
  if (header.step != step) {
    return fail(ExitCode::checkpoint, "{} was written at step {}, the manifest beside it is of step {}; {}",
                path, header.step, step, advice);
  }
  return {};
}

Result<void> check_trailer(const std::string& path, const Trailer& trailer, const ShardFile& expected,
                           std::uint64_t step) {
  if (trailer.magic != trailer_magic || trailer.crc32c != checksum_of(trailer)) {
    return damaged(path, "the trailer in its last {} bytes is wrong", sizeof(Trailer));
  }
  if (trailer.version != version || trailer.file_bytes != expected.bytes || trailer.step != step ||
      trailer.piece_count != expected.piece_count || trailer.index_crc32c != expected.index_crc32c) {
    return damaged(path, "its trailer is not the one that the manifest beside it describes");
  }
  const std::uint64_t room = expected.bytes - sizeof(Header) - sizeof(Trailer);
  if (trailer.index_bytes > room ||
      trailer.index_offset != expected.bytes - sizeof(Trailer) - trailer.index_bytes ||
      trailer.index_offset % alignment_bytes != 0) {
    return damaged(path, "its index is said to be at {}, {} bytes long, which cannot be",
                   trailer.index_offset, trailer.index_bytes);
  }
  return {};
}

}  // namespace

Result<ShardReader> ShardReader::open(Env& env, const std::string& directory, const ShardFile& expected,
                                      std::uint64_t step, const std::string& run_id) {
  const std::string path = directory + "/" + expected.name;
  ShardReader reader;
  Result<std::unique_ptr<File>> file = env.open(path, OpenMode::read);
  if (!file.ok()) {
    return fail(ExitCode::checkpoint, "{}; the manifest beside it names this file; {}", file.error().message,
                advice);
  }
  reader.file_ = std::move(file).value();
  Result<std::uint64_t> size = reader.file_->size();
  if (!size.ok()) return Error{ExitCode::checkpoint, size.error().message};
  if (*size != expected.bytes) {
    return damaged(path, "it is {} bytes long, the manifest says {}", *size, expected.bytes);
  }
  if (*size < sizeof(Header) + sizeof(Trailer)) {
    return damaged(path, "its {} bytes are too few for a shard file", *size);
  }
  HF_TRY(const Header header, read_struct<Header>(*reader.file_, 0));
  HF_TRY_VOID(check_header(path, header, step, run_id));
  HF_TRY(const Trailer trailer, read_struct<Trailer>(*reader.file_, *size - sizeof(Trailer)));
  HF_TRY_VOID(check_trailer(path, trailer, expected, step));

  std::vector<std::byte> index(trailer.index_bytes);
  HF_TRY_VOID(read_exactly(*reader.file_, trailer.index_offset, index));
  if (crc32c(index) != trailer.index_crc32c) return damaged(path, "the checksum of its index is wrong");
  reader.index_offset_ = trailer.index_offset;
  HF_TRY_VOID(reader.parse_index(index, trailer.piece_count));
  return reader;
}

Result<void> ShardReader::parse_index(std::span<const std::byte> index, std::uint32_t piece_count) {
  IndexCursor cursor(index);
  std::uint64_t offset = sizeof(Header);
  for (std::uint32_t i = 0; i < piece_count; ++i) {
    PieceRecord record;
    ShardSpec spec;
    Piece piece;
    if (!take_record(cursor, record, spec, piece.chunk_crc32c) ||
        !is_consistent(record, spec, offset, index_offset_)) {
      return damaged(file_->path(), "entry {} of its index contradicts itself", i);
    }
    piece.offset_bytes = offset;
    offset = round_up(offset + record.byte_count, alignment_bytes);
    specs_.push_back(std::move(spec));
    layout_.push_back(std::move(piece));
  }
  if (!cursor.empty() || offset != index_offset_) {
    return damaged(file_->path(), "its index does not describe the whole file");
  }
  return {};
}

Result<void> ShardReader::read_chunk(std::size_t index, std::uint64_t chunk, std::span<std::byte> target) {
  const Piece& piece = layout_[index];
  const std::uint64_t offset = piece.offset_bytes + chunk * chunk_bytes;
  HF_TRY_VOID(read_exactly(*file_, offset, target));
  if (crc32c(target) == piece.chunk_crc32c[chunk]) return {};
  return damaged(file_->path(), "tensor '{}' ({}), the {} bytes at offset {} have a wrong checksum",
                 specs_[index].tensor, specs_[index].kind, target.size(), offset);
}

Result<void> ShardReader::read(std::size_t index, std::uint64_t first_element, std::span<std::byte> target) {
  HF_CHECK(index < specs_.size());
  const std::uint64_t piece_bytes = specs_[index].byte_count();
  std::uint64_t next = first_element * bytes_of(specs_[index].dtype);
  HF_CHECK(next <= piece_bytes && target.size() <= piece_bytes - next, "read past the end of '{}'",
           specs_[index].tensor);
  while (!target.empty()) {
    const std::uint64_t chunk = next / chunk_bytes;
    const std::uint64_t chunk_first = chunk * chunk_bytes;
    const std::uint64_t length = std::min(chunk_bytes, piece_bytes - chunk_first);
    const std::uint64_t inside = next - chunk_first;
    const std::uint64_t count = std::min<std::uint64_t>(length - inside, target.size());
    if (count == length) {
      HF_TRY_VOID(read_chunk(index, chunk, target.first(count)));
    } else {
      chunk_.resize(length);
      HF_TRY_VOID(read_chunk(index, chunk, chunk_));
      std::memcpy(target.data(), chunk_.data() + inside, count);
    }
    target = target.subspan(count);
    next += count;
  }
  return {};
}

Result<void> ShardReader::verify() {
  for (std::size_t i = 0; i < layout_.size(); ++i) {
    const std::uint64_t piece_bytes = specs_[i].byte_count();
    for (std::uint64_t chunk = 0; chunk < layout_[i].chunk_crc32c.size(); ++chunk) {
      chunk_.resize(std::min(chunk_bytes, piece_bytes - chunk * chunk_bytes));
      HF_TRY_VOID(read_chunk(i, chunk, chunk_));
    }
    const std::uint64_t end = layout_[i].offset_bytes + piece_bytes;
    chunk_.resize(round_up(end, alignment_bytes) - end);
    HF_TRY_VOID(read_exactly(*file_, end, chunk_));
    if (!std::ranges::all_of(chunk_, [](std::byte b) { return b == std::byte{0}; })) {
      return damaged(file_->path(), "the padding after tensor '{}' ({}) at offset {} is not zero",
                     specs_[i].tensor, specs_[i].kind, end);
    }
  }
  return {};
}

}  // namespace holdfast
