// A file that its owner alone may read, such as a token: made with mode 0600 before it has its content.
#pragma once

#include <string>

#include "runtime/core/result.h"

namespace holdfast::os {

// Makes the file; what has this name already is not touched, and no link is followed. Error (checkpoint): it is there, or
// cannot be made.
Result<void> write_private_file(const std::string& path, const std::string& text);
// Returns whether others than its owner may read the file.
bool others_may_read(const std::string& path);
// Returns whether the file is there and another user's.
bool is_of_another_user(const std::string& path);

}  // namespace holdfast::os
