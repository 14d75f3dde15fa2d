// Tests what plan_seating() promises, over random hosts, wishes and deaths.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "parallel/group/seating.h"

namespace holdfast {
namespace {

struct Question {
  SeatingWish wish;
  std::vector<std::string> hosts;  // by rank
};

std::string text_of(const Question& question) {
  return fmt::format("{} to {} copies of {} x {}, hosts {}", question.wish.data_least,
                     question.wish.data_most, question.wish.pipeline, question.wish.tensor,
                     fmt::join(question.hosts, " "));
}

// Returns a question of at most 24 ranks on at most 6 hosts.
Question random_question(std::mt19937& random) {
  const auto up_to = [&random](int limit) {
    return 1 + static_cast<int>(random() % static_cast<unsigned>(limit));
  };
  Question question;
  question.wish = {.data_most = up_to(8), .pipeline = up_to(4), .tensor = 1 << (up_to(4) - 1)};
  question.wish.data_least = up_to(question.wish.data_most);
  const int hosts = up_to(6);
  for (int ranks = up_to(24); ranks > 0; --ranks)
    question.hosts.emplace_back(1, static_cast<char>('a' + up_to(hosts) - 1));
  return question;
}

// A tensor group lies inside one host, so a host has as many as fit there, and a copy takes as many as it has
// stages, from any hosts.
int copies_with_room(const Question& question) {
  std::map<std::string, int> ranks_on;
  for (const std::string& host : question.hosts) ++ranks_on[host];
  int groups = 0;
  for (const auto& [host, ranks] : ranks_on) groups += ranks / question.wish.tensor;
  return std::min(question.wish.data_most, groups / question.wish.pipeline);
}

// Copies that the ranks are seated for; 0: the run ends.
int copies_of(const Question& question) {
  const Result<Seating> seating = plan_seating(question.wish, question.hosts);
  return seating.ok() ? seating->shape.data : 0;
}

// Checks that every copy is whole, each rank in one place, and every tensor group inside a host.
void expect_sound(const Seating& seating, const Question& question) {
  const MeshShape& shape = seating.shape;
  ASSERT_EQ(shape.pipeline, question.wish.pipeline);
  ASSERT_EQ(shape.tensor, question.wish.tensor);
  ASSERT_EQ(shape.spares, 0) << "spares are listed beside the shape";
  ASSERT_EQ(std::ssize(seating.rank_of_seat), shape.seats());
  std::set<int> ranks(seating.rank_of_seat.begin(), seating.rank_of_seat.end());
  ASSERT_EQ(std::ssize(ranks), shape.seats()) << "somebody is seated twice";
  ASSERT_TRUE(std::ranges::is_sorted(seating.spares));
  for (const int spare : seating.spares) ASSERT_TRUE(ranks.insert(spare).second) << "a spare has a seat";
  ASSERT_EQ(ranks.size(), question.hosts.size()) << "somebody is neither seated nor a spare";
  ASSERT_EQ(*ranks.begin(), 0);
  ASSERT_EQ(*ranks.rbegin(), std::ssize(question.hosts) - 1);
  for (const int rank : ranks) {
    const int seat = seating.seat_of(rank);
    const bool is_spare = std::ranges::binary_search(seating.spares, rank);
    ASSERT_EQ(seat < 0, is_spare);
    ASSERT_TRUE(is_spare || seating.rank_of_seat[static_cast<std::size_t>(seat)] == rank);
  }
  for (std::size_t seat = 0; seat < seating.rank_of_seat.size(); ++seat) {
    const auto host_at = [&](std::size_t place) -> const std::string& {
      return question.hosts[static_cast<std::size_t>(seating.rank_of_seat[place])];
    };
    const std::size_t first = seat - seat % static_cast<std::size_t>(shape.tensor);
    ASSERT_EQ(host_at(seat), host_at(first)) << "a tensor group crosses hosts";
  }
}

constexpr int questions = 100'000;

TEST(SeatingProperty, CopiesAreWholeAndAsManyAsFit) {
  std::mt19937 random(20261124);
  int seated = 0, crowded_out = 0;
  for (int i = 0; i < questions; ++i) {
    const Question question = random_question(random);
    const int room = copies_with_room(question);
    const Result<Seating> seating = plan_seating(question.wish, question.hosts);
    ASSERT_EQ(seating.ok(), room >= question.wish.data_least) << text_of(question);
    if (!seating.ok()) {
      ASSERT_EQ(seating.error().code, ExitCode::communication);
      ++crowded_out;
      continue;
    }
    ++seated;
    ASSERT_EQ(seating->shape.data, room) << text_of(question);
    expect_sound(*seating, question);
    if (testing::Test::HasFatalFailure()) FAIL() << text_of(question);
  }
  EXPECT_GT(seated, questions / 4);
  EXPECT_GT(crowded_out, questions / 4);
}

// Equal on all ranks: the answer follows from which ranks share a host, not from what the hosts are called.
TEST(SeatingProperty, FollowsFromWhoSharesAHost) {
  std::mt19937 random(20261125);
  for (int i = 0; i < questions / 4; ++i) {
    const Question question = random_question(random);
    Question renamed = question;
    for (std::string& host : renamed.hosts) host = fmt::format("node-{}", 'z' - host.front());
    const Result<Seating> one = plan_seating(question.wish, question.hosts);
    const Result<Seating> other = plan_seating(renamed.wish, renamed.hosts);
    ASSERT_EQ(one.ok(), other.ok()) << text_of(question);
    if (!one.ok()) continue;
    ASSERT_EQ(one->rank_of_seat, other->rank_of_seat) << text_of(question);
    ASSERT_EQ(one->spares, other->spares) << text_of(question);
  }
}

// A rank more, or fewer that must be there, never costs a copy; a death, and a copy that needs more, never
// brings one.
TEST(SeatingProperty, IsMonotone) {
  std::mt19937 random(20261126);
  for (int i = 0; i < questions / 4; ++i) {
    const Question question = random_question(random);
    const int copies = copies_of(question);
    Question joined = question, bereft = question, undemanding = question, deeper = question,
             wider = question;
    joined.hosts.push_back(question.hosts[random() % question.hosts.size()]);
    ASSERT_GE(copies_of(joined), copies) << text_of(question);
    bereft.hosts.erase(bereft.hosts.begin() + static_cast<std::ptrdiff_t>(random() % bereft.hosts.size()));
    ASSERT_LE(copies_of(bereft), copies) << text_of(question);
    undemanding.wish.data_least = 1;
    ASSERT_GE(copies_of(undemanding), copies) << text_of(question);
    ++deeper.wish.pipeline;
    ASSERT_LE(copies_of(deeper), copies) << text_of(question);
    wider.wish.tensor *= 2;
    ASSERT_LE(copies_of(wider), copies) << text_of(question);
  }
}

}  // namespace
}  // namespace holdfast
