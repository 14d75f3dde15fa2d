#include "runtime/core/text_table.h"

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

}  // namespace holdfast::core
