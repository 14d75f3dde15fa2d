#include "runtime/rank/processor_binding.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <optional>
#include <utility>

#include "runtime/core/text.h"
#include "runtime/os/foreign_text.h"
#include "runtime/os/processes.h"

namespace holdfast::rank {
namespace {

constexpr int processors_max = 1 << 20;  // of a list that is read

// Returns the number that the whole text is.
std::optional<int> number_of(std::string_view text) {
  int number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && stop == end ? std::optional(number) : std::nullopt;
}

// Returns the first line of a file of the kernel.
std::string line_of(Env& env, const std::string& path) {
  const std::string text = text_within_or_empty(env, path, text_limits::identity);
  return text.substr(0, text.find('\n'));
}

}  // namespace

std::string processor_list(std::span<const int> processors) {
  std::string list;
  for (std::size_t first = 0, end = 0; first < processors.size(); first = end) {
    end = first + 1;
    while (end < processors.size() && processors[end] == processors[end - 1] + 1) ++end;
    list += fmt::format("{}{}", first == 0 ? "" : ",", processors[first]);
    if (end > first + 1) list += fmt::format("-{}", processors[end - 1]);
  }
  return list;
}

std::vector<int> processors_of_list(const std::string& list) {
  std::vector<int> processors;
  for (const std::string& part : split_list(list)) {
    const std::size_t dash = part.find('-');
    const std::optional<int> first = number_of(part.substr(0, dash));
    const std::optional<int> last = dash == std::string::npos ? first : number_of(part.substr(dash + 1));
    if (!first.has_value() || !last.has_value() || *first < 0 || *last >= processors_max) continue;
    for (int each = *first; each <= *last; ++each) processors.push_back(each);
  }
  std::ranges::sort(processors);
  const auto repeated = std::ranges::unique(processors);
  processors.erase(repeated.begin(), repeated.end());
  return processors;
}

std::vector<int> common_processors(std::span<const int> a, std::span<const int> b) {
  std::vector<int> both;
  std::ranges::set_intersection(a, b, std::back_inserter(both));
  return both;
}

// Nodes without processors do not count: such a node is memory of a GPU, or memory behind a link.
NearGpu near_gpu(Env& env, const CudaFacts& gpu) {
  const std::string device = "/sys/bus/pci/devices/" + gpu.pci_bus_id, nodes = "/sys/devices/system/node";
  NearGpu near{.gpu = gpu.pci_bus_id};
  near.nodes = static_cast<int>(processors_of_list(line_of(env, nodes + "/has_cpu")).size());
  near.node = number_of(line_of(env, device + "/numa_node")).value_or(-1);
  if (near.node < 0) return near;
  near.processors = processors_of_list(line_of(env, device + "/local_cpulist"));
  if (near.processors.empty())
    near.processors = processors_of_list(line_of(env, fmt::format("{}/node{}/cpulist", nodes, near.node)));
  return near;
}

ProcessorPlan plan_processors(const NearGpu& near, std::span<const int> own) {
  if (near.nodes < 2 || own.empty()) return {};
  const std::string own_list = processor_list(own);
  if (near.node < 0 || near.processors.empty()) {
    return {
        .processors = {},
        .description = fmt::format("processors {}, because the NUMA node of the GPU is not known", own_list),
        .problem = {}};
  }
  std::vector<int> processors = common_processors(own, near.processors);
  if (processors.empty()) {
    return {
        .processors = {},
        .description = fmt::format("processors {}, on another NUMA node than the GPU", own_list),
        .problem = fmt::format(
            "a rank may run on the processors {} alone (--bind-to of mpirun, taskset or a control group), "
            "and its GPU {} is on NUMA node {} (processors {}): what it copies to the host crosses between "
            "the nodes; start it unbound (mpirun --bind-to none), and it binds itself",
            own_list, near.gpu, near.node, processor_list(near.processors))};
  }
  std::string description = fmt::format("NUMA node {} ({})", near.node, processor_list(processors));
  return {.processors = std::move(processors), .description = std::move(description), .problem = {}};
}

Result<void> bind_to_gpu(Env& env, const CudaFacts& gpu) {
  Processes& system = env.processes();
  const std::vector<int> own = system.own_processors();
  const ProcessorPlan plan = plan_processors(near_gpu(env, gpu), own);
  if (plan.processors.empty() || plan.processors == own) return {};
  return system.run_on(plan.processors);
}

}  // namespace holdfast::rank
