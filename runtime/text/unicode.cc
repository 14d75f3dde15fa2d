#include "runtime/text/unicode.h"

#include <fmt/core.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace holdfast::text {
namespace {

constexpr std::string_view replacement_character = "\xEF\xBF\xBD";

// The range of the second byte of a character, and how many bytes follow the first one.
struct Utf8Lead {
  std::uint8_t following = 0;
  std::uint8_t second_least = 0x80, second_most = 0xBF;
};

constexpr Utf8Lead lead_of(std::uint8_t byte) {
  if (byte >= 0xC2 && byte <= 0xDF) return {1};
  if (byte == 0xE0) return {2, 0xA0, 0xBF};
  if (byte == 0xED) return {2, 0x80, 0x9F};  // no surrogates
  if (byte >= 0xE1 && byte <= 0xEF) return {2};
  if (byte == 0xF0) return {3, 0x90, 0xBF};
  if (byte >= 0xF1 && byte <= 0xF3) return {3};
  if (byte == 0xF4) return {3, 0x80, 0x8F};
  return {0};
}

std::uint8_t byte_at(std::string_view text, std::size_t at) {
  return static_cast<std::uint8_t>(text[at]);
}

struct Character {
  std::size_t bytes = 1;
  bool valid = true;
};

// Returns the character that begins at `at`; a broken one has the bytes that one U+FFFD stands for.
Character character_at(std::string_view text, std::size_t at) {
  if (byte_at(text, at) < 0x80) return {};
  const Utf8Lead lead = lead_of(byte_at(text, at));
  if (lead.following == 0) return {1, false};
  for (std::size_t i = 1; i <= lead.following; ++i) {
    if (at + i >= text.size()) return {i, false};
    const std::uint8_t byte = byte_at(text, at + i);
    const bool fits =
        i == 1 ? byte >= lead.second_least && byte <= lead.second_most : byte >= 0x80 && byte <= 0xBF;
    if (!fits) return {i, false};
  }
  return {std::size_t{lead.following} + 1, true};
}

// Returns the first byte at `from` or later that is not ASCII.
std::size_t skip_ascii(std::string_view text, std::size_t from) {
  constexpr std::uint64_t high_bits = 0x8080808080808080u;
  std::uint64_t word = 0;
  while (from + sizeof(word) <= text.size()) {
    std::memcpy(&word, text.data() + from, sizeof(word));
    if ((word & high_bits) != 0) break;
    from += sizeof(word);
  }
  while (from < text.size() && byte_at(text, from) < 0x80) ++from;
  return from;
}

// Characters below U+0300 change only where one of U+0300 or above follows: none of them is a mark.
constexpr std::uint8_t first_lead_of_marks = 0xCC;

// Returns the first character at `from` or later that is U+0300 or above.
std::size_t skip_simple(std::string_view text, std::size_t from) {
  while (true) {
    from = skip_ascii(text, from);
    if (from >= text.size() || byte_at(text, from) >= first_lead_of_marks) return from;
    from += 2;
  }
}

std::size_t character_before(std::string_view text, std::size_t at) {
  do --at;
  while (at > 0 && (byte_at(text, at) & 0xC0) == 0x80);
  return at;
}

// utf8proc orders marks by exchanging neighbours, which is quadratic in a long run of them.
void order_marks(std::span<utf8proc_int32_t> points) {
  const auto class_of = [](utf8proc_int32_t point) { return utf8proc_get_property(point)->combining_class; };
  for (auto begin = points.begin(); begin != points.end();) {
    const auto end = std::find_if(begin, points.end(), [&](auto point) { return class_of(point) == 0; });
    if (end - begin > 1)
      std::stable_sort(begin, end, [&](auto a, auto b) { return class_of(a) < class_of(b); });
    begin = end == points.end() ? end : end + 1;
  }
}

void append_composed_part(std::string_view part, std::string& target) {
  constexpr auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  constexpr utf8proc_ssize_t most = 8;  // characters that one becomes
  std::vector<utf8proc_int32_t> points;
  points.reserve(part.size() + 1);
  for (std::size_t at = 0; at < part.size();) {
    utf8proc_int32_t point = 0;
    const utf8proc_ssize_t bytes =
        utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(part.data() + at),
                         static_cast<utf8proc_ssize_t>(part.size() - at), &point);
    HF_CHECK(bytes > 0);  // valid UTF-8
    at += static_cast<std::size_t>(bytes);
    std::array<utf8proc_int32_t, most> made{};
    int bound_class = 0;
    const utf8proc_ssize_t count = utf8proc_decompose_char(point, made.data(), most, options, &bound_class);
    HF_CHECK(count >= 0 && count <= most);
    points.insert(points.end(), made.begin(), made.begin() + count);
  }
  order_marks(points);
  const auto count = static_cast<utf8proc_ssize_t>(points.size());
  points.push_back(0);  // room for the byte behind the text
  const utf8proc_ssize_t bytes = utf8proc_reencode(points.data(), count, options);
  HF_CHECK(bytes >= 0);
  target.append(reinterpret_cast<const char*>(points.data()), static_cast<std::size_t>(bytes));
}

// U+11A7 is composed with nothing, but utf8proc up to 2.8 drops it behind a syllable of Hangul, so it never sees it.
void append_composed(std::string_view text, std::string& target) {
  constexpr std::string_view before_finals = "\xE1\x86\xA7";
  while (true) {
    const std::size_t found = std::min(text.find(before_finals), text.size());
    append_composed_part(text.substr(0, found), target);
    if (found == text.size()) return;
    target += before_finals;
    text.remove_prefix(found + before_finals.size());
  }
}

// An expression of Oniguruma (Ruby's syntax, UTF-8), written for PCRE2 with PCRE2_UTF and PCRE2_UCP.
class Translation {
 public:
  explicit Translation(std::string_view source) : source_(source) {}

  Result<std::string> run() {
    while (at_ < source_.size()) {
      HF_TRY_VOID(in_class_ ? class_part() : part());
    }
    return std::move(target_);
  }

 private:
  // White_Space of Unicode. PCRE2's own \s has U+180E, too, which lost that property in Unicode 6.3.
  static constexpr std::string_view spaces = "\\p{Z}\\x{9}-\\x{d}\\x{85}";

  Error refused(std::size_t count, std::string_view why) const {
    return fail(ExitCode::config, "its regular expression has {} at byte {}, {}", source_.substr(at_, count),
                at_, why);
  }
  bool sees(std::string_view word) const { return source_.substr(at_).starts_with(word); }
  void copy(std::size_t count) {
    target_ += source_.substr(at_, count);
    at_ += count;
  }

  Result<void> part() {
    const char c = source_[at_];
    if (c == '\\') return escape();
    if (c == '[') {
      in_class_ = true;
      copy(source_.substr(at_).starts_with("[^") ? 2 : 1);
      return {};
    }
    if (c == '^' || c == '$')
      return refused(1, "which is not supported: it means a line's end in one program, a text's in another");
    if (sees("}+"))
      return refused(2, "which is not supported: it is possessive in one program, and not in another");
    if (sees("{,"))
      return refused(2,
                     "which is not supported: it is a number of times in one program, and itself in another");
    if (sees("}?") && ends_exact_count())
      return refused(2, "which is not supported: it makes {n} optional in one program, and not in another");
    if (sees("(?") && !is_known_group())
      return refused(3, "which is not supported; (?: (?i: (?= (?! (?<= (?<! and (?> are");
    copy(1);
    return {};
  }
  // Returns whether the brace here ends {n}, not {n,} or {n,m}.
  bool ends_exact_count() const {
    std::size_t first = at_;
    while (first > 0 && source_[first - 1] >= '0' && source_[first - 1] <= '9') --first;
    return first < at_ && first > 0 && source_[first - 1] == '{';
  }
  bool is_known_group() const {
    for (const std::string_view group : {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
      if (sees(group)) return true;
    }
    return false;
  }

  Result<void> class_part() {
    const char c = source_[at_];
    if (c == '\\') return escape();
    if (c == '[' || sees("&&")) return refused(1, "a class in a class, which is not supported");
    if (c == ']') in_class_ = false;
    copy(1);
    return {};
  }

  Result<void> escape() {
    if (at_ + 1 >= source_.size()) return refused(1, "which escapes nothing");
    const char c = source_[at_ + 1];
    if (c == 's' || (c == 'S' && !in_class_)) {
      target_ += in_class_ ? std::string(spaces) : fmt::format("[{}{}]", c == 'S' ? "^" : "", spaces);
      at_ += 2;
      return {};
    }
    if (c == 'p' || c == 'P') return property();
    const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (is_letter && std::string_view("rntdD").find(c) == std::string_view::npos)
      return refused(2, "which is not supported; \\p{L} and the like, \\s \\S \\d \\D \\r \\n and \\t are");
    copy(2);
    return {};
  }

  // A general category has one name in both; a script is that of a character's own, not of all that use it.
  Result<void> property() {
    const std::size_t close = source_.find('}', at_);
    if (close == std::string_view::npos || source_[at_ + 2] != '{')
      return refused(2, "a property without braces, which is not supported");
    const std::string_view name = source_.substr(at_ + 3, close - at_ - 3);
    for (const char c : name) {
      if ((c | 0x20) < 'a' || (c | 0x20) > 'z')
        return refused(close + 1 - at_, "a property that is not supported; categories and scripts are");
    }
    target_ += fmt::format("\\{}{{{}{}}}", source_[at_ + 1], name.size() > 2 ? "sc:" : "", name);
    at_ = close + 1;
    return {};
  }

  std::string_view source_;
  std::size_t at_ = 0;
  bool in_class_ = false;
  std::string target_;
};

std::string reason_of(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

constexpr std::size_t stack_bytes_least = std::size_t{32} << 10;

}  // namespace

std::size_t valid_utf8_prefix(std::string_view bytes) {
  std::size_t at = 0;
  while (true) {
    at = skip_ascii(bytes, at);
    if (at >= bytes.size()) return bytes.size();
    const Character character = character_at(bytes, at);
    if (!character.valid) return at;
    at += character.bytes;
  }
}

std::string_view repaired_utf8(std::string_view bytes, std::string& storage) {
  std::size_t valid = valid_utf8_prefix(bytes);
  if (valid == bytes.size()) return bytes;
  storage.clear();
  while (true) {
    storage.append(bytes.substr(0, valid));
    bytes.remove_prefix(valid);
    if (bytes.empty()) return storage;
    storage.append(replacement_character);
    bytes.remove_prefix(character_at(bytes, 0).bytes);
    valid = valid_utf8_prefix(bytes);
  }
}

std::size_t broken_utf8_bytes(std::string_view bytes) {
  std::size_t broken = 0;
  while (true) {
    bytes.remove_prefix(valid_utf8_prefix(bytes));
    if (bytes.empty()) return broken;
    const std::size_t count = character_at(bytes, 0).bytes;
    broken += count;
    bytes.remove_prefix(count);
  }
}

std::string_view composed(std::string_view text, std::string& storage) {
  constexpr std::size_t region_bytes = 4096;  // at least, so that calls are few
  std::size_t mark = skip_simple(text, 0);
  if (mark == text.size()) return text;
  storage.clear();
  std::size_t done = 0;
  while (mark < text.size()) {
    const std::size_t begin = mark > done ? character_before(text, mark) : mark;
    std::size_t end = mark;
    while (end < text.size() && (end < begin + region_bytes || byte_at(text, end) >= first_lead_of_marks))
      end += character_at(text, end).bytes;
    storage.append(text.substr(done, begin - done));
    // The last character may be composed with what follows it, unless that is simple, as the one at `end` is.
    append_composed(text.substr(begin, end - begin), storage);
    done = end;
    mark = skip_simple(text, end);
  }
  storage.append(text.substr(done));
  return storage;
}

Result<SplitPattern> SplitPattern::compile(const std::string& expression) {
  HF_TRY(const std::string translated, Translation(expression).run());
  int code = 0;
  PCRE2_SIZE place = 0;
  pcre2_code* compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                       PCRE2_UTF | PCRE2_UCP | PCRE2_NO_AUTO_CAPTURE, &code, &place, nullptr);
  if (compiled == nullptr)
    return fail(ExitCode::config, "its regular expression {} cannot be used: {}", expression,
                reason_of(code));
  SplitPattern pattern;
  pattern.expression_ = expression;
  pattern.code_ = {compiled, [compiled](const void*) { pcre2_code_free(compiled); }};
  std::uint32_t matches_nothing = 0;
  pcre2_pattern_info(compiled, PCRE2_INFO_MATCHEMPTY, &matches_nothing);
  if (matches_nothing != 0)
    return fail(ExitCode::config, "its regular expression {} may match an empty text, which cuts nothing",
                expression);
  // Without JIT (a processor that PCRE2 compiles nothing for) the same matches are found, more slowly.
  pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
  return pattern;
}

PieceFinder::PieceFinder(const SplitPattern& pattern, std::size_t stack_bytes) : pattern_(pattern) {
  const auto* code = static_cast<const pcre2_code*>(pattern_.code_.get());
  pcre2_match_data* data = pcre2_match_data_create_from_pattern(code, nullptr);
  match_data_ = {data, [](void* made) { pcre2_match_data_free(static_cast<pcre2_match_data*>(made)); }};
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  context_ = {context, [](void* made) { pcre2_match_context_free(static_cast<pcre2_match_context*>(made)); }};
  pcre2_jit_stack* stack = pcre2_jit_stack_create(stack_bytes_least, stack_bytes, nullptr);
  stack_ = {stack, [](void* made) { pcre2_jit_stack_free(static_cast<pcre2_jit_stack*>(made)); }};
  if (data == nullptr || context == nullptr) return;  // find() says so
  // Without a stack of its own, compiled code has 32 KiB.
  if (stack != nullptr) pcre2_jit_stack_assign(context, nullptr, stack);
  // A run of blanks may be as long as the text.
  pcre2_set_match_limit(context, ~std::uint32_t{0});
  pcre2_set_depth_limit(context, ~std::uint32_t{0});
}

Result<PieceFinder::Match> PieceFinder::next(std::string_view text, std::size_t from) {
  return find(text, from, 0);
}

// A hard partial match is one that looked at the end of the text. Without any match, one may begin there.
Result<PieceFinder::Match> PieceFinder::next_in_beginning(std::string_view text, std::size_t from) {
  HF_TRY(Match match, find(text, from, PCRE2_PARTIAL_HARD));
  match.is_cut = match.begin == match.end;
  return match;
}

Result<PieceFinder::Match> PieceFinder::find(std::string_view text, std::size_t from, std::uint32_t options) {
  const auto* code = static_cast<const pcre2_code*>(pattern_.code_.get());
  auto* data = static_cast<pcre2_match_data*>(match_data_.get());
  if (data == nullptr || context_ == nullptr)
    return fail(ExitCode::data,
                "no memory is left to match the regular expression of the tokenizer; use fewer --threads");
  const auto match = [&](std::uint32_t more) {
    return pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                       PCRE2_NO_UTF_CHECK | options | more, data,
                       static_cast<pcre2_match_context*>(context_.get()));
  };
  int count = match(0);
  // The interpreter remembers where to go back to on the heap, which has no such limit.
  if (count == PCRE2_ERROR_JIT_STACKLIMIT) count = match(PCRE2_NO_JIT);
  if (count == PCRE2_ERROR_NOMATCH || count == PCRE2_ERROR_PARTIAL) return Match{};
  if (count < 0)
    return fail(ExitCode::data, "the regular expression of the tokenizer fails at byte {} of a text: {}",
                from, reason_of(count));
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data);
  return Match{.begin = range[0], .end = range[1]};
}

}  // namespace holdfast::text
