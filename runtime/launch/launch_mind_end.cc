// LaunchMind: what a start shows about its hosts while it trains and when it has ended, and what follows.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <ranges>
#include <utility>

#include "runtime/launch/launch_mind.h"

namespace holdfast::launch {
namespace {

// A start is short if it trained for less than this time, or than so many times what it took to begin.
constexpr std::int64_t short_ms = 60'000, short_factor = 10;
constexpr std::int64_t minute_patience_ms = 600'000;  // for what may be different at the next attempt
constexpr std::int64_t first_delay_ms = 1'000, longest_delay_ms = 60'000;
constexpr std::int64_t fruitless_costs = 20, same_fault_costs = 4;  // in starts
constexpr std::int64_t longest_patience_ms = 3'600'000;

bool is_error_of_inputs(const StartEnd& end) {
  if (end.record != StartEnd::Record::failed) return false;
  return end.code == ExitCode::config || end.code == ExitCode::does_not_fit || end.code == ExitCode::data ||
         end.code == ExitCode::checkpoint;
}

// Returns the widest reach of all reports: without any, what the ranks agreed on is wrong for all of them.
Reach reach_of(std::span<const UnfitHost> unfit) {
  if (unfit.empty()) return Reach::run;
  const auto has = [&](Reach reach) {
    return std::ranges::find(unfit, reach, &UnfitHost::reach) != unfit.end();
  };
  if (has(Reach::run)) return Reach::run;
  return has(Reach::host) || has(Reach::everywhere) ? Reach::host : Reach::minute;
}

int given_to(const ScaleUp::Ranks& ranks, const std::string& host) {
  const auto found = ranks.find(host);
  return found == ranks.end() ? 0 : found->second;
}

}  // namespace

bool LaunchMind::Evidence::mentions(const std::string& host) const {
  return died_on.contains(host) || std::ranges::any_of(silent, [&](const SilentPair& pair) {
           return pair.from == host || pair.of == host;
         });
}

ScaleUp::Ranks LaunchMind::in_list(const ScaleUp::Ranks& ranks) const {
  ScaleUp::Ranks named;
  for (const auto& [host, count] : ranks) named[name_in_list(host)] += count;
  return named;
}

EndedStart LaunchMind::in_list(EndedStart ended) const {
  const auto name = [&](std::set<std::string>& hosts) {
    std::set<std::string> names;
    for (const std::string& host : hosts) names.insert(name_in_list(host));
    hosts = std::move(names);
  };
  name(ended.died_on);
  name(ended.ended_on);
  for (UnfitHost& unfit : ended.unfit) unfit.host = name_in_list(unfit.host);
  ended.silent = in_list(ended.silent);
  return ended;
}

std::vector<SilentPair> LaunchMind::in_list(std::span<const SilentPair> silent) const {
  std::vector<SilentPair> named;
  for (const SilentPair& pair : silent)
    named.push_back({.from = name_in_list(pair.from), .of = name_in_list(pair.of)});
  return named;
}

void LaunchMind::begins(std::int64_t now_ns, const ScaleUp::Ranks& given, int ranks, bool is_narrower) {
  follow(LaunchOutcome::begins);
  scale_up_.begins();
  if (settings_.whole) scale_up_.set_whole(settings_.whole());
  given_ = given;
  ranks_ = ranks;
  is_narrower_ = is_narrower;
  has_reported_ = false;
  failed_in_start_.clear();
  unfit_in_start_.clear();
  begun_ns_ = now_ns;
  trained_ns_ = -1;
}

void LaunchMind::trains(std::int64_t now_ns) {
  follow(LaunchOutcome::trains);
  trained_ns_ = now_ns;
  short_since_ns_ = -1;
  fewest_trained_ = std::min(fewest_trained_.value_or(ranks_), ranks_);
  has_trained_narrower_ = has_trained_narrower_ || is_narrower_;
  if (trained_.empty()) trained_ = given_;
}

// Takes the ranks. Both of two hosts that lost each other have lost theirs; one of them is the cause, so that the other
// can come back alone.
void LaunchMind::has(std::int64_t now_ns, const ScaleUp::Ranks& ranks, std::span<const SilentPair> silent,
                     std::span<const UnfitHost> unfit_hosts, std::optional<int> spares) {
  const ScaleUp::Ranks named = in_list(ranks);
  std::vector<SilentPair> pairs = in_list(silent);
  // Where one of them has its ranks still, the guards have found the other one out.
  std::erase_if(pairs, [&](const SilentPair& pair) {
    return given_to(named, pair.from) > 0 || given_to(named, pair.of) > 0;
  });
  std::set<std::string> excused;
  for (const SilentPair& pair : pairs) excused.insert({pair.from, pair.of});
  if (!pairs.empty()) {
    for (const std::string& suspect : fewest_hosts(pairs, linked_hosts())) excused.erase(suspect);
  }
  // The only host of a run gets no pause for ranks that die: nothing is won by waiting, and the limits of restarts hold.
  const bool is_alone = has_one_host();
  for (const auto& [host, count] : trained_) {
    if (is_alone) excused.insert(host);
  }
  std::set<std::string> unfit_names;
  for (const UnfitHost& host : unfit_hosts) unfit_names.insert(name_in_list(host.host));
  const bool is_first = !std::exchange(has_reported_, true);
  const std::vector<std::string> lost =
      is_first ? scale_up_.began(now_ns, named, is_alone ? ScaleUp::Ranks() : given_, unfit_names, spares)
               : scale_up_.saw(now_ns, named, excused, unfit_names, spares);
  trained_ = named;
  if (is_alone) return;
  failed_in_start_.insert(lost.begin(), lost.end());
  for (const std::string& name : lost) {
    Host* host = find(name);
    const GrowingPauses& pauses = scale_up_.pauses();
    if (host != nullptr && (pauses.deaths(name) > 1 || pauses.is_condemned(name)))
      leave_out(now_ns, *host, HostState::suspected, "it lost its ranks soon after it got them back");
  }
  for (const UnfitHost& host : unfit_hosts) unfit(now_ns, host);
}

void LaunchMind::unfit(std::int64_t now_ns, const UnfitHost& unfit) {
  const std::string name = name_in_list(unfit.host);
  Host* host = find(name);
  if (host == nullptr || has_one_host() || unfit.reach == Reach::minute) return;
  if (!unfit_in_start_.insert(name).second) return;               // the reports are read again and again
  const bool is_counted = !failed_in_start_.insert(name).second;  // as a host that has lost its ranks
  if (!is_counted) scale_up_.pauses().failed(name, now_ns);
  host->fit_ranks = given_to(trained_, name);
  if (host->fit_ranks == 0) return leave_out(now_ns, *host, HostState::unfit, unfit.sentence);
  tell_room(now_ns, *host, {.ranks = host->fit_ranks, .why = unfit.sentence});
}

bool LaunchMind::knows_where_ranks_are() const {
  return std::ranges::all_of(trained_, [&](const auto& entry) {
    return std::ranges::any_of(hosts_, [&](const Host& host) { return host.named.name == entry.first; });
  });
}

bool LaunchMind::is_given_ranks(const std::string& host) const {
  return given_.empty() || given_.contains(host);
}

// Returns the hosts that have more ranks in this start than in the newest one that trained.
std::vector<std::string> LaunchMind::joined() const {
  std::vector<std::string> joined;
  if (trained_.empty()) return joined;
  for (const Host& host : hosts_) {
    const std::string& name = host.named.name;
    if (given_to(given_, name) > given_to(trained_, name)) joined.push_back(name);
  }
  return joined;
}

// Returns whether a start failed for want of memory that one with more ranks does not need.
bool LaunchMind::lacks_ranks(std::int64_t now_ns, const EndedStart& ended) const {
  if (ended.end.code != ExitCode::does_not_fit) return false;
  if (!fewest_trained_.has_value()) {
    const std::vector<LaunchHost> all = marked(now_ns, [](const Host&) { return true; });
    return is_narrower_ || ranks_ < ranks_on(all);
  }
  return (is_narrower_ && !has_trained_narrower_) || ranks_ < *fewest_trained_;
}

// Decides about an error of the inputs; returns whether it leaves hosts out, so that the end is explained.
// Otherwise StartEnd::reach says whether the launch ends.
bool LaunchMind::leaves_out_unfit(std::int64_t now_ns, EndedStart& ended) {
  StartEnd& end = ended.end;
  std::map<std::string, std::string> reasons;
  for (const UnfitHost& unfit : ended.unfit) {
    const bool was_before = failed_in_start_.contains(unfit.host);  // and the start went on without it
    if (unfit.reach != Reach::minute && is_given_ranks(unfit.host) && !was_before)
      reasons.emplace(unfit.host, unfit.sentence);
  }
  const bool has_trained = has_begun() || end.step_before > 0;
  const std::size_t given = given_.empty() ? hosts_.size() : given_.size();
  const Reach reach = reach_of(ended.unfit);
  end.reach = reach;
  const bool names_some = reach == Reach::host && reasons.size() < given;
  const bool is_everywhere = reach == Reach::host && !names_some;
  const std::vector<std::string> newcomers = joined();
  if (reach != Reach::host && !newcomers.empty() && newcomers.size() < given) {
    // It does not matter what it says: the run has trained without them.
    reasons.clear();
    const std::string why = ended.unfit.empty() ? end.fault : ended.unfit.front().sentence;
    for (const std::string& name : newcomers)
      reasons[name] =
          fmt::format("a start with it ended with exit code {}: {}", static_cast<int>(end.code), why);
  } else if (!names_some && lacks_ranks(now_ns, ended)) {
    min_ranks_that_fit_ = ranks_ + 1;
    end.reach = Reach::minute;
    end.fault = fmt::format("a copy of the model on {} ranks does not fit into memory", ranks_);
    return false;
  } else if (is_everywhere && !has_trained) {
    end.reach = Reach::run;
    return false;
  } else if (!names_some && !is_everywhere) {
    // A model that has fitted before fits again when others have released the memory.
    if (has_trained && end.code == ExitCode::does_not_fit) end.reach = Reach::minute;
    return false;
  }
  int behind = 0;
  for (const auto& [name, why] : reasons) exclude_unfit(now_ns, name, why, behind++);
  end.fault = fmt::format("the start failed on {}", fmt::join(std::views::keys(reasons), ", "));
  return true;
}

// Leaves hosts out whose ranks have left this start as unfit, whatever it ended with: without them the others may have
// been too few. Returns whether there are any. Their deaths need no other explanation.
bool LaunchMind::leaves_out_reported(std::int64_t now_ns, EndedStart& ended) {
  std::set<std::string> left_out;
  for (const UnfitHost& unfit : ended.unfit) {
    if (unfit.reach != Reach::host || !is_given_ranks(unfit.host)) continue;
    if (!unfit_in_start_.insert(unfit.host).second) continue;
    exclude_unfit(now_ns, unfit.host, unfit.sentence, static_cast<int>(left_out.size()));
    left_out.insert(unfit.host);
    ended.died_on.erase(unfit.host);
  }
  if (!left_out.empty()) ended.end.fault = fmt::format("the start failed on {}", fmt::join(left_out, ", "));
  return !left_out.empty();
}

// Returns whether the hosts that are left are too few, so that the next start has to have one again that is left out now.
bool LaunchMind::needs_left_out(std::int64_t now_ns) const {
  return ranks_on(marked(now_ns, [&](const Host& host) { return is_usable(host, now_ns); })) == 0;
}

// Returns whether the start gave the host ranks that the one before did not have, or it got some back a while ago.
bool LaunchMind::is_new(const std::string& host) const {
  const bool has_joined = !trained_.empty() && given_to(given_, host) > given_to(trained_, host);
  return scale_up_.pauses().has_returned(host) || has_joined;
}

std::vector<LinkedHost> LaunchMind::linked_hosts() const {
  std::vector<LinkedHost> hosts;
  for (const Host& host : hosts_) {
    const std::string& name = host.named.name;
    hosts.push_back({.name = name,
                     .suspicions = scale_up_.pauses().failures(name) + (is_new(name) ? 1 : 0),
                     .is_own = name == settings_.own_host});
  }
  return hosts;
}

// Leaves hosts out that short starts in a row have lost, or the newest one right after they joined it.
bool LaunchMind::leaves_out_suspects(std::int64_t now_ns, const EndedStart& ended) {
  Evidence now;
  for (const SilentPair& pair : ended.silent) {
    if (is_given_ranks(pair.from) && is_given_ranks(pair.of)) now.silent.push_back(pair);
  }
  // Where the ranks of all hosts died, mpirun did, or all had the same fault.
  if (std::ranges::any_of(ended.ended_on, [&](const auto& host) { return !ended.died_on.contains(host); }))
    now.died_on = ended.died_on;
  // Silence explains the end. What else died then died of it: mpirun ends all ranks where some give up.
  if (!now.silent.empty()) now.died_on.clear();
  const std::vector<std::string> died = scale_up_.died(now_ns, now.died_on);
  std::set<std::string> counted(died.begin(), died.end());
  const std::optional<Evidence> before = std::exchange(last_evidence_, now);
  if (!ended.end.is_short) {
    last_evidence_.reset();
    for (const std::string& name : died) {
      if (find(name) != nullptr && scale_up_.pauses().deaths(name) > 1)
        leave_out(now_ns, *find(name), HostState::suspected, "its ranks died again, and the run ended");
    }
    return false;
  }
  std::vector<SilentPair> pairs = now.silent;
  if (before.has_value()) pairs.insert(pairs.end(), before->silent.begin(), before->silent.end());
  std::set<std::string> suspects = now.died_on;
  for (std::string& name : fewest_hosts(pairs, linked_hosts())) suspects.insert(std::move(name));
  std::erase_if(suspects, [&](const std::string& name) {
    const bool again = before.has_value() && before->mentions(name);
    return find(name) == nullptr || !now.mentions(name) || !(again || is_new(name));
  });
  for (const std::string& name : scale_up_.died(now_ns, suspects)) counted.insert(name);
  for (const std::string& name : suspects) {
    if (!counted.contains(name)) scale_up_.pauses().failed(name, now_ns);
    leave_out(now_ns, *find(name), HostState::suspected,
              now.died_on.contains(name) ? "its ranks died, and the run ended"
                                         : "other hosts did not hear it, and the run ended");
  }
  return !suspects.empty();
}

// Starts are given up when they have cost enough: many times what one costs until it trains, and as much work as lies
// between two saves, which a start has to make again before it reaches a new step.
RestartLimits LaunchMind::limits_after(const EndedStart& ended) const {
  const StartEnd& end = ended.end;
  RestartLimits limits{.first_delay_ms = first_delay_ms, .longest_delay_ms = longest_delay_ms};
  const std::int64_t cost_ms = ((trained_ns_ >= 0 ? trained_ns_ : end.ended_ns) - begun_ns_) / ms;
  limits.same_fault_patience_ms = same_fault_costs * cost_ms;
  limits.patience_ms = std::clamp(fruitless_costs * cost_ms,
                                  std::min(ended.lost_work_ms, longest_patience_ms), longest_patience_ms);
  if (is_error_of_inputs(end) && end.reach == Reach::minute)
    limits.patience_ms = std::max(limits.patience_ms, minute_patience_ms);
  return limits;
}

RestartDecision LaunchMind::ended(std::int64_t now_ns, EndedStart start, bool stop_requested) {
  EndedStart ended = in_list(std::move(start));
  StartEnd& end = ended.end;
  own_calls_fail_since_ns_ = -1;  // a start was made
  own_calls_failed_ = 0;
  end.begun_ns = begun_ns_;
  end.ended_ns = now_ns;
  const std::int64_t start_up_ns = trained_ns_ - begun_ns_, trained_for_ns = now_ns - trained_ns_;
  end.is_short = trained_ns_ < 0 || trained_for_ns < std::max(short_ms * ms, short_factor * start_up_ns);
  const bool is_over = end.record == StartEnd::Record::finished || end.record == StartEnd::Record::saved;
  bool is_explained = false;
  if (ended.is_as_asked) {
    end.record = StartEnd::Record::failed;  // so that another start follows: the state may be in RAM alone
    end.code = ExitCode::communication;
    end.kind.clear();
  } else if (is_error_of_inputs(end)) {
    is_explained = leaves_out_unfit(now_ns, ended);
  } else if (!is_over && end.code != ExitCode::numerics && !stop_requested && !has_one_host()) {
    is_explained = leaves_out_reported(now_ns, ended);
    is_explained = leaves_out_suspects(now_ns, ended) || is_explained;
  }
  RestartDecision decision;
  if (is_explained) {
    end.code = ExitCode::communication;
    end.kind.clear();
  }
  if (is_explained && (stop_requested || !needs_left_out(now_ns))) {
    decision = {.restart = true, .code = end.code, .sentence = end.fault};
    if (stop_requested) decision = after_start({&end, 1}, true, {});
  } else {
    const RestartLimits limits = limits_after(ended);
    if (end.reach != Reach::run) end.kind.clear();
    starts_.push_back(end);
    decision = after_start(starts_, stop_requested, limits);
  }
  last_end_ = end;
  follow(decision.restart ? LaunchOutcome::ended : LaunchOutcome::over);
  return decision;
}

RestartDecision LaunchMind::own_call_failed(std::int64_t now_ns, const Error& error) {
  const bool may_pass = error.reach == Reach::minute || (error.reach == Reach::host && has_begun());
  if (own_calls_fail_since_ns_ < 0) own_calls_fail_since_ns_ = now_ns;
  const bool is_too_long = now_ns - own_calls_fail_since_ns_ > minute_patience_ms * ms;
  if (!may_pass || is_too_long) {
    follow(LaunchOutcome::over);
    return {.restart = false,
            .code = may_pass || has_begun() ? ExitCode::communication : error.code,
            .sentence = error.message};
  }
  std::int64_t delay_ms = first_delay_ms;
  for (int i = 0; i < own_calls_failed_ && delay_ms < longest_delay_ms; ++i) delay_ms *= 2;
  ++own_calls_failed_;
  follow(LaunchOutcome::ended);
  return {.restart = true,
          .code = ExitCode::communication,
          .delay_ms = std::min(delay_ms, longest_delay_ms),
          .sentence = error.message};
}

}  // namespace holdfast::launch
