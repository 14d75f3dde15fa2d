#include "runtime/launch/host_ready.h"

#include <fmt/core.h>

#include <charconv>
#include <sstream>

#include "runtime/config/document.h"
#include "runtime/core/digest.h"
#include "runtime/core/units.h"
#include "runtime/launch/mpirun_line.h"
#include "runtime/launch/run_progress.h"
#include "runtime/os/foreign_text.h"

namespace holdfast::launch {
namespace {

constexpr const char *shared = "shared", *local = "local", *nothing = "-";
// Words of a meeting, and those before the words of the config.
constexpr std::size_t meeting_words = 4, fixed_words = 9 + meeting_words;

std::string nonce_path(const RunPaths& paths, const std::string& token) {
  return fmt::format("{}/{}-ready", paths.launch(), token);
}

std::optional<int> parse_number(const std::string& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_number = error == std::errc() && end == text.data() + text.size() && number >= 0;
  return is_number ? std::optional(number) : std::nullopt;
}

std::optional<int> parse_count(const std::string& text) {
  const std::optional<int> number = parse_number(text);
  return number == 0 ? std::nullopt : number;
}

// Adds the words of a meeting; "-" stands for an empty one.
void append(std::vector<std::string>& words, const MeetingWords& meeting) {
  const auto or_nothing = [](const std::string& text) { return text.empty() ? nothing : text; };
  words.insert(words.end(), {or_nothing(meeting.door), fmt::format("{}", meeting.place), meeting.mpi,
                             or_nothing(meeting.interface)});
}

std::optional<MeetingWords> parse_meeting(std::span<const std::string> words) {
  const std::optional<int> place = parse_number(words[1]);
  if (!place.has_value()) return std::nullopt;
  const auto text = [](const std::string& word) { return word == nothing ? "" : word; };
  return MeetingWords{.door = text(words[0]), .place = *place, .mpi = words[2], .interface = text(words[3])};
}

Error not_mounted(const RunPaths& paths, const std::string& reason) {
  return with_reach(Reach::host,
                    fail(ExitCode::checkpoint,
                         "run.directory {} is not on this host what it is on the host of the launcher: {}; "
                         "mount it here, as on the other hosts",
                         paths.directory, reason));
}

}  // namespace

bool is_launch_token(const std::string& text) {
  constexpr std::size_t digits = 16;
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

Result<std::string> write_ready_nonce(Env& env, const RunPaths& paths, const std::string& token) {
  const std::string nonce = fmt::format("{:016x}{:016x}", env.random_u64(), env.random_u64());
  HF_TRY_VOID(env.replace_text(nonce_path(paths, token), nonce));
  return nonce;
}

Result<void> remove_ready_nonce(Env& env, const RunPaths& paths, const std::string& token) {
  return env.remove(nonce_path(paths, token));
}

// A client of NFS may know an older file of this name, or none, for a moment.
Result<bool> sees_run_directory(Env& env, const RunPaths& paths, const ReadyQuestion& question) {
  constexpr std::int64_t patience_ms = 1'000, pause_us = 50'000;
  const std::string path = nonce_path(paths, question.token);
  const std::int64_t until_ns = env.monotonic_ns() + patience_ms * 1'000'000;
  while (true) {
    const Result<FileStatus> status = env.status(path);
    const Result<std::string> nonce = env.read_text_within(path, text_limits::identity);
    if (nonce.ok() && *nonce == question.nonce) return true;
    if (!question.shares_directory && status.ok()) return false;
    if (env.monotonic_ns() < until_ns) {
      env.sleep_us(pause_us);
      continue;
    }
    if (!status.ok()) return not_mounted(paths, status.error().message);
    if (!status->exists) return not_mounted(paths, "what the launcher has just written there is missing");
    return not_mounted(
        paths, nonce.ok() ? "it is another directory, or an older state of it" : nonce.error().message);
  }
}

bool hosts_share_directory(Env& env, const RunPaths& paths) {
  const Result<FileStatus> place_name = env.status(paths.place_name());
  if (!place_name.ok() || place_name->exists) return false;
  const std::optional<RanksInLog> ranks = newest_ranks(env, paths, 0);
  return ranks.has_value() && ranks->by_host.size() > 1;
}

std::string config_digest(const Config& config) {
  return to_hex(digest_of(dump_config(config)));
}

RoomOfHost room_for_ranks(int ranks, std::span<const RankSpace> spaces, std::uint64_t needed_bytes,
                          std::int64_t most) {
  std::vector<std::int64_t> sharing(spaces.size());
  for (int rank = 0; rank < ranks; ++rank) {
    const std::size_t index = static_cast<std::size_t>(rank) % spaces.size();
    const RankSpace& space = spaces[index];
    const auto sharers = static_cast<std::uint64_t>(++sharing[index]);
    if (!space.trouble.empty()) return {.ranks = rank, .why = space.trouble};
    if (most > 0 && sharing[index] > most)
      return {.ranks = rank,
              .why = fmt::format("{} is for {} rank{} (parallel.ranks_per_gpu)", space.name, most,
                                 most == 1 ? "" : "s")};
    if (space.bytes.has_value() && needed_bytes > *space.bytes / sharers)
      return {.ranks = rank,
              .why = fmt::format("a rank needs {}, and {} has {}", format_bytes(needed_bytes), space.name,
                                 format_bytes(*space.bytes))};
  }
  return {.ranks = ranks};
}

namespace {
constexpr std::string_view room_words = "room for ";
}

std::string line_of(const RoomOfHost& room) {
  return fmt::format("{}{}: {}", room_words, room.ranks, room.why);
}

std::optional<RoomOfHost> find_room_line(const std::string& output) {
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(": ");
    if (!line.starts_with(room_words) || colon == std::string::npos) continue;
    const std::optional<int> ranks = parse_count(line.substr(room_words.size(), colon - room_words.size()));
    if (ranks.has_value()) return RoomOfHost{.ranks = *ranks, .why = line.substr(colon + 2)};
  }
  return std::nullopt;
}

std::vector<std::string> words_of(const ReadyQuestion& question) {
  std::vector<std::string> words = {"ready",
                                    question.token,
                                    question.nonce,
                                    question.shares_directory ? shared : local,
                                    question.config_digest.empty() ? nothing : question.config_digest,
                                    fmt::format("{}", question.ranks),
                                    fmt::format("{}", question.ranks_here)};
  append(words, question.meeting);
  words.insert(words.end(), {question.directory, "--", question.config});
  words.insert(words.end(), question.overrides.begin(), question.overrides.end());
  return words;
}

std::optional<ReadyQuestion> parse_ready_question(const std::vector<std::string>& words) {
  if (words.size() <= fixed_words || words[0] != "ready" || words[fixed_words - 1] != "--")
    return std::nullopt;
  const std::optional<int> ranks = parse_count(words[5]), ranks_here = parse_count(words[6]);
  const std::optional<MeetingWords> meeting = parse_meeting(std::span(words).subspan(7, meeting_words));
  const bool fits = is_launch_token(words[1]) && is_run_id(words[2]) &&
                    (words[3] == shared || words[3] == local) &&
                    (words[4] == nothing || is_run_id(words[4])) && ranks.has_value() &&
                    ranks_here.has_value() && meeting.has_value();
  if (!fits) return std::nullopt;
  return ReadyQuestion{.token = words[1],
                       .nonce = words[2],
                       .shares_directory = words[3] == shared,
                       .config_digest = words[4] == nothing ? "" : words[4],
                       .ranks = *ranks,
                       .ranks_here = *ranks_here,
                       .meeting = *meeting,
                       .directory = words[fixed_words - 2],
                       .config = words[fixed_words],
                       .overrides = {words.begin() + fixed_words + 1, words.end()}};
}

std::vector<std::string> words_of(const MeetQuestion& question) {
  std::vector<std::string> words = {"meet", question.nonce};
  append(words, question.meeting);
  return words;
}

std::optional<MeetQuestion> parse_meet_question(const std::vector<std::string>& words) {
  if (words.size() != 2 + meeting_words || words[0] != "meet" || !is_run_id(words[1])) return std::nullopt;
  const std::optional<MeetingWords> meeting = parse_meeting(std::span(words).subspan(2));
  if (!meeting.has_value()) return std::nullopt;
  return MeetQuestion{.nonce = words[1], .meeting = *meeting};
}

bool may_be_secret(const std::string& variable) {
  return variable.find("_COMMAND") != std::string::npos;  // of uploads, with the keys of a store
}

std::vector<std::string> line_on_host(Env& env, const std::vector<std::string>& words) {
  std::vector<std::string> line = {"env"};
  for (const std::string& name : variables_of_ranks()) {
    if (!env.variable(name).empty() && !may_be_secret(name))
      line.push_back(fmt::format("{}={}", name, env.variable(name)));
  }
  line.insert(line.end(), words.begin(), words.end());
  return line;
}

std::vector<std::string> ready_line(Env& env, const std::string& program, const ReadyQuestion& question) {
  std::vector<std::string> words = {program, "launch", "--on-host"};
  const std::vector<std::string> asked = words_of(question);
  words.insert(words.end(), asked.begin(), asked.end());
  return line_on_host(env, words);
}

}  // namespace holdfast::launch
