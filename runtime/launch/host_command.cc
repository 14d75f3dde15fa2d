#include "runtime/launch/host_command.h"

#include <fmt/core.h>

#include <algorithm>

#include "checkpoint/ram_tier.h"
#include "runtime/core/digest.h"
#include "runtime/core/text.h"
#include "runtime/launch/host_meeting.h"
#include "runtime/launch/run_processes.h"
#include "runtime/os/foreign_text.h"
#include "runtime/run/launch_record.h"
#include "watchdog/board.h"

namespace holdfast::launch {
namespace {

// Checks a list of run ids that are separated by commas.
bool are_run_ids(const std::string& text) {
  const std::vector<std::string> ids = split_list(text);
  return !ids.empty() && std::ranges::all_of(ids, is_run_id);
}

void remove_scratch(Env& env, const std::string& token) {
  const Result<std::vector<std::string>> names = env.list_shared_memory();
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    if (name.starts_with(launch_scratch_name(token)))
      static_cast<void>(env.remove_tree(env.shared_memory_path(name)).ok());
  }
}

std::string in_one_line(std::string text) {
  text.erase(text.find_last_not_of('\n') + 1);
  for (std::size_t at = 0; (at = text.find('\n', at)) != std::string::npos;) text.replace(at, 1, "; ");
  return text;
}

Result<void> make_ready(Env& env, const ReadyQuestion& question, const HostProof& prove) {
  if (!do_host_command(env, HostCommand::clean, question.token, "")) {
    return with_reach(Reach::minute,
                      fail(ExitCode::communication,
                           "processes of an earlier start of this run do not die on this host; the "
                           "system holds them"));
  }
  HF_TRY_VOID(prove(question));
  attend_meeting(env, question.meeting, question.nonce);
  return {};
}

}  // namespace

Result<std::string> launch_token(Env& env, const RunPaths& paths) {
  const std::string path = paths.launch() + "/token";
  const Result<std::string> known = read_text_within(env, path, text_limits::identity);
  HF_TRY(const RunIdentity identity, identify_run(env, paths));
  const bool is_copied = !identity.copy_of.empty();  // the token identifies processes of another run
  if (known.ok() && is_launch_token(*known) && !is_copied) return *known;
  const std::string token = fmt::format("{:016x}", env.random_u64());
  HF_TRY_VOID(env.replace_text(path, token));
  return token;
}

const char* name_of(HostCommand duty) {
  switch (duty) {
    case HostCommand::look:
      return "look";
    case HostCommand::clean:
      return "clean";
    case HostCommand::finish:
      return "finish";
  }
  return "";
}

bool do_host_command(Env& env, HostCommand duty, const std::string& token, const std::string& run_id) {
  if (duty == HostCommand::look) return processes_of_starts(env, token).empty();
  const bool ended = end_processes_of_starts(env, token, 0);
  remove_scratch(env, token);
  static_cast<void>(remove_dead_boards(env));
  for (const std::string& each : split_list(duty == HostCommand::finish ? run_id : ""))
    static_cast<void>(remove_snapshots(env, digest_of(each)).ok());
  return ended;
}

std::vector<std::string> arguments_of(HostCommand duty, const std::string& token, const std::string& run_id) {
  std::vector<std::string> words = {"launch", "--on-host", name_of(duty), token};
  if (!run_id.empty()) words.push_back(run_id);
  return words;
}

Result<int> run_host_command(Env& env, const std::vector<std::string>& words, const HostProof& prove) {
  if (const std::optional<ReadyQuestion> question = parse_ready_question(words); question.has_value()) {
    const Result<void> ready = make_ready(env, *question, prove);
    if (ready.ok()) return 0;
    return Error{ready.error().code, in_one_line(ready.error().message), ready.error().reach};
  }
  if (const std::optional<MeetQuestion> question = parse_meet_question(words); question.has_value()) {
    attend_meeting(env, question->meeting, question->nonce);
    return 0;
  }
  for (const HostCommand duty : {HostCommand::look, HostCommand::clean, HostCommand::finish}) {
    const bool fits = (words.size() == 2 || (words.size() == 3 && are_run_ids(words[2]))) &&
                      words[0] == name_of(duty) && is_launch_token(words[1]);
    if (fits) return do_host_command(env, duty, words[1], words.size() == 3 ? words[2] : "") ? 0 : 1;
  }
  return fail(
      ExitCode::config,
      "launch --on-host is for the launcher itself, which calls it on distant hosts: it needs look, "
      "clean or finish, a token, and ids of the run; or ready or meet, and the words of that question");
}

}  // namespace holdfast::launch
