// begin_sodium(): libsodium is ready when it returns; for files that include sodium.h.
#pragma once

namespace holdfast::inline os {

// Any thread, any number of times.
void begin_sodium();

}  // namespace holdfast::inline os
