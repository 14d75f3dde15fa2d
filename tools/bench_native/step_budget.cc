#include "tools/bench_native/step_budget.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "kernels/matmul.h"
#include "kernels/optimizer.h"
#include "runtime/core/median.h"
#include "runtime/core/text.h"
#include "runtime/measure/call_key.h"
#include "runtime/measure/report.h"

namespace holdfast::bench {
namespace {

double seconds_of(const std::vector<OpTimer::Record>& records) {
  std::int64_t sum_ns = 0;
  for (const OpTimer::Record& record : records) sum_ns += record.duration_ns;
  return static_cast<double>(sum_ns) * 1e-9;
}

double milliseconds(double seconds) {
  return seconds * 1e3;
}

double share_of(double part, double whole) {
  return whole > 0.0 ? part / whole : 0.0;
}

OpCost times(const OpCost& cost, double factor) {
  const auto scaled = [factor](std::uint64_t bytes) {
    return static_cast<std::uint64_t>(static_cast<double>(bytes) * factor);
  };
  return {cost.flops * factor, scaled(cost.bytes_read), scaled(cost.bytes_written),
          scaled(cost.bytes_updated)};
}

// Bytes that all ops of a row's kind move in a step.
double bytes_of_kind(const StepBudget& budget, OpId id) {
  double bytes = 0.0;
  for (const BudgetRow& row : budget.rows) {
    if (row.example.id == id)
      bytes += static_cast<double>(row.cost.bytes_moved()) * static_cast<double>(row.calls);
  }
  return bytes;
}

// Returns the limit of all calls of a row. Bytes that go through memory once in a step are compared with the
// rate of the level that holds all of them.
Result<double> limit_of(const StepBudget& budget, const BudgetRow& row, Limits& limits) {
  const auto calls = static_cast<double>(row.calls);
  const OpId id = row.example.id;
  if (id == Matmul::id) {
    return calls * limits.product_seconds(*reinterpret_cast<const Matmul*>(row.example.arguments.data()));
  }
  const double moved = static_cast<double>(row.cost.bytes_moved());
  if (once_per_step(id) && moved > 0.0) {
    const double factor = bytes_of_kind(budget, id) / moved;
    HF_TRY(const double all, limits.stream_seconds(times(row.cost, factor)));
    return all / factor * calls;
  }
  const bool bf16 = row.shape.find("bf16") != std::string::npos;
  HF_TRY(const double one, op_seconds(limits, row.cost, bf16 ? DType::bf16 : DType::fp32));
  return one * calls;
}

}  // namespace

namespace {

StepBudget::Sum sum_of(const StepBudget& budget, const auto& belongs) {
  StepBudget::Sum sum;
  for (const BudgetRow& row : budget.rows) {
    if (!belongs(row.example.id)) continue;
    sum.calls += row.calls;
    sum.seconds += row.seconds;
    sum.limit_seconds += row.limit_seconds;
  }
  return sum;
}

}  // namespace

StepBudget::Sum StepBudget::of(OpClass op_class) const {
  return sum_of(*this, [=](OpId id) { return class_of(id) == op_class; });
}

StepBudget::Sum StepBudget::of(OpId id) const {
  return sum_of(*this, [=](OpId other) { return other == id; });
}

double StepBudget::bound_seconds() const {
  double sum = 0.0;
  for (const BudgetRow& row : rows) {
    if (row.example.id == Matmul::id || is_update(row.example.id)) sum += row.limit_seconds;
  }
  return sum;
}

StepBudget make_budget(const std::vector<std::vector<OpTimer::Record>>& steps,
                       const std::vector<double>& step_seconds) {
  StepBudget budget{.step_seconds = median(step_seconds)};
  std::map<measure::CallKey, std::size_t> row_of;
  std::vector<std::vector<double>> row_seconds;  // [row][step]
  std::vector<double> idle;
  for (std::size_t step = 0; step < steps.size(); ++step) {
    idle.push_back(step_seconds[step] - seconds_of(steps[step]));
    for (const OpTimer::Record& record : steps[step]) {
      const auto [found, fresh] =
          row_of.try_emplace(measure::call_key(record.id, record.arguments.data()), budget.rows.size());
      if (fresh) {
        budget.rows.push_back({.example = record,
                               .shape = measure::call_text(record.id, record.arguments.data()),
                               .cost = cost_of(record.id, record.arguments.data())});
        row_seconds.emplace_back(steps.size());
      }
      budget.rows[found->second].calls += step == 0 ? 1 : 0;
      row_seconds[found->second][step] += static_cast<double>(record.duration_ns) * 1e-9;
    }
  }
  for (std::size_t row = 0; row < budget.rows.size(); ++row)
    budget.rows[row].seconds = median(row_seconds[row]);
  budget.idle_seconds = median(idle);
  std::ranges::stable_sort(budget.rows, std::ranges::greater(), &BudgetRow::seconds);
  return budget;
}

Result<void> measure_limits(StepBudget& budget, Limits& limits) {
  for (BudgetRow& row : budget.rows) {
    HF_TRY(const double limit, limit_of(budget, row, limits));
    row.limit_seconds = row.limit_seconds > 0.0 ? std::min(row.limit_seconds, limit) : limit;
  }
  budget.product_limit = limits.product_name();
  return {};
}

namespace {

std::string rows_text(const StepBudget& budget) {
  constexpr double smallest_share = 0.002;
  TextTable table({"op", "shape", "calls", "ms", "of step", "rate", "limit ms", "of limit"}, 2);
  BudgetRow rest;
  std::int64_t kinds = 0;
  for (const BudgetRow& row : budget.rows) {
    if (row.seconds < smallest_share * budget.step_seconds) {
      ++kinds;
      rest.calls += row.calls;
      rest.seconds += row.seconds;
      rest.limit_seconds += row.limit_seconds;
      continue;
    }
    table.add({name_of(row.example.id), row.shape, std::to_string(row.calls),
               digits(milliseconds(row.seconds)), percent(share_of(row.seconds, budget.step_seconds)),
               rate_text(row.cost, row.seconds / static_cast<double>(row.calls)),
               digits(milliseconds(row.limit_seconds)), percent(share_of(row.limit_seconds, row.seconds))});
  }
  if (kinds > 0) {
    table.add({"others", fmt::format("{} kinds below {} % each", kinds, smallest_share * 100.0),
               std::to_string(rest.calls), digits(milliseconds(rest.seconds)),
               percent(share_of(rest.seconds, budget.step_seconds)), "",
               digits(milliseconds(rest.limit_seconds)),
               percent(share_of(rest.limit_seconds, rest.seconds))});
  }
  return table.text();
}

// Ops of a kind in a step; the ones that it has, the longest first.
std::vector<OpId> ops_of(const StepBudget& budget, OpClass op_class) {
  std::vector<OpId> ops;
  for (std::size_t i = 0; i < op_count; ++i) {
    const auto id = static_cast<OpId>(i);
    if (class_of(id) == op_class && budget.of(id).calls > 0) ops.push_back(id);
  }
  std::ranges::stable_sort(ops, std::ranges::greater(), [&](OpId id) { return budget.of(id).seconds; });
  return ops;
}

std::string parts_text(const StepBudget& budget) {
  TextTable table({"part of the step", "calls", "ms", "of step", "limit ms", "of limit"}, 1);
  StepBudget::Sum all;
  const auto add = [&](const std::string& name, const StepBudget::Sum& sum) {
    table.add({name, std::to_string(sum.calls), digits(milliseconds(sum.seconds)),
               percent(share_of(sum.seconds, budget.step_seconds)), digits(milliseconds(sum.limit_seconds)),
               percent(share_of(sum.limit_seconds, sum.seconds))});
  };
  for (int index = 0; index < op_class_count; ++index) {
    const auto op_class = static_cast<OpClass>(index);
    const StepBudget::Sum part = budget.of(op_class);
    all.calls += part.calls;
    all.seconds += part.seconds;
    all.limit_seconds += part.limit_seconds;
    const std::vector<OpId> ops = ops_of(budget, op_class);
    if (ops.empty()) continue;
    add(std::string(name_of(op_class)), part);
    if (ops.size() == 1) continue;
    for (const OpId id : ops) add(fmt::format("  {}", name_of(id)), budget.of(id));
  }
  table.add_rule();
  add("all ops", all);
  table.add({"between ops", "", digits(milliseconds(budget.idle_seconds)),
             percent(share_of(budget.idle_seconds, budget.step_seconds)), "", ""});
  return table.text();
}

Json sum_json(const StepBudget::Sum& sum) {
  return {
      {"calls", sum.calls}, {"ms", milliseconds(sum.seconds)}, {"limit_ms", milliseconds(sum.limit_seconds)}};
}

}  // namespace

std::string budget_text(const StepBudget& budget) {
  double products = 0.0;
  for (const BudgetRow& row : budget.rows) products += row.example.id == Matmul::id ? row.limit_seconds : 0.0;
  return fmt::format(
      "{}\n{}\nbound: {} ms of matrix products at {} + {} ms of AdamW's bytes at the rate of memory = {} ms\n"
      "step:  {} ms = {:.2f} x the bound\n",
      rows_text(budget), parts_text(budget), digits(milliseconds(products)), budget.product_limit,
      digits(milliseconds(budget.bound_seconds() - products)), digits(milliseconds(budget.bound_seconds())),
      digits(milliseconds(budget.step_seconds)), share_of(budget.step_seconds, budget.bound_seconds()));
}

Json budget_json(const StepBudget& budget) {
  Json rows = Json::array(), parts = Json::object(), kinds = Json::object();
  for (const BudgetRow& row : budget.rows) {
    rows.push_back({{"op", name_of(row.example.id)},
                    {"shape", row.shape},
                    {"calls", row.calls},
                    {"ms", milliseconds(row.seconds)},
                    {"limit_ms", milliseconds(row.limit_seconds)},
                    {"flops_per_call", row.cost.flops},
                    {"bytes_read_per_call", row.cost.bytes_read},
                    {"bytes_written_per_call", row.cost.bytes_written}});
  }
  for (int index = 0; index < op_class_count; ++index) {
    const auto op_class = static_cast<OpClass>(index);
    parts[std::string(name_of(op_class))] = sum_json(budget.of(op_class));
    for (const OpId id : ops_of(budget, op_class)) kinds[name_of(id)] = sum_json(budget.of(id));
  }
  return {{"step_ms", milliseconds(budget.step_seconds)},
          {"between_ops_ms", milliseconds(budget.idle_seconds)},
          {"bound_ms", milliseconds(budget.bound_seconds())},
          {"step_over_bound", share_of(budget.step_seconds, budget.bound_seconds())},
          {"parts", parts},
          {"kinds", kinds},
          {"ops", rows}};
}

}  // namespace holdfast::bench
