#include "runtime/core/text.h"

#include <fmt/core.h>

#include <algorithm>

#include "runtime/core/check.h"

namespace holdfast::core {

TextTable::TextTable(std::vector<std::string> header, std::size_t left_aligned)
    : left_aligned_(left_aligned), rows_{std::move(header)} {
  add_rule();
}

void TextTable::add(std::vector<std::string> row) {
  HF_CHECK(row.size() == rows_.front().size(), "a row of {} cells in a table of {} columns", row.size(),
           rows_.front().size());
  rows_.push_back(std::move(row));
}

void TextTable::add_rule() {
  rows_.emplace_back();
}

std::string TextTable::text() const {
  constexpr std::size_t gap = 2;
  std::vector<std::size_t> widths(rows_.front().size());
  std::size_t total = 0;
  for (const std::vector<std::string>& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const std::size_t width : widths) total += width + gap;
  std::string text;
  for (const std::vector<std::string>& row : rows_) {
    std::string line = row.empty() ? std::string(total - gap, '-') : "";
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += i < left_aligned_ ? fmt::format("{:<{}}", row[i], widths[i])
                                : fmt::format("{:>{}}", row[i], widths[i]);
      line.append(gap, ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

std::vector<std::string> split_list(std::string_view list, char separator) {
  std::vector<std::string> parts;
  while (!list.empty()) {
    const std::string_view part = list.substr(0, list.find(separator));
    if (!part.empty()) parts.emplace_back(part);
    list.remove_prefix(std::min(part.size() + 1, list.size()));
  }
  return parts;
}

namespace {

std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before_last(b.size() + 1);
  std::vector<std::size_t> last(b.size() + 1);
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before_last.swap(last);
    last.swap(row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitution = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, substitution});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
  }
  return row[b.size()];
}

}  // namespace

std::string closest(std::string_view word, std::span<const std::string_view> candidates) {
  const std::size_t limit = std::max<std::size_t>(1, word.size() / 3);
  std::size_t best_distance = limit + 1;
  std::string_view best;
  for (const std::string_view candidate : candidates) {
    const std::size_t length_difference =
        std::max(word.size(), candidate.size()) - std::min(word.size(), candidate.size());
    if (length_difference >= best_distance) continue;
    const std::size_t found = distance(word, candidate);
    if (found < best_distance) {
      best_distance = found;
      best = candidate;
    }
  }
  return std::string(best);
}

std::string shell_word(const std::string& word) {
  constexpr std::string_view plain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=:,./@%^";
  if (!word.empty() && word.find_first_not_of(plain) == std::string::npos) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

std::string words_for_shell(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + shell_word(word);
  return text;
}

}  // namespace holdfast::core
