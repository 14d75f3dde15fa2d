// Quotes words for a shell, so that it reads them back unchanged.
#pragma once

#include <string>
#include <vector>

namespace holdfast::launch {

std::string shell_word(const std::string& word);  // quoted if necessary
std::string words_for_shell(const std::vector<std::string>& words);

}  // namespace holdfast::launch
