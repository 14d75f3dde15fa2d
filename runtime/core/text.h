// Text for people and from them: aligned tables, lists, and the nearest known word.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace holdfast::core {

// TextTable: aligned columns of text for a terminal.
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

// Splits the lists in options, environment variables and files that others write.
// Returns the parts of a list that are not empty, in its order.
std::vector<std::string> split_list(std::string_view list, char separator = ',');

// 'Did you mean': the known word nearest to a mistyped one.
// Returns the candidate with the smallest Damerau-Levenshtein distance (insertions, deletions, substitutions
// and swaps of neighbours count one each), and the first of equals. Empty when nothing is within a third of
// the word's length.
std::string closest(std::string_view word, std::span<const std::string_view> candidates);

// Quotes words for a shell, so that it reads them back unchanged.
std::string shell_word(const std::string& word);  // quoted if necessary
std::string words_for_shell(const std::vector<std::string>& words);

}  // namespace holdfast::core
