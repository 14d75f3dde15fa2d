// TextTable: aligned columns of text for a terminal.
#pragma once

#include <string>
#include <vector>

namespace holdfast::core {

class TextTable {
 public:
  // Makes a table whose first `left_aligned` columns are words, the others numbers.
  TextTable(std::vector<std::string> header, std::size_t left_aligned);
  void add(std::vector<std::string> row);  // as many cells as the header
  void add_rule();                         // a line between rows
  std::string text() const;                // with a newline after every row

 private:
  std::size_t left_aligned_;
  std::vector<std::vector<std::string>> rows_;  // the header first; an empty row is a rule
};

}  // namespace holdfast::core
