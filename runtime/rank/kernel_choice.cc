#include "runtime/rank/kernel_choice.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "kernels/composed.h"
#include "kernels/cpu/library_isa.h"
#include "kernels/plugin.h"
#include "kernels/plugin_loader.h"

namespace holdfast::rank {
namespace {

OpId op_at(std::size_t index) {
  return static_cast<OpId>(index);
}

// Returns the name of the implementation that runs most ops; the first of several that run equally many.
std::string_view commonest_name(const KernelTable& table) {
  const auto uses = [&](const KernelChoice& one) {
    return std::ranges::count_if(table, [&](const KernelChoice& other) {
      return std::string_view(other.first().name) == one.first().name;
    });
  };
  return std::ranges::max_element(table, {}, uses)->first().name;
}

using Names = std::vector<std::string_view>;

// Returns the implementations that run the calls which the first does not support, in order.
Names fallbacks(const KernelChoice& choice) {
  Names names;
  for (const Implementation* each : choice.order) names.push_back(each->name);
  names.erase(names.begin());
  return names;
}

std::string clause(std::string_view before, const Names& names, std::string_view after = {}) {
  return names.empty() ? "" : fmt::format("{}{}{}", before, fmt::join(names, ", "), after);
}

}  // namespace

namespace {

OpId op_of_rule(const KernelRuleConfig& rule) {
  const auto* const op = std::ranges::find(op_names, std::string_view(rule.op));
  HF_CHECK(op != std::end(op_names), "a rule about {}, which is no op", rule.op);
  return op_at(static_cast<std::size_t>(op - std::begin(op_names)));
}

// Adds the rules of a key, whose ops the config has checked.
void add_rules(std::string_view key, const std::vector<KernelRuleConfig>& rules,
               const std::map<std::string, std::string>& origin, std::vector<KernelPreference>& requests) {
  const auto found = origin.find(std::string(key));
  for (std::size_t index = 0; index < rules.size(); ++index) {
    const KernelRuleConfig& rule = rules[index];
    requests.push_back({.op = op_of_rule(rule),
                        .name = rule.use,
                        .origin = found == origin.end() ? "" : found->second,
                        .key = fmt::format("{}[{}]", key, index),
                        .layers = rule.layers,
                        .every = rule.every_steps});
    for (const ShapeConditionConfig& each : rule.where)
      requests.back().where.push_back({.field = each.field, .value = each.value});
  }
}

// Returns the request without plug-ins.
KernelRequest own_request(const KernelsConfig& kernels, const std::map<std::string, std::string>& origin) {
  KernelRequest request;
  if (const std::optional<CpuIsa> isa = cpu_isa_of(kernels.isa)) request.isa = *isa;
  for (std::size_t index = 0; index < op_count; ++index) {
    if (kernels.implementations[index] == "auto") continue;
    const auto found = origin.find(fmt::format("kernels.{}", op_names[index]));
    request.requests.push_back(
        {op_at(index), kernels.implementations[index], found == origin.end() ? "" : found->second});
  }
  add_rules("kernels.rules", kernels.rules, origin, request.requests);
  add_rules("kernels.shadow", kernels.shadows, origin, request.requests);
  return request;
}

}  // namespace

Result<KernelRequest> kernel_request(Env& env, const KernelsConfig& kernels,
                                     const std::map<std::string, std::string>& origin) {
  KernelRequest request = own_request(kernels, origin);
  HF_TRY(request.registry, registry_with_plugins(env, kernels.plugins));
  return request;
}

Result<void> settle_kernels(const KernelRequest& request) {
  const Result<void> chosen = outcome_of(request.registry->choose(request.isa, request.requests));
  // The file of a plug-in on another host may have the kernel that this one lacks.
  if (!chosen.ok() && request.registry != &kernel_registry()) return with_reach(Reach::host, chosen.error());
  HF_TRY_VOID(chosen);
  return limit_library_isa(request.isa);
}

namespace {

std::string rule_line(std::string_view op, const KernelRule& rule) {
  if (rule.every > 0)
    return fmt::format("{}{}: {} is compared every {} steps, {}", op, rule.filter.text(), rule.first().name,
                       rule.every, rule.why);
  return fmt::format("{}{}: {}, {}", op, rule.filter.text(), rule.first().name, rule.why);
}

}  // namespace

std::vector<std::string> kernel_summary(const KernelTable& table) {
  const std::string_view common = commonest_name(table);
  std::vector<std::string> lines;
  for (std::size_t index = 0; index < op_count; ++index) {
    const KernelChoice& choice = table[index];
    if (choice.first().name != common) {
      lines.push_back(fmt::format("{}: {}{}, {}", op_names[index], choice.first().name,
                                  clause(" (else ", fallbacks(choice), ")"), choice.why));
    } else if (lines.empty() || !lines.front().starts_with(common)) {
      lines.insert(lines.begin(), fmt::format("{}, {}", common, choice.why));
    }
    for (const KernelRule& rule : choice.rules) lines.push_back(rule_line(op_names[index], rule));
    for (const KernelRule& shadow : choice.shadows) lines.push_back(rule_line(op_names[index], shadow));
  }
  return lines;
}

std::vector<std::string> kernel_lines(const KernelTable& table, const KernelRegistry& registry, CpuIsa isa) {
  std::vector<std::string> lines;
  for (std::size_t index = 0; index < op_count; ++index) {
    const KernelChoice& choice = table[index];
    const Names next = fallbacks(choice);
    Names others;
    for (const Implementation* each : registry.of(op_at(index))) {
      const auto is_it = [&](std::string_view name) { return name == each->name; };
      const bool reported = is_it(choice.first().name) || std::ranges::any_of(next, is_it) ||
                            std::ranges::any_of(others, is_it);
      if (each->needs <= isa && each->needs_gpu == 0 && !reported) others.push_back(each->name);
    }
    lines.push_back(fmt::format("{:<22} {:<11} {}{}{}", op_names[index], choice.first().name, choice.why,
                                clause("; else ", next), clause("; also ", others)));
    for (const KernelRule& rule : choice.rules) lines.push_back("  " + rule_line(op_names[index], rule));
    for (const KernelRule& shadow : choice.shadows)
      lines.push_back("  " + rule_line(op_names[index], shadow));
  }
  return lines;
}

std::vector<EventKernel> kernels_in_use(const KernelTable& table) {
  std::vector<EventKernel> kernels;
  for (std::size_t index = 0; index < op_count; ++index) {
    kernels.push_back({.op = std::string(op_names[index]),
                       .name = table[index].first().name,
                       .why = std::string(table[index].why)});
    for (const KernelRule& rule : table[index].rules)
      kernels.push_back(
          {.op = op_names[index] + rule.filter.text(), .name = rule.first().name, .why = rule.why});
  }
  return kernels;
}

std::string names_in_use(const KernelChoice& choice) {
  std::string names = choice.first().name;
  for (const KernelRule& rule : choice.rules)
    names += fmt::format(", {}{}", rule.first().name, rule.filter.text());
  return names;
}

std::vector<std::string> forget_missing_kernels(KernelsConfig& kernels, const KernelRegistry& registry,
                                                const KernelTarget& target,
                                                std::span<const std::string> needed) {
  const auto is_needed = [needed](std::string_view key) {
    return std::ranges::find(needed, key) != needed.end();
  };
  std::vector<std::string> forgotten;
  const auto is_missing = [&](OpId op, const std::string& name) {
    return registry.find(op, name, target) == nullptr;
  };
  for (std::size_t index = 0; index < op_count; ++index) {
    std::string& name = kernels.implementations[index];
    const std::string key = fmt::format("kernels.{}", op_names[index]);
    if (name == "auto" || is_needed(key) || !is_missing(op_at(index), name)) continue;
    forgotten.push_back(fmt::format("{} = \"{}\"", key, name));
    name = "auto";
  }
  if (is_needed("kernels.rules")) return forgotten;
  std::erase_if(kernels.rules, [&](const KernelRuleConfig& rule) {
    const OpId op = op_of_rule(rule);
    if (!is_missing(op, rule.use)) return false;
    forgotten.push_back(fmt::format("kernels.rules with {} = \"{}\"", rule.op, rule.use));
    return true;
  });
  return forgotten;
}

namespace {

bool is_about(const KernelRuleConfig& rule, const KernelName& kernel) {
  return rule.op == kernel.op && rule.use == kernel.implementation;
}

// Returns the index of an op; op_count: there is no such op.
std::size_t index_of_op(const KernelName& kernel) {
  return static_cast<std::size_t>(std::ranges::find(op_names, std::string_view(kernel.op)) -
                                  std::begin(op_names));
}

}  // namespace

bool asks_for(const KernelsConfig& kernels, const KernelName& kernel) {
  const auto is_it = [&kernel](const KernelRuleConfig& rule) { return is_about(rule, kernel); };
  const std::size_t index = index_of_op(kernel);
  return (index < op_count && kernels.implementations[index] == kernel.implementation) ||
         std::ranges::any_of(kernels.rules, is_it) || std::ranges::any_of(kernels.shadows, is_it);
}

KernelFaults leave_out_kernels(KernelsConfig& kernels, const KernelRegistry& registry,
                               const KernelTarget& target, const KernelFaults& faults) {
  KernelFaults left_out;
  for (const KernelFault& fault : faults) {
    const std::size_t index = index_of_op(fault.kernel);
    if (index == op_count || !asks_for(kernels, fault.kernel)) continue;
    const Implementation* const found = registry.find(op_at(index), fault.kernel.implementation, target);
    if (found == nullptr || found->plugin == nullptr || found->plugin->name.digest != fault.kernel.digest)
      continue;
    const auto is_it = [&fault](const KernelRuleConfig& rule) { return is_about(rule, fault.kernel); };
    std::string& name = kernels.implementations[index];
    if (name == fault.kernel.implementation) name = "auto";
    std::erase_if(kernels.rules, is_it);
    std::erase_if(kernels.shadows, is_it);
    left_out.push_back(fault);
  }
  return left_out;
}

bool same_kernel_bits(const KernelsConfig& before, const KernelsConfig& after, OpId op, DType precision) {
  // Only what is asked of this op: other ops may have kernels of plug-ins, whose bits nobody knows here.
  const auto bits_on = [=](const KernelsConfig& kernels) -> Result<std::string> {
    KernelRequest request = own_request(kernels, {});
    const std::span<const OpId> parts = parts_of(op);
    std::erase_if(request.requests, [&](const KernelPreference& each) {
      return (each.op != op && std::ranges::find(parts, each.op) == parts.end()) || each.every > 0;
    });
    HF_TRY(const KernelTable table, kernel_registry().choose(request.isa, request.requests));
    // The kernels of the parts decide the bits of the calls where a composed op is not launched.
    for (const OpId part : parts) {
      if (!bits_of(table[static_cast<std::size_t>(part)], precision).empty())
        return fail(ExitCode::config, "{} has bits of its own", name_of(part));
    }
    return bits_of(table[static_cast<std::size_t>(op)], precision);
  };
  const Result<std::string> bits_before = bits_on(before), bits_after = bits_on(after);
  return bits_before.ok() && bits_after.ok() && *bits_before == *bits_after;
}

}  // namespace holdfast::rank
