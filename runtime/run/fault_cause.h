// FaultCause: the kinds of faults, as the writer of a `fault` event knows them. Their names are the values of its field `cause`, of the
// label of the metric and of HOLDFAST_CAUSE, and the kinds of docs/playbook.md: nothing is found by the words of a sentence. A
// fault without a name that is known, as in a log of an older version, is `unknown`.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace holdfast::run {

// Where ranks know different causes of one fault, the last of them counts: it says more.
enum class FaultCause : std::uint8_t {
  unknown,
  rank_died,       // the process of a rank has ended
  host_lost,       // all ranks of a host are gone, or mpirun has lost it
  rank_evicted,    // a verdict on numbers sends a rank away
  gpu_failed,      // the GPU of a rank gave up its process
  rank_hangs,      // the watchdog ended a rank
  spare_died,      // a rank that was not active
  growth_failed,   // new ranks did not join
  start_ended,     // of the launcher: a start ended with an error
  no_word,         // a start wrote no end; no event says so, readers find it
  save_failed,     // beside the training, as the next two
  replica_failed,  // of a RAM snapshot
  upload_failed,
};

inline constexpr auto fault_cause_names = std::to_array<std::string_view>({
    "unknown",
    "rank-died",
    "host-lost",
    "rank-evicted",
    "gpu-failed",
    "rank-hangs",
    "spare-died",
    "growth-failed",
    "start-ended",
    "ended-without-a-word",
    "save-failed",
    "replica-failed",
    "upload-failed",
});

constexpr std::string_view name_of(FaultCause cause) {
  return fault_cause_names[static_cast<std::size_t>(cause)];
}

constexpr FaultCause fault_cause_named(std::string_view name) {
  const auto* const found = std::ranges::find(fault_cause_names, name);
  return found == fault_cause_names.end() ? FaultCause::unknown
                                          : static_cast<FaultCause>(found - fault_cause_names.begin());
}

// Returns the one that says more.
constexpr FaultCause nearer_cause(FaultCause one, FaultCause other) {
  return std::max(one, other);
}

namespace detail {

constexpr std::string_view cause_separator = ", ", cause_begin = "What it is (playbook.md): ";
constexpr std::size_t cause_list_size() {
  std::size_t size = cause_begin.size() + cause_separator.size() * (fault_cause_names.size() - 1);
  for (const std::string_view name : fault_cause_names) size += name.size();
  return size;
}
constexpr auto join_causes() {
  std::array<char, cause_list_size()> text{};
  char* end = std::ranges::copy(cause_begin, text.data()).out;
  for (std::size_t i = 0; i < fault_cause_names.size(); ++i) {
    if (i > 0) end = std::ranges::copy(cause_separator, end).out;
    end = std::ranges::copy(fault_cause_names[i], end).out;
  }
  return text;
}
inline constexpr auto cause_list = join_causes();

}  // namespace detail

// Lists all names, for the page of the events.
inline constexpr std::string_view fault_cause_meaning(detail::cause_list.data(), detail::cause_list.size());

}  // namespace holdfast::run
