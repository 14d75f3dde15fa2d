#include "runtime/run/requests.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

#include "runtime/os/foreign_text.h"

namespace holdfast::run {
namespace {

constexpr std::int64_t request_look_ms = 250;
constexpr std::int64_t first_look_ms = 1000;  // most that a start waits for it; it takes well under 1
constexpr const char* attended_prefix = "save-";
constexpr const char* unattended_prefix = "signal-";
constexpr const char* restart_name = "restart";
constexpr std::string_view drain_prefix = "drain-";
constexpr std::array<std::string_view, 5> save_words = {"", "asked", "begun", "saved", "failed"};
constexpr std::array<std::string_view, 6> drain_words = {"asked", "notice",  "sick",
                                                         "begun", "drained", "refused"};

// Returns the names of the files in RUN/requests, or none where it is not there or cannot be read now.
std::optional<std::vector<std::string>> request_names(Env& env, const std::string& directory) {
  const Result<FileStatus> status = env.status(directory);
  if (!status.ok() || !status->exists) return std::nullopt;
  Result<std::vector<std::string>> names = env.list(directory);
  return names.ok() ? std::optional(std::move(names).value()) : std::nullopt;
}

Result<std::string> write_request(Env& env, const RunPaths& paths, const std::string& name,
                                  const std::string& line) {
  HF_TRY_VOID(env.make_directories(paths.requests()));
  std::string path = paths.requests() + "/" + name;
  HF_TRY_VOID(env.replace_text(path, line));
  return path;
}

// Reads the word that a request begins with, and returns what follows it; none: there is no such file.
std::optional<std::istringstream> read_request(Env& env, const std::string& path, std::string& word) {
  const Result<std::string> text = read_text_within(env, path, text_limits::request);
  if (!text.ok()) return std::nullopt;
  std::istringstream line(*text);
  line >> word;
  return line;
}

bool is_save_request(const std::string& name) {
  return (name.starts_with(attended_prefix) || name.starts_with(unattended_prefix)) &&
         name.find('.') == std::string::npos;  // what is being replaced has a name with one
}

bool is_drain_request(const std::string& name) {
  return name.starts_with(drain_prefix);
}

std::string to_line(const SaveAnswer& answer) {
  if (answer.state == SaveAnswer::State::none || answer.state == SaveAnswer::State::asked) return "asked\n";
  return fmt::format("{} {}{}{}\n", save_words[static_cast<std::size_t>(answer.state)], answer.step,
                     answer.state == SaveAnswer::State::failed ? " " : "",
                     answer.state == SaveAnswer::State::failed ? answer.sentence : "");
}

bool is_final(const SaveAnswer& answer) {
  return answer.state == SaveAnswer::State::saved || answer.state == SaveAnswer::State::failed;
}

RestartRequest read_restart_request(Env& env, const std::string& path) {
  RestartRequest request;
  std::string word;
  if (auto line = read_request(env, path, word)) *line >> request.hosts_leaving;
  request.wanted = word == "asked";
  return request;
}

bool is_host_name(const std::string& name) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '.' || c == '_';
  };
  return !name.empty() && name.front() != '-' && name.front() != '.' && std::ranges::all_of(name, fits);
}

std::string to_line(const DrainRequest& request) {
  using State = DrainRequest::State;
  std::string line(drain_words[static_cast<std::size_t>(request.state)]);
  if (request.state == State::asked || request.state == State::sick)
    line += fmt::format(" {}", request.deadline_s);
  if (request.state == State::sick) line += fmt::format(" {}", request.ranks);
  if (request.state == State::drained) line += fmt::format(" {}", request.step);
  if (!request.sentence.empty()) line += " " + request.sentence;
  std::ranges::replace(line, '\n', ' ');
  return line + "\n";
}

std::optional<DrainRequest> read_drain_request(Env& env, const std::string& path, const std::string& host) {
  std::string word;
  auto line = read_request(env, path, word);
  const auto* const known = std::ranges::find(drain_words, word);
  if (!line.has_value() || known == drain_words.end()) return std::nullopt;
  DrainRequest request{.host = host, .state = static_cast<DrainRequest::State>(known - drain_words.begin())};
  using State = DrainRequest::State;
  if (request.state == State::asked || request.state == State::sick) *line >> request.deadline_s;
  if (request.state == State::sick) *line >> request.ranks;
  if (request.state == State::drained) *line >> request.step;
  std::getline(*line >> std::ws, request.sentence);
  return request;
}

}  // namespace

Result<void> request_restart(Env& env, const RunPaths& paths, int hosts_leaving) {
  return outcome_of(write_request(env, paths, restart_name, fmt::format("asked {}\n", hosts_leaving)));
}

Result<std::string> request_save(Env& env, const RunPaths& paths, RequestKind kind) {
  const char* const prefix = kind == RequestKind::attended ? attended_prefix : unattended_prefix;
  return write_request(env, paths, fmt::format("{}{:016x}", prefix, env.random_u64()), to_line(SaveAnswer{}));
}

SaveAnswer read_save_answer(Env& env, const std::string& path) {
  SaveAnswer answer;
  std::string word;
  auto line = read_request(env, path, word);
  if (!line.has_value()) return answer;
  *line >> answer.step;
  std::getline(*line >> std::ws, answer.sentence);
  const auto* const known = std::ranges::find(save_words, word);
  answer.state = word.empty() || known == save_words.end()
                     ? SaveAnswer::State::asked
                     : static_cast<SaveAnswer::State>(known - save_words.begin());
  return answer;
}

void forget_answered_requests(Env& env, const RunPaths& paths) {
  for (const std::string& name : request_names(env, paths.requests()).value_or(std::vector<std::string>())) {
    const std::string path = paths.requests() + "/" + name;
    if (is_drain_request(name)) continue;  // the launcher's
    if (!is_save_request(name) || is_final(read_save_answer(env, path)))
      static_cast<void>(env.remove(path).ok());
  }
}

SaveRequests::SaveRequests(Env& env, const RunPaths& paths)
    : env_(&env), directory_(paths.requests()), changed_(env.make_condition()) {}

Result<std::unique_ptr<SaveRequests>> SaveRequests::begin(Env& env, const RunPaths& paths) {
  std::unique_ptr<SaveRequests> requests(new SaveRequests(env, paths));
  HF_TRY(requests->thread_,
         env.start_thread("save requests", [service = requests.get()] { service->work(); }));
  std::unique_lock lock(requests->mutex_);
  requests->changed_->wait_at_most(lock, first_look_ms, [&] { return requests->has_looked_; });
  lock.unlock();
  return requests;
}

SaveRequests::~SaveRequests() {
  const std::lock_guard lock(mutex_);
  stops_ = true;
  changed_->notify();
}

bool SaveRequests::waiting() const {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(
      requests_, [](const auto& request) { return request.second.answer.state == SaveAnswer::State::asked; });
}

RestartRequest SaveRequests::restart_request() const {
  const std::lock_guard lock(mutex_);
  return restart_request_;
}

void SaveRequests::begun(std::uint64_t step) {
  const std::lock_guard lock(mutex_);
  for (auto& [name, request] : requests_) {
    if (request.answer.state != SaveAnswer::State::asked) continue;
    request = {.answer = {.state = SaveAnswer::State::begun, .step = step}, .written = false};
  }
  changed_->notify();
}

void SaveRequests::ended(std::uint64_t step, const Result<void>& outcome) {
  const std::lock_guard lock(mutex_);
  for (auto& [name, request] : requests_) {
    if (request.answer.state != SaveAnswer::State::begun || request.answer.step != step) continue;
    request.written = false;
    request.answer.state = outcome.ok() ? SaveAnswer::State::saved : SaveAnswer::State::failed;
    if (!outcome.ok()) request.answer.sentence = outcome.error().message;
    std::ranges::replace(request.answer.sentence, '\n', ' ');
  }
  changed_->notify();
}

void SaveRequests::work() {
  const auto has_answers = [this] {
    return std::ranges::any_of(requests_, [](const auto& request) { return !request.second.written; });
  };
  for (bool stops = false; !stops;) {
    find_requests();
    write_answers();
    remove_answered();
    std::unique_lock lock(mutex_);
    if (!std::exchange(has_looked_, true)) changed_->notify();
    changed_->wait_at_most(lock, request_look_ms, [&] { return stops_ || has_answers(); });
    stops = stops_;
  }
  write_answers();
  remove_answered();
}

// Requests that cannot be read now are looked for again.
void SaveRequests::find_requests() {
  const std::optional<std::vector<std::string>> names = request_names(*env_, directory_);
  if (!names.has_value()) return;
  std::map<std::string, Request> found;
  for (const std::string& name : *names) {
    const auto known = [&] {
      const std::lock_guard lock(mutex_);
      return requests_.contains(name);
    };
    if (!is_save_request(name) || known()) continue;
    SaveAnswer answer = read_save_answer(*env_, directory_ + "/" + name);
    if (answer.state == SaveAnswer::State::none) continue;
    if (!is_final(answer)) answer = {.state = SaveAnswer::State::asked};
    found[name].answer = answer;
  }
  RestartRequest request;
  if (std::ranges::find(*names, restart_name) != names->end())
    request = read_restart_request(*env_, directory_ + "/" + restart_name);
  const std::lock_guard lock(mutex_);
  restart_request_ = request;
  requests_.merge(found);
  std::erase_if(requests_,
                [&](const auto& one) { return std::ranges::find(*names, one.first) == names->end(); });
}

void SaveRequests::write_answers() {
  std::vector<std::pair<std::string, SaveAnswer>> answers;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [name, request] : requests_) {
      if (!std::exchange(request.written, true)) answers.emplace_back(name, request.answer);
    }
  }
  for (const auto& [name, answer] : answers) {
    const std::string path = directory_ + "/" + name;
    // The process that asked may have gone, and its file with it.
    const Result<FileStatus> status = env_->status(path);
    if (!status.ok() || !status->exists) continue;
    static_cast<void>(env_->replace_text(path, to_line(answer)).ok());
  }
}

void SaveRequests::remove_answered() {
  std::vector<std::string> names;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, request] : requests_) {
      if (name.starts_with(unattended_prefix) && request.written && is_final(request.answer))
        names.push_back(name);
    }
  }
  for (const std::string& name : names) static_cast<void>(env_->remove(directory_ + "/" + name).ok());
}
Result<void> write_drain_request(Env& env, const RunPaths& paths, const DrainRequest& request) {
  if (!is_host_name(request.host)) {
    return fail(ExitCode::config, "\"{}\" is no name of a host; give it as `holdfast status {}` lists it",
                request.host, paths.directory);
  }
  const std::string name = fmt::format("{}{}", drain_prefix, request.host);
  return outcome_of(write_request(env, paths, name, to_line(request)));
}

Result<void> ask_to_leave(Env& env, const RunPaths& paths, const DrainRequest& request) {
  const std::vector<DrainRequest> known = read_drain_requests(env, paths);
  const auto own = std::ranges::find(known, request.host, &DrainRequest::host);
  if (own != known.end() && own->state != DrainRequest::State::refused) return {};
  return write_drain_request(env, paths, request);
}

std::vector<DrainRequest> read_drain_requests(Env& env, const RunPaths& paths) {
  std::vector<DrainRequest> requests;
  for (const std::string& name : request_names(env, paths.requests()).value_or(std::vector<std::string>())) {
    const std::string host = is_drain_request(name) ? name.substr(drain_prefix.size()) : "";
    const bool is_being_replaced = name.find(".tmp.") != std::string::npos;
    if (is_being_replaced || !is_host_name(host)) continue;
    if (auto request = read_drain_request(env, paths.requests() + "/" + name, host))
      requests.push_back(std::move(*request));
  }
  std::ranges::sort(requests, {}, &DrainRequest::host);
  return requests;
}

Result<void> remove_drain_request(Env& env, const RunPaths& paths, const std::string& host) {
  return env.remove(fmt::format("{}/{}{}", paths.requests(), drain_prefix, host));
}

}  // namespace holdfast::run
