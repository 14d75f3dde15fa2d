// Why a text is not JSON.
#pragma once

#include <string>
#include <string_view>

namespace holdfast::core {

// Returns the place and the reason where Json::parse_any() reads nothing; empty where the text is JSON. It may quote the text.
std::string json_problem(std::string_view text);

}  // namespace holdfast::core
