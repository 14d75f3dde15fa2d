#include "runtime/interop/safetensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

namespace holdfast::interop {
namespace {

constexpr std::uint64_t length_bytes = 8;
constexpr std::uint64_t header_bytes_max = 100'000'000;  // the format's own limit
constexpr const char* metadata_key = "__metadata__";

struct ElementSize {
  std::string_view type;
  std::uint64_t bytes;
};
constexpr std::array<ElementSize, 17> element_sizes = {{{"F64", 8},
                                                        {"F32", 4},
                                                        {"F16", 2},
                                                        {"BF16", 2},
                                                        {"F8_E4M3", 1},
                                                        {"F8_E5M2", 1},
                                                        {"F8_E8M0", 1},
                                                        {"C64", 8},
                                                        {"I64", 8},
                                                        {"I32", 4},
                                                        {"I16", 2},
                                                        {"I8", 1},
                                                        {"U64", 8},
                                                        {"U32", 4},
                                                        {"U16", 2},
                                                        {"U8", 1},
                                                        {"BOOL", 1}}};

template <typename... Values>
Error unusable(const std::string& path, fmt::format_string<Values...> format, Values&&... values) {
  return fail(ExitCode::data, "{} is no usable safetensors file: {}; copy it again or export it again", path,
              fmt::format(format, std::forward<Values>(values)...));
}

// HeaderParser parses the header without building a tree of it, and stops at the first thing that violates
// the format.
class HeaderParser final : public nlohmann::json_sax<nlohmann::json> {
 public:
  struct Entry {
    std::string name;
    std::optional<std::string> type;
    std::optional<std::vector<std::uint64_t>> shape, offsets;
  };
  std::vector<Entry>& entries() { return entries_; }
  const std::string& problem() const { return problem_; }

  bool start_object(std::size_t) override {
    if (array_ != nullptr || depth_ == 2) return stop("an object where none belongs");
    ++depth_;
    return true;
  }
  bool end_object() override {
    --depth_;
    in_metadata_ = false;
    return true;
  }
  bool key(std::string& name) override {
    if (depth_ == 1) {
      if (!names_.insert(name).second) return stop(fmt::format("\"{}\" stands there twice", name));
      in_metadata_ = name == metadata_key;
      if (!in_metadata_) entries_.push_back({.name = name, .type = {}, .shape = {}, .offsets = {}});
      return true;
    }
    if (in_metadata_) return true;
    Entry& entry = entries_.back();
    member_ = nullptr;
    is_type_ = false;
    if (name == "dtype" && !entry.type.has_value()) {
      is_type_ = true;
    } else if (name == "shape" && !entry.shape.has_value()) {
      member_ = &entry.shape;
    } else if (name == "data_offsets" && !entry.offsets.has_value()) {
      member_ = &entry.offsets;
    } else {
      return stop(fmt::format("\"{}\" of tensor \"{}\" is unknown or stands there twice", name, entry.name));
    }
    return true;
  }
  bool start_array(std::size_t) override {
    if (depth_ != 2 || in_metadata_ || member_ == nullptr || array_ != nullptr)
      return stop("a list where none belongs");
    array_ = &member_->emplace();
    return true;
  }
  bool end_array() override {
    array_ = nullptr;
    member_ = nullptr;
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (array_ == nullptr) return stop("a number where none belongs");
    array_->push_back(value);
    return true;
  }
  bool string(string_t& text) override {
    if (depth_ == 2 && in_metadata_) return true;
    if (depth_ != 2 || !is_type_) return stop("a text where none belongs");
    entries_.back().type = text;
    is_type_ = false;
    return true;
  }
  bool null() override { return stop("a null where none belongs"); }
  bool boolean(bool) override { return stop("a truth value where none belongs"); }
  bool number_integer(number_integer_t) override { return stop("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return stop("a fraction or too large a number");
  }
  bool binary(binary_t&) override { return stop("a binary value where none belongs"); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return stop(fmt::format("it is not valid JSON from byte {} on", position));
  }

 private:
  bool stop(std::string problem) {
    if (problem_.empty()) problem_ = std::move(problem);
    return false;
  }

  std::vector<Entry> entries_;
  std::set<std::string> names_;
  std::string problem_;
  int depth_ = 0;
  bool in_metadata_ = false, is_type_ = false;
  std::optional<std::vector<std::uint64_t>>* member_ = nullptr;  // member whose list comes next
  std::vector<std::uint64_t>* array_ = nullptr;                  // list that is being read
};

// Returns elements x size, or nothing when that is beyond 64 bits or the type is unknown.
std::optional<std::uint64_t> byte_count(const std::string& type, const std::vector<std::uint64_t>& shape) {
  const auto* const found = std::ranges::find(element_sizes, type, &ElementSize::type);
  if (found == element_sizes.end()) return std::nullopt;
  std::uint64_t bytes = found->bytes;
  // A zero may come after factors that overflow; the tensor is then empty as well.
  if (std::ranges::find(shape, std::uint64_t{0}) != shape.end()) return 0;
  for (const std::uint64_t extent : shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  }
  return bytes;
}

// Checks one entry of the header. `room`: number of bytes after the header.
Result<SafetensorsTensor> check_entry(const std::string& path, HeaderParser::Entry& entry,
                                      std::uint64_t room) {
  if (!entry.type.has_value() || !entry.shape.has_value() || !entry.offsets.has_value() ||
      entry.offsets->size() != 2) {
    return unusable(path, "tensor \"{}\" has not all of dtype, shape and two data_offsets", entry.name);
  }
  const std::uint64_t begin = entry.offsets->at(0), end = entry.offsets->at(1);
  const std::optional<std::uint64_t> bytes = byte_count(*entry.type, *entry.shape);
  if (!bytes.has_value()) {
    return unusable(path, "tensor \"{}\" is {} of shape [{}], which is an unknown type or too large",
                    entry.name, *entry.type, fmt::join(*entry.shape, ", "));
  }
  if (begin > end || end > room || end - begin != *bytes) {
    return unusable(path,
                    "tensor \"{}\" ({} of shape [{}]) needs {} bytes, but has bytes {} to {} of the {} after "
                    "the header",
                    entry.name, *entry.type, fmt::join(*entry.shape, ", "), *bytes, begin, end, room);
  }
  return SafetensorsTensor{.name = std::move(entry.name),
                           .type = std::move(*entry.type),
                           .shape = std::move(*entry.shape),
                           .offset_bytes = begin,
                           .bytes = *bytes};
}

Result<std::string> read_header_text(File& file, std::uint64_t size) {
  if (size < length_bytes) return unusable(file.path(), "its {} bytes are too few", size);
  std::uint64_t header_bytes = 0;
  HF_TRY_VOID(file.read_at(0, std::as_writable_bytes(std::span(&header_bytes, 1))));
  if (header_bytes > size - length_bytes || header_bytes > header_bytes_max) {
    return unusable(file.path(),
                    "it says that its header has {} bytes, but the file has {} and a header at most {}",
                    header_bytes, size, header_bytes_max);
  }
  std::string text(header_bytes, '\0');
  HF_TRY_VOID(file.read_at(length_bytes, std::as_writable_bytes(std::span(text.data(), text.size()))));
  if (text.empty() || text.front() != '{') return unusable(file.path(), "its header does not start with {{");
  return text;
}

}  // namespace

Result<std::vector<SafetensorsTensor>> read_safetensors_header(File& file) {
  HF_TRY(const std::uint64_t size, file.size());
  HF_TRY(const std::string text, read_header_text(file, size));
  HeaderParser parser;
  if (!nlohmann::json::sax_parse(text, &parser))
    return unusable(file.path(), "its header is wrong: {}", parser.problem());
  const std::uint64_t begin = length_bytes + text.size(), room = size - begin;
  std::vector<SafetensorsTensor> tensors;
  for (HeaderParser::Entry& entry : parser.entries()) {
    HF_TRY(SafetensorsTensor tensor, check_entry(file.path(), entry, room));
    tensors.push_back(std::move(tensor));
  }
  std::ranges::sort(tensors, {}, [](const SafetensorsTensor& tensor) {
    return std::pair(tensor.offset_bytes, tensor.bytes);
  });
  std::uint64_t next = 0;
  for (SafetensorsTensor& tensor : tensors) {
    if (tensor.offset_bytes != next) {
      return unusable(file.path(),
                      "tensor \"{}\" begins at byte {} of the tensors, but the one before ends at {}",
                      tensor.name, tensor.offset_bytes, next);
    }
    next += tensor.bytes;
    tensor.offset_bytes += begin;
  }
  if (next == room) return tensors;
  return unusable(file.path(), "its tensors end at byte {}, but the file has {} bytes after the header", next,
                  room);
}

std::string safetensors_header(const std::vector<SafetensorsTensor>& tensors,
                               const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header;
  header[metadata_key] = metadata;
  std::uint64_t next = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    const std::optional<std::uint64_t> bytes = byte_count(tensor.type, tensor.shape);
    HF_CHECK(bytes.has_value(), "{} of {}", tensor.name, tensor.type);
    header[tensor.name] = {
        {"dtype", tensor.type}, {"shape", tensor.shape}, {"data_offsets", {next, next + *bytes}}};
    next += *bytes;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const std::uint64_t header_bytes = text.size();
  std::string result(length_bytes, '\0');
  std::memcpy(result.data(), &header_bytes, length_bytes);
  return result + text;
}

}  // namespace holdfast::interop
