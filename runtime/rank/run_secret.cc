#include "runtime/rank/run_secret.h"

#include <fmt/core.h>

#include <algorithm>
#include <sstream>

#include "runtime/os/network.h"
#include "runtime/run/run_directory.h"

namespace holdfast::inline rank {
namespace {

constexpr std::string_view has_it = "known ", has_none = "none ";

// For every rank its own, with blanks between them.
Result<std::string> sealed_for_all(const Secret& secret, const std::vector<std::string>& requests) {
  std::string all;
  for (const std::string& request : requests) {
    HF_TRY(const std::string sealed, seal_secret(secret, request.substr(request.find(' ') + 1)));
    all += sealed + ' ';
  }
  return all;
}

std::string word_of(const std::string& text, int index) {
  std::istringstream words(text);
  std::string word;
  for (int at = 0; at <= index; ++at) word.clear(), words >> word;
  return word;
}

}  // namespace

Result<Secret> agree_on_secret(Communicator& communicator, const Waiter& waiter, Env& env,
                               const std::optional<Secret>& known) {
  const SecretRequest request;
  HF_TRY(const std::vector<std::string> requests,
         all_gather_text(communicator, waiter,
                         fmt::format("{}{}", known.has_value() ? has_it : has_none, request.text())));
  const auto holder =
      std::ranges::find_if(requests, [](const std::string& text) { return text.starts_with(has_it); });
  const int gives = holder == requests.end() ? 0 : static_cast<int>(holder - requests.begin());
  Result<std::string> sealed = std::string();
  if (communicator.rank() == gives)
    sealed = sealed_for_all(known.has_value() ? *known : Secret::draw(env), requests);
  HF_TRY_VOID(agree_on_outcome(communicator, waiter, outcome_of(sealed), env.host_name()));
  HF_TRY(const std::vector<std::string> answers, all_gather_text(communicator, waiter, *sealed));
  const Result<Secret> secret =
      request.open(word_of(answers[static_cast<std::size_t>(gives)], communicator.rank()));
  HF_TRY_VOID(agree_on_outcome(communicator, waiter, outcome_of(secret), env.host_name()));
  return *secret;
}

Result<ListenPlace> listen_place(Env& env, const Config& config, bool one_host) {
  constexpr const char* loopback = "127.0.0.1";
  if (one_host) return ListenPlace{.address = loopback, .told = {loopback}};
  const Result<std::vector<std::string>> addresses = env.network().own_addresses(config.network.interface);
  if (!addresses.ok()) {
    // It was right once where the run has begun: then a host has lost it, and another start may do without.
    const Result<FileStatus> begun = env.status(RunPaths{config.run.directory}.config());
    const bool has_begun = begun.ok() && begun->exists;
    return fail(has_begun ? ExitCode::communication : ExitCode::config, "{}", addresses.error().message);
  }
  if (config.network.interface.empty()) return ListenPlace{.address = {}, .told = *addresses};
  return ListenPlace{.address = addresses->front(), .told = {addresses->front()}};
}

}  // namespace holdfast::inline rank
