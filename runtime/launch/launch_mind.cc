#include "runtime/launch/launch_mind.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "runtime/core/check.h"
#include "runtime/core/units.h"

namespace holdfast::launch {
namespace {

constexpr int max_code_of_program =
    125;  // a shell has higher ones, where it does not find or run the program

std::string whole_seconds(std::int64_t duration_ns) {
  return format_duration((duration_ns + 999'999'999) / 1'000'000'000 * 1'000);
}

bool is_answering(std::span<const LaunchHost> hosts, const std::string& name) {
  const auto found = std::ranges::find(hosts, name, &LaunchHost::name);
  return found != hosts.end() && found->answers;
}

void drop(std::vector<LaunchHost>& hosts, const std::vector<std::string>& names) {
  for (LaunchHost& host : hosts)
    host.answers = host.answers && std::ranges::find(names, host.name) == names.end();
}

// Returns which of the hosts left could not connect to the host, or to which of them it could not.
std::string reason_of(std::span<const LinkFault> links, const std::string& name,
                      std::span<const LaunchHost> left) {
  std::vector<std::string> callers, callees;
  std::string where;
  for (const LinkFault& link : links) {
    if (link.of != name || !is_answering(left, link.from)) continue;
    callers.push_back(link.from);
    if (where.empty()) where = link.where;
  }
  if (!callers.empty())
    return fmt::format("host{} {} cannot connect to it at {}", callers.size() == 1 ? "" : "s",
                       fmt::join(callers, ", "), where);
  for (const LinkFault& link : links) {
    if (link.from != name || !is_answering(left, link.of)) continue;
    callees.push_back(link.of);
    if (where.empty()) where = link.where;
  }
  if (callees.empty()) return "it cannot connect to hosts that are left out, too";
  return fmt::format("it cannot connect to host{} {} at {}", callees.size() == 1 ? "" : "s",
                     fmt::join(callees, ", "), where);
}

}  // namespace

std::optional<LaunchPhase> next_phase(LaunchPhase phase, LaunchOutcome outcome) {
  using Row = std::array<std::optional<LaunchPhase>, launch_outcomes>;
  using enum LaunchPhase;
  constexpr std::optional<LaunchPhase> none;
  // clang-format off
  // A column for each LaunchOutcome, a row for each LaunchPhase.
  static constexpr std::array<Row, launch_phases> table = {{
      // enough, too_few, again, begins, trains, leaves, ended, over
      {ask, wait, ask, start, none, none, pause, end},      // ask
      {ask, wait, ask, none, none, none, pause, end},       // wait
      {none, none, none, start, train, none, pause, end},   // start; once more where only its state is saved
      {none, none, none, start, train, leave, pause, end},  // train; the same
      {none, none, none, start, leave, leave, pause, end},  // leave; the same
      {ask, wait, ask, start, none, none, pause, end},      // pause; a run on one host asks nobody
      {none, none, none, none, none, none, none, end},      // end
  }};
  // clang-format on
  return table[static_cast<std::size_t>(phase)][static_cast<std::size_t>(outcome)];
}

const char* name_of(HostState state) {
  switch (state) {
    case HostState::ready:
      return "ready";
    case HostState::unfit:
      return "unfit";
    case HostState::suspected:
      return "suspected";
    case HostState::unreachable:
      return "unreachable";
    case HostState::drained:
      return "drained";
    case HostState::condemned:
      return "condemned";
  }
  return "";
}

LaunchMind::LaunchMind(LaunchMindSettings settings)
    : settings_(std::move(settings)), scale_up_(settings_.grow_after_ms, settings_.settled_ms) {
  hosts_.push_back({.named = {.name = settings_.own_host}});
}

void LaunchMind::follow(LaunchOutcome outcome) {
  const std::optional<LaunchPhase> next = next_phase(phase_, outcome);
  HF_CHECK(next.has_value());
  phase_ = *next;
}

std::vector<LaunchNews> LaunchMind::take_news() {
  return std::exchange(news_, {});
}

HostView LaunchMind::view_of(const Host& host) const {
  const GrowingPauses& pauses = scale_up_.pauses();
  HostView row{.name = host.named.name,
               .state = host.state,
               .reason = host.reason,
               .since_ns = host.since_ns,
               .failures = pauses.failures(host.named.name),
               .until_ns = host.state == HostState::ready ? 0 : pauses.until_ns(host.named.name)};
  if (drained_.contains(row.name)) {
    row.state = HostState::drained;
    row.reason = "the run was asked to leave it";
    if (const std::string& sick = drained_.at(row.name); !sick.empty()) row.reason = sick;
  } else if (row.state == HostState::ready && faulty_.contains(row.name)) {
    row.state = HostState::suspected;
    row.reason = faulty_.at(row.name);
  }
  return row;
}

std::vector<HostView> LaunchMind::views() const {
  std::vector<HostView> rows;
  for (const Host& host : hosts_) rows.push_back(view_of(host));
  return rows;
}

LaunchMind::Host* LaunchMind::find(const std::string& name) {
  const auto found = std::ranges::find_if(hosts_, [&](const Host& host) { return host.named.name == name; });
  return found == hosts_.end() ? nullptr : &*found;
}

void LaunchMind::name_hosts(std::int64_t now_ns, const std::vector<LaunchHost>& hosts) {
  std::vector<Host> named;
  for (const LaunchHost& host : hosts) {
    if (const Host* known = find(host.name); known != nullptr) {
      named.push_back(*known);
      named.back().named.slots = host.slots;
    } else {
      named.push_back({.named = host, .since_ns = now_ns});
    }
  }
  is_implicit_ = named.empty();
  if (is_implicit_) named.push_back({.named = {.name = settings_.own_host}, .since_ns = now_ns});
  hosts_ = std::move(named);
}

std::vector<LaunchHost> LaunchMind::named() const {
  std::vector<LaunchHost> named;
  for (const Host& host : hosts_) named.push_back(host.named);
  return named;
}

std::string LaunchMind::name_in_list(const std::string& own_name) const {
  const auto is_named = [&](const Host& host) { return host.named.name == own_name; };
  if (hosts_.size() == 1) return hosts_.front().named.name;
  const auto known = known_as_.find(own_name);
  return known == known_as_.end() || std::ranges::any_of(hosts_, is_named) ? own_name : known->second;
}

void LaunchMind::suspect(const std::set<std::string>& own_names) {
  std::set<std::string> names;
  for (const std::string& own : own_names) names.insert(name_in_list(own));
  for (Host& host : hosts_) host.named.is_suspected = names.contains(host.named.name);
}

void LaunchMind::set(std::int64_t now_ns, Host& host, HostState state, std::string reason) {
  if (host.state == state && host.reason == reason) return;
  host.since_ns = now_ns;
  host.state = state;
  host.reason = std::move(reason);
}

void LaunchMind::tell_excluded(std::int64_t now_ns, Host& host) {
  const HostView row = view_of(host);
  std::string sentence;
  switch (host.state) {
    case HostState::unreachable:
      sentence = fmt::format("host {} does not answer: it is left out", row.name);
      if (row.until_ns > now_ns)
        sentence += fmt::format(" for {} at least", whole_seconds(row.until_ns - now_ns));
      break;
    case HostState::condemned:
      sentence = fmt::format("host {} is left out, as it has failed {} times in a row: {}", row.name,
                             row.failures, row.reason);
      break;
    default:
      sentence = row.until_ns > now_ns ? fmt::format("host {} is left out for {}: {}", row.name,
                                                     whole_seconds(row.until_ns - now_ns), row.reason)
                                       : fmt::format("host {} cannot be used: {}", row.name, row.reason);
  }
  news_.push_back({.sentence = std::move(sentence), .excluded = row});
}

// Leaves the host out with the pause that its failures have come to.
void LaunchMind::exclude_unfit(std::int64_t now_ns, const std::string& name, const std::string& reason,
                               int behind) {
  scale_up_.pauses().failed(name, now_ns, behind);
  if (Host* host = find(name); host != nullptr) leave_out(now_ns, *host, HostState::unfit, reason);
}

void LaunchMind::leave_out(std::int64_t now_ns, Host& host, HostState state, const std::string& reason) {
  set(now_ns, host, scale_up_.pauses().is_condemned(host.named.name) ? HostState::condemned : state, reason);
  tell_excluded(now_ns, host);
}

void LaunchMind::take_back(std::int64_t now_ns, Host& host) {
  host.fit_ranks = 0;
  if (host.state == HostState::ready) return;
  const bool has_failed = host.state == HostState::suspected || host.state == HostState::condemned ||
                          scale_up_.pauses().until_ns(host.named.name) > host.since_ns;
  say(has_failed ? fmt::format("host {} is used again, {} after it was left out: {}", host.named.name,
                               whole_seconds(now_ns - host.since_ns), host.reason)
                 : fmt::format("host {} {} again: the run takes it back", host.named.name,
                               host.state == HostState::unreachable ? "answers" : "is ready"));
  set(now_ns, host, HostState::ready, "");
}

void LaunchMind::heard(std::int64_t now_ns, std::span<const HostAnswer> answers,
                       std::span<const LinkFault> links) {
  HF_CHECK(answers.size() == hosts_.size());
  links_.assign(links.begin(), links.end());
  // A first start for which no host is ready has something wrong itself: its ranks say what, and end it with the code.
  const auto is_not_ready = [](const HostAnswer& answer) { return answer.code.value_or(0) != 0; };
  const auto is_ready = [](const HostAnswer& answer) { return answer.code == 0; };
  const bool is_everywhere =
      !has_begun() && std::ranges::none_of(answers, is_ready) && std::ranges::any_of(answers, is_not_ready);
  std::set<std::string> gone;  // each costs the others a start
  for (std::size_t i = 0; i < hosts_.size(); ++i) {
    const std::string& name = hosts_[i].named.name;
    if (!answers[i].code.has_value() && given_.contains(name) && !drained_.contains(name)) gone.insert(name);
  }
  scale_up_.died(now_ns, gone);
  for (std::size_t i = 0; i < hosts_.size(); ++i) {
    Host& host = hosts_[i];
    HostAnswer answer = answers[i];
    if (is_everywhere && is_not_ready(answer)) answer.code = 0;
    const std::string& name = host.named.name;
    host.is_reached = answer.code == 0;
    if (const std::string own_name = answer.own_name(); !own_name.empty() && own_name != name)
      known_as_[own_name] = name;
    host.room = host.is_reached ? find_room_line(answer.output) : std::nullopt;
    if (host.room.has_value() && !drained_.contains(name)) tell_room(now_ns, host, *host.room);
    host.named.is_suspected = false;  // if it comes back, its login takes the usual time
    if (host.is_reached || drained_.contains(name)) continue;
    const std::string line = answer.last_line();
    const HostState before = host.state;
    const std::string reason_before = host.reason;
    if (!answer.code.has_value()) {
      set(now_ns, host, HostState::unreachable, "it does not answer");
    } else if (*answer.code > max_code_of_program || line.empty()) {
      set(now_ns, host, HostState::unfit,
          fmt::format("{} ended there with exit code {}", settings_.program, *answer.code));
    } else {
      set(now_ns, host, HostState::unfit, line);
    }
    if (before != host.state || reason_before != host.reason) tell_excluded(now_ns, host);
  }
}

void LaunchMind::tell_room(std::int64_t now_ns, Host& host, const RoomOfHost& room) {
  std::string reason =
      fmt::format("it has room for {} rank{} alone: {}", room.ranks, room.ranks == 1 ? "" : "s", room.why);
  if (host.state == HostState::unfit && host.reason == reason) return;
  set(now_ns, host, HostState::unfit, std::move(reason));
  say(fmt::format("host {}: {}", host.named.name, host.reason));
}

bool LaunchMind::is_usable(const Host& host, std::int64_t now_ns) const {
  return host.is_reached && (may_use(host.named.name, now_ns) || is_partly_fit(host, now_ns));
}

bool LaunchMind::is_partly_fit(const Host& host, std::int64_t now_ns) const {
  const std::string& name = host.named.name;
  return host.fit_ranks > 0 && !drained_.contains(name) && !scale_up_.pauses().may_use(name, now_ns);
}

bool LaunchMind::may_use(const std::string& host, std::int64_t now_ns) const {
  return !drained_.contains(host) && scale_up_.pauses().may_use(host, now_ns);
}

std::vector<LaunchHost> LaunchMind::marked(std::int64_t now_ns,
                                           const std::function<bool(const Host&)>& answers) const {
  std::vector<LaunchHost> marked;
  for (const Host& host : hosts_) {
    marked.push_back(host.named);
    marked.back().answers = answers(host);
    int& slots = marked.back().slots;
    if (is_partly_fit(host, now_ns)) slots = std::min(slots, host.fit_ranks);
    if (host.room.has_value()) slots = std::min(slots, host.room->ranks);
  }
  return marked;
}

int LaunchMind::ranks_on(const std::vector<LaunchHost>& hosts) const {
  if (std::ranges::none_of(hosts, &LaunchHost::answers)) return 0;
  return settings_.ranks_on(is_implicit_ ? std::vector<LaunchHost>() : hosts, min_ranks_that_fit_);
}

void LaunchMind::set_faulty(std::map<std::string, std::string> hosts) {
  faulty_.clear();
  for (auto& [host, sentence] : hosts) faulty_.emplace(name_in_list(host), std::move(sentence));
}

// Leaves the hosts out that gave wrong numbers, where the start has as many ranks without them.
void LaunchMind::drop_faulty(std::vector<LaunchHost>& chosen) const {
  const int ranks = ranks_on(chosen);
  for (LaunchHost& host : chosen) {
    if (!host.answers || !faulty_.contains(host.name)) continue;
    host.answers = false;
    host.answers = ranks_on(chosen) < ranks;
  }
}

// Drops the fewest hosts without which no two of the rest failed to connect.
std::vector<LaunchHost> LaunchMind::linked(std::vector<LaunchHost> wanted) const {
  std::vector<SilentPair> pairs;
  for (const LinkFault& link : links_) {
    if (is_answering(wanted, link.from) && is_answering(wanted, link.of))
      pairs.push_back({.from = link.from, .of = link.of});
  }
  if (!pairs.empty()) drop(wanted, fewest_hosts(pairs, linked_hosts()));
  return wanted;
}

// Drops hosts without ranks: those that fail to connect to one with ranks, which the run would lose in their place, and
// the fewest that leave no such failure among the others.
std::vector<LaunchHost> LaunchMind::linked_to_run(std::vector<LaunchHost> wanted,
                                                  std::span<const LinkFault> links) const {
  for (const LinkFault& link : links) {
    if (has_ranks(link.from) != has_ranks(link.of))
      drop(wanted, {has_ranks(link.from) ? link.of : link.from});
  }
  std::vector<SilentPair> pairs;
  for (const LinkFault& link : links) {
    const bool are_new = !has_ranks(link.from) && !has_ranks(link.of);
    if (are_new && is_answering(wanted, link.from) && is_answering(wanted, link.of))
      pairs.push_back({.from = link.from, .of = link.of});
  }
  if (!pairs.empty()) drop(wanted, fewest_hosts(pairs, linked_hosts()));
  return wanted;
}

// Tells which hosts are left out because of their links, and why. They get no pause: they are asked again.
void LaunchMind::leave_out_unlinked(std::int64_t now_ns, const std::vector<LaunchHost>& wanted,
                                    const std::vector<LaunchHost>& chosen, std::span<const LinkFault> links) {
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    Host* host = wanted[i].answers && !chosen[i].answers ? find(wanted[i].name) : nullptr;
    if (host == nullptr) continue;
    std::string reason = reason_of(links, wanted[i].name, chosen);
    if (host->state == HostState::suspected && host->reason == reason) continue;
    set(now_ns, *host, HostState::suspected, std::move(reason));
    tell_excluded(now_ns, *host);
  }
}

// Takes all hosts that may be used, and where these are too few, those whose pause is not over, the one with
// the fewest failures first.
LaunchMind::Choice LaunchMind::choose(std::int64_t now_ns) {
  std::vector<LaunchHost> wanted = marked(now_ns, [&](const Host& host) { return is_usable(host, now_ns); });
  std::vector<LaunchHost> chosen = linked(wanted);
  bool is_enough = ranks_on(chosen) > 0;
  if (!is_enough && short_since_ns_ < 0) short_since_ns_ = now_ns;
  std::vector<std::size_t> needed;
  for (std::size_t i = 0; !is_enough && i < hosts_.size(); ++i) {
    const Host& host = hosts_[i];
    const bool may_help = host.is_reached && !drained_.contains(host.named.name) &&
                          scale_up_.pauses().may_be_needed(host.named.name, now_ns);
    if (!wanted[i].answers && may_help) needed.push_back(i);
  }
  std::ranges::stable_sort(needed, {},
                           [&](std::size_t i) { return scale_up_.pauses().failures(hosts_[i].named.name); });
  for (std::size_t i = 0; i < needed.size() && !is_enough; ++i) {
    wanted[needed[i]].answers = true;
    chosen = linked(wanted);
    is_enough = ranks_on(chosen) > 0;
  }
  leave_out_unlinked(now_ns, wanted, chosen, links_);
  if (is_enough) {
    drop_faulty(chosen);
    for (std::size_t i = 0; i < hosts_.size(); ++i) {
      const bool is_whole = !is_partly_fit(hosts_[i], now_ns) && !hosts_[i].room.has_value();
      if (chosen[i].answers && is_whole) take_back(now_ns, hosts_[i]);
    }
    follow(LaunchOutcome::enough);
    if (is_implicit_) chosen.clear();
    return {.starts = true, .hosts = std::move(chosen)};
  }
  if (now_ns - short_since_ns_ > settings_.wait_for_hosts_ms * ms) {
    follow(LaunchOutcome::over);
    const std::string why = why_missing();
    return {.sentence = fmt::format("no more hosts came within {} s{}; start it again when they are there",
                                    settings_.wait_for_hosts_ms / 1000, why.empty() ? "" : " (" + why + ")")};
  }
  follow(LaunchOutcome::too_few);
  return {.hosts = std::move(chosen)};
}

std::string LaunchMind::why_missing() const {
  std::string why;
  for (const HostView& row : views()) {
    if (row.state != HostState::ready)
      why += fmt::format("{}{} is {}: {}", why.empty() ? "" : "; ", row.name, name_of(row.state), row.reason);
  }
  return why;
}

std::vector<LaunchHost> LaunchMind::candidates(std::int64_t now_ns) {
  if (phase_ != LaunchPhase::train || is_implicit_ || !scale_up_.is_due(now_ns)) return {};
  if (!has_reported_)
    return {};  // a host that is asked ends what is left there, and may have ranks of this start
  std::vector<LaunchHost> asked = marked(now_ns, [&](const Host& host) {
    const bool is_worth = scale_up_.is_worth_a_start(host.named.name, now_ns);
    return (is_worth && !drained_.contains(host.named.name)) || is_partly_fit(host, now_ns);
  });
  const bool grows_itself = asked.size() == 1;  // on one host the run grows by itself
  if (!grows_itself && scale_up_.is_worth_more(ranks_on(asked))) return asked;
  scale_up_.postpone(now_ns);
  return {};
}

bool LaunchMind::is_worth_another_start(std::int64_t now_ns, std::span<const LaunchHost> asked,
                                        std::span<const HostAnswer> answers,
                                        std::span<const LinkFault> links) {
  std::vector<LaunchHost> left(asked.begin(), asked.end());
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (!left[i].answers || (answers[i].code == 0 && answers[i].output.empty())) continue;  // nothing is said
    left[i].answers = answers[i].code == 0;
    Host* host = find(left[i].name);
    const std::optional<RoomOfHost> room = find_room_line(answers[i].output);
    if (left[i].answers && host != nullptr && room.has_value()) {
      left[i].slots = std::min(left[i].slots, room->ranks);
      tell_room(now_ns, *host, *room);
    }
    const std::string line = answers[i].last_line();
    const bool says_why = answers[i].code.has_value() && *answers[i].code <= max_code_of_program;
    if (host == nullptr || left[i].answers || !says_why || line.empty() || host->reason == line) continue;
    set(now_ns, *host, HostState::unfit, line);
    tell_excluded(now_ns, *host);
  }
  const std::vector<LaunchHost> answering = std::exchange(left, linked_to_run(left, links));
  leave_out_unlinked(now_ns, answering, left, links);
  const int room = ranks_on(left);
  if (!scale_up_.is_worth_more(room)) {
    scale_up_.postpone(now_ns);
    return false;
  }
  say(fmt::format(
      "the run has {} ranks, and its hosts have room for {}: it is started again after its next step",
      scale_up_.ranks(), room));
  return true;
}

}  // namespace holdfast::launch
