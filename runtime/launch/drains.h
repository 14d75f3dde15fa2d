// Drains: the hosts that a run is asked to leave (runtime/run/drain_requests.h), and how far that has come.
// Pure; the launcher reads the requests, ends starts and writes the answers.
//
//   DrainStep step = drains.take(now_ns, requests, hosts, view);   // some times a second while a start
//   trains write(step.answers);  if (!step.leave.empty()) end the start, then write(drains.begun());
//   write(drains.trains(step_number));                             // when the next start trains
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/run/drain_requests.h"
#include "watchdog/restart_policy.h"

namespace holdfast::inline launch {

// DrainView is what is known of the start that trains.
struct DrainView {
  std::uint64_t step = 0;          // the newest
  std::string launcher_host = {};  // as it calls itself
  // Says whether ranks of the start are on this host, by its name in the list of hosts.
  std::function<bool(const std::string& host)> has_ranks;
  // Says whether a start on these hosts could have as many ranks as the run needs.
  std::function<bool(const std::vector<LaunchHost>& hosts)> has_room;
};

struct DrainStep {
  std::vector<DrainRequest> answers = {};
  std::vector<std::string> leave = {};  // hosts for whose sake the start has to end
  // Says why the run must save and stop: a host will be gone that it cannot do without. Empty: it need not.
  std::string stop = {};
};

class Drains {
 public:
  // Takes the requests that are there now; a host whose request is gone may be used again. A later deadline
  // for a host that is not left yet counts from now.
  DrainStep take(std::int64_t now_ns, const std::vector<DrainRequest>& requests,
                 const std::vector<LaunchHost>& hosts, const DrainView& view);
  // Forgets the hosts whose requests are gone, and does nothing else.
  void forget_cancelled(const std::vector<DrainRequest>& requests);
  // The start ends for the sake of all hosts of the last take(). Returns the answers.
  std::vector<DrainRequest> begun();
  // A start without them trains. Returns the answers.
  std::vector<DrainRequest> trains(std::uint64_t step);

  // Returns whether the next start has to do without this host.
  bool leaves(const std::string& host) const;
  // Returns the hosts that a start is ended for at the moment.
  std::vector<std::string> leaving() const;
  // Says which host should have been left by now, while the start that has ranks there goes on; none: no
  // host.
  std::optional<std::string> overdue(std::int64_t now_ns) const;

 private:
  struct Drain {
    std::string host;      // its name in the list of hosts
    std::string asked_as;  // and in the request
    DrainRequest::State state = DrainRequest::State::asked;
    std::int64_t deadline_s = 0;    // as it was asked for last
    std::int64_t deadline_ns = -1;  // -1: none
  };
  static void set_deadline(Drain& drain, std::int64_t now_ns, std::int64_t deadline_s);
  DrainRequest answer_of(const Drain& drain, std::uint64_t step = 0) const;
  void take_new(std::int64_t now_ns, const DrainRequest& request, const std::vector<LaunchHost>& hosts,
                const DrainView& view, DrainStep& step);

  std::vector<Drain> drains_;
};

}  // namespace holdfast::inline launch
