// Addresses that users write: "127.0.0.1:9400", "[::1]:9400".
#pragma once

#include <optional>
#include <string>

#include "runtime/os/network.h"

namespace holdfast::os {

// Returns nothing where the text is not a numeric address, which may be empty, and a port after a colon.
std::optional<NetworkAddress> parse_address(const std::string& text);
// Returns whether only processes of this host reach the address.
bool is_loopback(const std::string& host);

}  // namespace holdfast::os
