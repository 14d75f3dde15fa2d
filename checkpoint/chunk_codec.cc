#include "checkpoint/chunk_codec.h"

#include <zstd.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "runtime/core/check.h"

namespace holdfast::checkpoint {
namespace {

// The fast level makes zstd do little more than Huffman coding, which is what is wanted: in noise around few
// exponents, matches are short, and finding them takes more time than it saves. A fast level looks for few,
// but would store the rest as it is; the parameter (ZSTD_c_literalCompressionMode, 1 = always) prevents that.
// Measured against level 1: 0.36 instead of 0.38 of the plane, in less than half the time.
constexpr int fast_level = -50, level_without_parameter = 1;
constexpr ZSTD_cParameter literal_compression_mode = ZSTD_c_experimentalParam5;
constexpr std::uint64_t smallest_plane_gain = 16;  // a sixteenth of the plane

template <typename Word>
void take_plane(const std::byte* source, std::uint64_t count, std::uint64_t plane, std::byte* target) {
  const int shift = static_cast<int>(8 * plane);
  for (std::uint64_t i = 0; i < count; ++i) {
    Word word;
    std::memcpy(&word, source + i * sizeof(Word), sizeof(Word));
    word = static_cast<Word>(std::rotl(word, 1) >> shift);
    target[i] = static_cast<std::byte>(word);
  }
}

void take_plane(std::span<const std::byte> raw, std::uint64_t element_bytes, std::uint64_t plane,
                std::byte* target) {
  const std::uint64_t count = raw.size() / element_bytes;
  if (element_bytes == 2) take_plane<std::uint16_t>(raw.data(), count, plane, target);
  if (element_bytes == 4) take_plane<std::uint32_t>(raw.data(), count, plane, target);
  if (element_bytes == 8) take_plane<std::uint64_t>(raw.data(), count, plane, target);
}

template <typename Word>
void join_planes(const std::array<const std::byte*, planes_max>& planes, std::span<std::byte> raw) {
  std::array<const std::byte*, sizeof(Word)> of_word{};
  for (std::size_t p = 0; p < sizeof(Word); ++p) of_word[p] = planes[p];
  const std::uint64_t count = raw.size() / sizeof(Word);
  std::byte* const target = raw.data();
  for (std::uint64_t i = 0; i < count; ++i) {
    Word word = 0;
    for (std::size_t p = 0; p < sizeof(Word); ++p)
      word = static_cast<Word>(word | static_cast<Word>(std::to_integer<Word>(of_word[p][i]) << (8 * p)));
    word = std::rotr(word, 1);
    std::memcpy(target + i * sizeof(Word), &word, sizeof(Word));
  }
}

ZSTD_CCtx* make_compression_context() {
  ZSTD_CCtx* const context = ZSTD_createCCtx();
  HF_CHECK(context != nullptr, "no memory for zstd");
  const bool has_parameter = ZSTD_isError(ZSTD_CCtx_setParameter(context, literal_compression_mode, 1)) == 0;
  const std::size_t set = ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel,
                                                 has_parameter ? fast_level : level_without_parameter);
  HF_CHECK(ZSTD_isError(set) == 0);
  return context;
}

bool is_word(std::uint64_t element_bytes) {
  return element_bytes == 2 || element_bytes == 4 || element_bytes == 8;
}

}  // namespace

struct ChunkCoder::Contexts {
  ZSTD_CCtx* compress = nullptr;  // made when they are first needed
  ZSTD_DCtx* decompress = nullptr;
  ~Contexts() {
    ZSTD_freeCCtx(compress);
    ZSTD_freeDCtx(decompress);
  }
};

ChunkCoder::ChunkCoder() : contexts_(std::make_unique<Contexts>()) {}
ChunkCoder::~ChunkCoder() = default;
ChunkCoder::ChunkCoder(ChunkCoder&&) noexcept = default;
ChunkCoder& ChunkCoder::operator=(ChunkCoder&&) noexcept = default;

EncodedChunk ChunkCoder::encode(std::span<const std::byte> raw, std::uint64_t element_bytes, PlaneSet tried,
                                std::span<std::byte> target) {
  HF_CHECK(is_word(element_bytes) && raw.size() % element_bytes == 0 && target.size() >= raw.size());
  EncodedChunk encoded{.codec = ChunkCodec::raw, .stored_bytes = raw.size()};
  if (tried != 0 && raw.size() > smallest_gain_bytes) {
    const std::uint64_t bytes =
        encode_planes(raw, element_bytes, tried, target.first(raw.size()), encoded.compressed);
    if (bytes + smallest_gain_bytes <= raw.size()) {
      encoded.codec = ChunkCodec::planes;
      encoded.stored_bytes = bytes;
      encoded.saved_bytes = raw.size() - bytes;
      return encoded;
    }
  }
  std::memcpy(target.data(), raw.data(), raw.size());
  return encoded;
}

// The bytes of table and planes, or raw.size() when they do not fit into less.
std::uint64_t ChunkCoder::encode_planes(std::span<const std::byte> raw, std::uint64_t element_bytes,
                                        PlaneSet tried, std::span<std::byte> target, PlaneSet& compressed) {
  if (contexts_->compress == nullptr) contexts_->compress = make_compression_context();
  const std::uint64_t count = raw.size() / element_bytes;
  std::array<std::uint32_t, planes_max> lengths{};
  std::uint64_t used = element_bytes * sizeof(std::uint32_t);
  scratch_.resize(std::max<std::uint64_t>(scratch_.size(), count));
  for (std::uint64_t plane = 0; plane < element_bytes; ++plane) {
    const std::uint64_t room = target.size() - used;
    std::uint64_t length = count;
    if ((tried >> plane & 1u) != 0) {
      take_plane(raw, element_bytes, plane, scratch_.data());
      // A plane that zstd makes only a little smaller is not worth the time to read it back.
      const std::uint64_t worthwhile = count - count / smallest_plane_gain - 1;
      const std::size_t result = ZSTD_compress2(contexts_->compress, target.data() + used,
                                                std::min(room, worthwhile), scratch_.data(), count);
      if (ZSTD_isError(result) == 0) length = result;
    }
    if (length < count) compressed |= PlaneSet{1} << plane;
    if (length > room) return raw.size();
    if (length == count) take_plane(raw, element_bytes, plane, target.data() + used);
    lengths[plane] = static_cast<std::uint32_t>(length);
    used += length;
  }
  std::memcpy(target.data(), lengths.data(), element_bytes * sizeof(std::uint32_t));
  return used;
}

bool ChunkCoder::decode(ChunkCodec codec, std::span<const std::byte> stored, std::uint64_t element_bytes,
                        std::span<std::byte> raw) {
  if (!is_word(element_bytes) || raw.size() % element_bytes != 0) return false;
  switch (codec) {
    case ChunkCodec::raw:
      if (stored.size() != raw.size()) return false;
      if (!raw.empty()) std::memcpy(raw.data(), stored.data(), raw.size());
      return true;
    case ChunkCodec::planes:
      return decode_planes(stored, element_bytes, raw);
  }
  return false;
}

bool ChunkCoder::decode_planes(std::span<const std::byte> stored, std::uint64_t element_bytes,
                               std::span<std::byte> raw) {
  if (contexts_->decompress == nullptr) contexts_->decompress = ZSTD_createDCtx();
  HF_CHECK(contexts_->decompress != nullptr, "no memory for zstd");
  const std::uint64_t count = raw.size() / element_bytes;
  std::array<std::uint32_t, planes_max> lengths{};
  const std::uint64_t table_bytes = element_bytes * sizeof(std::uint32_t);
  if (stored.size() < table_bytes) return false;
  std::memcpy(lengths.data(), stored.data(), table_bytes);
  std::span<const std::byte> rest = stored.subspan(table_bytes);
  scratch_.resize(std::max<std::uint64_t>(scratch_.size(), raw.size()));
  std::array<const std::byte*, planes_max> planes{};
  for (std::uint64_t plane = 0; plane < element_bytes; ++plane) {
    const std::uint64_t length = lengths[plane];
    if (length > rest.size() || length > count) return false;
    planes[plane] = rest.data();
    if (length < count) {
      std::byte* const target = scratch_.data() + plane * count;
      if (ZSTD_decompressDCtx(contexts_->decompress, target, count, rest.data(), length) != count)
        return false;
      planes[plane] = target;
    }
    rest = rest.subspan(length);
  }
  if (!rest.empty()) return false;
  if (element_bytes == 2) join_planes<std::uint16_t>(planes, raw);
  if (element_bytes == 4) join_planes<std::uint32_t>(planes, raw);
  if (element_bytes == 8) join_planes<std::uint64_t>(planes, raw);
  return true;
}

namespace {

constexpr double newest_weight = 0.25;  // of a measurement in its running mean

void follow(double& mean, double value) {
  mean += newest_weight * (value - mean);
}

}  // namespace

std::optional<Compression> compression_of(std::string_view name) {
  if (name == "automatic") return Compression::automatic;
  if (name == "none") return Compression::none;
  if (name == "always") return Compression::always;
  return std::nullopt;
}

bool CompressionChoice::pays(const Kind& kind) const {
  if (kind.gaining == 0) return false;
  return mode_ == Compression::always || kind.gain * write_ns_per_byte_ > kind.cost_ns_per_byte;
}

PlaneSet CompressionChoice::planes_for(const std::string& kind, DType dtype) {
  const PlaneSet all = all_planes(bytes_of(dtype));
  if (mode_ == Compression::none) return 0;
  // The gain cannot be weighed without a measurement of the disk.
  if (mode_ == Compression::automatic && write_ns_per_byte_ <= 0) return 0;
  Kind& state = kinds_[{kind, dtype}];
  state.on_trial = state.chunks_to_trial <= 0;
  if (state.on_trial) return all;
  --state.chunks_to_trial;
  return pays(state) ? state.gaining : 0;
}

void CompressionChoice::saw_chunk(const std::string& kind, DType dtype, std::uint64_t raw_bytes,
                                  PlaneSet tried, const EncodedChunk& encoded, std::int64_t duration_ns) {
  // A chunk that is too small to be compressed says nothing about its kind.
  if (tried == 0 || raw_bytes <= ChunkCoder::smallest_gain_bytes) return;
  Kind& state = kinds_[{kind, dtype}];
  const double bytes = static_cast<double>(raw_bytes);
  const double cost = static_cast<double>(duration_ns) / bytes;
  const double gain = static_cast<double>(encoded.saved_bytes) / bytes;
  if (!state.on_trial) {
    follow(state.cost_ns_per_byte, cost);
    follow(state.gain, gain);
    return;
  }
  // Planes that gain nothing are left out from here on, with their share of the time.
  const double tried_count = std::popcount(tried);
  state.gaining = encoded.codec == ChunkCodec::planes ? encoded.compressed : 0;
  state.gain = gain;
  state.cost_ns_per_byte = cost * std::popcount(state.gaining) / tried_count;
  if (pays(state)) {
    state.pause_chunks = first_pause_chunks;
    state.chunks_to_trial = review_chunks;
  } else {
    state.chunks_to_trial = state.pause_chunks;
    state.pause_chunks = std::min(2 * state.pause_chunks, longest_pause_chunks);
  }
}

void CompressionChoice::saw_write(std::uint64_t bytes, std::int64_t duration_ns) {
  if (bytes == 0) return;
  // A clock that did not move still means "known, and fast".
  const double measured = std::max(static_cast<double>(duration_ns) / static_cast<double>(bytes), 1e-6);
  if (write_ns_per_byte_ <= 0) write_ns_per_byte_ = measured;
  follow(write_ns_per_byte_, measured);
}

}  // namespace holdfast::checkpoint
