#include "runtime/os/foreign_text.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>

namespace holdfast::os {
namespace {

constexpr std::size_t run_id_digits = 32;

bool is_between(unsigned char c, unsigned char first, unsigned char last) {
  return c >= first && c <= last;
}

bool is_in_host_name(unsigned char c) {
  constexpr std::string_view signs = "-._:[]%";
  return is_between(c, 'a', 'z') || is_between(c, 'A', 'Z') || is_between(c, '0', '9') ||
         signs.find(static_cast<char>(c)) != std::string_view::npos;
}

// Returns how many bytes the character has that `text` begins with; 0: it is none of UTF-8.
std::size_t character_bytes(std::string_view text) {
  const auto byte_at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte_at(0);
  if (lead < 0x80) return 1;
  const std::size_t bytes = is_between(lead, 0xC2, 0xDF)   ? 2
                            : is_between(lead, 0xE0, 0xEF) ? 3
                            : is_between(lead, 0xF0, 0xF4) ? 4
                                                           : 0;
  if (bytes == 0 || text.size() < bytes) return 0;
  for (std::size_t i = 1; i < bytes; ++i)
    if (!is_between(byte_at(i), 0x80, 0xBF)) return 0;
  // Longer than need be, a surrogate, or beyond the last character.
  const unsigned char second = byte_at(1);
  if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) || (lead == 0xF0 && second < 0x90) ||
      (lead == 0xF4 && second > 0x8F))
    return 0;
  return bytes;
}

// C0, DEL and C1, which terminals obey.
bool is_control(std::string_view character) {
  const auto first = static_cast<unsigned char>(character.front());
  if (character.size() == 1) return (first < 0x20 && first != '\n' && first != '\t') || first == 0x7F;
  return character.size() == 2 && first == 0xC2 && static_cast<unsigned char>(character[1]) < 0xA0;
}

}  // namespace

bool is_run_id(std::string_view text) {
  return text.size() == run_id_digits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool may_be_host_name(std::string_view text) {
  return !text.empty() && text.front() != '-' && std::ranges::all_of(text, is_in_host_name);
}

std::string printable(std::string_view text) {
  std::string shown;
  shown.reserve(text.size());
  while (!text.empty()) {
    const std::size_t whole = character_bytes(text);
    const std::string_view character = text.substr(0, std::max<std::size_t>(whole, 1));
    if (whole > 0 && !is_control(character)) {
      shown += character;
    } else {
      for (const char c : character) shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
    text.remove_prefix(character.size());
  }
  return shown;
}

Result<std::string> read_text_within(Env& env, const std::string& path, std::uint64_t max_bytes) {
  HF_TRY(const FileStatus status, env.status(path));
  if (status.exists && !status.directory && status.bytes > max_bytes) {
    return fail(ExitCode::data,
                "{} has {} bytes, and such a file has {} at most: it is damaged, or not what its name says; "
                "restore it from a copy, or remove it",
                path, status.bytes, max_bytes);
  }
  return env.read_text_within(path, max_bytes);
}

std::string text_within_or_empty(Env& env, const std::string& path, std::uint64_t max_bytes) {
  Result<std::string> text = env.read_text_within(path, max_bytes);
  return text.ok() ? std::move(text).value() : std::string();
}

}  // namespace holdfast::os
