// begin_sodium(): initialises libsodium; for files that include sodium.h.
#pragma once

namespace holdfast::inline os {

// Makes libsodium ready. May be called on any thread, any number of times.
void begin_sodium();

}  // namespace holdfast::inline os
