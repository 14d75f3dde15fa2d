#include "runtime/report/what_if.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <span>

#include "runtime/core/json.h"
#include "runtime/core/median.h"
#include "runtime/core/text.h"

namespace holdfast::report {
namespace {

constexpr double straggles_from = 1.1, blamed_from = 0.5;
constexpr std::size_t slowest_percent = 3, workers_replayed = 64;

// Lists of integers, one after another in one memory.
class Lists {
 public:
  // Makes a list for each of `count` owners from pairs of an owner and a member of its list.
  Lists(std::size_t count, const std::vector<std::pair<int, int>>& pairs)
      : begin_(count + 1, 0), members_(pairs.size()) {
    for (const auto& [owner, member] : pairs) ++begin_[static_cast<std::size_t>(owner) + 1];
    std::partial_sum(begin_.begin(), begin_.end(), begin_.begin());
    std::vector<std::size_t> next(begin_.begin(), begin_.end() - 1);
    for (const auto& [owner, member] : pairs) members_[next[static_cast<std::size_t>(owner)]++] = member;
  }
  std::span<const int> operator[](int owner) const {
    const auto index = static_cast<std::size_t>(owner);
    return std::span(members_).subspan(begin_[index], begin_[index + 1] - begin_[index]);
  }

 private:
  std::vector<std::size_t> begin_;
  std::vector<int> members_;
};

double ideal_of(IdealDuration ideal, std::vector<double> durations) {
  if (durations.empty()) return 0.0;
  if (ideal == IdealDuration::mean)
    return std::accumulate(durations.begin(), durations.end(), 0.0) / static_cast<double>(durations.size());
  return median(std::move(durations));
}

// Replay knows the order in which operations can be replayed. What meets is one unit of it.
class Replay {
 public:
  static Result<Replay> make(const TracedJob& job) {
    Replay replay(job);
    if (!replay.sort_units())
      return fail(
          ExitCode::data,
          "the operations cannot be replayed: some wait for each other in a circle, so their times or "
          "their places in the job are wrong");
    return replay;
  }

  // Returns T with the operations ideal for which is_ideal(operation) is true.
  template <typename IsIdeal>
  double duration_s(const IsIdeal& is_ideal) const {
    std::vector<double> end_s(job_->operations.size(), 0.0), sections_s(index(job_->sections), 0.0);
    for (const int unit : units_) {
      double begin_s = 0.0;
      for (const int member : members_[unit]) {
        for (const int before : before_[member]) begin_s = std::max(begin_s, end_s[index(before)]);
      }
      for (const int member : members_[unit]) {
        const Operation& operation = job_->operations[index(member)];
        end_s[index(member)] =
            begin_s + (is_ideal(operation) ? ideal_s_[index(operation.kind)] : operation.duration_s);
        double& section_s = sections_s[index(operation.section)];
        section_s = std::max(section_s, end_s[index(member)]);
      }
    }
    return std::accumulate(sections_s.begin(), sections_s.end(), 0.0);
  }

 private:
  explicit Replay(const TracedJob& job)
      : job_(&job),
        unit_count_(job.meetings + static_cast<int>(job.operations.size())),
        before_(job.operations.size(), swapped(job.order)),
        members_(index(unit_count_), units_of(job)) {
    std::vector<std::vector<double>> durations(job.kinds.size());
    for (const Operation& operation : job.operations)
      durations[index(operation.kind)].push_back(operation.duration_s);
    for (std::size_t kind = 0; kind < job.kinds.size(); ++kind)
      ideal_s_.push_back(ideal_of(job.kinds[kind].ideal, std::move(durations[kind])));
  }

  static std::vector<std::pair<int, int>> swapped(std::vector<std::pair<int, int>> pairs) {
    for (auto& [first, second] : pairs) std::swap(first, second);
    return pairs;
  }

  // Meetings are the first units; an operation that meets nobody is a unit by itself.
  static int unit_of(const TracedJob& job, int operation) {
    const int meeting = job.operations[index(operation)].meeting;
    return meeting >= 0 ? meeting : job.meetings + operation;
  }

  static std::vector<std::pair<int, int>> units_of(const TracedJob& job) {
    std::vector<std::pair<int, int>> pairs;
    for (int i = 0; i < static_cast<int>(job.operations.size()); ++i) pairs.emplace_back(unit_of(job, i), i);
    return pairs;
  }

  // Sorts the units by what they come after (Kahn 1962); false where some are in a circle.
  bool sort_units() {
    std::vector<std::pair<int, int>> order;
    std::vector<int> awaited(index(unit_count_), 0);
    for (const auto& [first, second] : job_->order) {
      order.emplace_back(unit_of(*job_, first), unit_of(*job_, second));
      ++awaited[index(order.back().second)];
    }
    const Lists after(index(unit_count_), order);
    for (int unit = 0; unit < unit_count_; ++unit) {
      if (awaited[index(unit)] == 0) units_.push_back(unit);
    }
    for (std::size_t next = 0; next < units_.size(); ++next) {
      for (const int unit : after[units_[next]]) {
        if (--awaited[index(unit)] == 0) units_.push_back(unit);
      }
    }
    return units_.size() == index(unit_count_);
  }

  const TracedJob* job_;
  int unit_count_;
  Lists before_;   // by operation
  Lists members_;  // by unit: operations
  std::vector<int> units_;
  std::vector<double> ideal_s_;  // by kind
};

// Question asks the replays of one job.
class Question {
 public:
  Question(const TracedJob& job, const Replay& replay) : job_(job), replay_(replay) {
    answer_.original_s = replay_.duration_s([](const Operation&) { return false; });
    answer_.ideal_s = replay_.duration_s([](const Operation&) { return true; });
    answer_.slowdown = slowdown_of(answer_.original_s);
  }

  WhatIf answer() {
    rate_workers();
    rate_kinds();
    find_slowest();
    const int last = std::ranges::max(job_.workers, {}, &JobWorker::stage).stage;
    if (last > 0)
      answer_.last_stage_share = share_without([&](int worker) { return stage_of(worker) == last; });
    find_lost();
    return std::move(answer_);
  }

 private:
  int stage_of(int worker) const { return job_.workers[index(worker)].stage; }
  int replica_of(int worker) const { return job_.workers[index(worker)].replica; }
  double slowdown_of(double duration_s) const {
    return answer_.ideal_s > 0.0 ? duration_s / answer_.ideal_s : 1.0;
  }

  // Return T where the operations of these workers alone are ideal, or as they were.
  template <typename IsOne>
  double without_s(const IsOne& is_one) const {
    return replay_.duration_s([&](const Operation& operation) { return is_one(operation.worker); });
  }
  template <typename IsOne>
  double alone_s(const IsOne& is_one) const {
    return replay_.duration_s([&](const Operation& operation) { return !is_one(operation.worker); });
  }

  template <typename IsOne>
  double share_without(const IsOne& is_one) const {
    const double lost_s = answer_.original_s - answer_.ideal_s;
    return lost_s > 1e-9 * answer_.original_s ? (answer_.original_s - without_s(is_one)) / lost_s : 0.0;
  }

  template <typename Place>
  std::map<int, double> slowdowns_by(const Place& place_of) const {
    std::map<int, double> slowdowns;
    for (int i = 0; i < static_cast<int>(job_.workers.size()); ++i) slowdowns[place_of(i)] = 0.0;
    for (auto& [place, slowdown] : slowdowns)
      slowdown = slowdown_of(alone_s([&, at = place](int worker) { return place_of(worker) == at; }));
    return slowdowns;
  }

  void rate_workers() {
    const std::map<int, double> by_stage = slowdowns_by([this](int worker) { return stage_of(worker); });
    const std::map<int, double> by_replica = slowdowns_by([this](int worker) { return replica_of(worker); });
    for (const JobWorker& worker : job_.workers)
      answer_.worker_slowdowns.push_back(std::min(by_stage.at(worker.stage), by_replica.at(worker.replica)));
  }

  void rate_kinds() {
    std::map<std::string, double> slowdowns;
    for (const OperationKind& kind : job_.kinds) slowdowns[kind.name] = 0.0;
    for (auto& [name, slowdown] : slowdowns) {
      slowdown = slowdown_of(replay_.duration_s([&, one = &name](const Operation& operation) {
        return job_.kinds[index(operation.kind)].name != *one;
      }));
    }
    answer_.kind_slowdowns.assign(slowdowns.begin(), slowdowns.end());
    std::ranges::stable_sort(answer_.kind_slowdowns, std::greater(), &std::pair<std::string, double>::second);
  }

  // Sorts the workers by S_w; of equals the one of the lower rank is first.
  void find_slowest() {
    ranking_.resize(job_.workers.size());
    std::iota(ranking_.begin(), ranking_.end(), 0);
    std::ranges::stable_sort(ranking_, {}, [this](int worker) { return job_.workers[index(worker)].rank; });
    std::ranges::stable_sort(ranking_, std::greater(),
                             [this](int worker) { return answer_.worker_slowdowns[index(worker)]; });
    const std::size_t count = (ranking_.size() * slowest_percent + 99) / 100;
    answer_.slowest.assign(ranking_.begin(), ranking_.begin() + static_cast<std::ptrdiff_t>(count));
    answer_.worker_share = share_without_slowest(count);
    if (answer_.slowdown < straggles_from || answer_.worker_share < blamed_from) return;
    std::size_t fewest = 1;
    while (fewest < count && share_without_slowest(fewest) < blamed_from) ++fewest;
    answer_.blamed.assign(ranking_.begin(), ranking_.begin() + static_cast<std::ptrdiff_t>(fewest));
  }

  double share_without_slowest(std::size_t count) const {
    std::vector<char> is_slow(job_.workers.size(), 0);
    for (std::size_t i = 0; i < count; ++i) is_slow[index(ranking_[i])] = 1;
    return share_without([&](int worker) { return is_slow[index(worker)] != 0; });
  }

  void find_lost() {
    const std::size_t count = std::min(ranking_.size(), workers_replayed);
    for (const int one : std::span(ranking_).first(count)) {
      const auto is_one = [one](int worker) { return worker == one; };
      answer_.lost.push_back({.worker = one,
                              .lost_s = std::max(0.0, answer_.original_s - without_s(is_one)),
                              .alone_s = std::max(0.0, alone_s(is_one) - answer_.ideal_s)});
    }
    std::ranges::sort(answer_.lost, {},
                      [this](const LostTime& lost) { return job_.workers[index(lost.worker)].rank; });
    for (const int one : answer_.blamed) {
      const auto lost = std::ranges::find(answer_.lost, one, &LostTime::worker);
      if (lost != answer_.lost.end()) lost->mostly = kind_lost_to(one);
    }
  }

  std::string kind_lost_to(int worker) const {
    std::string most;
    double most_s = 0.0;
    for (const auto& [name, slowdown] : answer_.kind_slowdowns) {
      const double alone_s = replay_.duration_s([&, one = &name](const Operation& operation) {
        return operation.worker != worker || job_.kinds[index(operation.kind)].name != *one;
      });
      if (alone_s - answer_.ideal_s > most_s) {
        most_s = alone_s - answer_.ideal_s;
        most = name;
      }
    }
    return most;
  }

  const TracedJob& job_;
  const Replay& replay_;
  WhatIf answer_;
  std::vector<int> ranking_;
};

std::string ranks_text(const TracedJob& job, const std::vector<int>& workers) {
  std::string text = workers.size() == 1 ? "rank" : "ranks";
  for (std::size_t i = 0; i < workers.size(); ++i)
    text += fmt::format("{} {}", i > 0 ? "," : "", job.workers[index(workers[i])].rank);
  return text;
}

std::string blame_text(const TracedJob& job, const WhatIf& answer) {
  if (answer.blamed.empty())
    return fmt::format("no rank is to blame: {:.1f} % of what is lost is lost to the slowest, {}\n",
                       100.0 * answer.worker_share, ranks_text(job, answer.slowest));
  std::string text;
  for (const int worker : answer.blamed) {
    const auto lost = std::ranges::find(answer.lost, worker, &LostTime::worker);
    if (lost == answer.lost.end()) continue;  // of a large job only the slowest are replayed one by one
    text += fmt::format("{:.3f} s lost to rank {}", lost->lost_s, job.workers[index(worker)].rank);
    if (!lost->mostly.empty()) text += fmt::format(", mostly in {}", lost->mostly);
    text += '\n';
  }
  return text + fmt::format("to blame: {}, with {:.1f} % of what is lost\n", ranks_text(job, answer.blamed),
                            100.0 * answer.worker_share);
}

// Returns whether the last stage is to blame; where some of its ranks are, the stage is not.
bool blames_last_stage(const TracedJob& job, const WhatIf& answer) {
  if (answer.slowdown < straggles_from || answer.last_stage_share < blamed_from) return false;
  const int last = std::ranges::max(job.workers, {}, &JobWorker::stage).stage;
  const auto ranks = std::ranges::count(job.workers, last, &JobWorker::stage);
  return answer.blamed.empty() || ranks == std::ssize(answer.blamed);
}

std::string kinds_text(const WhatIf& answer) {
  std::string text;
  for (const auto& [name, slowdown] : answer.kind_slowdowns) {
    if (slowdown >= 1.005) text += fmt::format("{} {} {:.2f}", text.empty() ? "" : ",", name, slowdown);
  }
  return text.empty() ? "" : "slowdown by kind of operation:" + text + "\n";
}

}  // namespace

Result<WhatIf> ask_what_if(const TracedJob& job) {
  HF_TRY(const Replay replay, Replay::make(job));
  return Question(job, replay).answer();
}

std::string what_if_summary(const TracedJob& job, const WhatIf& answer) {
  std::string text =
      fmt::format("{} step{} replayed: {:.4g} s, with ideal operations {:.4g} s: slowdown {:.3f}\n",
                  job.steps, job.steps == 1 ? "" : "s", answer.original_s, answer.ideal_s, answer.slowdown);
  text += blame_text(job, answer);
  if (blames_last_stage(job, answer))
    text += fmt::format("the last stage takes longer than others: {:.1f} % of what is lost is lost to it\n",
                        100.0 * answer.last_stage_share);
  text += kinds_text(answer);
  TextTable table({"rank", "stage", "copy", "lost s", "alone s", "slowdown"}, 0);
  for (const LostTime& lost : answer.lost) {
    const JobWorker& worker = job.workers[index(lost.worker)];
    table.add({fmt::format("{}", worker.rank), fmt::format("{}", worker.stage),
               fmt::format("{}", worker.replica), fmt::format("{:.3f}", lost.lost_s),
               fmt::format("{:.3f}", lost.alone_s),
               fmt::format("{:.3f}", answer.worker_slowdowns[index(lost.worker)])});
  }
  text += fmt::format("\nseconds lost to {}rank:\n{}",
                      answer.lost.size() < job.workers.size() ? "each slow " : "each ", table.text());
  return text;
}

std::string what_if_json(const TracedJob& job, const WhatIf& answer) {
  const auto ranks_of = [&](const std::vector<int>& workers) {
    std::vector<int> ranks;
    for (const int worker : workers) ranks.push_back(job.workers[index(worker)].rank);
    return ranks;
  };
  Json json{{"steps", job.steps},
            {"original_s", answer.original_s},
            {"ideal_s", answer.ideal_s},
            {"slowdown", answer.slowdown},
            {"worker_share", answer.worker_share},
            {"last_stage_share", answer.last_stage_share},
            {"slowest", ranks_of(answer.slowest)},
            {"blamed", ranks_of(answer.blamed)}};
  for (const auto& [name, slowdown] : answer.kind_slowdowns) json["kinds"][name] = slowdown;
  for (const LostTime& lost : answer.lost) {
    const JobWorker& worker = job.workers[index(lost.worker)];
    json["ranks"].push_back(Json{{"rank", worker.rank},
                                 {"stage", worker.stage},
                                 {"copy", worker.replica},
                                 {"slowdown", answer.worker_slowdowns[index(lost.worker)]},
                                 {"lost_s", lost.lost_s},
                                 {"alone_s", lost.alone_s}});
  }
  return json.dump_any(1) + "\n";
}

}  // namespace holdfast::report
