// Readiness of hosts: before a start waits for them, the launcher asks all hosts to prove what each can prove without
// the others, and then that they reach each other (host_meeting.h). One command per host ends what earlier starts have left there, and then makes the proof:
// `holdfast launch --on-host ready ...` (host_command.h). Here are the words of that question, and what is compared with
// the launcher's host. The rest of the proof needs the model and the device (runtime/cli/launch_command.cc).
//
//   HF_TRY(const std::string nonce, write_ready_nonce(env, paths, token));
//   const ReadyQuestion question{.token = token, .nonce = nonce, .shares_directory = hosts_share_directory(env, paths),
//                                .config_digest = config_digest(loaded.config), .ranks = ..., ...};
//   ask_hosts(env, hosts, ready_line(env, program, question), left_ms);
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/config/config.h"
#include "runtime/core/result.h"
#include "runtime/launch/host_links.h"
#include "runtime/os/env.h"
#include "runtime/run/run_directory.h"

namespace holdfast::launch {

// Returns whether the text has the form of the token of a run (host_command.h), because it becomes part of paths that
// are removed.
bool is_launch_token(const std::string& text);

struct ReadyQuestion {
  std::string token = {};          // of the run (host_command.h)
  std::string nonce = {};          // write_ready_nonce()
  bool shares_directory = false;   // a host that does not see the nonce is unfit (hosts_share_directory())
  std::string config_digest = {};  // empty: the host's config is not compared
  int ranks = 1;                   // that the start is to have on all hosts, spares included
  int ranks_here = 1;              // that it may have on this host
  MeetingWords meeting = {};
  std::string directory = {};  // working directory
  std::string config = {};     // path of the config file
  std::vector<std::string> overrides = {};

  bool operator==(const ReadyQuestion&) const = default;
};

// Writes a new nonce, RUN/launch/TOKEN-ready, in the place of an earlier one, and returns it. The name is one of those
// that the launcher removes when it cleans up.
Result<std::string> write_ready_nonce(Env& env, const RunPaths& paths, const std::string& token);

Result<void> remove_ready_nonce(Env& env, const RunPaths& paths, const std::string& token);

// Returns whether this host sees the launcher's run directory. Where it does not, and the question says that the hosts
// share it, the error has ExitCode::checkpoint and Reach::host.
Result<bool> sees_run_directory(Env& env, const RunPaths& paths, const ReadyQuestion& question);

// Returns whether the run has recorded that its hosts share the directory: its newest start had ranks on several hosts,
// and they did not have one each (storage_domains.h).
bool hosts_share_directory(Env& env, const RunPaths& paths);

// Returns the digest of a config as it was loaded, which is the same on all hosts.
std::string config_digest(const Config& config);

// RankSpace is what ranks of a host compute on, and share where there are more of them: a GPU, or the processors.
struct RankSpace {
  std::string name = {};                    // "GPU-..."; "this host"
  std::string trouble = {};                 // why no rank can compute there; empty: it can
  std::optional<std::uint64_t> bytes = {};  // of memory; none: unknown
};
// RoomOfHost says how many ranks a host has room for, and what keeps it from more.
struct RoomOfHost {
  int ranks = 0;
  std::string why = {};
  bool operator==(const RoomOfHost&) const = default;
};
// Returns how many of `ranks` the host has room for, which take its spaces in turn (DevicePlace): those before the
// first that has no place. `needed_bytes`: of each; `most`: ranks of a space, 0 for any number. Pure.
RoomOfHost room_for_ranks(int ranks, std::span<const RankSpace> spaces, std::uint64_t needed_bytes,
                          std::int64_t most);

// Returns the line in which a host that is ready says that it has room for fewer ranks than planned, and reads it from
// what the host has printed; none if there is no such line.
std::string line_of(const RoomOfHost& room);
std::optional<RoomOfHost> find_room_line(const std::string& output);

// Returns the words after `--on-host` of the question, and reads them; none if they are invalid.
std::vector<std::string> words_of(const ReadyQuestion& question);
std::optional<ReadyQuestion> parse_ready_question(const std::vector<std::string>& words);

// MeetQuestion is for a host on which the run trains, and which others want to reach: it proves nothing, and ends
// nothing that is there.
struct MeetQuestion {
  std::string nonce = {};
  MeetingWords meeting = {};
  bool operator==(const MeetQuestion&) const = default;
};
std::vector<std::string> words_of(const MeetQuestion& question);
std::optional<MeetQuestion> parse_meet_question(const std::vector<std::string>& words);
// Return the command line for a host: it sets the variables that ranks there get, too, since the config may have values
// from them; but not those whose values may be secrets, as command lines are no secret (may_be_secret()).
bool may_be_secret(const std::string& variable);
std::vector<std::string> line_on_host(Env& env, const std::vector<std::string>& words);
std::vector<std::string> ready_line(Env& env, const std::string& program, const ReadyQuestion& question);

}  // namespace holdfast::launch
