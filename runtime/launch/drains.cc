#include "runtime/launch/drains.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace holdfast::launch {
namespace {

using State = DrainRequest::State;

constexpr std::int64_t one_second_ns = 1'000'000'000, breaker_window_ns = 300 * one_second_ns;

// Returns whether one of the names is the other without its domain, or both are the same.
bool is_same_host(const std::string& one, const std::string& other) {
  const auto is_short_for = [](const std::string& name, const std::string& whole) {
    return whole.size() > name.size() && whole.starts_with(name) && whole[name.size()] == '.';
  };
  return one == other || is_short_for(one, other) || is_short_for(other, one);
}

std::vector<std::string> names_of(const std::vector<LaunchHost>& hosts) {
  std::vector<std::string> names;
  for (const LaunchHost& host : hosts) names.push_back(host.name);
  return names;
}

}  // namespace

bool breaker_lets_leave(std::span<const std::int64_t> left_ns, std::int64_t now_ns, std::size_t hosts) {
  const auto lately = static_cast<std::size_t>(
      std::ranges::count_if(left_ns, [&](std::int64_t left) { return now_ns - left < breaker_window_ns; }));
  return 2 * (lately + 1) <= hosts;
}

DrainRequest Drains::answer_of(const Drain& drain, std::uint64_t step) const {
  return {.host = drain.asked_as, .state = drain.state, .step = step, .sentence = drain.reason};
}

void Drains::forget_cancelled(const std::vector<DrainRequest>& requests) {
  std::erase_if(drains_, [&](const Drain& drain) {
    return std::ranges::find(requests, drain.asked_as, &DrainRequest::host) == requests.end();
  });
}

bool Drains::take_over(const DrainRequest& request, const std::vector<LaunchHost>& hosts) {
  const auto host = std::ranges::find_if(
      hosts, [&](const LaunchHost& each) { return is_same_host(each.name, request.host); });
  const bool has_left = request.state == State::begun || request.state == State::drained;
  if (host == hosts.end() || !has_left) return request.state == State::asked || request.state == State::sick;
  drains_.push_back(
      {.host = host->name, .asked_as = request.host, .state = request.state, .reason = request.sentence});
  return true;
}

DrainStep Drains::take(std::int64_t now_ns, const std::vector<DrainRequest>& requests,
                       const std::vector<LaunchHost>& hosts, const DrainView& view) {
  forget_cancelled(requests);
  DrainStep step;
  for (const DrainRequest& request : requests) {
    const bool is_new =
        request.state == State::asked || request.state == State::notice || request.state == State::sick;
    const auto known = std::ranges::find(drains_, request.host, &Drain::asked_as);
    if (!is_new) continue;
    if (known == drains_.end()) {
      take_new(now_ns, request, hosts, view, step);
    } else if (request.state == State::asked && known->deadline_s != request.deadline_s &&
               known->state != State::drained) {
      set_deadline(*known, now_ns, request.deadline_s);
    }
  }
  for (Drain& drain : drains_) {
    if (drain.state != State::asked) continue;
    if (view.has_ranks(drain.host)) {
      if (std::ranges::find(step.leave, drain.host) == step.leave.end()) step.leave.push_back(drain.host);
    } else {
      drain.state = State::drained;
      step.answers.push_back(answer_of(drain, view.step));
    }
  }
  return step;
}

void Drains::take_new(std::int64_t now_ns, const DrainRequest& request, const std::vector<LaunchHost>& hosts,
                      const DrainView& view, DrainStep& step) {
  const bool goes_away = request.state == State::notice;
  const auto refuse = [&](std::string sentence, bool stops = false) {
    if (stops && step.stop.empty()) step.stop = sentence;
    step.answers.push_back({.host = request.host, .state = State::refused, .sentence = std::move(sentence)});
  };
  const auto found = std::ranges::find_if(
      hosts, [&](const LaunchHost& host) { return is_same_host(host.name, request.host); });
  if (goes_away && (hosts.empty() || is_same_host(request.host, view.launcher_host)))
    return refuse(fmt::format("host {} is about to go away, and holdfast launch with it", request.host),
                  /*stops=*/true);
  if (is_same_host(request.host, view.launcher_host)) {
    return refuse(fmt::format(
        "holdfast launch itself is on host {}, and the run ends with it: let the run save and stop "
        "(SIGTERM to holdfast launch), and launch it on another host",
        request.host));
  }
  if (found == hosts.end()) {
    return refuse(hosts.empty() ? "the run was launched without a list of hosts, so it cannot leave one"
                                : fmt::format("the run has no host {}; its hosts are {}", request.host,
                                              fmt::join(names_of(hosts), ", ")));
  }
  std::vector<LaunchHost> left = hosts;
  for (LaunchHost& host : left)
    host.answers = host.answers && host.name != found->name &&
                   std::ranges::find(drains_, host.name, &Drain::host) == drains_.end();
  if (!view.has_room(left, 0)) {
    return refuse(
        fmt::format(
            "without host {} there is no room for the run on the other hosts: elastic.min_data_parallel, "
            "or MIN of -np MIN:MAX, wants more ranks than they have slots for",
            request.host),
        /*stops=*/goes_away);
  }
  if (!view.has_room(left, request.ranks)) {
    return refuse(
        fmt::format("without it fewer than {} ranks have room, with which the run would be slower: {}",
                    request.ranks, request.sentence));
  }
  const bool is_sick = request.state == State::sick;
  if (is_sick && !breaker_lets_leave(sick_ns_, now_ns, hosts.size())) {
    return refuse(fmt::format("half of the hosts were left as sick within {} minutes, and no more are: {}",
                              breaker_window_ns / 60 / one_second_ns, request.sentence));
  }
  if (is_sick) sick_ns_.push_back(now_ns);
  Drain drain{.host = found->name, .asked_as = request.host, .reason = request.sentence};
  set_deadline(drain, now_ns, request.deadline_s);
  drains_.push_back(std::move(drain));
}

void Drains::set_deadline(Drain& drain, std::int64_t now_ns, std::int64_t deadline_s) {
  drain.deadline_s = deadline_s;
  drain.deadline_ns = deadline_s > 0 ? now_ns + deadline_s * one_second_ns : -1;
}

std::vector<DrainRequest> Drains::begun() {
  std::vector<DrainRequest> answers;
  for (Drain& drain : drains_) {
    if (drain.state != State::asked) continue;
    drain.state = State::begun;
    answers.push_back(answer_of(drain));
  }
  return answers;
}

std::vector<DrainRequest> Drains::trains(std::uint64_t step) {
  std::vector<DrainRequest> answers;
  for (Drain& drain : drains_) {
    if (drain.state != State::begun) continue;
    drain.state = State::drained;
    answers.push_back(answer_of(drain, step));
  }
  return answers;
}

bool Drains::leaves(const std::string& host) const {
  return std::ranges::any_of(
      drains_, [&](const Drain& drain) { return drain.host == host && drain.state != State::asked; });
}

std::string Drains::reason(const std::string& host) const {
  for (const Drain& drain : drains_) {
    if (drain.host == host && !drain.reason.empty()) return drain.reason;
  }
  return {};
}

std::vector<std::string> Drains::leaving() const {
  std::vector<std::string> hosts;
  for (const Drain& drain : drains_) {
    if (drain.state == State::begun) hosts.push_back(drain.host);
  }
  return hosts;
}

std::optional<std::string> Drains::overdue(std::int64_t now_ns) const {
  for (const Drain& drain : drains_) {
    const bool is_under_way = drain.state == State::asked || drain.state == State::begun;
    if (is_under_way && drain.deadline_ns >= 0 && now_ns >= drain.deadline_ns) return drain.host;
  }
  return std::nullopt;
}

}  // namespace holdfast::launch
