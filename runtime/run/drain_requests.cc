#include "runtime/run/drain_requests.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <string_view>

#include "runtime/os/foreign_text.h"

namespace holdfast::run {
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
