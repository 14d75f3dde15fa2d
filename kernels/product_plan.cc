#include "kernels/product_plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

namespace holdfast::kernels {
namespace {

// Separates a shape from its algorithm.
constexpr std::string_view mark = ": ";

std::string_view take_line(std::string_view& text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(line.size() + 1, text.size()));
  return line;
}

bool is_left_out(std::string_view line) {
  return line.empty() || line.front() == '#';
}

}  // namespace

std::string plan_shape(const ProductShape& s) {
  return fmt::format("m {} n {} k {} lda {} ldb {} ldc {} {}{}{}{}{} {} -> {}", s.m, s.n, s.k, s.lda, s.ldb,
                     s.ldc, s.transpose_a ? "T" : "N", s.transpose_b ? "T" : "N",
                     s.accumulate ? " accumulate" : "", s.bias ? " bias" : "", s.gelu ? " gelu" : "",
                     name_of(s.dtype), name_of(s.dtype_c));
}

ProductAlgorithms algorithms_of(std::string_view plan) {
  ProductAlgorithms algorithms;
  while (!plan.empty()) {
    const std::string_view line = take_line(plan);
    const std::size_t end = line.find(mark);
    if (is_left_out(line) || end == std::string_view::npos) continue;
    algorithms.insert({std::string(line.substr(0, end)), std::string(line.substr(end + mark.size()))});
  }
  return algorithms;
}

Result<ProductAlgorithms> read_plan(std::string_view text, std::string_view file) {
  std::string_view rest = text;
  for (int number = 1; !rest.empty(); ++number) {
    const std::string_view line = take_line(rest);
    if (is_left_out(line)) continue;
    const std::size_t end = line.find(mark);
    const std::string_view algorithm = end == std::string_view::npos ? "" : line.substr(end + mark.size());
    if (line.starts_with("m ") && (algorithm.starts_with("algorithm ") || algorithm == "none")) continue;
    return fail(
        ExitCode::config,
        "{}:{}: \"{}\" is not a product with its algorithm; expected lines as `holdfast bench op matmul "
        "--device cuda --algorithms --plan FILE` writes them, or as device_plan of a start event has them",
        file, number, line);
  }
  return algorithms_of(text);
}

std::string difference_of_plans(std::string_view there, std::string_view here) {
  const ProductAlgorithms known = algorithms_of(there);
  for (const auto& [shape, algorithm] : algorithms_of(here)) {
    const auto found = known.find(shape);
    if (found == known.end() || found->second == algorithm) continue;
    return fmt::format("the product {} by \"{}\" there and by \"{}\" here", shape, found->second, algorithm);
  }
  return {};
}

PlanDifference difference_of_ranks(const std::vector<std::string>& plans) {
  std::map<std::string_view, int> first_with;  // of each plan: ranks of one stage have equal ones
  for (int rank = 0; rank < std::ssize(plans); ++rank) {
    const std::string_view plan = plans[static_cast<std::size_t>(rank)];
    if (first_with.contains(plan)) continue;
    for (const auto& [other_plan, other_rank] : first_with) {
      std::string clause = difference_of_plans(other_plan, plan);
      if (!clause.empty()) return {.rank = rank, .other_rank = other_rank, .clause = std::move(clause)};
    }
    first_with.insert({plan, rank});
  }
  return {};
}

std::string plan_of_ranks(const std::vector<std::string>& plans) {
  ProductAlgorithms all;
  std::set<std::string_view> seen;
  for (const std::string& plan : plans)
    if (seen.insert(plan).second) all.merge(algorithms_of(plan));  // what is there already stays
  std::string text;
  for (const auto& [shape, algorithm] : all)
    text += fmt::format("{}{}{}{}", text.empty() ? "" : "\n", shape, mark, algorithm);
  return text;
}

}  // namespace holdfast::kernels
