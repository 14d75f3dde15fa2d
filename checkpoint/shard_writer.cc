#include <algorithm>

#include "checkpoint/shard_file.h"
#include "checkpoint/shard_format.h"
#include "runtime/core/digest.h"

namespace holdfast {
namespace {

using namespace shard_format;

class IndexBytes {
 public:
  template <typename T>
  void add(const T& value) {
    add(std::as_bytes(std::span(&value, 1)));
  }
  void add(std::span<const std::byte> bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
  void add(const std::string& text) { add(std::as_bytes(std::span(text.data(), text.size()))); }
  void pad() { bytes_.resize(round_up(bytes_.size(), 8)); }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

std::uint64_t record_bytes(const ShardSpec& spec) {
  const std::uint64_t names = 8 * spec.global_shape.size() + spec.tensor.size() + spec.kind.size();
  return sizeof(PieceRecord) + round_up(names, 8) + round_up(4 * chunk_count(spec.byte_count()), 8);
}

struct Layout {
  std::vector<std::uint64_t> offsets;  // of every piece
  std::uint64_t index_offset = 0;
  std::uint64_t index_bytes = 0;
  std::uint64_t file_bytes() const { return index_offset + index_bytes + sizeof(Trailer); }
};

Layout plan_layout(std::span<const StatePiece> pieces) {
  Layout layout;
  std::uint64_t next = sizeof(Header);
  for (const StatePiece& piece : pieces) {
    HF_CHECK(piece.bytes.size() == piece.spec.byte_count(),
             "'{}' ({}) has {} bytes in memory, its spec says {}", piece.spec.tensor, piece.spec.kind,
             piece.bytes.size(), piece.spec.byte_count());
    layout.offsets.push_back(next);
    next = round_up(next + piece.bytes.size(), alignment_bytes);
    layout.index_bytes += record_bytes(piece.spec);
  }
  layout.index_offset = next;
  return layout;
}

void add_record(IndexBytes& index, const ShardSpec& spec, std::uint64_t offset_bytes,
                std::span<const std::uint32_t> checksums) {
  const PieceRecord record = {.offset_bytes = offset_bytes,
                              .byte_count = spec.byte_count(),
                              .first_block = spec.first_block,
                              .block_count = spec.block_count,
                              .dtype = static_cast<std::uint32_t>(spec.dtype),
                              .dimension_count = static_cast<std::uint32_t>(spec.global_shape.size()),
                              .tensor_name_bytes = static_cast<std::uint32_t>(spec.tensor.size()),
                              .kind_bytes = static_cast<std::uint32_t>(spec.kind.size()),
                              .chunk_count = static_cast<std::uint32_t>(checksums.size()),
                              .slice = static_cast<std::uint16_t>(spec.slice),
                              .other_slices = static_cast<std::uint16_t>(spec.slices - 1)};
  index.add(record);
  index.add(std::as_bytes(std::span(spec.global_shape)));
  index.add(spec.tensor);
  index.add(spec.kind);
  index.pad();
  index.add(std::as_bytes(checksums));
  index.pad();
}

Result<void> write_header(File& file, std::uint64_t step, const std::string& run_id) {
  const Digest run = digest_of(run_id);
  Header header = {.magic = header_magic,
                   .version = version,
                   .header_bytes = sizeof(Header),
                   .step = step,
                   .run_digest_high = run.high,
                   .run_digest_low = run.low,
                   .chunk_bytes = chunk_bytes,
                   .alignment_bytes = alignment_bytes,
                   .zero = {},
                   .crc32c = 0};
  header.crc32c = checksum_of(header);
  return file.write_at(0, std::as_bytes(std::span(&header, 1)));
}

// Each chunk's checksum is taken before the chunk is handed to the system: what goes wrong after that is
// found.
Result<void> write_piece(File& file, const StatePiece& piece, const ReadState& read,
                         std::uint64_t offset_bytes, std::vector<std::uint32_t>& checksums) {
  checksums.clear();
  for (std::uint64_t done = 0; done < piece.bytes.size(); done += chunk_bytes) {
    const auto part =
        piece.bytes.subspan(done, std::min<std::uint64_t>(chunk_bytes, piece.bytes.size() - done));
    const std::span<const std::byte> chunk = read ? read(part) : part;
    checksums.push_back(crc32c(chunk));
    HF_TRY_VOID(file.write_at(offset_bytes + done, chunk));
  }
  return {};
}

// Padding is never written: a new file reads as zeros where nothing was written.
Result<std::uint32_t> write_content(File& file, std::uint64_t step, const std::string& run_id,
                                    std::span<const StatePiece> pieces, const ReadState& read,
                                    const Layout& layout) {
  HF_TRY_VOID(file.allocate(layout.file_bytes()));
  HF_TRY_VOID(write_header(file, step, run_id));
  IndexBytes index;
  std::vector<std::uint32_t> checksums;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    HF_TRY_VOID(write_piece(file, pieces[i], read, layout.offsets[i], checksums));
    add_record(index, pieces[i].spec, layout.offsets[i], checksums);
  }
  HF_CHECK(index.bytes().size() == layout.index_bytes);
  HF_TRY_VOID(file.write_at(layout.index_offset, index.bytes()));
  Trailer trailer = {.index_offset = layout.index_offset,
                     .index_bytes = layout.index_bytes,
                     .file_bytes = layout.file_bytes(),
                     .step = step,
                     .piece_count = static_cast<std::uint32_t>(pieces.size()),
                     .index_crc32c = crc32c(index.bytes()),
                     .magic = trailer_magic,
                     .version = version,
                     .crc32c = 0};
  trailer.crc32c = checksum_of(trailer);
  HF_TRY_VOID(file.write_at(layout.index_offset + layout.index_bytes, std::as_bytes(std::span(&trailer, 1))));
  HF_TRY_VOID(file.sync());
  return trailer.index_crc32c;
}

}  // namespace

Result<ShardFile> write_shard_file(Env& env, const std::string& directory, const std::string& name,
                                   std::uint64_t step, const std::string& run_id,
                                   std::span<const StatePiece> pieces, const ReadState& read) {
  const std::string path = directory + "/" + name;
  const Layout layout = plan_layout(pieces);
  Result<std::unique_ptr<File>> file = env.open(path, OpenMode::create);
  if (!file.ok()) return file.error();
  Result<std::uint32_t> index_crc32c = write_content(**file, step, run_id, pieces, read, layout);
  Result<void> durable;
  if (index_crc32c.ok()) durable = env.sync_directory(directory);
  if (!index_crc32c.ok() || !durable.ok()) {
    const Error error = index_crc32c.ok() ? durable.error() : index_crc32c.error();
    // Only tidying up: the error that matters is the one above, and the directory is removed by the next
    // writer anyway.
    static_cast<void>(env.remove(path).ok());
    return error;
  }
  return ShardFile{.name = name,
                   .bytes = layout.file_bytes(),
                   .index_crc32c = *index_crc32c,
                   .piece_count = static_cast<std::uint32_t>(pieces.size())};
}

}  // namespace holdfast
