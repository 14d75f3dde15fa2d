#include "parallel/comm/agreement.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "parallel/comm/gather.h"

namespace holdfast::inline parallel {
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

}  // namespace

Result<void> agree_on_facts(Communicator& communicator, const Waiter& waiter,
                            const std::vector<Fact>& facts) {
  std::string mine;
  put_field(mine, waiter.env().host_name());
  for (const Fact& fact : facts) {
    put_field(mine, fact.name);
    put_field(mine, fact.value);
  }
  HF_TRY(const std::vector<std::string> texts, all_gather_text(communicator, waiter, mine));
  std::vector<std::vector<std::string>> all;  // per rank: host, then name and value alternately
  for (const std::string& text : texts) all.push_back(split_fields(text));

  const std::vector<std::string>& first = all.front();
  for (std::size_t i = 1; i + 1 < first.size(); i += 2) {
    std::vector<std::size_t> others;
    for (std::size_t rank = 1; rank < all.size(); ++rank) {
      const bool same =
          all[rank].size() == first.size() && all[rank][i] == first[i] && all[rank][i + 1] == first[i + 1];
      if (!same) others.push_back(rank);
    }
    if (others.empty()) continue;
    const std::vector<std::string>& other = all[others.front()];
    const bool comparable = other.size() == first.size() && other[i] == first[i];
    return fail(ExitCode::config,
                "{} (host {}) {} another {} than rank 0 (host {}): {} instead of {}; all ranks of a run must "
                "have the same one: make it equal on every host, then start again",
                name_ranks(others), other[0], others.size() == 1 ? "has" : "have", first[i], first[0],
                comparable ? other[i + 1] : "no such fact (another version of the program)", first[i + 1]);
  }
  return {};
}

namespace {

struct RankFailure {
  bool failed = false;
  int code = 0;
  int reach = 0;
  std::string host = {};
  std::string message = {};

  static void visit_fields(auto& self, auto&& visit) {
    visit("failed", self.failed);
    visit("code", self.code);
    visit("reach", self.reach);
    visit("host", self.host);
    visit("message", self.message);
  }
};

// Returns the reach that an agreed error has for the rank whose own outcome is `mine`.
Reach agreed_reach(const std::vector<RankFailure>& all, const RankFailure& mine) {
  const auto reaches = [](Reach reach) {
    return [reach](const RankFailure& one) { return one.failed && one.reach == static_cast<int>(reach); };
  };
  if (std::ranges::any_of(all, reaches(Reach::run))) return Reach::run;
  const bool some_are_fit = !std::ranges::all_of(all, &RankFailure::failed);
  if (some_are_fit) return mine.failed ? static_cast<Reach>(mine.reach) : Reach::peers;
  return std::ranges::any_of(all, reaches(Reach::minute)) ? Reach::minute : Reach::everywhere;
}

}  // namespace

Result<void> agree_on_outcome(Communicator& communicator, const Waiter& waiter, const Result<void>& mine,
                              const std::string& host) {
  // A rank that has lost a peer cannot agree on anything any more; the error that reports the loss is the one
  // to keep.
  if (!mine.ok() && communicator.abandoned()) return mine;
  std::array<std::int64_t, 1> failures = {mine.ok() ? 0 : 1};
  HF_TRY_VOID(all_reduce_sum(communicator, waiter, failures));
  if (failures[0] == 0) return {};
  RankFailure own;
  if (!mine.ok()) {
    own = {.failed = true,
           .code = static_cast<int>(mine.error().code),
           .reach = static_cast<int>(mine.error().reach),
           .host = host,
           .message = mine.error().message};
  }
  HF_TRY(const std::vector<RankFailure> all, gather(communicator, waiter, own));
  const Reach reach = agreed_reach(all, own);
  // An error that is the same on all ranks is not attributed to one of them.
  const bool alike = std::ranges::all_of(all, [&](const RankFailure& one) {
    return one.failed && one.code == all[0].code && one.message == all[0].message;
  });
  const auto counts = [&](const RankFailure& one) {
    return one.failed && (reach != Reach::run || one.reach == static_cast<int>(Reach::run));
  };
  const auto first = std::ranges::find_if(all, counts);
  HF_CHECK(first != all.end(), "some rank failed");
  const auto code = static_cast<ExitCode>(first->code);
  if (alike) return Error{code, first->message, reach};
  return with_reach(
      reach, fail(code, "rank {} ({}): {}", communicator.global_rank(static_cast<int>(first - all.begin())),
                  first->host, first->message));
}

}  // namespace holdfast::inline parallel
