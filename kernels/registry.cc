#include "kernels/registry.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "kernels/composed.h"
#include "kernels/cpu/lists.h"
#include "kernels/plugin.h"
#include "runtime/core/text.h"

namespace holdfast::kernels {

namespace {

bool better_default(const Implementation* a, const Implementation* b) {
  if (a->preference != b->preference) return a->preference > b->preference;
  return a->needs != b->needs ? a->needs > b->needs : a->needs_gpu > b->needs_gpu;
}

// Returns the names that the target runs, without repetition, in order.
std::vector<std::string_view> names_of(std::span<const Implementation* const> implementations,
                                       const KernelTarget& target) {
  std::vector<std::string_view> names;
  for (const Implementation* each : implementations) {
    if (target.runs(*each) && std::ranges::find(names, each->name) == names.end())
      names.push_back(each->name);
  }
  return names;
}

// Drops implementations that never run: each after the first runs only for arguments that the earlier ones do
// not support.
void drop_unreachable(std::vector<const Implementation*>& order) {
  if (order.empty()) return;  // of() says so when the op is asked for
  for (std::size_t i = 0; i < order.size(); ++i) {
    const auto supports = order[i]->supports;
    const auto same = [&](const Implementation* each) { return supports && each->supports == supports; };
    order.erase(std::remove_if(order.begin() + static_cast<std::ptrdiff_t>(i) + 1, order.end(), same),
                order.end());
  }
  const auto supports_all =
      std::ranges::find_if(order, [](const Implementation* each) { return each->computes_all(); });
  HF_CHECK(supports_all != order.end(), "some arguments of an op have no implementation");
  order.erase(supports_all + 1, order.end());
}

// Returns " where one is named, else tree_sum and ..." for a composed op, which is launched there alone.
std::string where_launched(OpId op) {
  return is_composed(op) ? fmt::format(", where it is named; elsewhere {}", parts_text(op)) : "";
}

std::string why_default(const KernelChoice& choice, CpuIsa isa, bool only_one) {
  if (only_one) return "the only default";
  if (!choice.order.empty() && choice.first().cuda_run != nullptr) return "best for a GPU";
  return isa == best_cpu_isa() ? fmt::format("best for this processor ({})", name_of(isa))
                               : fmt::format("best for {}", name_of(isa));
}

}  // namespace

std::string preference_text(const KernelPreference& request) {
  const std::string origin = request.origin.empty() ? "" : fmt::format(" ({})", request.origin);
  if (!request.key.empty())
    return fmt::format("{}{}, {} = \"{}\"", request.key, origin, name_of(request.op), request.name);
  return fmt::format("kernels.{} = \"{}\"{}", name_of(request.op), request.name, origin);
}

const Implementation& first_that_computes(const ImplementationOrder& order, const void* arguments) {
  HF_CHECK(!order.empty(), "this device has no kernel for an op that was launched");
  for (const Implementation* each : order) {
    if (each->computes(arguments)) return *each;
  }
  return *order.back();  // which supports all
}

KernelRegistry::KernelRegistry(std::span<const ImplementationList> lists, std::span<const CpuIsa> built)
    : built_(built) {
  for (const ImplementationList& list : lists) {
    for (const Implementation& each : std::span(list.first, list.count))
      entries_.push_back({&each, list.file});
  }
}

std::vector<const Implementation*> KernelRegistry::of(OpId op) const {
  std::vector<const Implementation*> found;
  for (const Entry& entry : entries_) {
    if (entry.implementation->op == op) found.push_back(entry.implementation);
  }
  return found;
}

const Implementation* KernelRegistry::find(OpId op, std::string_view name, const KernelTarget& target) const {
  const Implementation* best = nullptr;
  for (const Implementation* each : of(op)) {
    if (each->name != name || !target.runs(*each)) continue;
    if (best == nullptr || each->needs > best->needs || each->needs_gpu > best->needs_gpu) best = each;
  }
  return best;
}

Result<void> KernelRegistry::check_names() const {
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    const Implementation& one = *entry->implementation;
    const auto twin = std::find_if(entry + 1, entries_.end(), [&](const Entry& other) {
      const Implementation& two = *other.implementation;
      return one.op == two.op && one.needs == two.needs && one.needs_gpu == two.needs_gpu &&
             std::string_view(one.name) == two.name;
    });
    if (twin == entries_.end()) continue;
    return fail(ExitCode::config,
                "{} and {} both register {} \"{}\": give one of them another name and build again",
                entry->file, twin->file, name_of(one.op), one.name);
  }
  return {};
}

Result<void> KernelRegistry::check_isa(CpuIsa isa) const {
  if (isa > best_cpu_isa()) {
    return fail(ExitCode::config,
                "kernels.isa = \"{}\": this processor has {} at most; leave the key out to take that",
                name_of(isa), name_of(best_cpu_isa()));
  }
  if (std::ranges::find(built_, isa) != built_.end()) return {};
  std::vector<std::string_view> names;
  for (const CpuIsa each : built_) names.emplace_back(name_of(each));
  return fail(
      ExitCode::config,
      "kernels for {} are not in this build, which tools/quickstart made for a processor with {}; build "
      "all of them with cmake --preset release && cmake --build --preset release",
      name_of(isa), fmt::join(names, " and "));
}

namespace {

// Returns what the implementation needs and why the target is not that, a clause.
std::string why_it_does_not_run(const Implementation& implementation, const KernelTarget& target) {
  if (implementation.needs_gpu != 0 && implementation.needs_gpu != target.gpu) {
    return fmt::format("it needs a GPU of compute capability {}.{}, and this one has {}.{}",
                       implementation.needs_gpu / 10, implementation.needs_gpu % 10, target.gpu / 10,
                       target.gpu % 10);
  }
  return fmt::format("it needs {}, and {}", name_of(implementation.needs),
                     implementation.needs > best_cpu_isa()
                         ? fmt::format("this processor has {} at most", name_of(best_cpu_isa()))
                         : fmt::format("kernels.isa = \"{}\" rules that out", name_of(target.isa)));
}

}  // namespace

Result<const Implementation*> KernelRegistry::find_request(const KernelPreference& request,
                                                           const KernelTarget& target) const {
  if (const Implementation* found = find(request.op, request.name, target)) return found;
  const std::vector<const Implementation*> known = of(request.op);
  const std::vector<std::string_view> runnable = names_of(known, target);
  for (const Implementation* each : known) {
    if (each->name != request.name) continue;
    return fail(ExitCode::config, "{}: {}; choose one of {}", preference_text(request),
                why_it_does_not_run(*each, target), fmt::join(runnable, ", "));
  }
  const std::string near = closest(request.name, runnable);
  return fail(ExitCode::config,
              "{}: there is no such implementation{} Choose one of {}; or name the plug-in that has it in "
              "kernels.plugins",
              preference_text(request), near.empty() ? "." : fmt::format(", did you mean {}?", near),
              fmt::join(runnable, ", "));
}

ImplementationOrder KernelRegistry::default_order(OpId op, const KernelTarget& target) const {
  std::vector<const Implementation*> order;
  for (const Implementation* each : of(op)) {
    if (each->preference >= 0 && each == find(op, each->name, target)) order.push_back(each);
  }
  std::ranges::stable_sort(order, better_default);
  return order;
}

namespace {

// Returns the reason for what a user has named. `changes_with_layout`: the calls are those of some shapes, which other
// layouts may cut otherwise.
std::string why_requested(const KernelPreference& request, const Implementation& wanted,
                          bool changes_with_layout) {
  std::string why = fmt::format("chosen by {}", request.key.empty() ? "[kernels]" : request.key);
  if (wanted.plugin != nullptr) {
    why += fmt::format(", of the plug-in {}", text_of(*wanted.plugin->file));
    if ((wanted.plugin->kernel->flags & HF_LAYOUT_FREE) == 0)
      why += ", which does not promise the same bits in every layout";
  }
  if (changes_with_layout && !wanted.same_bits_as_portable)
    why += "; in another layout, which may cut calls to other shapes, the run may have other bits";
  return why;
}

ImplementationOrder with_first(const Implementation* wanted, ImplementationOrder order) {
  std::erase(order, wanted);
  order.insert(order.begin(), wanted);
  return order;
}

// Returns whether all that an op writes is known from its struct, and is a result of the model.
bool can_be_compared(OpId op) {
  return is_launched_for_layers(op) || op == OpId::embedding_forward ||
         class_of(op) == OpClass::cross_entropy;
}

// Returns a sentence where a rule is about calls for which another has another name.
std::string contradiction(const KernelPreference& request, const KernelRule& rule, const KernelRule& other) {
  const bool differs = std::string_view(rule.first().name) != other.first().name;
  if (!differs || !rule.filter.overlaps(other.filter)) return {};
  return fmt::format(
      "{}: {} says \"{}\"{}, and both are about some calls{}: let their layers or shapes have nothing in "
      "common, or "
      "leave one of them out",
      preference_text(request), other.key, other.first().name, other.filter.text(), rule.filter.text());
}

}  // namespace

Result<void> KernelRegistry::add_request(const KernelPreference& request, const KernelTarget& target,
                                         KernelTable& table) const {
  HF_CHECK(request.op < OpId::count);
  HF_TRY(const Implementation* wanted, find_request(request, target));
  KernelChoice& choice = table[static_cast<std::size_t>(request.op)];
  if (request.key.empty()) {
    choice.order = with_first(wanted, std::move(choice.order));
    choice.why = why_requested(request, *wanted, false);
    return {};
  }
  const Result<CallFilter> filter = CallFilter::parse(request.op, request.layers, request.where);
  if (!filter.ok()) return fail(ExitCode::config, "{}: {}", preference_text(request), filter.error().message);
  const bool is_shadow = request.every > 0;
  if (is_shadow && !can_be_compared(request.op))
    return fail(
        ExitCode::config,
        "{}: only ops of the model whose results are arrays of their own are compared, and {} is none; "
        "take it out",
        preference_text(request), name_of(request.op));
  KernelRule rule{.filter = *filter,
                  .order = is_shadow ? ImplementationOrder{wanted} : with_first(wanted, choice.order),
                  .why = why_requested(request, *wanted, !is_shadow && filter->has_shapes()),
                  .key = request.key,
                  .every = request.every};
  std::vector<KernelRule>& rules = is_shadow ? choice.shadows : choice.rules;
  for (const KernelRule& other : rules) {
    if (const std::string problem = contradiction(request, rule, other); !problem.empty())
      return fail(ExitCode::config, "{}", problem);
  }
  rules.push_back(std::move(rule));
  return {};
}

Result<KernelTable> KernelRegistry::choose(const KernelTarget& target,
                                           std::span<const KernelPreference> requests) const {
  const CpuIsa isa = target.isa;
  HF_TRY_VOID(check_names());
  HF_TRY_VOID(check_isa(isa));
  KernelTable table;
  for (std::size_t index = 0; index < op_count; ++index) {
    const auto op = static_cast<OpId>(index);
    KernelChoice& choice = table[index];
    choice.order = default_order(op, target);
    std::vector<const Implementation*> defaults = of(op);  // of any processor
    std::erase_if(defaults, [](const Implementation* each) { return each->preference < 0; });
    choice.why =
        why_default(choice, isa, names_of(defaults, {.isa = CpuIsa::amx, .gpu = target.gpu}).size() == 1) +
        where_launched(op);
  }
  // The rules last: where theirs does not compute a call, the choice for the whole op does.
  for (const bool is_rule : {false, true}) {
    for (const KernelPreference& request : requests) {
      if (request.key.empty() != is_rule) HF_TRY_VOID(add_request(request, target, table));
    }
  }
  for (KernelChoice& choice : table) {
    drop_unreachable(choice.order);
    for (KernelRule& rule : choice.rules) drop_unreachable(rule.order);
  }
  return table;
}

const KernelRegistry& kernel_registry() {
  static const KernelRegistry registry(cpu::implementation_lists(), cpu::built_isas());
  return registry;
}

void visit_bits(const KernelChoice& choice, const std::function<bool(const Implementation&)>& is_known,
                const std::function<void(const Implementation&, const std::string& text)>& visit) {
  for (const Implementation* each : choice.order) {
    if (!is_known(*each)) visit(*each, {});
  }
  const bool all_known =
      std::ranges::all_of(choice.order, [&](const Implementation* each) { return is_known(*each); });
  for (const KernelRule& rule : choice.rules) {
    if (!all_known || !is_known(rule.first())) visit(rule.first(), rule.filter.text());
  }
}

std::string bits_of(const KernelChoice& choice, DType precision) {
  std::vector<std::string> parts;
  const auto is_known = [precision](const Implementation& each) {
    return each.same_bits_as_portable || (each.bf16_only && precision == DType::fp32);
  };
  visit_bits(choice, is_known, [&parts](const Implementation& each, const std::string& text) {
    std::string name =
        each.library != nullptr ? each.library() : fmt::format("{} {}", name_of(each.op), each.name);
    if (each.plugin != nullptr) name += " " + short_digest(*each.plugin->file);
    parts.push_back(name + text);
  });
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string bits_of(const KernelTable& table, DType precision) {
  std::vector<std::string> parts;
  for (const KernelChoice& choice : table) {
    if (std::string bits = bits_of(choice, precision); !bits.empty()) parts.push_back(std::move(bits));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace holdfast::kernels
