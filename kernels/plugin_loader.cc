#include "kernels/plugin_loader.h"

#include <dlfcn.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>

#include "kernels/cpu/lists.h"
#include "kernels/float_mode.h"
#include "kernels/library_bytes.h"
#include "runtime/core/digest.h"
#include "runtime/core/text.h"
#include "runtime/os/foreign_text.h"
#include "runtime/os/paths.h"

namespace holdfast::kernels {
namespace {

constexpr int most_kernels = 1024;  // of one plug-in
constexpr std::uint64_t largest_file = std::uint64_t{1} << 30;

// LoadedPlugin holds what the registry points to.
struct LoadedPlugin {
  PluginFile file;
  std::vector<PluginKernel> kernels;
  std::vector<Implementation> implementations;
};

template <typename... Arguments>
Error refused(const std::string& path, fmt::format_string<Arguments...> text, Arguments&&... arguments) {
  return fail(ExitCode::config, "plug-in {}: {}", path,
              fmt::format(text, std::forward<Arguments>(arguments)...));
}

std::optional<OpId> op_named(std::string_view name) {
  const auto* found = std::ranges::find(op_names, name);
  if (found == std::end(op_names)) return std::nullopt;
  return static_cast<OpId>(found - std::begin(op_names));
}

bool is_name(std::string_view name) {
  return !name.empty() && name.size() <= 40 && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  });
}

// Returns the op of a kernel that this program can run under its name.
Result<OpId> checked_op(const std::string& path, const hf_kernel& kernel) {
  if (kernel.op == nullptr || kernel.name == nullptr || kernel.launch == nullptr)
    return refused(path, "a kernel lacks its op, its name or its launch function");
  const std::string_view op_name = kernel.op;
  const std::optional<OpId> op = op_named(op_name);
  if (!op.has_value()) {
    const std::vector<std::string_view> names(std::begin(op_names), std::end(op_names));
    const std::string near = closest(op_name, names);
    return refused(path, "it has a kernel for {}, and there is no such op{}; `holdfast kernel list` has them",
                   printable(kernel.op), near.empty() ? "" : fmt::format(", did you mean {}?", near));
  }
  if (kernel.schema != plugin_schema(*op))
    return refused(
        path,
        "its kernel for {} was built for another struct of the op (schema {:016x}, and this program has "
        "{:016x}); build it with the header that `holdfast kernel header` prints",
        op_name, kernel.schema, plugin_schema(*op));
  if (!is_name(kernel.name))
    return refused(path, "its kernel for {} has the name \"{}\"; a name has up to 40 letters, digits and _",
                   op_name, printable(kernel.name));
  if (kernel.device != HF_CPU)
    return refused(path, "its kernel {} for {} is for a GPU, and plug-ins are loaded for the CPU",
                   kernel.name, op_name);
  if (std::string_view(kernel.name) == "auto" || !kernel_registry().of(*op).empty()) {
    std::vector<std::string_view> taken = {"auto"};
    for (const Implementation* each : kernel_registry().of(*op)) {
      if (std::ranges::find(taken, each->name) == taken.end()) taken.emplace_back(each->name);
    }
    if (std::ranges::find(taken, kernel.name) != taken.end())
      return refused(path, "its kernel for {} has the name {}, which Holdfast has itself ({}); take another",
                     op_name, kernel.name, fmt::join(taken, ", "));
  }
  return *op;
}

void add_kernel(LoadedPlugin& plugin, OpId op, const hf_kernel& kernel) {
  KernelName name = {.op = name_of(op),
                     .implementation = kernel.name,
                     .digest = short_digest(plugin.file),
                     .library = plugin.file.path};
  std::string text = text_of(name), line = line_of(name);
  plugin.kernels.push_back({.file = &plugin.file,
                            .kernel = &kernel,
                            .text = std::move(text),
                            .name = std::move(name),
                            .line = std::move(line)});
  Implementation& added = plugin.implementations.emplace_back();
  added.op = op;
  added.name = kernel.name;
  added.what = kernel.what == nullptr ? "of a plug-in" : kernel.what;
  added.preference = -1;
  added.plugin = &plugin.kernels.back();
}

Result<void> take_kernels(LoadedPlugin& plugin, void* library) {
  const std::string& path = plugin.file.path;
  using Kernels = const hf_kernel*(int*);
  using Source = const char*();
  auto* const kernels = reinterpret_cast<Kernels*>(::dlsym(library, "hf_kernels"));
  if (kernels == nullptr) return refused(path, "it exports no function hf_kernels(); see holdfast_kernel.h");
  int count = 0;
  const hf_kernel* const first = kernels(&count);
  if (first == nullptr || count < 1 || count > most_kernels)
    return refused(path, "hf_kernels() returns {} kernels; expected 1 to {}", first == nullptr ? 0 : count,
                   most_kernels);
  if (first->abi != HF_KERNEL_ABI)
    return refused(
        path,
        "it was built for version {} of holdfast_kernel.h, and this program has version {}; build it with "
        "the header that `holdfast kernel header` prints",
        first->abi, HF_KERNEL_ABI);
  if (auto* const source = reinterpret_cast<Source*>(::dlsym(library, "hf_source")); source != nullptr) {
    const char* const text = source();
    constexpr std::size_t longest_source = 100;
    if (text != nullptr) plugin.file.source = printable(std::string(text).substr(0, longest_source));
  }
  plugin.kernels.reserve(static_cast<std::size_t>(count));  // implementations point there
  for (const hf_kernel& kernel : std::span(first, static_cast<std::size_t>(count))) {
    HF_TRY(const OpId op, checked_op(path, kernel));
    for (const Implementation& other : plugin.implementations) {
      if (other.op == op && std::string_view(other.name) == kernel.name)
        return refused(path, "it has two kernels for {} with the name {}; give one of them another",
                       name_of(op), kernel.name);
    }
    add_kernel(plugin, op, kernel);
  }
  return {};
}

// Runs what the library does when it is loaded. `mode`: of this thread, before.
Result<void*> open_library(const std::string& path, const KeptFloatMode& mode) {
  // By its whole path: a name without a slash would be looked for among the system's libraries.
  void* const library = ::dlopen(real_path(path).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const reason = ::dlerror();
    return refused(path, "the system does not load it: {}; link what it needs, and see `nm -u`",
                   printable(reason == nullptr ? "unknown reason" : reason));
  }
  if (!mode.is_changed()) return library;
  ::dlclose(library);  // so that another attempt meets it, too
  return refused(
      path,
      "it sets the floating-point mode of the process, which would change the bits of all kernels: it "
      "was linked with -ffast-math or -Ofast; link it, and what it needs, without");
}

Result<std::unique_ptr<LoadedPlugin>> load_plugin(Env& env, const std::string& path) {
  const Result<std::string> bytes = read_text_within(env, path, largest_file);
  if (!bytes.ok())
    return fail_because(bytes.error(), ExitCode::config,
                        "plug-in {}: {}; a path of kernels.plugins begins at the folder of the config file",
                        path, bytes.error().message);
  if (const std::string problem = problem_of_library(*bytes); !problem.empty())
    return refused(path, "{}", problem);
  auto plugin = std::make_unique<LoadedPlugin>();
  plugin->file = {.path = path, .digest = to_hex(digest_of(*bytes))};
  const KeptFloatMode mode;
  HF_TRY(void* const library, open_library(path, mode));
  if (env.text_or_empty(path) != *bytes)
    return refused(path, "it was written anew while it was loaded; start again");
  HF_TRY_VOID(take_kernels(*plugin, library));
  return plugin;
}

Result<void> check_distinct(const std::vector<const LoadedPlugin*>& plugins) {
  std::vector<const Implementation*> seen;
  for (const LoadedPlugin* plugin : plugins) {
    for (const Implementation& one : plugin->implementations) {
      for (const Implementation* other : seen) {
        if (one.op == other->op && std::string_view(one.name) == other->name)
          return fail(
              ExitCode::config,
              "plug-ins {} and {} both have a kernel for {} with the name {}; give one of them another, or "
              "leave one out of kernels.plugins",
              other->plugin->file->path, plugin->file.path, name_of(one.op), one.name);
      }
      seen.push_back(&one);
    }
  }
  return {};
}

// LoadedLibraries are those that this process has loaded. Like the system's loader, which they are a view of, they are
// one for the process.
class LoadedLibraries {
 public:
  Result<const KernelRegistry*> registry(Env& env, const std::vector<std::string>& paths) {
    const std::lock_guard lock(mutex_);
    std::vector<const LoadedPlugin*> plugins;
    for (const std::string& path : paths) {
      HF_TRY(const LoadedPlugin* plugin, find_or_load(env, path));
      if (std::ranges::find(plugins, plugin) == plugins.end()) plugins.push_back(plugin);
    }
    HF_TRY_VOID(check_distinct(plugins));
    for (const Registry& each : registries_) {
      if (each.plugins == plugins) return each.registry.get();
    }
    const std::span<const ImplementationList> own = cpu::implementation_lists();
    std::vector<ImplementationList> lists(own.begin(), own.end());
    for (const LoadedPlugin* plugin : plugins) {
      lists.push_back({.file = plugin->file.path.c_str(),
                       .first = plugin->implementations.data(),
                       .count = plugin->implementations.size()});
    }
    registries_.push_back({plugins, std::make_unique<KernelRegistry>(lists, cpu::built_isas())});
    return registries_.back().registry.get();
  }

 private:
  struct Registry {
    std::vector<const LoadedPlugin*> plugins;
    std::unique_ptr<KernelRegistry> registry;
  };

  Result<const LoadedPlugin*> find_or_load(Env& env, const std::string& path) {
    const std::string real = real_path(path);
    for (const Library& each : libraries_) {
      if (!real.empty() && each.real_path == real) return each.plugin.get();
    }
    Result<std::unique_ptr<LoadedPlugin>> plugin = load_plugin(env, path);
    // The file and the libraries of another host may be whole: where all hosts refuse it, the agreement of the ranks
    // makes it an error of the run.
    if (!plugin.ok()) return with_reach(Reach::host, plugin.error());
    libraries_.push_back({real, std::move(plugin).value()});
    return libraries_.back().plugin.get();
  }

  struct Library {
    std::string real_path;
    std::unique_ptr<LoadedPlugin> plugin;
  };
  std::mutex mutex_;
  std::deque<Library> libraries_;
  std::deque<Registry> registries_;
};

LoadedLibraries& loaded_libraries() {
  static LoadedLibraries libraries;
  return libraries;
}

void add_plugins(const std::vector<const Implementation*>& implementations, std::vector<std::string>& texts) {
  for (const Implementation* each : implementations) {
    if (each->plugin == nullptr) continue;
    const std::string text = text_of(*each->plugin->file);
    if (std::ranges::find(texts, text) == texts.end()) texts.push_back(text);
  }
}

}  // namespace

Result<const KernelRegistry*> registry_with_plugins(Env& env, const std::vector<std::string>& paths) {
  if (paths.empty()) return &kernel_registry();
  return loaded_libraries().registry(env, paths);
}

std::vector<std::string> plugins_of(const KernelTable& table) {
  std::vector<std::string> texts;
  for (const KernelChoice& choice : table) {
    add_plugins(choice.order, texts);
    for (const KernelRule& rule : choice.rules) add_plugins(rule.order, texts);
    for (const KernelRule& shadow : choice.shadows) add_plugins(shadow.order, texts);
  }
  return texts;
}

std::vector<std::string> plugins_of(const KernelRegistry& registry) {
  std::vector<std::string> texts;
  for (std::size_t op = 0; op < op_count; ++op) add_plugins(registry.of(static_cast<OpId>(op)), texts);
  return texts;
}

}  // namespace holdfast::kernels
