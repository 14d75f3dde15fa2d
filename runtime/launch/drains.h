// Drains holds the hosts that a run is asked to leave (runtime/run/requests.h), and the state of each
// drain. Pure; the launcher reads the requests, ends starts and writes the answers.
//
//   // Several times a second while a start trains:
//   DrainStep step = drains.take(now_ns, requests, hosts, view);
//   write(step.answers);
//   if (!step.leave.empty()) end the start, then write(drains.begun());
//   // When the next start trains:
//   write(drains.trains(step_number));
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/launch/restart_policy.h"
#include "runtime/run/requests.h"

namespace holdfast::launch {

// DrainView holds the facts about the start that trains.
struct DrainView {
  std::uint64_t step = 0;          // newest step
  std::string launcher_host = {};  // its own host name
  // Returns whether ranks of the start are on this host, by its name in the list of hosts.
  std::function<bool(const std::string& host)> has_ranks;
  // Returns whether a start on these hosts could have as many ranks as the run needs, and at least so many.
  std::function<bool(const std::vector<LaunchHost>& hosts, int ranks)> has_room;
};

// Breaker: never more than half of the hosts are left as sick or slow within five minutes. What finds so many sick at once is more
// likely wrong itself, or there is nowhere to go. Returns whether one more may be left; `left_ns`: when others were. Pure.
bool breaker_lets_leave(std::span<const std::int64_t> left_ns, std::int64_t now_ns, std::size_t hosts);

struct DrainStep {
  std::vector<DrainRequest> answers = {};
  std::vector<std::string> leave = {};  // hosts that the start has to end for
  // Reason why the run must save and stop: it cannot go on without a host that will be gone. Empty: no need
  // to stop.
  std::string stop = {};
};

class Drains {
 public:
  // Takes the current requests; a host whose request is gone may be used again. A new deadline for a host
  // that the run has not left yet counts from now.
  DrainStep take(std::int64_t now_ns, const std::vector<DrainRequest>& requests,
                 const std::vector<LaunchHost>& hosts, const DrainView& view);
  // Takes over a request that an earlier launcher has begun to carry out, for a host of the list; false if there is
  // none to take over.
  bool take_over(const DrainRequest& request, const std::vector<LaunchHost>& hosts);
  // Forgets the hosts whose requests are gone, and does nothing else.
  void forget_cancelled(const std::vector<DrainRequest>& requests);
  // Records that the start ends for all hosts of the last take(). Returns the answers.
  std::vector<DrainRequest> begun();
  // Records that a start without these hosts trains. Returns the answers.
  std::vector<DrainRequest> trains(std::uint64_t step);

  // Returns whether the next start must not use this host.
  bool leaves(const std::string& host) const;
  // Returns why the run leaves a host that it finds sick or slow itself; empty: it was asked to.
  std::string reason(const std::string& host) const;
  // Returns the hosts that the current start is being ended for.
  std::vector<std::string> leaving() const;
  // Returns a host whose deadline is over while the start that has ranks there goes on; none if there is no
  // such host.
  std::optional<std::string> overdue(std::int64_t now_ns) const;

 private:
  struct Drain {
    std::string host;      // its name in the list of hosts
    std::string asked_as;  // its name in the request
    DrainRequest::State state = DrainRequest::State::asked;
    std::int64_t deadline_s = 0;    // as last requested
    std::int64_t deadline_ns = -1;  // -1: none
    std::string reason = {};        // of a host that the run finds sick or slow
  };
  static void set_deadline(Drain& drain, std::int64_t now_ns, std::int64_t deadline_s);
  DrainRequest answer_of(const Drain& drain, std::uint64_t step = 0) const;
  void take_new(std::int64_t now_ns, const DrainRequest& request, const std::vector<LaunchHost>& hosts,
                const DrainView& view, DrainStep& step);

  std::vector<Drain> drains_;
  std::vector<std::int64_t> sick_ns_;  // when the run began to leave sick hosts
};

}  // namespace holdfast::launch
