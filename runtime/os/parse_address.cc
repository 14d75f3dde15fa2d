#include "runtime/os/parse_address.h"

#include <charconv>
#include <cstdint>
#include <utility>

namespace holdfast::os {

std::optional<NetworkAddress> parse_address(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos) return std::nullopt;
  std::string host = text.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  const char* const end = text.data() + text.size();
  std::uint16_t port = 0;
  const auto [rest, error] = std::from_chars(text.data() + colon + 1, end, port);
  const bool is_numeric = host.find_first_not_of("0123456789abcdefABCDEF.:") == std::string::npos;
  if (!is_numeric || error != std::errc() || rest != end) return std::nullopt;
  return NetworkAddress{.host = std::move(host), .port = port};
}

bool is_loopback(const std::string& host) {
  return host.starts_with("127.") || host == "::1";
}

}  // namespace holdfast::os
