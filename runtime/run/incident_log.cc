#include "runtime/run/incident_log.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "runtime/run/event_reading.h"
#include "runtime/run/run_directory.h"

namespace holdfast::run {
namespace {

double finite_or_zero(std::optional<double> value) {
  return value.has_value() && std::isfinite(*value) ? *value : 0.0;
}

std::int64_t microseconds(double milliseconds) {
  return static_cast<std::int64_t>(std::clamp(milliseconds, 0.0, 1e14) * 1e3);
}

std::string steps_again(std::uint64_t count) {
  if (count == 0) return "";
  return fmt::format("; {} step{} again", count, count == 1 ? "" : "s");
}

}  // namespace

// Reads the lines in order. Time is cut at every event into what it was spent on.
class IncidentReader::State {
 public:
  explicit State(bool keeps_spans) : account_(keeps_spans) {}
  explicit State(const Json& state) : account_(/*keeps_spans=*/false) {
    account_.begin_from(state);
    const auto read = [&](const char* name, auto& value) {
      if (const auto found = state.find(name); found != state.end()) read_event_field(*found, value);
    };
    visit(*this, read);
    bool is_open = false;
    read("open", is_open);
    if (is_open) {
      open_.push_back(0);
      ledger_.faults.push_back({.time_us = last_us_, .step = step_});
    }
  }

  Json state() const {
    Json state = {{"open", !open_.empty()}};
    account_.put_state(state);
    visit(*this, [&](const char* name, const auto& value) { state[name] = value; });
    return state;
  }

  void remind(const Json& event) {
    if (const auto step = event_as<StepEvent>(event)) account_.remind(*step);
  }

  void read(const Json& json) {
    const std::int64_t time_us = event_time(json);
    if (event_kind(json).empty() || time_us == 0) return;
    if (const auto gap = event_as<GapEvent>(json); gap.has_value() && gap->is_of_steps()) {
      step_ = std::max(step_, *gap->last_step);  // its time is none of the writer's that died
      return;
    }
    if (event_kind(json) != RecoveryEvent::kind) close_growths();
    if (!begun_ && event_kind(json) != StartEvent::kind) begin_without_start(json, time_us);
    if (const auto start = event_as<StartEvent>(json)) read_start(*start);
    if (const auto step = event_as<StepEvent>(json)) read_step(*step);
    if (const auto fault = event_as<FaultEvent>(json)) read_fault(*fault);
    if (const auto recovery = event_as<RecoveryEvent>(json)) read_recovery(*recovery);
    if (const auto evaluation = event_as<EvaluationEvent>(json)) read_evaluation(*evaluation);
    if (const auto straggler = event_as<StragglerEvent>(json)) read_straggler(*straggler);
    if (const auto checkpoint = event_as<CheckpointEvent>(json))
      ledger_.saves.push_back({.time_us = time_us, .step = checkpoint->step});
    if (const auto finish = event_as<FinishEvent>(json)) read_finish(*finish);
    last_us_ = std::max(last_us_, time_us);
  }

  IncidentLog finish() && {
    close_growths();
    account_.advance(last_us_, gap_use());
    ledger_.spans = account_.spans();
    ledger_.times_us = times_us();
    ledger_.rank_times_us = rank_times_us();
    ledger_.lost_steps = lost_steps();
    ledger_.price = price_;
    return std::move(ledger_);
  }

  std::uint64_t highest_step() const { return highest_; }
  std::uint64_t lost_steps() const { return account_.steps_again(); }
  SpanTimes times_us() const { return account_.times_us(last_us_, gap_use()); }
  SpanTimes rank_times_us() const { return account_.rank_times_us(last_us_, gap_use()); }
  const RankPrice& price() const { return price_; }

 private:
  static void visit(auto& self, const auto& use) {
    use("step", self.step_);
    use("last_us", self.last_us_);
    use("step_us", self.step_us_);
    use("begun", self.begun_);
    use("starting", self.starting_);
    use("stopped", self.stopped_);
    use("restarting", self.restarting_);
    use("held", self.is_held_);
    use("highest", self.highest_);
    use("per_rank_hour", self.price_.per_rank_hour);
    use("currency", self.price_.currency);
  }

  SpanUse gap_use() const {
    if (stopped_) return SpanUse::paused;
    if (restarting_) return SpanUse::restart;
    if (!open_.empty()) return SpanUse::recovery;
    return starting_ ? SpanUse::start_up : SpanUse::other;
  }

  // The log begins behind the first start, because its older parts are gone, or with what a launcher says before that.
  void begin_without_start(const Json& json, std::int64_t time_us) {
    const std::string_view kind = event_kind(json);
    const auto step = event_as<StepEvent>(json);
    if (account_.shared_until_us() == 0)
      account_.begin_at(time_us -
                        (step.has_value() ? microseconds(finite_or_zero(step->step_duration_ms)) : 0));
    begun_ = kind == StepEvent::kind || kind == CheckpointEvent::kind || kind == EvaluationEvent::kind;
  }

  void read_start(const StartEvent& start) {
    const double busy_ms = finite_or_zero(start.join_ms) + finite_or_zero(start.worker_ms) +
                           finite_or_zero(start.state_ms) + finite_or_zero(start.gemm_peak_ms);
    const std::int64_t begun_us = start.time_us - microseconds(busy_ms);
    if (!begun_ && !restarting_ && !stopped_) account_.begin_at(begun_us);
    const bool silent = begun_ && !stopped_ && !restarting_;
    if (silent) {  // nobody wrote how the one before ended
      account_.advance(last_us_, gap_use());
      open_.push_back(ledger_.faults.size());
      ledger_.faults.push_back({.level = FaultLevel::ended,
                                .time_us = last_us_,
                                .step = step_,
                                .noticed = "the start ended without a word",
                                .cause = FaultCause::no_word});
      begin_restart();
    }
    for (const std::size_t index : open_) {
      FaultEntry& fault = ledger_.faults[index];
      if (fault.level != FaultLevel::restart) fault.level = silent ? FaultLevel::launch : FaultLevel::restart;
    }
    if (restarting_ && !is_held_) account_.has_ranks(0);  // nobody kept the ranks' places meanwhile
    if (stopped_ || restarting_) account_.advance(begun_us, gap_use());
    is_held_ = false;
    resumed_from_ = start.resumed_from.value_or("");
    has_ranks(start.ranks);
    price_ = {.per_rank_hour = start.cost_per_rank_hour.value_or(0.0),
              .currency = start.cost_currency.value_or("")};
    begun_ = starting_ = true;
    stopped_ = false;
    const std::uint64_t from = start.resumed_from_step.value.value_or(0);
    lost_steps_ += step_ > from ? step_ - from : 0;
    step_ = from;
  }

  void read_step(const StepEvent& step) {
    step_ = step.step;
    highest_ = std::max(highest_, step_);
    account_.take_step(step, gap_use());
    // After a restart the first step ends the fault; for a recovery in place the recovery event comes next.
    if (restarting_) close(step.time_us, "");
    starting_ = restarting_ = stopped_ = false;
    stepped_ = true;
    step_us_ = step.time_us;
  }

  void read_evaluation(const EvaluationEvent& evaluation) {
    const bool is_beside_faults = gap_use() == SpanUse::other || gap_use() == SpanUse::start_up;
    if (!is_beside_faults) return;
    account_.advance(evaluation.time_us - microseconds(finite_or_zero(evaluation.duration_ms)), gap_use());
    account_.advance(evaluation.time_us, SpanUse::evaluation);
  }

  // Leaves out what rank 0 waits for its own data: its steps say that.
  void read_straggler(const StragglerEvent& event) {
    if (event.of == "all" || (event.of == "input" && event.rank == 0)) return;  // the first is no waiting
    account_.take_straggler(event);
  }

  void has_ranks(int ranks) {
    ranks_ = ranks;
    if (ranks > 0) account_.has_ranks(ranks);
  }

  void begin_restart() {
    if (!std::exchange(restarting_, true)) account_.begin_restart();
  }

  // The launcher tells what a restart waited for hosts when the ranks train again, or are about to.
  void take_waiting(const RecoveryEvent& recovery) {
    const auto waited_ms =
        static_cast<double>(std::max<std::int64_t>(recovery.waited_for_hosts_ms.value_or(0), 0));
    account_.take_waiting(microseconds(waited_ms), recovery.time_us, restarting_);
  }

  void read_fault(const FaultEvent& event) {
    FaultEntry fault{.time_us = event.time_us,
                     .step = event.step,
                     .who = event.lost.value_or(""),
                     .noticed = event.reason,
                     .what = event.what.value_or(""),
                     .cause = fault_cause_named(event.cause)};
    if (event.is_aside()) {
      fault.noticed = fmt::format("{}: {}", *event.what, event.reason);
      go_on_beside(fault, event.time_us);
      ledger_.faults.push_back(std::move(fault));
      return;
    }
    fault.time_us = event.begin_us();
    // The work that a step had done until the fault is lost.
    const bool computing = open_.empty() && !starting_ && !stopped_;
    account_.advance(fault.time_us, computing ? SpanUse::lost : gap_use());
    if (event.level == FaultEvent::by_launcher) begin_restart();
    is_held_ = is_held_ || event.level == FaultEvent::by_launcher;
    stopped_ = stepped_ = false;
    open_.push_back(ledger_.faults.size());
    ledger_.faults.push_back(std::move(fault));
  }

  void read_recovery(const RecoveryEvent& recovery) {
    // A recovery by another start is reported by the launcher; the first step closes it.
    if (recovery.level == RecoveryEvent::by_launcher) return take_waiting(recovery);
    if (open_.empty()) return has_ranks(recovery.ranks_after);
    FaultEntry& fault = ledger_.faults[open_.back()];
    fault.shrink_ms = finite_or_zero(recovery.shrink_ms);
    fault.plan_ms = finite_or_zero(recovery.plan_ms);
    fault.load_ms = finite_or_zero(recovery.load_ms);
    fault.replay_ms = finite_or_zero(recovery.replay_ms);
    for (const std::size_t index : open_) ledger_.faults[index].level = FaultLevel::in_place;
    lost_steps_ = recovery.lost_steps;
    resumed_from_ = recovery.resumed_from.value_or("");
    has_ranks(recovery.ranks_after);
    close(step_us_ > fault.time_us ? step_us_ : recovery.time_us,
          fmt::format("{} of {} ranks went on from step {}", ranks_, recovery.ranks_before,
                      recovery.resumed_from_step.value_or(0)));
  }

  static void go_on_beside(FaultEntry& fault, std::int64_t time_us) {
    fault.level = FaultLevel::none;
    fault.action = "training went on";
    fault.resumed_us = time_us;
  }

  // If new ranks did not join, and nobody was lost, the ranks go on by the next step without a recovery event.
  void close_growths() {
    const auto is_growth = [this](std::size_t index) {
      return ledger_.faults[index].what == FaultEvent::growth;
    };
    if (!stepped_ || !std::ranges::all_of(open_, is_growth)) return;
    for (const std::size_t index : open_) go_on_beside(ledger_.faults[index], step_us_);
    open_.clear();
  }

  // The step behind all faults that are open has been made, or the run was saved without one.
  void close(std::int64_t time_us, std::string action) {
    if (open_.empty()) return;
    const std::string place = resumed_from_ == "ram" ? " in RAM" : resumed_from_ == "disk" ? " on disk" : "";
    if (action.empty()) {
      action = fmt::format("started again on {} rank{} from step {}", ranks_, ranks_ == 1 ? "" : "s",
                           step_ == 0 ? 0 : step_ - 1);
    }
    const std::int64_t first_us = ledger_.faults[open_.front()].time_us;
    for (const std::size_t index : open_) {
      ledger_.faults[index].first_us = first_us;
      ledger_.faults[index].resumed_us = time_us;
      ledger_.faults[index].action = "mended together with the next";
    }
    FaultEntry& last = ledger_.faults[open_.back()];
    last.action = action + place + steps_again(lost_steps_);
    last.lost_steps = lost_steps_;
    last.is_last = true;
    open_.clear();
    lost_steps_ = 0;
  }

  void read_finish(const FinishEvent& finish) {
    const bool is_last_save = gap_use() == SpanUse::other && finish.state != FinishEvent::failed;
    account_.advance(finish.time_us, is_last_save ? SpanUse::saving : gap_use());
    if (finish.state == FinishEvent::failed) {
      if (open_.empty()) {
        open_.push_back(ledger_.faults.size());
        ledger_.faults.push_back({.time_us = finish.time_us,
                                  .step = step_,
                                  .noticed = finish.reason,
                                  .cause = FaultCause::start_ended});
      }
      FaultEntry& fault = ledger_.faults[open_.back()];
      fault.action = fmt::format("ended with exit code {}: {}", finish.exit_code, finish.reason);
      begin_restart();
      return;
    }
    if (finish.reason == another_start_reason) {
      is_held_ = true;
      begin_restart();
      return;
    }
    // Asked to stop, those who go on save what they have found; nobody computes anything.
    for (const std::size_t index : open_) {
      FaultEntry& fault = ledger_.faults[index];
      if (fault.level == FaultLevel::ended) fault.level = FaultLevel::in_place;
    }
    resumed_from_.clear();  // it is not gone on from
    close(finish.time_us,
          fmt::format("step {} was saved and the run stopped, as it was asked to", finish.step));
    restarting_ = false;
    stopped_ = true;
  }

  SpanAccount account_;
  IncidentLog ledger_;
  RankPrice price_;
  std::vector<std::size_t> open_;  // faults behind which no step was made so far
  std::uint64_t step_ = 0;         // the newest
  std::uint64_t highest_ = 0;      // of all
  std::uint64_t lost_steps_ = 0;
  int ranks_ = 0;
  std::string resumed_from_;
  std::int64_t last_us_ = 0, step_us_ = 0;
  bool begun_ = false;       // there was a start
  bool starting_ = false;    // it has made no step
  bool stopped_ = false;     // the last start ended well
  bool restarting_ = false;  // it did not
  bool is_held_ = false;     // a launcher makes another one
  bool stepped_ = false;     // since the newest fault a step was made
};

IncidentReader::IncidentReader(bool keeps_spans) : state_(std::make_unique<State>(keeps_spans)) {}
IncidentReader::IncidentReader(const Json& state) : state_(std::make_unique<State>(state)) {}
IncidentReader::IncidentReader(IncidentReader&& other) noexcept = default;
IncidentReader& IncidentReader::operator=(IncidentReader&& other) noexcept = default;
IncidentReader::~IncidentReader() = default;
Json IncidentReader::state() const {
  return state_->state();
}
void IncidentReader::remind(const Json& event) {
  state_->remind(event);
}
void IncidentReader::read(const Json& event) {
  state_->read(event);
}
SpanTimes IncidentReader::times_us() const {
  return state_->times_us();
}
SpanTimes IncidentReader::rank_times_us() const {
  return state_->rank_times_us();
}
RankPrice IncidentReader::price() const {
  return state_->price();
}
std::uint64_t IncidentReader::highest_step() const {
  return state_->highest_step();
}
std::uint64_t IncidentReader::lost_steps() const {
  return state_->lost_steps();
}
IncidentLog IncidentReader::finish() && {
  return std::move(*state_).finish();
}

bool IncidentLog::disturbed() const {
  return std::ranges::any_of(faults, [](const FaultEntry& fault) { return fault.level != FaultLevel::none; });
}

std::string summary_of(const IncidentLog& ledger) {
  if (!ledger.disturbed()) return "";
  const auto count = [&](FaultLevel level) {
    return std::ranges::count(ledger.faults, level, &FaultEntry::level);
  };
  const auto all = std::ssize(ledger.faults) - count(FaultLevel::none);
  std::string how;
  const auto add = [&](FaultLevel level, std::string_view words) {
    if (count(level) > 0) how += fmt::format("{}{} {}", how.empty() ? "" : ", ", count(level), words);
  };
  add(FaultLevel::in_place, "healed in place");
  add(FaultLevel::restart, "recovered by restarting");
  add(FaultLevel::launch, "recovered by another launch");
  add(FaultLevel::ended, "not mended");
  return fmt::format("{} fault{}: {}; {} step{} computed again; goodput {:.1f} %", all, all == 1 ? "" : "s",
                     how, ledger.lost_steps, ledger.lost_steps == 1 ? "" : "s",
                     100.0 * ledger.effective_ratio());
}

}  // namespace holdfast::run
