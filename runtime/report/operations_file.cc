#include "runtime/report/operations_file.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <tuple>

namespace holdfast::report {
namespace {

enum class Place : std::uint8_t { compute, message, data_parallel, after_compute };

struct KindFacts {
  const char* name;
  Place place;
  IdealDuration ideal;
};

constexpr std::size_t kind_count = static_cast<std::size_t>(TracedKind::count);
constexpr std::array<KindFacts, kind_count> kinds = {{
    {"forward-compute", Place::compute, IdealDuration::mean},
    {"backward-compute", Place::compute, IdealDuration::mean},
    {"forward-send", Place::message, IdealDuration::median},
    {"forward-recv", Place::message, IdealDuration::median},
    {"backward-send", Place::message, IdealDuration::median},
    {"backward-recv", Place::message, IdealDuration::median},
    {"params-all-gather", Place::data_parallel, IdealDuration::median},
    {"grads-reduce-scatter", Place::data_parallel, IdealDuration::median},
    {"layernorm-grads-all-reduce", Place::after_compute, IdealDuration::median},
    {"embedding-grads-all-reduce", Place::after_compute, IdealDuration::median},
    {"separate-grads-all-reduce", Place::after_compute, IdealDuration::median},
    {"optimizer-clip-main-grad", Place::after_compute, IdealDuration::median},
    {"optimizer", Place::after_compute, IdealDuration::mean},
    {"gc", Place::after_compute, IdealDuration::mean},
}};

constexpr int largest_rank = 1 << 20, largest_part = 1 << 14;  // a product of two parts is an int
constexpr double clock_grain_s = 5e-5;  // within which two times of one rank may be the same

const KindFacts& facts_of(TracedKind kind) {
  return kinds[static_cast<std::size_t>(kind)];
}

std::optional<TracedKind> kind_of(std::string_view name) {
  for (std::size_t i = 0; i < kind_count; ++i) {
    if (name == kinds[i].name) return static_cast<TracedKind>(i);
  }
  return std::nullopt;
}

std::string kind_names() {
  std::string text;
  for (const KindFacts& facts : kinds) text += fmt::format("{}{}", text.empty() ? "" : ", ", facts.name);
  return text;
}

// Columns of the file, in the order in which this unit reads them.
constexpr std::array<std::string_view, 8> columns = {"step",  "rank", "replica", "stage",
                                                     "chunk", "kind", "begin_s", "duration_s"};

template <typename Number>
bool read_number(std::string_view text, Number low, Number high, Number& number) {
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && rest == text.data() + text.size() && low <= number && number <= high;
}

std::vector<std::string_view> cells_of(std::string_view line) {
  std::vector<std::string_view> cells;
  while (true) {
    const std::size_t tab = std::min(line.find('\t'), line.size());
    cells.push_back(line.substr(0, tab));
    if (tab == line.size()) return cells;
    line.remove_prefix(tab + 1);
  }
}

// Returns what is wrong with the cells, empty: nothing.
std::string read_operation(const std::array<std::string_view, columns.size()>& cells,
                           TracedOperation& operation) {
  constexpr double longest_s = 1e12;
  double duration_s = 0.0;
  const std::optional<TracedKind> kind = kind_of(cells[5]);
  if (!kind) return fmt::format("\"{}\" is no kind of operation; known are {}", cells[5], kind_names());
  operation.kind = *kind;
  const std::array<bool, columns.size()> right = {
      read_number(cells[0], std::uint64_t{0}, ~std::uint64_t{0}, operation.step),
      read_number(cells[1], 0, largest_rank, operation.rank),
      read_number(cells[2], 0, largest_rank, operation.replica),
      read_number(cells[3], 0, largest_part, operation.stage),
      read_number(cells[4], -1, largest_part, operation.chunk),
      true,
      read_number(cells[6], -longest_s, longest_s, operation.begin_s),
      read_number(cells[7], 0.0, longest_s, duration_s)};
  operation.end_s = operation.begin_s + duration_s;
  const auto wrong = std::ranges::find(right, false);
  if (wrong == right.end()) return "";
  const auto column = static_cast<std::size_t>(wrong - right.begin());
  return fmt::format("\"{}\" is no {}", cells[column], columns[column]);
}

// Names the place of an operation: "forward-recv of rank 3 in step 7".
std::string name_of(const TracedOperation& operation) {
  return fmt::format("{} of rank {} in step {}", facts_of(operation.kind).name, operation.rank,
                     operation.step);
}

bool is_forward(TracedKind kind) {
  return kind == TracedKind::forward_compute || kind == TracedKind::forward_send ||
         kind == TracedKind::forward_receive;
}

bool is_receive(TracedKind kind) {
  return kind == TracedKind::forward_receive || kind == TracedKind::backward_receive;
}

// JobBuilder puts the operations of all ranks together, one rank's step after the other.
class JobBuilder {
 public:
  JobBuilder(std::vector<TracedOperation> operations, const std::string& path)
      : traced_(std::move(operations)), path_(path) {}

  Result<TracedJob> build() {
    HF_TRY_VOID(find_workers());
    HF_TRY_VOID(sort());
    for (std::size_t begin = 0; begin < traced_.size();) {
      std::size_t end = begin;
      while (end < traced_.size() && traced_[end].step == traced_[begin].step &&
             traced_[end].rank == traced_[begin].rank)
        ++end;
      HF_TRY_VOID(add_rank_step(static_cast<int>(begin), static_cast<int>(end)));
      begin = end;
    }
    HF_TRY_VOID(check_messages());
    set_durations();
    return std::move(job_);
  }

 private:
  using Operations = std::vector<int>;  // indices, in the order of their begins
  // Kind, section, replica, stage and number of what meets; -1 where all meet, whatever theirs is.
  using Meeting = std::tuple<TracedKind, int, int, int, int>;

  Result<void> find_workers() {
    std::map<int, std::pair<int, int>> places;
    std::map<std::pair<int, int>, int> ranks;
    for (const TracedOperation& one : traced_) {
      const std::pair place(one.replica, one.stage);
      const auto [known, is_new] = places.emplace(one.rank, place);
      const auto [rank, is_first] = ranks.emplace(place, one.rank);
      if (known->second != place || rank->second != one.rank)
        return fail(ExitCode::data,
                    "{}: rank {} is not the only rank of stage {} of replica {}, or has another place in "
                    "another line; of ranks that act as one, keep one",
                    path_, one.rank, one.stage, one.replica);
      stages_ = std::max(stages_, one.stage + 1);
      chunks_ = std::max(chunks_, one.chunk + 1);
    }
    for (const auto& [rank, place] : places) {
      worker_of_[rank] = static_cast<int>(job_.workers.size());
      job_.workers.push_back({.rank = rank, .replica = place.first, .stage = place.second});
    }
    return {};
  }

  // Sorts by step, rank and begin, and makes an operation of each.
  Result<void> sort() {
    std::ranges::stable_sort(
        traced_, {}, [](const TracedOperation& one) { return std::tuple(one.step, one.rank, one.begin_s); });
    std::array<int, kind_count> numbers{};
    numbers.fill(-1);
    job_.sections = 0;
    for (std::size_t i = 0; i < traced_.size(); ++i) {
      const TracedOperation& one = traced_[i];
      if (i == 0 || traced_[i - 1].step != one.step) ++job_.sections;
      int& kind = numbers[static_cast<std::size_t>(one.kind)];
      if (kind < 0) {
        kind = static_cast<int>(job_.kinds.size());
        job_.kinds.push_back({.name = facts_of(one.kind).name, .ideal = facts_of(one.kind).ideal});
      }
      overlaps_ |= one.kind == TracedKind::reduce_separate_gradients;
      job_.operations.push_back(
          {.worker = worker_of_.at(one.rank), .kind = kind, .section = job_.sections - 1});
    }
    job_.steps = job_.sections;
    return {};
  }

  // Puts the operations begin to end - 1, of one rank in one step, in their order.
  Result<void> add_rank_step(int begin, int end) {
    std::array<Operations, kind_count> by_kind;
    Operations compute, data_parallel;
    for (int i = begin; i < end; ++i) {
      const TracedOperation& one = traced_[index(i)];
      by_kind[static_cast<std::size_t>(one.kind)].push_back(i);
      if (facts_of(one.kind).place == Place::compute) compute.push_back(i);
      if (facts_of(one.kind).place == Place::data_parallel) data_parallel.push_back(i);
    }
    const auto of = [&](TracedKind kind) -> const Operations& {
      return by_kind[static_cast<std::size_t>(kind)];
    };
    chain(compute);
    using enum TracedKind;
    for (const TracedKind kind : {forward_send, forward_receive, backward_send, backward_receive}) {
      chain(of(kind));
      HF_TRY_VOID(add_messages(of(kind), of(is_forward(kind) ? forward_compute : backward_compute)));
    }
    chain(data_parallel);
    let_meet(data_parallel);
    add_gathers(of(gather_parameters), of(forward_compute));
    if (overlaps_) add_reductions(of(reduce_gradients), of(backward_compute));
    add_end(compute, by_kind);
    return {};
  }

  void follows(int second, int first) { job_.order.emplace_back(first, second); }

  void chain(const Operations& operations) {
    for (std::size_t i = 1; i < operations.size(); ++i) follows(operations[i], operations[i - 1]);
  }

  // The n-th of a kind meets the n-th of the same stage in the other replicas.
  void let_meet(const Operations& operations) {
    std::array<int, kind_count> numbers{};
    for (const int one : operations) {
      const TracedOperation& traced = traced_[index(one)];
      meet(one, {traced.kind, section_of(one), -1, traced.stage,
                 numbers[static_cast<std::size_t>(traced.kind)]++});
    }
  }

  int section_of(int operation) const { return job_.operations[index(operation)].section; }

  void meet(int operation, const Meeting& meeting) {
    const auto [found, is_new] = meetings_.emplace(meeting, job_.meetings);
    if (is_new) ++job_.meetings;
    job_.operations[index(operation)].meeting = found->second;
  }

  // Returns the place of the other end of a message in the model: chunks count through all stages.
  int other_part(const TracedOperation& compute, TracedKind message) const {
    const int part = std::max(0, compute.chunk) * stages_ + compute.stage;
    return part + (is_forward(message) == is_receive(message) ? -1 : 1);
  }
  bool has_other_end(const TracedOperation& compute, TracedKind message) const {
    const int other = other_part(compute, message);
    return other >= 0 && other < stages_ * std::max(1, chunks_);
  }

  // Brings the messages of one kind to what was computed from them, or what they were computed from.
  Result<void> add_messages(const Operations& messages, const Operations& computations) {
    if (messages.empty() || computations.empty()) return {};
    const TracedOperation& first = traced_[index(messages.front())];
    // Messages that never left are told by their times; once for a stage, because times are not exact.
    const auto [known, is_new] =
        patterns_.try_emplace({first.kind, first.stage, messages.size(), computations.size()});
    if (is_new) {
      HF_TRY(known->second, pair_messages(messages, computations));
    }
    int number = 0;  // of those with another end
    for (std::size_t i = 0; i < messages.size(); ++i) {
      if (known->second[i] >= 0) add_message(messages[i], computations, index(known->second[i]), number);
    }
    return {};
  }

  // Returns for each message the number of its computation, or -1. A trace may have messages that never left:
  // before the first computation could have sent any, after the last one began, and where a model begins or
  // ends. Those that are left are as many as computations, or as computations with a neighbour; of receives
  // the first may be missing.
  Result<std::vector<int>> pair_messages(const Operations& messages, const Operations& computations) const {
    const TracedKind kind = traced_[index(messages.front())].kind;
    double first_end_s = traced_[index(computations.front())].end_s;
    for (const int one : computations) first_end_s = std::min(first_end_s, traced_[index(one)].end_s);
    const double last_begin_s = traced_[index(computations.back())].begin_s;
    std::vector<int> pairs(messages.size(), -1);
    std::vector<std::size_t> left;
    for (std::size_t i = 0; i < messages.size(); ++i) {
      const TracedOperation& message = traced_[index(messages[i])];
      const bool never_left = is_receive(kind) ? message.begin_s > last_begin_s + clock_grain_s
                                               : message.end_s < first_end_s - clock_grain_s;
      if (!never_left) left.push_back(i);
    }
    std::vector<int> all, with_neighbour;
    for (std::size_t i = 0; i < computations.size(); ++i) {
      all.push_back(static_cast<int>(i));
      if (has_other_end(traced_[index(computations[i])], kind)) with_neighbour.push_back(static_cast<int>(i));
    }
    std::span<const int> numbers = all;
    if (left.size() == with_neighbour.size()) {
      numbers = with_neighbour;
    } else if (is_receive(kind) && left.size() + 1 == all.size()) {
      numbers = numbers.last(left.size());
    }
    if (!left.empty() && left.size() != numbers.size())
      return fail(ExitCode::data, "{}: {} {} were recorded for {} computations, expected as many: {}", path_,
                  left.size(), facts_of(kind).name, all.size(),
                  report::name_of(traced_[index(messages[left.front()])]));
    for (std::size_t i = 0; i < left.size(); ++i) pairs[left[i]] = numbers[i];
    return pairs;
  }

  void add_message(int message, const Operations& computations, std::size_t at, int& number) {
    const TracedOperation& traced = traced_[index(message)];
    if (is_receive(traced.kind)) {
      follows(computations[at], message);
      if (at > 0) follows(message, computations[at - 1]);
    } else {
      follows(message, computations[at]);
    }
    if (!has_other_end(traced_[index(computations[at])], traced.kind)) return;
    using enum TracedKind;
    const int sender = is_receive(traced.kind)
                           ? (traced.stage + (is_forward(traced.kind) ? stages_ - 1 : 1)) % stages_
                           : traced.stage;
    const TracedKind sent = is_forward(traced.kind) ? forward_send : backward_send;
    meet(message, {sent, section_of(message), traced.replica, sender, number++});
  }

  // The first forward of a chunk needs all parameters of the chunk.
  void add_gathers(const Operations& gathers, const Operations& forwards) {
    std::map<int, int> last;  // by chunk
    for (const int one : gathers) last[traced_[index(one)].chunk] = one;
    for (const auto& [chunk, gather] : last) {
      const auto first = std::ranges::find_if(
          forwards, [&, of = chunk](int one) { return of < 0 || traced_[index(one)].chunk == of; });
      if (first != forwards.end()) follows(*first, gather);
    }
  }

  // Gradients of a chunk leave when the last backward of the chunk is over.
  void add_reductions(const Operations& reductions, const Operations& backwards) {
    std::map<int, int> first;  // by chunk
    for (const int one : reductions) first.emplace(traced_[index(one)].chunk, one);
    for (const auto& [chunk, reduction] : first) {
      const auto last = std::find_if(backwards.rbegin(), backwards.rend(), [&, of = chunk](int one) {
        return of < 0 || traced_[index(one)].chunk == of;
      });
      if (last != backwards.rend()) follows(reduction, *last);
    }
  }

  // Adds what comes after the last computation, one after the other; reductions of gradients that do not
  // overlap the backwards are among them.
  void add_end(const Operations& compute, const std::array<Operations, kind_count>& by_kind) {
    const auto of = [&](TracedKind kind) -> const Operations& {
      return by_kind[static_cast<std::size_t>(kind)];
    };
    using enum TracedKind;
    Operations last;  // what the next one comes after
    if (!compute.empty())
      last.push_back(
          *std::ranges::max_element(compute, {}, [this](int one) { return traced_[index(one)].end_s; }));
    const auto then = [&](const Operations& operations) {
      for (const int one : operations) {
        for (const int before : last) follows(one, before);
        last = {one};
      }
    };
    then(of(collect_garbage));
    if (overlaps_ && !of(reduce_gradients).empty()) last.push_back(of(reduce_gradients).back());
    then(of(reduce_norm_gradients));
    then(of(reduce_embedding_gradients));
    if (!overlaps_) then(of(reduce_gradients));
    then(of(reduce_separate_gradients));
    then(of(clip_gradients));
    then(of(optimizer));
    let_meet(of(reduce_separate_gradients));
    int number = 0;
    for (const int one : of(reduce_embedding_gradients))
      meet(one, {reduce_embedding_gradients, section_of(one), traced_[index(one)].replica, -1, number++});
    number = 0;
    for (const int one : of(clip_gradients)) meet(one, {clip_gradients, section_of(one), -1, -1, number++});
  }

  // Every message has two ends.
  Result<void> check_messages() const {
    std::vector<int> ends(index(job_.meetings), 0);
    for (const Operation& operation : job_.operations) {
      if (operation.meeting >= 0) ++ends[index(operation.meeting)];
    }
    for (std::size_t i = 0; i < traced_.size(); ++i) {
      const int meeting = job_.operations[i].meeting;
      if (facts_of(traced_[i].kind).place == Place::message && meeting >= 0 && ends[index(meeting)] != 2)
        return fail(ExitCode::data,
                    "{}: the other end of a {} is missing: the trace does not have all operations of the "
                    "neighbouring stage",
                    path_, report::name_of(traced_[i]));
    }
    return {};
  }

  // The duration of what meets is counted from when the last of them has begun.
  void set_durations() {
    std::vector<double> begins_s(index(job_.meetings), -std::numeric_limits<double>::infinity());
    for (std::size_t i = 0; i < traced_.size(); ++i) {
      const int meeting = job_.operations[i].meeting;
      if (meeting >= 0) begins_s[index(meeting)] = std::max(begins_s[index(meeting)], traced_[i].begin_s);
    }
    for (std::size_t i = 0; i < traced_.size(); ++i) {
      const int meeting = job_.operations[i].meeting;
      const double begin_s = meeting >= 0 ? begins_s[index(meeting)] : traced_[i].begin_s;
      job_.operations[i].duration_s = std::max(0.0, traced_[i].end_s - begin_s);
    }
  }

  std::vector<TracedOperation> traced_;  // in the order of job_.operations
  std::string path_;
  TracedJob job_;
  std::map<int, int> worker_of_;  // by rank
  std::map<Meeting, int> meetings_;
  // By kind, stage and number of messages and computations: the computation of each message, or -1.
  std::map<std::tuple<TracedKind, int, std::size_t, std::size_t>, std::vector<int>> patterns_;
  int stages_ = 1, chunks_ = 1;
  bool overlaps_ = false;  // reductions of gradients begin before the last backward
};

}  // namespace

Result<std::vector<TracedOperation>> parse_operations(std::string_view text, const std::string& path) {
  std::array<std::size_t, columns.size()> places{};
  std::vector<TracedOperation> operations;
  std::size_t width = 0;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::vector<std::string_view> cells = cells_of(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (number == 1) {
      width = cells.size();
      for (std::size_t i = 0; i < columns.size(); ++i) {
        const auto found = std::ranges::find(cells, columns[i]);
        if (found == cells.end())
          return fail(
              ExitCode::data,
              "{}:1: no column is named {}; expected a line with the names step, rank, replica, stage, "
              "chunk, kind, begin_s and duration_s, with tabs between them (docs/timeline.md)",
              path, columns[i]);
        places[i] = static_cast<std::size_t>(found - cells.begin());
      }
      continue;
    }
    if (cells.size() != width)
      return fail(ExitCode::data, "{}:{}: expected {} columns, as in the first line, got {}", path, number,
                  width, cells.size());
    std::array<std::string_view, columns.size()> ours;
    for (std::size_t i = 0; i < columns.size(); ++i) ours[i] = cells[places[i]];
    TracedOperation operation;
    if (const std::string wrong = read_operation(ours, operation); !wrong.empty())
      return fail(ExitCode::data, "{}:{}: {}", path, number, wrong);
    operations.push_back(operation);
  }
  if (operations.empty())
    return fail(ExitCode::data, "{} has no operation; expected a line for each (docs/timeline.md)", path);
  return operations;
}

Result<TracedJob> job_of(std::vector<TracedOperation> operations, const std::string& path) {
  return JobBuilder(std::move(operations), path).build();
}

}  // namespace holdfast::report
