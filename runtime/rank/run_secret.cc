#include "runtime/rank/run_secret.h"

#include <algorithm>
#include <vector>

#include "parallel/comm/gather.h"
#include "runtime/os/network.h"
#include "runtime/run/run_directory.h"

namespace holdfast::rank {
namespace {

// SecretNeed is the request of a rank to the rank that has the secret, which seals it for that rank alone.
struct SecretNeed {
  bool is_known = false;  // the rank has the secret of the run already
  std::string request = {};

  static void visit_fields(auto& self, auto&& visit) {
    visit("is_known", self.is_known);
    visit("request", self.request);
  }
};

// Returns the secret sealed for each rank, by rank.
Result<std::vector<std::string>> sealed_for_all(const Secret& secret, const std::vector<SecretNeed>& needs) {
  std::vector<std::string> all;
  for (const SecretNeed& need : needs) {
    HF_TRY(all.emplace_back(), seal_secret(secret, need.request));
  }
  return all;
}

}  // namespace

Result<Secret> agree_on_secret(Communicator& communicator, const Waiter& waiter, Env& env,
                               const std::optional<Secret>& known) {
  const SecretRequest request;
  HF_TRY(const std::vector<SecretNeed> needs,
         gather(communicator, waiter, SecretNeed{.is_known = known.has_value(), .request = request.text()}));
  const auto holder = std::ranges::find_if(needs, &SecretNeed::is_known);
  const int gives = holder == needs.end() ? 0 : static_cast<int>(holder - needs.begin());
  Result<std::vector<std::string>> sealed = std::vector<std::string>();
  if (communicator.rank() == gives)
    sealed = sealed_for_all(known.has_value() ? *known : Secret::draw(env), needs);
  HF_TRY_VOID(agree_on_outcome(communicator, waiter, outcome_of(sealed), env.host_name()));
  HF_TRY(const std::vector<std::vector<std::string>> answers, gather(communicator, waiter, *sealed));
  const std::vector<std::string>& given = answers[static_cast<std::size_t>(gives)];
  const auto own = static_cast<std::size_t>(communicator.rank());
  const Result<Secret> secret = request.open(own < given.size() ? given[own] : "");
  HF_TRY_VOID(agree_on_outcome(communicator, waiter, outcome_of(secret), env.host_name()));
  return *secret;
}

Result<ListenAddress> listen_address(Env& env, const Config& config, bool one_host) {
  constexpr const char* loopback = "127.0.0.1";
  if (one_host) return ListenAddress{.address = loopback, .reported = {loopback}};
  const Result<std::vector<std::string>> addresses = env.network().own_addresses(config.network.interface);
  if (!addresses.ok()) {
    // The interface was valid once if the run has begun: then a host has lost it, and another start may do
    // without that host.
    const Result<FileStatus> begun = env.status(RunPaths{config.run.directory}.config());
    const bool has_begun = begun.ok() && begun->exists;
    return with_code(has_begun ? ExitCode::communication : ExitCode::config, addresses.error());
  }
  if (config.network.interface.empty()) return ListenAddress{.address = {}, .reported = *addresses};
  return ListenAddress{.address = addresses->front(), .reported = {addresses->front()}};
}

}  // namespace holdfast::rank
