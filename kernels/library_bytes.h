// Examines the bytes of a shared library before the system loads it: the loader of the system says little about files of
// other machines, and a file that is shorter than its headers say ends the process by SIGBUS.
#pragma once

#include <string>
#include <string_view>

namespace holdfast::kernels {

// Returns why a file with these bytes is not loaded, as the end of a sentence: "it is no shared library ..."; empty where
// nothing is wrong with it as far as its headers tell. Pure.
std::string problem_of_library(std::string_view bytes);

}  // namespace holdfast::kernels
