// Says what an errno means: a text for people, and the reach of an error with this cause.
#pragma once

#include <string>
#include <string_view>

#include "runtime/core/result.h"

namespace holdfast::inline os {

std::string reason_text(int reason);

// What the sentence of a write says for which a disk has no room, which all lack that write there.
inline constexpr std::string_view full_disk_clause = "the disk is full";
inline bool is_of_full_disk(const Error& error) {
  return error.message.find(full_disk_clause) != std::string::npos;
}

// Returns Reach::minute for what may be different at the next attempt (a full disk, a server that does not answer,
// too many open files), else Reach::host: what one host lacks, another may have. Whether all hosts lack it is
// for their ranks to find out together (parallel/comm/agreement.h).
Reach reach_of_reason(int reason);

}  // namespace holdfast::inline os
