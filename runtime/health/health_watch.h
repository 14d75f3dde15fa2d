// HealthWatch: looks at the host of a run while it trains, on a thread of its own in the guard of that host, never in a rank,
// and tells what the rules find: an event and a line on the console at the begin of each episode. Where it acts, a finding that
// asks for the host to be left is a request to the launcher, as one of `holdfast drain` (runtime/run/requests.h).
//
// It looks every `every_ms`, and less often where that would take more than a thousandth of a processor. What cannot be
// written at the moment is tried again after the next look.
//
// Threads: begin() and the destructor belong to one. The looks have a thread of their own, which the destructor leaves alone in
// the middle of a look: a driver or a file system that hangs never ends one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/health/health_judge.h"
#include "runtime/health/host_sources.h"
#include "runtime/run/event.h"
#include "runtime/run/requests.h"

namespace holdfast::health {

// Says what is done about a finding, or about a slow rank (runtime/train/straggler_watch.h).
enum class HealthAnswer : std::uint8_t {
  told,       // nothing else: it asks for no more
  would_ask,  // nothing else: with health.preset = "guard" the launcher would be asked to leave the host
  nobody,     // nothing else: no launcher can move the run
  ask,        // the launcher is asked to leave the host
};
// Returns what is done. `acts`: health.preset = "guard". Pure.
HealthAnswer answer_to(HealthAction action, bool acts, bool has_launcher);
// Return what events call it, and the end of a sentence for people: empty where nothing else is done.
std::string_view name_of(HealthAnswer answer);
std::string_view clause_of(HealthAnswer answer);

// Return what is told of a finding: the line for the console, and the event of the log.
std::string line_of(const HealthFinding& finding, HealthAnswer answer, const std::string& host);
// `rules` have its rule.
HealthEvent event_of(const HealthFinding& finding, HealthAnswer answer, const std::string& host,
                     std::span<const HealthRule> rules = health_rules());
// Returns the request for a finding that asks for its host to be left: after the next step, or, where the host must not be used
// any longer, within half a minute.
DrainRequest request_of(const HealthFinding& finding, const std::string& host);

// Returns the pause after a look that took so much time of a processor.
std::int64_t pause_after_look_ms(std::int64_t every_ms, std::int64_t processor_ns);

class HealthWatch {
 public:
  struct Settings {
    RunPaths paths = {};
    bool acts = false, has_launcher = false;
    std::int64_t every_ms = 10'000;
    std::vector<HealthRule> rules = {health_rules().begin(), health_rules().end()};
    HostSources::Places places = {};
    std::function<GpuReader()> open_gpus = {};  // called on the thread of the looks; may be null
  };
  // Begins to look. Error: the system refuses the thread. `env` outlives the process's threads.
  static Result<std::unique_ptr<HealthWatch>> begin(Env& env, Settings settings);
  ~HealthWatch();
  HealthWatch(const HealthWatch&) = delete;
  HealthWatch& operator=(const HealthWatch&) = delete;

 private:
  class State;
  explicit HealthWatch(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;  // shared with the thread
};

}  // namespace holdfast::health
