// What a name of the file system leads to.
#pragma once

#include <string>

namespace holdfast::os {

// Returns whether `path` leads to a pipe, a device or a socket: something that has no size, and may wait when it is opened.
bool is_stream(const std::string& path);

}  // namespace holdfast::os
