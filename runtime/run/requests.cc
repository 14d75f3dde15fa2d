#include "runtime/run/requests.h"

#include <fmt/core.h>

#include <algorithm>
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

bool is_request(const std::string& name) {
  return (name.starts_with(attended_prefix) || name.starts_with(unattended_prefix)) &&
         name.find('.') == std::string::npos;  // what is being replaced has a name with one
}

std::string to_text(const SaveAnswer& answer) {
  switch (answer.state) {
    case SaveAnswer::State::begun:
      return fmt::format("begun {}\n", answer.step);
    case SaveAnswer::State::saved:
      return fmt::format("saved {}\n", answer.step);
    case SaveAnswer::State::failed:
      return fmt::format("failed {} {}\n", answer.step, answer.sentence);
    default:
      return "asked\n";
  }
}

bool is_final(const SaveAnswer& answer) {
  return answer.state == SaveAnswer::State::saved || answer.state == SaveAnswer::State::failed;
}

RestartRequest read_restart_request(Env& env, const std::string& path) {
  RestartRequest request;
  const Result<std::string> text = read_text_within(env, path, text_limits::request);
  if (!text.ok()) return request;
  std::string word;
  std::istringstream(*text) >> word >> request.hosts_leaving;
  request.wanted = word == "asked";
  return request;
}

}  // namespace

Result<void> request_restart(Env& env, const RunPaths& paths, int hosts_leaving) {
  HF_TRY_VOID(env.make_directories(paths.requests()));
  return env.replace_text(fmt::format("{}/{}", paths.requests(), restart_name),
                          fmt::format("asked {}\n", hosts_leaving));
}

Result<std::string> request_save(Env& env, const RunPaths& paths, RequestKind kind) {
  HF_TRY_VOID(env.make_directories(paths.requests()));
  const std::string path =
      fmt::format("{}/{}{:016x}", paths.requests(),
                  kind == RequestKind::attended ? attended_prefix : unattended_prefix, env.random_u64());
  HF_TRY_VOID(env.replace_text(path, to_text(SaveAnswer{})));
  return path;
}

SaveAnswer read_save_answer(Env& env, const std::string& path) {
  const Result<std::string> text = read_text_within(env, path, text_limits::request);
  SaveAnswer answer;
  if (!text.ok()) return answer;
  std::istringstream line(*text);
  std::string word;
  line >> word >> answer.step;
  std::getline(line >> std::ws, answer.sentence);
  answer.state = word == "begun"    ? SaveAnswer::State::begun
                 : word == "saved"  ? SaveAnswer::State::saved
                 : word == "failed" ? SaveAnswer::State::failed
                                    : SaveAnswer::State::asked;
  return answer;
}

void forget_answered_requests(Env& env, const RunPaths& paths) {
  const Result<FileStatus> status = env.status(paths.requests());
  if (!status.ok() || !status->exists) return;
  const Result<std::vector<std::string>> names = env.list(paths.requests());
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    const std::string path = paths.requests() + "/" + name;
    if (is_drain_request(name)) continue;  // the launcher's
    if (!is_request(name) || is_final(read_save_answer(env, path))) static_cast<void>(env.remove(path).ok());
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
  const Result<FileStatus> status = env_->status(directory_);
  if (!status.ok() || !status->exists) return;
  const Result<std::vector<std::string>> names = env_->list(directory_);
  if (!names.ok()) return;
  std::map<std::string, Request> found;
  for (const std::string& name : *names) {
    const auto known = [&] {
      const std::lock_guard lock(mutex_);
      return requests_.contains(name);
    };
    if (!is_request(name) || known()) continue;
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
    static_cast<void>(env_->replace_text(path, to_text(answer)).ok());
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

namespace {

constexpr std::string_view drain_prefix = "drain-";

bool is_host_name(const std::string& name) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '.' || c == '_';
  };
  return !name.empty() && name.front() != '-' && name.front() != '.' && std::ranges::all_of(name, fits);
}

std::string to_line(const DrainRequest& request) {
  switch (request.state) {
    case DrainRequest::State::asked:
      return fmt::format("asked {}\n", request.deadline_s);
    case DrainRequest::State::notice:
      return "notice\n";
    case DrainRequest::State::begun:
      return "begun\n";
    case DrainRequest::State::drained:
      return fmt::format("drained {}\n", request.step);
    case DrainRequest::State::refused:
      return fmt::format("refused {}\n", request.sentence);
  }
  return {};
}

std::optional<DrainRequest> drain_request_of(const std::string& host, const std::string& text) {
  using State = DrainRequest::State;
  DrainRequest request{.host = host};
  std::istringstream line(text);
  std::string word;
  line >> word;
  if (word == "asked") {
    line >> request.deadline_s;
  } else if (word == "drained") {
    request.state = State::drained;
    line >> request.step;
  } else if (word == "refused") {
    request.state = State::refused;
    std::getline(line >> std::ws, request.sentence);
  } else if (word == "notice" || word == "begun") {
    request.state = word == "notice" ? State::notice : State::begun;
  } else {
    return std::nullopt;
  }
  return request;
}

std::string path_of_drain_request(const RunPaths& paths, const std::string& host) {
  return fmt::format("{}/{}{}", paths.requests(), drain_prefix, host);
}

}  // namespace

bool is_drain_request(const std::string& file_name) {
  return file_name.starts_with(drain_prefix);
}

Result<void> write_drain_request(Env& env, const RunPaths& paths, const DrainRequest& request) {
  if (!is_host_name(request.host)) {
    return fail(ExitCode::config, "\"{}\" is no name of a host; give it as `holdfast status {}` lists it",
                request.host, paths.directory);
  }
  HF_TRY_VOID(env.make_directories(paths.requests()));
  return env.replace_text(path_of_drain_request(paths, request.host), to_line(request));
}

std::vector<DrainRequest> read_drain_requests(Env& env, const RunPaths& paths) {
  std::vector<DrainRequest> requests;
  const Result<FileStatus> status = env.status(paths.requests());
  if (!status.ok() || !status->exists) return requests;
  const Result<std::vector<std::string>> names = env.list(paths.requests());
  for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
    const std::string host = is_drain_request(name) ? name.substr(drain_prefix.size()) : "";
    const bool is_being_replaced = name.find(".tmp.") != std::string::npos;
    if (is_being_replaced || !is_host_name(host)) continue;
    const Result<std::string> text =
        read_text_within(env, paths.requests() + "/" + name, text_limits::request);
    if (!text.ok()) continue;
    if (std::optional<DrainRequest> request = drain_request_of(host, *text); request.has_value())
      requests.push_back(std::move(*request));
  }
  std::ranges::sort(requests, {}, &DrainRequest::host);
  return requests;
}

Result<void> remove_drain_request(Env& env, const RunPaths& paths, const std::string& host) {
  return env.remove(path_of_drain_request(paths, host));
}

}  // namespace holdfast::run
