#include "checkpoint/snapshot_slot.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "checkpoint/shard_format.h"
#include "runtime/core/block_digest.h"
#include "runtime/core/crc32c.h"

namespace holdfast::checkpoint {
namespace {

constexpr std::array<char, 8> slot_magic = {'H', 'F', 'S', 'N', 'A', 'P', '\0', '\0'};
constexpr std::uint32_t slot_version = 1;
constexpr std::uint64_t page_bytes = 4096;
constexpr std::uint32_t sealed_mark = 0x5ea1ed01;

struct SlotHeader {
  std::array<char, 8> magic;
  std::uint32_t version;
  std::uint32_t sealed;  // sealed_mark, or 0
  std::uint64_t run_high, run_low, host_high, host_low;
  std::uint64_t writer, generation, step;
  std::uint32_t rank, ranks;
  std::uint64_t index_offset, index_bytes;
  std::uint32_t index_crc32c;
  std::uint32_t crc32c;  // of everything before
};
static_assert(sizeof(SlotHeader) == 104 && std::is_trivially_copyable_v<SlotHeader>);

std::uint64_t padded(std::uint64_t bytes) {
  return (bytes + page_bytes - 1) / page_bytes * page_bytes;
}

std::uint32_t header_checksum(const SlotHeader& header) {
  return crc32c(std::as_bytes(std::span(&header, 1)).first(offsetof(SlotHeader, crc32c)));
}

Json to_json(const ShardSpec& spec) {
  return Json::array({spec.tensor, spec.kind, static_cast<int>(spec.dtype), spec.global_shape, spec.slice,
                      spec.slices, spec.first_block, spec.block_count});
}

template <typename Count>
bool read_count(const Json& json, Count& count) {
  if (!json.is_number_unsigned() || json.get<std::uint64_t>() > std::numeric_limits<Count>::max())
    return false;
  count = json.get<Count>();
  return true;
}

// Returns nothing when the numbers contradict each other, or are no numbers.
std::optional<ShardSpec> spec_of(const Json& json) {
  constexpr std::size_t members = 8;
  if (!json.is_array() || json.size() != members || !json[0].is_string() || !json[1].is_string() ||
      !json[3].is_array())
    return std::nullopt;
  ShardSpec spec{.tensor = json[0].text(), .kind = json[1].text(), .global_shape = {}};
  std::uint32_t dtype = 0;
  if (!read_count(json[2], dtype) || dtype > static_cast<std::uint32_t>(DType::fp64)) return std::nullopt;
  spec.dtype = static_cast<DType>(dtype);
  for (const Json& extent : json[3]) {
    if (!read_count(extent, spec.global_shape.emplace_back())) return std::nullopt;
  }
  if (!read_count(json[4], spec.slice) || !read_count(json[5], spec.slices) ||
      !read_count(json[6], spec.first_block) || !read_count(json[7], spec.block_count))
    return std::nullopt;
  if (spec.slice >= spec.slices || spec.tensor_elements() % spec.slices != 0) return std::nullopt;
  const std::uint64_t blocks = spec.slice_blocks();
  if (spec.first_block > blocks || spec.block_count > blocks - spec.first_block) return std::nullopt;
  return spec;
}

std::uint64_t data_bytes(std::span<const ShardSpec> pieces) {
  std::uint64_t bytes = 0;
  for (const ShardSpec& piece : pieces) bytes += padded(piece.byte_count());
  return bytes;
}

std::uint64_t digest_bytes(const ShardSpec& piece) {
  return SnapshotSlot::has_digests(piece) ? piece.block_count * sizeof(std::uint64_t) : 0;
}

std::uint64_t digest_bytes(std::span<const ShardSpec> pieces) {
  std::uint64_t bytes = 0;
  for (const ShardSpec& piece : pieces) bytes += digest_bytes(piece);
  return bytes;
}

// Cuts block digests into those of each piece.
template <typename Byte>
std::vector<std::span<Byte>> digests_by_piece(std::span<Byte> digests, std::span<const ShardSpec> pieces) {
  std::vector<std::span<Byte>> by_piece;
  for (const ShardSpec& piece : pieces) {
    by_piece.push_back(digests.first(digests.empty() ? 0 : digest_bytes(piece)));
    digests = digests.subspan(by_piece.back().size());
  }
  return by_piece;
}

std::uint32_t piece_checksum(const StatePiece& piece) {
  std::uint32_t crc = 0;
  for (std::size_t chunk = 0; chunk < piece.chunk_crc32c.size(); ++chunk) {
    const std::uint64_t begin = chunk * shard_format::chunk_bytes;
    crc = crc32c_joined(crc, piece.chunk_crc32c[chunk],
                        std::min(shard_format::chunk_bytes, piece.bytes.size() - begin));
  }
  return crc;
}

// The copy is read much later, if ever, by whoever writes it to the disk: it leaves the caches to those who
// compute. `target` is a multiple of 16, unless the bite is short.
void copy_past_cache(std::byte* target, std::span<const std::byte> source) {
  std::size_t done = 0;
#if defined(__SSE2__)
  if (reinterpret_cast<std::uintptr_t>(target) % sizeof(__m128i) == 0) {
    constexpr std::size_t line_bytes = 4 * sizeof(__m128i);
    for (; done + line_bytes <= source.size(); done += line_bytes) {
      for (std::size_t i = 0; i < line_bytes; i += sizeof(__m128i)) {
        _mm_stream_si128(reinterpret_cast<__m128i*>(target + done + i),
                         _mm_loadu_si128(reinterpret_cast<const __m128i*>(source.data() + done + i)));
      }
    }
    _mm_sfence();
  }
#endif
  std::memcpy(target + done, source.data() + done, source.size() - done);
}

std::uint32_t paced_crc32c(std::span<const std::byte> bytes, const Pace& pace) {
  std::uint32_t crc = 0;
  in_paced_parts(bytes.size(), pace, [&](std::uint64_t offset, std::uint64_t part) {
    crc = crc32c(bytes.subspan(offset, part), crc);
  });
  return crc;
}

Error damaged(const std::string& place, std::string_view what) {
  return fail(ExitCode::checkpoint, "the RAM snapshot {} is damaged: {}; it is skipped", place, what);
}

// `first_page` is `memory`'s, or will be.
Result<SlotHeader> read_header(std::span<const std::byte> first_page, std::span<const std::byte> memory,
                               const std::string& place) {
  if (memory.size() < page_bytes) return damaged(place, "it is too short");
  SlotHeader header;
  std::memcpy(&header, first_page.data(), sizeof(header));
  if (header.magic != slot_magic || header.version != slot_version)
    return damaged(place, "it does not begin as one of this program's");
  if (header.sealed != sealed_mark)
    return fail(ExitCode::checkpoint, "the RAM snapshot {} was not finished; it is skipped", place);
  if (header.crc32c != header_checksum(header)) return damaged(place, "its header has a wrong checksum");
  const bool inside = header.index_offset >= page_bytes && header.index_offset <= memory.size() &&
                      header.index_bytes <= memory.size() - header.index_offset;
  if (!inside) return damaged(place, "its index lies outside of it");
  return header;
}

// Writes the header. The memory must not look sealed before the rest of it is as it should be.
void write_header(std::span<std::byte> memory, SlotHeader header) {
  header.crc32c = header_checksum(header);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  std::memcpy(memory.data(), &header, sizeof(header));
}

void clear_header(std::span<std::byte> memory) {
  std::memset(memory.data(), 0, sizeof(SlotHeader));
  std::atomic_thread_fence(std::memory_order_seq_cst);  // not sealed before anything else changes
}

SnapshotIdentity identity_of(const SlotHeader& header) {
  return {.run = {.high = header.run_high, .low = header.run_low},
          .host = {.high = header.host_high, .low = header.host_low},
          .writer = header.writer,
          .generation = header.generation,
          .step = header.step,
          .rank = header.rank,
          .ranks = header.ranks};
}

}  // namespace

void unseal_snapshot(std::span<std::byte> slot) {
  if (slot.size() >= sizeof(SlotHeader)) clear_header(slot);
}

std::string to_text(std::span<const ShardSpec> specs) {
  Json list = Json::array();
  for (const ShardSpec& spec : specs) list.push_back(to_json(spec));
  return list.dump_any();
}

std::vector<ShardSpec> specs_from_text(const std::string& text) {
  std::vector<ShardSpec> specs;
  for (const Json& each : Json::parse(text)) {
    std::optional<ShardSpec> spec = spec_of(each);
    HF_CHECK(spec.has_value());
    specs.push_back(std::move(*spec));
  }
  return specs;
}

// The index: the texts of manifest and specs, at most doubled by JSON's escapes, and a number for each piece.
std::uint64_t SnapshotSlot::bytes_for(std::span<const ShardSpec> pieces, std::uint64_t manifest_bytes_max) {
  constexpr std::uint64_t crc_text_bytes = 11, brackets = 96;
  return page_bytes + data_bytes(pieces) + padded(digest_bytes(pieces)) +
         padded(2 * manifest_bytes_max + to_text(pieces).size() + crc_text_bytes * pieces.size() + brackets);
}

SnapshotSlot::SnapshotSlot(std::span<std::byte> memory, const std::vector<ShardSpec>& pieces)
    : memory_(memory), specs_text_(to_text(pieces)) {
  HF_CHECK(reinterpret_cast<std::uintptr_t>(memory.data()) % page_bytes == 0);
  HF_CHECK(page_bytes + data_bytes(pieces) + padded(digest_bytes(pieces)) <= memory.size());
  std::uint64_t offset = page_bytes;
  for (const ShardSpec& piece : pieces) {
    chunk_crc32c_.emplace_back(shard_format::chunk_count(piece.byte_count()));
    pieces_.push_back({piece, memory.subspan(offset, piece.byte_count()), chunk_crc32c_.back()});
    offset += padded(piece.byte_count());
  }
  all_digests_ = memory.subspan(offset, digest_bytes(pieces));
  digests_ = digests_by_piece(all_digests_, pieces);
}

void SnapshotSlot::begin() {
  clear_header(memory_);
}

// Copies in parts that stay in the cache between the checksum, which waits for memory less than a copy does,
// and the copy.
void SnapshotSlot::copy(std::size_t piece, std::uint64_t offset, std::span<const std::byte> part) {
  constexpr std::uint64_t bite_bytes = 128 << 10;
  static_assert(chunk_bytes == shard_format::chunk_bytes && chunk_bytes % bite_bytes == 0);
  const std::span<std::byte> target = room(piece);
  HF_CHECK(offset <= target.size() && part.size() <= target.size() - offset);
  for (std::uint64_t done = 0; done < part.size();) {
    const std::uint64_t at = offset + done, in_chunk = at % chunk_bytes;
    const std::span<const std::byte> bite =
        part.subspan(done, std::min({bite_bytes, part.size() - done, chunk_bytes - in_chunk}));
    std::uint32_t& crc = chunk_crc32c_[piece][at / chunk_bytes];
    crc = crc32c(bite, in_chunk == 0 ? 0 : crc);
    copy_past_cache(target.data() + at, bite);
    done += bite.size();
  }
}

std::span<std::byte> SnapshotSlot::room(std::size_t piece) {
  const std::span<const std::byte> bytes = pieces_[piece].bytes;
  return memory_.subspan(static_cast<std::size_t>(bytes.data() - memory_.data()), bytes.size());
}

void SnapshotSlot::seal(const SnapshotIdentity& identity, const Manifest& manifest, Digests digests) {
  const std::span<const std::byte> kept = digests == Digests::unknown ? std::span<std::byte>() : all_digests_;
  const std::uint64_t index_offset =
      static_cast<std::uint64_t>(all_digests_.data() - memory_.data()) + padded(kept.size());
  std::vector<std::uint32_t> piece_crc32c;
  if (digests != Digests::alone) {
    for (const StatePiece& piece : pieces_) piece_crc32c.push_back(piece_checksum(piece));
  }
  std::string index = fmt::format("[{},{},{}", Json(encode_manifest(manifest)).dump_any(), specs_text_,
                                  Json(piece_crc32c).dump_any());
  index += kept.empty() ? "]" : fmt::format(",[{},{}]]", kept.size(), crc32c(kept));
  HF_CHECK(index.size() <= memory_.size() - index_offset, "a manifest is longer than was planned");
  std::memcpy(memory_.data() + index_offset, index.data(), index.size());
  SlotHeader header = {.magic = slot_magic,
                       .version = slot_version,
                       .sealed = sealed_mark,
                       .run_high = identity.run.high,
                       .run_low = identity.run.low,
                       .host_high = identity.host.high,
                       .host_low = identity.host.low,
                       .writer = identity.writer,
                       .generation = identity.generation,
                       .step = identity.step,
                       .rank = identity.rank,
                       .ranks = identity.ranks,
                       .index_offset = index_offset,
                       .index_bytes = index.size(),
                       .index_crc32c = crc32c(std::as_bytes(std::span(index))),
                       .crc32c = 0};
  write_header(memory_, header);
}

void SnapshotReplica::begin(std::uint64_t sealed_bytes) {
  HF_CHECK(sealed_bytes > page_bytes && sealed_bytes <= memory_.size());
  clear_header(memory_);
  body_ = memory_.subspan(page_bytes, sealed_bytes - page_bytes);
}

Result<void> SnapshotReplica::seal(std::span<const std::byte> first_page, const SnapshotIdentity& expected,
                                   const std::string& place) {
  const std::span<const std::byte> arrived = memory_.first(page_bytes + body_.size());
  HF_TRY(SnapshotReader reader, SnapshotReader::open(first_page, arrived, place));
  for (std::size_t i = 0; i < reader.pieces().size(); ++i) HF_TRY_VOID(outcome_of(reader.piece(i)));
  HF_TRY(SlotHeader header, read_header(first_page, arrived, place));
  header.host_high = expected.host.high;
  header.host_low = expected.host.low;
  if (identity_of(header) != expected)
    return fail(ExitCode::checkpoint, "the RAM snapshot {} is another one than was announced", place);
  write_header(memory_, header);
  return {};
}

Result<SnapshotIdentity> SnapshotReader::identify(std::span<const std::byte> memory,
                                                  const std::string& place) {
  HF_TRY(const SlotHeader header, read_header(memory, memory, place));
  return identity_of(header);
}

Result<std::uint64_t> SnapshotReader::sealed_bytes(std::span<const std::byte> memory,
                                                   const std::string& place) {
  HF_TRY(const SlotHeader header, read_header(memory, memory, place));
  return header.index_offset + header.index_bytes;
}

Result<SnapshotReader> SnapshotReader::open(std::span<const std::byte> memory, const std::string& place) {
  return open(memory, memory, place);
}

Result<SnapshotReader> SnapshotReader::open(std::span<const std::byte> first_page,
                                            std::span<const std::byte> memory, const std::string& place) {
  HF_TRY(const SlotHeader header, read_header(first_page, memory, place));
  SnapshotReader reader;
  reader.place_ = place;
  reader.memory_ = memory.first(header.index_offset);
  reader.identity_ = identity_of(header);
  // The copy is looked at: what is shared may change between two looks.
  const std::span<const std::byte> shared = memory.subspan(header.index_offset, header.index_bytes);
  const std::vector<std::byte> index(shared.begin(), shared.end());
  if (crc32c(index) != header.index_crc32c) return damaged(place, "its index has a wrong checksum");
  HF_TRY_VOID(reader.parse_index(index));
  return reader;
}

Result<void> SnapshotReader::parse_index(std::span<const std::byte> index) {
  const Json json =
      Json::parse_any(std::string_view(reinterpret_cast<const char*>(index.data()), index.size()));
  const auto no_index = [&] { return damaged(place_, "its index is none of this program's"); };
  if (!json.is_array() || json.size() < 3 || json.size() > 4 || !json[0].is_string() || !json[1].is_array() ||
      !json[2].is_array())
    return no_index();
  const bool has_digests = json.size() == 4;
  if (json[1].size() != json[2].size() && !(has_digests && json[2].empty())) return no_index();
  HF_TRY(manifest_, decode_manifest(json[0].text(), place_));
  for (const Json& each : json[2]) {
    if (!read_count(each, crc32c_.emplace_back())) return no_index();
  }
  std::uint64_t offset = page_bytes;
  for (const Json& each : json[1]) {
    std::optional<ShardSpec> spec = spec_of(each);
    // The elements are compared first, because absurd ones have more bytes than a number holds.
    if (!spec.has_value() || spec->element_count() > memory_.size() ||
        padded(spec->byte_count()) > memory_.size() - offset)
      return no_index();
    offsets_.push_back(offset);
    offset += padded(spec->byte_count());
    specs_.push_back(std::move(*spec));
  }
  verified_.resize(specs_.size());
  if (has_digests && !find_digests(json[3], offset)) return no_index();
  digests_ = digests_by_piece(all_digests_, specs_);
  if (crc32c_.empty() && !find_blocks()) return no_index();
  if (offset + padded(all_digests_.size()) != memory_.size())
    return damaged(place_, "its pieces do not fill it");
  return {};
}

bool SnapshotReader::find_digests(const Json& json, std::uint64_t offset) {
  std::uint64_t bytes = 0;
  if (!json.is_array() || json.size() != 2 || !read_count(json[0], bytes) ||
      !read_count(json[1], digests_crc32c_) || bytes != digest_bytes(specs_) ||
      bytes > memory_.size() - offset)
    return false;
  all_digests_ = memory_.subspan(offset, bytes);
  return true;
}

// Finds which pieces are the moments and averages of which weights. Returns false where a piece would be under no digest.
bool SnapshotReader::find_blocks() {
  using Place = std::tuple<std::string_view, std::uint32_t, std::uint64_t>;
  const auto place_of = [](const ShardSpec& spec) {
    return Place(spec.tensor, spec.slice, spec.first_block);
  };
  std::map<Place, StatePieces> found;
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    const bool is_new =
        specs_[i].kind != "weight" || found.try_emplace(place_of(specs_[i]), StatePieces{i}).second;
    if (!is_new || (specs_[i].kind == "weight" && specs_[i].dtype != DType::fp32)) return false;
  }
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    const ShardSpec& spec = specs_[i];
    if (spec.kind == "weight") continue;
    const auto of = found.find(place_of(spec));
    const bool is_average = spec.kind == "ema";
    if (of == found.end() || (spec.kind != "moment1" && spec.kind != "moment2" && !is_average)) return false;
    StatePieces& pieces = of->second;
    const ShardSpec& weight = specs_[pieces.weight];
    std::optional<std::size_t>& moment =
        is_average ? pieces.ema : (spec.kind == "moment1" ? pieces.moment1 : pieces.moment2);
    const bool is_like_weight = spec.block_count == weight.block_count && spec.slices == weight.slices &&
                                spec.global_shape == weight.global_shape &&
                                (spec.dtype == DType::fp32 || (spec.dtype == DType::bf16 && !is_average));
    if (!is_like_weight || moment.has_value()) return false;
    moment = i;
  }
  for (const ShardSpec& spec : specs_) together_.push_back(found.at(place_of(spec)));
  // A rule may keep the first moment alone.
  return std::ranges::all_of(together_, [this](const StatePieces& pieces) {
    return !pieces.moment2.has_value() ||
           (pieces.moment1.has_value() && specs_[*pieces.moment1].dtype == specs_[*pieces.moment2].dtype);
  });
}

Result<void> SnapshotReader::verify_digests() {
  if (!digests_verified_ && crc32c(all_digests_) != digests_crc32c_)
    return damaged(place_, "its block digests have a wrong checksum");
  digests_verified_ = true;
  return {};
}

// Verifies a weight with its moments and average, one of which is a piece that was asked for.
Result<void> SnapshotReader::verify_blocks(std::size_t index, const Pace& pace) {
  HF_TRY_VOID(verify_digests());
  const StatePieces& pieces = together_[index];
  const auto bytes_of_piece = [this](std::size_t piece) {
    return memory_.subspan(offsets_[piece], specs_[piece].byte_count());
  };
  const std::span<const std::byte> weight = bytes_of_piece(pieces.weight);
  const DType moments = pieces.moment1.has_value() ? specs_[*pieces.moment1].dtype : DType::fp32;
  bool is_sound = true;
  in_paced_parts(weight.size(), pace, [&](std::uint64_t offset, std::uint64_t part) {
    for (std::uint64_t at = offset / sizeof(float); at < (offset + part) / sizeof(float);
         at += block_elements) {
      const std::uint64_t count = std::min(block_elements, weight.size() / sizeof(float) - at);
      const auto moment_at = [&](const std::optional<std::size_t>& piece) -> const void* {
        return piece.has_value() ? bytes_of_piece(*piece).data() + at * bytes_of(moments) : nullptr;
      };
      const std::uint64_t digest = state_digest(
          reinterpret_cast<const float*>(weight.data()) + at, moment_at(pieces.moment1),
          moment_at(pieces.moment2), static_cast<std::int64_t>(count), moments,
          pieces.ema.has_value() ? reinterpret_cast<const float*>(bytes_of_piece(*pieces.ema).data()) + at
                                 : nullptr);
      std::uint64_t kept = 0;
      std::memcpy(&kept, digests_[pieces.weight].data() + at / block_elements * sizeof(kept), sizeof(kept));
      is_sound = is_sound && digest == kept;
    }
  });
  if (!is_sound) {
    const std::string_view of = pieces.moment1.has_value() ? "weight and moments" : "weight";
    return damaged(place_, fmt::format("tensor '{}' ({}) has a wrong checksum", specs_[index].tensor, of));
  }
  verified_[pieces.weight] = true;
  for (const std::optional<std::size_t>& moment : {pieces.moment1, pieces.moment2, pieces.ema}) {
    if (moment.has_value()) verified_[*moment] = true;
  }
  return {};
}

Result<std::span<const std::byte>> SnapshotReader::piece(std::size_t index, const Pace& pace) {
  const std::span<const std::byte> bytes = memory_.subspan(offsets_[index], specs_[index].byte_count());
  if (verified_[index]) return bytes;
  if (crc32c_.empty()) {
    HF_TRY_VOID(verify_blocks(index, pace));
    return bytes;
  }
  if (paced_crc32c(bytes, pace) != crc32c_[index]) {
    return damaged(place_, fmt::format("tensor '{}' ({}) has a wrong checksum", specs_[index].tensor,
                                       specs_[index].kind));
  }
  if (!digests_of(index).empty()) HF_TRY_VOID(verify_digests());
  verified_[index] = true;
  return bytes;
}

}  // namespace holdfast::checkpoint
