// RankTimes: where each rank spent its time over the course of a run, in the file rank_times.jsonl of the run
// directory. It is written for `holdfast stragglers` and for the heat map of the report; nothing that a run
// decides depends on it.
//
// A line says which ranks there are, or has the mean times of a step of all ranks over some steps in a row:
//
//   {"ranks":[{"rank":0,"host":"a","group":0,"weight":8},...]}
//   {"first":17,"last":40,"times":[[forward,backward,update,other,input,host,waited],...]}    milliseconds
//
// The file stays small: when it has too many lines of times, neighbours become one line.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/health/step_times.h"
#include "runtime/os/env.h"

namespace holdfast::health {

// A rank, and what it has to compute (straggler_rule.h).
struct RankPlace {
  int rank = 0;  // as events name it
  std::string host = {};
  int group = 0;
  double weight = 1.0;

  static void visit_fields(auto& self, auto&& visit) {
    visit("rank", self.rank);
    visit("host", self.host);
    visit("group", self.group);
    visit("weight", self.weight);
  }
};

struct RankTimesRow {
  std::uint64_t first_step = 0, last_step = 0;
  std::vector<StepTimes> mean = {};  // by rank, of one step

  std::uint64_t steps() const { return last_step - first_step + 1; }
};

// The rows of one set of ranks: a start, or what followed a recovery.
struct RankTimesEpoch {
  std::vector<RankPlace> ranks = {};
  std::vector<RankTimesRow> rows = {};  // in the order of the steps
};

// Reads the epochs from the text of the file. Lines that are not whole or damaged are skipped.
std::vector<RankTimesEpoch> parse_rank_times(std::string_view text);
// Reads the file; nothing where there is none, or none that can be read.
std::vector<RankTimesEpoch> read_rank_times(Env& env, const std::string& path);

// Returns by how much each rank of a row is above those that do the same work (1 = as they): its own time, for its
// amount of work, by the median of the others. Where nobody does the same work, 0.
std::vector<double> ratios_to_peers(const RankTimesEpoch& epoch, const RankTimesRow& row);

// RowBuilder adds steps up to rows of a second or more.
class RowBuilder {
 public:
  explicit RowBuilder(std::size_t ranks) : sums_(ranks) {}
  // Returns a row when it is complete with this step.
  std::optional<RankTimesRow> add(std::uint64_t step, std::span<const StepTimes> times, double seconds);
  std::optional<RankTimesRow> finish();  // the steps since the last row, if there are any

 private:
  std::vector<StepTimes> sums_;
  std::uint64_t first_step_ = 0, last_step_ = 0, count_ = 0;
  double seconds_ = 0.0;
};

// RankTimesFile appends to the file. It belongs to one thread, which may be that of the log. Lines that cannot be
// written are lost.
class RankTimesFile {
 public:
  RankTimesFile(Env& env, std::string path, std::vector<RankPlace> ranks)
      : env_(&env), path_(std::move(path)), ranks_(std::move(ranks)) {}
  void add(RankTimesRow row);

 private:
  void begin();
  Env* env_;
  std::string path_;
  std::vector<RankPlace> ranks_;
  std::vector<RankTimesEpoch> epochs_;  // all that the file has; empty before the first row
};

}  // namespace holdfast::health
