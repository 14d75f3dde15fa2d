// News: the events of a run that people should know of, each as a sentence. `holdfast status --watch` shows them, and
// notify.command tells them (runtime/metrics/notifier.h). Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/core/json.h"

namespace holdfast::run {

struct News {
  std::string kind = {};      // of the event: "fault"
  std::string sentence = {};  // one line, of foreign text in parts: made printable where it is shown
  std::uint64_t step = 0;
  std::int64_t time_us = 0;
  std::string host = {}, rank = {};  // where the event names one
  std::string cause = {};            // of `fault`: FaultCause
  std::string state = {};            // of `finish`: finished, saved or failed
  int exit_code = 0;
  std::string episode = {};  // what goes on for a while is told by several events, which have this in common
  bool is_over = false;      // the last of them
};

// Returns nothing for an event that is not for people: a step, a save that succeeded, an end of a start that another one
// follows at once.
std::optional<News> news_of(const Json& event);

}  // namespace holdfast::run
