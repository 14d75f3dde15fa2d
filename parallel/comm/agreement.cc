#include "parallel/comm/agreement.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <optional>

#include "parallel/comm/gather.h"

namespace holdfast::parallel {
namespace {

// Appends a field of any content, preceded by its length.
void put_field(std::string& text, const std::string& field) {
  text += fmt::format("{}:", field.size());
  text += field;
}

std::vector<std::string> split_fields(const std::string& text) {
  std::vector<std::string> fields;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t colon = text.find(':', at);
    HF_CHECK(colon != std::string::npos, "a message of put_field()");
    const std::size_t length = std::stoul(text.substr(at, colon - at));
    fields.push_back(text.substr(colon + 1, length));
    at = colon + 1 + length;
  }
  return fields;
}

// Returns the ranks as text, for example "ranks 1, 2, 5 and 9 more".
std::string name_ranks(const std::vector<std::size_t>& ranks) {
  constexpr std::size_t named_max = 8;
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (std::size_t i = 0; i < ranks.size() && i < named_max; ++i) {
    text += fmt::format("{}{}", i == 0 ? " " : ", ", ranks[i]);
  }
  if (ranks.size() > named_max) text += fmt::format(" and {} more", ranks.size() - named_max);
  return text;
}

// FactTexts holds what one rank says: its host, then the name and the value of each fact in turn.
using FactTexts = std::vector<std::string>;

bool is_same_fact(const FactTexts& one, const FactTexts& other, std::size_t at) {
  return one.size() == other.size() && one[at] == other[at] && one[at + 1] == other[at + 1];
}

// Returns the verdict of a rank once all ranks have theirs: those that are fit give the group up then, to go on without
// the others. One that goes on first, or dies, changes no verdict.
Error when_all_have_it(Communicator& communicator, const Waiter& waiter, Error verdict) {
  static_cast<void>(barrier(communicator, waiter).ok());
  return verdict;
}

// Returns a rank that has the same value as more than half of all; none if there is no such value.
std::optional<std::size_t> rank_of_most(const std::vector<FactTexts>& all, std::size_t at) {
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const auto alike =
        std::ranges::count_if(all, [&](const FactTexts& one) { return is_same_fact(one, all[rank], at); });
    if (2 * static_cast<std::size_t>(alike) > all.size()) return rank;
  }
  return std::nullopt;
}

}  // namespace

Result<void> agree_on_facts(Communicator& communicator, const Waiter& waiter, const std::vector<Fact>& facts,
                            Difference difference) {
  std::string mine;
  put_field(mine, waiter.env().host_name());
  for (const Fact& fact : facts) {
    put_field(mine, fact.name);
    put_field(mine, fact.value);
  }
  HF_TRY(const std::vector<std::string> texts, all_gather_text(communicator, waiter, mine));
  std::vector<FactTexts> all;
  for (const std::string& text : texts) all.push_back(split_fields(text));

  for (std::size_t i = 1; i + 1 < all.front().size(); i += 2) {
    const std::optional<std::size_t> most =
        difference == Difference::most_go_on ? rank_of_most(all, i) : std::nullopt;
    const std::size_t right = most.value_or(0);
    const FactTexts& expected = all[right];
    std::vector<std::size_t> others;
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      if (!is_same_fact(all[rank], expected, i)) others.push_back(rank);
    }
    if (others.empty()) continue;
    const FactTexts& other = all[others.front()];
    const bool comparable = other.size() == expected.size() && other[i] == expected[i];
    const Error error = fail(
        ExitCode::config,
        "{} (host {}) {} another {} than rank {} (host {}): {} instead of {}; all ranks of a run must "
        "have the same one: make it equal on every host, then start again",
        name_ranks(others), other[0], others.size() == 1 ? "has" : "have", expected[i], right, expected[0],
        comparable ? other[i + 1] : "no such fact (another version of the program)", expected[i + 1]);
    if (!most.has_value()) return error;
    const bool is_other =
        std::ranges::find(others, static_cast<std::size_t>(communicator.rank())) != others.end();
    return when_all_have_it(communicator, waiter, with_reach(is_other ? Reach::host : Reach::peers, error));
  }
  return {};
}

namespace {

struct RankFailure {
  bool failed = false;
  int code = 0;
  int reach = 0;
  int reason = 0;
  std::string host = {};
  std::string message = {};

  static void visit_fields(auto& self, auto&& visit) {
    visit("failed", self.failed);
    visit("code", self.code);
    visit("reach", self.reach);
    visit("reason", self.reason);
    visit("host", self.host);
    visit("message", self.message);
  }
};

bool has_reach(const RankFailure& one, Reach reach) {
  return one.failed && one.reach == static_cast<int>(reach);
}

// Returns the reach of an error that concerns all ranks.
Reach reach_for_all(const std::vector<RankFailure>& all) {
  for (const Reach reach : {Reach::run, Reach::minute}) {
    if (std::ranges::any_of(all, [&](const RankFailure& one) { return has_reach(one, reach); })) return reach;
  }
  return Reach::everywhere;
}

// Gathers the failures of all ranks; none if all have succeeded. A rank that has lost a peer cannot agree on
// anything any more; the error that reports the loss is the one to keep. One of this rank's host is no verdict then:
// the others may lack the same.
Result<std::vector<RankFailure>> gather_failures(Communicator& communicator, const Waiter& waiter,
                                                 const Result<void>& mine, const std::string& host) {
  if (!mine.ok() && communicator.abandoned())
    return mine.error().reach == Reach::host ? with_reach(Reach::minute, mine.error()) : mine.error();
  std::array<std::int64_t, 1> failures = {mine.ok() ? 0 : 1};
  HF_TRY_VOID(all_reduce_sum(communicator, waiter, failures));
  if (failures[0] == 0) return std::vector<RankFailure>();
  RankFailure own;
  if (!mine.ok()) {
    own = {.failed = true,
           .code = static_cast<int>(mine.error().code),
           .reach = static_cast<int>(mine.error().reach),
           .reason = mine.error().reason,
           .host = host,
           .message = mine.error().message};
  }
  return gather(communicator, waiter, own);
}

// Returns the error of the first failure that decides: where the run is wrong, the first of those that say so.
Error error_of(const Communicator& communicator, const std::vector<RankFailure>& all, Reach reach) {
  // An error that is the same on all ranks is not attributed to one of them.
  const bool alike = std::ranges::all_of(all, [&](const RankFailure& one) {
    return one.failed && one.code == all[0].code && one.message == all[0].message;
  });
  const auto first = std::ranges::find_if(all, [&](const RankFailure& one) {
    return one.failed && (reach != Reach::run || has_reach(one, Reach::run));
  });
  HF_CHECK(first != all.end(), "some rank failed");
  const auto code = static_cast<ExitCode>(first->code);
  Error error{code, first->message, reach, first->reason};
  if (!alike)
    error.message =
        fmt::format("rank {} ({}): {}", communicator.global_rank(static_cast<int>(first - all.begin())),
                    first->host, first->message);
  return error;
}

}  // namespace

Result<void> agree_on_outcome(Communicator& communicator, const Waiter& waiter, const Result<void>& mine,
                              const std::string& host) {
  HF_TRY(const std::vector<RankFailure> all, gather_failures(communicator, waiter, mine, host));
  if (all.empty()) return {};
  return error_of(communicator, all, reach_for_all(all));
}

Result<void> agree_on_fitness(Communicator& communicator, const Waiter& waiter, const Result<void>& mine,
                              const std::string& host, Examined examined) {
  HF_TRY(const std::vector<RankFailure> all, gather_failures(communicator, waiter, mine, host));
  if (all.empty()) return {};
  const bool all_failed = std::ranges::all_of(all, &RankFailure::failed);
  const Reach for_all = reach_for_all(all);
  if (all_failed || (for_all == Reach::run && examined == Examined::own))
    return error_of(communicator, all, for_all);
  // An unfit rank says of itself why it leaves.
  return when_all_have_it(
      communicator, waiter,
      mine.ok() ? error_of(communicator, all, Reach::peers) : with_reach(Reach::host, mine.error()));
}

}  // namespace holdfast::parallel
