// HostMeeting lets hosts that prove themselves ready for a start (host_ready.h) try to connect to each other, while the
// launcher waits for their answers: nobody but two hosts can tell whether they reach each other.
//
//   HF_TRY(const std::unique_ptr<HostMeeting> meeting, HostMeeting::open(env, nonce, hosts.size()));
//   ask_hosts(env, hosts, words with meeting->door(), left_ms, here_too, meeting.get());
//   for (const LinkFault& fault : meeting->faults(hosts)) ...
//
// A host that is ready listens on a port that its system chooses, and connects to the launcher, as a daemon of mpirun
// does, with its port and its addresses (HostArrival). When nobody else is waited for, each is told whom to call
// (HostCallees), and says whom it did not reach (HostReport). Then the launcher closes the connections, and all go. A
// host that does not come, or goes early, is evidence of nothing.
//
// All connections are sealed (sealed_network.h) with the nonce of the question as their secret. It is in command lines,
// which other users of a host can read: one who lies to a meeting can have hosts left out of one start, and no more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/launch/host_links.h"
#include "runtime/launch/restart_policy.h"
#include "runtime/os/env.h"
#include "runtime/os/sealed_network.h"

namespace holdfast::launch {

// MeetingMessages reads the texts that an end of a connection sends, one after the other, without waiting.
class MeetingMessages {
 public:
  // Returns the next one; none if it has not come yet. Error: nothing more comes.
  Result<std::optional<std::string>> next(Connection& connection);

 private:
  static constexpr std::size_t head_bytes = 4, max_bytes = std::size_t{1} << 20;
  std::vector<std::byte> bytes_ = std::vector<std::byte>(head_bytes);
  std::size_t filled_ = 0;
};

class HostMeeting {
 public:
  // Hosts report within this time after begin(), or are evidence of nothing.
  static constexpr std::int64_t report_ms = 8'000;

  // `nonce`: 32 characters (write_ready_nonce()); `hosts`: how many are asked.
  static Result<std::unique_ptr<HostMeeting>> open(Env& env, const std::string& nonce, std::size_t hosts);

  std::string door() const;  // MeetingWords::door
  // Takes what has come, without waiting.
  void look();
  bool has_come(std::size_t place) const;
  // Tells those who have come whom to call; who comes later may go. Only the first call does anything.
  void begin();
  // Returns who could not connect to whom. `hosts`: by place.
  std::vector<LinkFault> faults(std::span<const LaunchHost> hosts) const;

 private:
  struct Guest {
    std::unique_ptr<Connection> connection = {};  // null: it has gone
    MeetingMessages messages = {};
    std::optional<HostArrival> arrival = {};
    std::optional<HostReport> report = {};
  };
  HostMeeting(Env& env, std::size_t hosts) : env_(&env), hosts_(hosts) {}
  void hear(Guest& guest);
  void take(Guest& guest, const std::string& text) const;
  bool has_reported(int place) const;

  Env* env_;
  std::size_t hosts_;
  std::vector<std::string> addresses_;
  std::unique_ptr<Listener> listener_;
  std::vector<Guest> guests_;
  std::int64_t begun_ns_ = -1;
  bool is_over_ = false;
};

// Takes this host to the meeting and returns when that is over. It is no error that it cannot come.
void attend_meeting(Env& env, const MeetingWords& words, const std::string& nonce);

}  // namespace holdfast::launch
