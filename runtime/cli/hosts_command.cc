// holdfast hosts, taint and untaint: what is known about hosts beyond one run (runtime/run/host_book.h).
#include <fmt/core.h>

#include <string>

#include "runtime/cli/commands.h"
#include "runtime/cli/common/arguments.h"
#include "runtime/core/json.h"
#include "runtime/core/record.h"
#include "runtime/core/units.h"
#include "runtime/launch/launch_options.h"
#include "runtime/os/foreign_text.h"
#include "runtime/run/hardware_record.h"
#include "runtime/run/host_book.h"

namespace holdfast::cli {
namespace {

constexpr const char* hosts_usage =
    "usage: holdfast hosts [--json]\n"
    "\n"
    "Lists the hosts that are tainted, or that a preflight has tried: whether they are fit, and why not.\n"
    "It is kept in $XDG_STATE_HOME/holdfast/hosts.json, or ~/.local/state/holdfast/hosts.json.\n";

constexpr const char* taint_usage =
    "usage: holdfast taint HOST [--for 2h] [--reason TEXT]\n"
    "\n"
    "Keeps HOST, as it is named to `holdfast launch`, out of starts of all runs of this user while others "
    "have as "
    "much room;\n"
    "a run that trains there already goes on (`holdfast drain` lets it leave).\n"
    "\n"
    "  --for 2h       how long; without it until holdfast untaint\n"
    "  --reason TEXT  what people will read of it\n";

constexpr const char* untaint_usage =
    "usage: holdfast untaint HOST\n"
    "\n"
    "Lets starts use HOST again, which holdfast taint has kept out of them.\n";

std::string state_of(const BookedHost& host) {
  if (host.taint.has_value()) return "tainted";
  if (host.checked_us == 0) return "unknown";
  return host.is_fit ? "fit" : "not fit";
}

Result<void> list_hosts(Env& env, const std::vector<std::string>& words) {
  HF_TRY(const Arguments arguments, Arguments::parse("hosts", words, {}, {}, {"json"}));
  HF_TRY(HostBook book, read_host_book(env));
  book.forget_expired(env.wall_time_us());
  if (arguments.has("json")) {
    Json hosts = Json::array();
    for (const BookedHost& host : book.hosts) {
      Json json = field_to_json(host);
      json["state"] = state_of(host);
      hosts.push_back(json);
    }
    Json json = Json::object();
    json["hosts"] = hosts;
    fmt::print("{}\n", json.dump_any());
    return {};
  }
  if (book.hosts.empty()) {
    fmt::print("no host is tainted, and no preflight has tried any\n");
    return {};
  }
  for (const BookedHost& host : book.hosts) {
    const std::string rate =
        host.trials.empty() ? "" : fmt::format("{:.0f} tokens/s", host.trials.back().tokens_per_s);
    const std::string checked = host.checked_us == 0 ? "" : "preflight of " + time_text(host.checked_us);
    fmt::print("{:<16} {:<8} {:<38} {}\n", host.host, state_of(host), checked, rate);
    if (host.taint.has_value())
      fmt::print("  tainted since {}{}{}\n", time_text(host.taint->since_us),
                 host.taint->until_us == 0 ? "" : ", until " + time_text(host.taint->until_us),
                 host.taint->reason.empty() ? "" : ": " + printable(host.taint->reason));
    for (const std::string& reason : host.reasons) fmt::print("  {}\n", printable(reason));
  }
  return {};
}

Result<void> taint(Env& env, const std::vector<std::string>& words) {
  HF_TRY(const Arguments arguments, Arguments::parse("taint", words, {"HOST"}, {"for", "reason"}));
  const std::string name = arguments.positional(0);
  HF_TRY_VOID(check_host_name(name, "taint"));
  std::int64_t for_ms = 0;
  if (arguments.has("for")) {
    HF_TRY(for_ms, parse_duration(arguments.text("for", "")));
    if (for_ms <= 0)
      return fail(ExitCode::config, "taint: --for must be longer than 0, got \"{}\"",
                  arguments.text("for", ""));
  }
  const std::int64_t now_us = env.wall_time_us();
  const HostTaint made{.reason = arguments.text("reason", ""),
                       .since_us = now_us,
                       .until_us = for_ms == 0 ? 0 : now_us + for_ms * 1000};
  HF_TRY_VOID(change_host_book(env, [&](HostBook& book) -> Result<void> {
    book.entry(name).taint = made;
    return {};
  }));
  fmt::print("host {} is tainted{}\n", name, for_ms == 0 ? "" : " until " + time_text(made.until_us));
  return {};
}

Result<void> untaint(Env& env, const std::vector<std::string>& words) {
  HF_TRY(const Arguments arguments, Arguments::parse("untaint", words, {"HOST"}, {}));
  const std::string name = arguments.positional(0);
  HF_TRY_VOID(check_host_name(name, "untaint"));
  HF_TRY_VOID(change_host_book(env, [&](HostBook& book) -> Result<void> {
    book.forget_expired(env.wall_time_us());
    const BookedHost* known = book.find(name);
    if (known == nullptr || !known->taint.has_value())
      return fail(ExitCode::config, "host {} is not tainted; holdfast hosts lists those that are", name);
    book.entry(name).taint.reset();
    return {};
  }));
  fmt::print("host {} is not tainted any more\n", name);
  return {};
}

int run_with_usage(const std::vector<std::string>& arguments, const char* usage,
                   Result<void> (*run)(Env&, const std::vector<std::string>&)) {
  if (wants_help(arguments)) {
    fmt::print("{}", usage);
    return 0;
  }
  const Result<void> done = run(posix_env(), arguments);
  return done.ok() ? 0 : complain(done.error());
}

}  // namespace

int run_hosts_command(const std::vector<std::string>& arguments) {
  return run_with_usage(arguments, hosts_usage, list_hosts);
}

int run_taint_command(const std::vector<std::string>& arguments) {
  return run_with_usage(arguments, taint_usage, taint);
}

int run_untaint_command(const std::vector<std::string>& arguments) {
  return run_with_usage(arguments, untaint_usage, untaint);
}

}  // namespace holdfast::cli
