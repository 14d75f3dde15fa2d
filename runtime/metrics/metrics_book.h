// MetricsBook: what the events of a run say, as numbers for monitoring. All of it follows from the schema of the events
// (runtime/run/event.h): every number of the newest event of each kind, how often each kind came, and sums of times; a
// new field is there by itself. Beside them are where the time of the run went and its goodput (runtime/run/incident_log.h). Pure.
//
//   holdfast_loss, holdfast_tokens_per_sec           a number of the newest step
//   holdfast_last_checkpoint_stall_seconds           a number of the newest event of another kind
//   holdfast_checkpoint_stall_seconds_total          all of them added up
//   holdfast_events_total{kind="checkpoint"}         how many there were
//   holdfast_goodput_ratio, holdfast_time_seconds{use="restart"}
//   holdfast_source_tokens{source="0",path="a.bin"}  what of a source of the data was used
//
// Counters are of all events taken, and of those that a book had taken whose state() this one goes on from. A step that is computed again counts again
// in holdfast_steps_total, and in holdfast_steps_again_total.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/json.h"
#include "runtime/run/incident_log.h"

namespace holdfast::metrics {

class MetricsBook {
 public:
  MetricsBook();
  // Returns what another book goes on from: begin_from() is as if it had taken the same events. The newest steps before it
  // follow by remind(), for the case that they are made again.
  Json state() const;
  // Returns whether this version knows such a state.
  static bool knows(const Json& state);
  void begin_from(const Json& state);
  void remind(const Json& event) { incidents_->remind(event); }
  std::uint64_t highest_step() const { return incidents_->highest_step(); }  // that was ever made
  // Takes the next event of the log. Kinds that this version does not know are counted.
  void take(const Json& event);
  // Returns all metrics as OpenMetrics text without time stamps, which parsers of Prometheus' format 0.0.4 read, too.
  std::string text() const;

 private:
  enum class Type : std::uint8_t { gauge, counter };
  struct Family {
    Type type = Type::gauge;
    std::string help = {};
    std::map<std::string, double> values = {};  // by labels as they are written: `{host="n1"}`
  };
  using Families = std::map<std::string, Family>;
  // A number of an event.
  struct Number {
    std::string field = {}, metric = {}, sum = {};  // names; `sum` is empty where nothing is added up
    std::string help = {};
    double scale = 1.0;
    bool may_be_null = false;  // which says that it is not finite
  };
  struct Kind {
    std::vector<Number> numbers = {};
    std::vector<std::string> labels = {};  // fields that tell things of one kind from each other
  };

  static Family& family_of(Families& families, const std::string& name, Type type, std::string_view help);
  static void put(Families& families, const std::string& name, Type type, std::string_view help,
                  const std::string& labels, double value);
  void begin_anew();
  void put_derived(const std::string& name, const Json& event);
  void take_start(const Json& event);
  void take_armed(const Json& event);
  void take_sources(const StepEvent& step);
  void take_hosts(const Json& event);
  void put_money(Families& all) const;

  std::string
      run_;  // its id: a label of all metrics, so that those of several runs can lie beside each other
  std::map<std::string, Kind, std::less<>> kinds_;
  Families families_;
  std::vector<EventSource> sources_;  // of the newest start
  std::unique_ptr<IncidentReader> incidents_;
};

}  // namespace holdfast::metrics
