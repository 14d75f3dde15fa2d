// Tests what assign_ranks() promises, over random hosts, requests and deaths.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "parallel/group/rank_assignment.h"

namespace holdfast::test {
namespace {

struct Question {
  AssignmentRequest request;
  std::vector<std::string> hosts;  // by rank
};

std::string text_of(const Question& question) {
  return fmt::format("{} to {} copies of {} x {}, hosts {}", question.request.data_min,
                     question.request.data_max, question.request.pipeline, question.request.tensor,
                     fmt::join(question.hosts, " "));
}

// Returns a question of at most 24 ranks on at most 6 hosts.
Question random_question(std::mt19937& random) {
  const auto up_to = [&random](int limit) {
    return 1 + static_cast<int>(random() % static_cast<unsigned>(limit));
  };
  Question question;
  question.request = {.data_max = up_to(8), .pipeline = up_to(4), .tensor = 1 << (up_to(4) - 1)};
  question.request.data_min = up_to(question.request.data_max);
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
  for (const auto& [host, ranks] : ranks_on) groups += ranks / question.request.tensor;
  return std::min(question.request.data_max, groups / question.request.pipeline);
}

// Number of model replicas that there are ranks for; 0: the run ends.
int copies_of(const Question& question) {
  const Result<RankAssignment> assignment = assign_ranks(question.request, question.hosts);
  return assignment.ok() ? assignment->shape.data : 0;
}

// Checks that every copy is whole, each rank in one place, and every tensor group inside a host.
void expect_sound(const RankAssignment& assignment, const Question& question) {
  const MeshShape& shape = assignment.shape;
  ASSERT_EQ(shape.pipeline, question.request.pipeline);
  ASSERT_EQ(shape.tensor, question.request.tensor);
  ASSERT_EQ(shape.spares, 0) << "spares are listed beside the shape";
  ASSERT_EQ(std::ssize(assignment.active_ranks), shape.active());
  std::set<int> ranks(assignment.active_ranks.begin(), assignment.active_ranks.end());
  ASSERT_EQ(std::ssize(ranks), shape.active()) << "a rank is assigned twice";
  ASSERT_TRUE(std::ranges::is_sorted(assignment.spares));
  for (const int spare : assignment.spares)
    ASSERT_TRUE(ranks.insert(spare).second) << "a spare has a coordinate";
  ASSERT_EQ(ranks.size(), question.hosts.size()) << "a rank is neither active nor a spare";
  ASSERT_EQ(*ranks.begin(), 0);
  ASSERT_EQ(*ranks.rbegin(), std::ssize(question.hosts) - 1);
  for (const int rank : ranks) {
    const int coordinate = assignment.coordinate_of(rank);
    const bool is_spare = std::ranges::binary_search(assignment.spares, rank);
    ASSERT_EQ(coordinate < 0, is_spare);
    ASSERT_TRUE(is_spare || assignment.active_ranks[static_cast<std::size_t>(coordinate)] == rank);
  }
  for (std::size_t coordinate = 0; coordinate < assignment.active_ranks.size(); ++coordinate) {
    const auto host_at = [&](std::size_t place) -> const std::string& {
      return question.hosts[static_cast<std::size_t>(assignment.active_ranks[place])];
    };
    const std::size_t first = coordinate - coordinate % static_cast<std::size_t>(shape.tensor);
    ASSERT_EQ(host_at(coordinate), host_at(first)) << "a tensor group crosses hosts";
  }
}

constexpr int questions = 100'000;

TEST(RankAssignmentProperty, CopiesAreWholeAndAsManyAsFit) {
  std::mt19937 random(20261124);
  int is_active = 0, crowded_out = 0;
  for (int i = 0; i < questions; ++i) {
    const Question question = random_question(random);
    const int room = copies_with_room(question);
    const Result<RankAssignment> assignment = assign_ranks(question.request, question.hosts);
    ASSERT_EQ(assignment.ok(), room >= question.request.data_min) << text_of(question);
    if (!assignment.ok()) {
      ASSERT_EQ(assignment.error().code, ExitCode::communication);
      ++crowded_out;
      continue;
    }
    ++is_active;
    ASSERT_EQ(assignment->shape.data, room) << text_of(question);
    expect_sound(*assignment, question);
    if (testing::Test::HasFatalFailure()) FAIL() << text_of(question);
  }
  EXPECT_GT(is_active, questions / 4);
  EXPECT_GT(crowded_out, questions / 4);
}

// Equal on all ranks: the answer follows from which ranks share a host, not from what the hosts are called.
TEST(RankAssignmentProperty, FollowsFromWhoSharesAHost) {
  std::mt19937 random(20261125);
  for (int i = 0; i < questions / 4; ++i) {
    const Question question = random_question(random);
    Question renamed = question;
    for (std::string& host : renamed.hosts) host = fmt::format("node-{}", 'z' - host.front());
    const Result<RankAssignment> one = assign_ranks(question.request, question.hosts);
    const Result<RankAssignment> other = assign_ranks(renamed.request, renamed.hosts);
    ASSERT_EQ(one.ok(), other.ok()) << text_of(question);
    if (!one.ok()) continue;
    ASSERT_EQ(one->active_ranks, other->active_ranks) << text_of(question);
    ASSERT_EQ(one->spares, other->spares) << text_of(question);
  }
}

// A rank more, or fewer that must be there, never costs a copy; a death, and a copy that needs more, never
// brings one.
TEST(RankAssignmentProperty, IsMonotone) {
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
    undemanding.request.data_min = 1;
    ASSERT_GE(copies_of(undemanding), copies) << text_of(question);
    ++deeper.request.pipeline;
    ASSERT_LE(copies_of(deeper), copies) << text_of(question);
    wider.request.tensor *= 2;
    ASSERT_LE(copies_of(wider), copies) << text_of(question);
  }
}

}  // namespace
}  // namespace holdfast::test
