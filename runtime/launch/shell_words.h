// Words for a shell, so that it reads them back as they are.
#pragma once

#include <string>
#include <vector>

namespace holdfast::inline launch {

std::string shell_word(const std::string& word);  // quoted where it has to be
std::string words_for_shell(const std::vector<std::string>& words);

}  // namespace holdfast::inline launch
