#include "runtime/inference/text_stream.h"

#include <algorithm>

namespace holdfast::inference {
namespace {

// Returns how many bytes at the end of the text are the beginning of a character of UTF-8.
std::size_t unfinished_bytes(std::string_view text) {
  constexpr std::size_t longest = 4;
  for (std::size_t count = 1; count < longest && count <= text.size(); ++count) {
    const auto byte = static_cast<unsigned char>(text[text.size() - count]);
    if (byte >= 0x80 && byte < 0xC0) continue;  // not the first of a character
    const std::size_t needed = byte < 0xC2 || byte > 0xF4 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
    return needed > count ? count : 0;
  }
  return 0;
}

// Returns the length of the longest end of the text that `stop` begins with and is longer than.
std::size_t begun_bytes(std::string_view text, std::string_view stop) {
  std::size_t count = std::min(text.size(), stop.size() - 1);
  while (!text.ends_with(stop.substr(0, count))) --count;
  return count;
}

}  // namespace

std::string TextStream::take(std::size_t bytes) {
  std::string taken = held_.substr(0, bytes);
  held_.erase(0, bytes);
  return taken;
}

std::string TextStream::add(std::string_view bytes) {
  held_ += bytes;
  std::size_t end = std::string::npos, kept = unfinished_bytes(held_);
  for (const std::string& stop : stops_) {
    end = std::min(end, held_.find(stop));
    kept = std::max(kept, begun_bytes(held_, stop));
  }
  if (end == std::string::npos) return take(held_.size() - kept);
  held_.resize(end);
  stopped_ = true;
  return finish();
}

std::string TextStream::finish() {
  return take(held_.size() - unfinished_bytes(held_));
}

}  // namespace holdfast::inference
