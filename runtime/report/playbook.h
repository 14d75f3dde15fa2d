// Playbook: what each kind of incident means, what the run does by itself, what is left to a person, and which
// fault of `holdfast chaos` makes one. The kind of a fault is its FaultCause, that of a verdict follows from its fields. One table: docs/playbook.md is made from it, and incident pages quote it. Pure.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "runtime/run/event.h"
#include "runtime/run/incident_log.h"

namespace holdfast::report {

struct PlaybookEntry {
  std::string_view kind;      // "rank-died"
  std::string_view what;      // what has happened, as a sentence
  std::string_view run_does;  // what the run does by itself
  std::string_view you_do;    // what is left to a person
  std::string_view chaos;     // faults of `holdfast chaos` that make it; empty: none does
  std::string_view page;      // page of docs that has more, "watchdog.md"
};

std::span<const PlaybookEntry> playbook();

// Returns the entry of a verdict on numbers.
const PlaybookEntry& playbook_entry(const VerdictEvent& verdict);
// Returns the entry of a fault. `verdict`: the one for which its rank left, or null. `lost_host`: a host has no rank left.
const PlaybookEntry& playbook_entry(const FaultEntry& fault, const VerdictEvent* verdict, bool lost_host);

// Returns the page for people: docs/playbook.md.
std::string playbook_page();

}  // namespace holdfast::report
