// The program of all fuzz targets. As it is, it replays the corpus and runs mutations of it, the same ones
// for the same seed; built with -fsanitize=fuzzer (preset fuzz) the same targets are libFuzzer's.
#include <fcntl.h>
#include <fmt/core.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/mutation.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace holdfast::fuzz {
namespace {

constexpr const char* usage =
    "usage: fuzz TARGET [--corpus DIRECTORY] [--runs N] [--seconds S] [--seed S] [--first N] [FILE...]\n"
    "       fuzz --list\n"
    "       fuzz --write-corpus DIRECTORY\n"
    "runs the files, then those of DIRECTORY/TARGET, whose names say whether they are accepted (good-...,\n"
    "refused-...), then N mutations of them (0 = as many as S seconds allow), the first one with number N "
    "of\n"
    "--first. An input that breaks a promise is left in the working directory as finding-TARGET.\n";

struct Options {
  std::string target, corpus;
  std::uint64_t runs = 0, seconds = 0, seed = 1, first = 0;
  std::vector<std::string> files;
};

// Holds what a signal handler needs to keep the input that is being run.
struct {
  Input input;
  std::string file, what;
} under_way;

void keep_input() {
  const int file = open(under_way.file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  const auto written = write(file, under_way.input.data(), under_way.input.size());
  close(file);
  const bool kept = written == static_cast<ssize_t>(under_way.input.size());
  for (const std::string_view part :
       {std::string_view(under_way.what), std::string_view(kept ? "; it is kept as " : "; not kept as "),
        std::string_view(under_way.file), std::string_view("\n")})
    static_cast<void>(write(STDERR_FILENO, part.data(), part.size()) == 0);
}

void on_signal(int number) {
  keep_input();
  signal(number, SIG_DFL);
  raise(number);
}

void watch_signals() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_set_death_callback(keep_input);
  const std::initializer_list<int> signals = {SIGABRT, SIGPROF};
#else
  const std::initializer_list<int> signals = {SIGABRT, SIGPROF, SIGSEGV, SIGBUS, SIGFPE, SIGILL};
#endif
  // The stack may be what was used up.
  static std::array<char, 64 << 10> stack;
  const stack_t other = {.ss_sp = stack.data(), .ss_flags = 0, .ss_size = stack.size()};
  sigaltstack(&other, nullptr);
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_ONSTACK;
  for (const int number : signals) sigaction(number, &action, nullptr);
}

std::vector<std::byte> read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  require(file.good() || file.eof(), fmt::format("{} cannot be read", path.string()));
  return bytes_of_text(text);
}

bool run_input(const Target& target, Input input, std::string what) {
  under_way.input = input;
  under_way.what = "fuzz: this was " + std::move(what);
  return run_within_limits(target, input);
}

std::vector<Bytes> replay_corpus(const Target& target, const std::string& directory) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(directory + "/" + target.name))
    paths.push_back(entry.path());
  std::ranges::sort(paths);
  std::vector<Bytes> corpus;
  for (const std::filesystem::path& path : paths) {
    corpus.push_back(read_file(path));
    const bool accepted = run_input(target, corpus.back(), path.string());
    const std::string name = path.filename().string();
    require(name.starts_with("good-") || name.starts_with("refused-"),
            fmt::format("{} is named neither good-... nor refused-...", path.string()));
    require(accepted == name.starts_with("good-"),
            fmt::format("{} is {}", path.string(), accepted ? "accepted" : "refused"));
  }
  require(!corpus.empty(), fmt::format("{}/{} is empty", directory, target.name));
  return corpus;
}

void run_mutations(const Target& target, std::span<const Bytes> corpus, const Options& options) {
  const auto begin = std::chrono::steady_clock::now();
  std::uint64_t done = 0, accepted = 0;
  const auto is_over = [&] {
    if (options.runs > 0) return done == options.runs;
    return std::chrono::steady_clock::now() - begin >= std::chrono::seconds(options.seconds);
  };
  for (; !is_over(); ++done) {
    const std::uint64_t number = options.first + done;
    const Bytes input = mutated(corpus, target.words, options.seed, number);
    accepted += run_input(target, input, fmt::format("number {} of seed {}", number, options.seed)) ? 1 : 0;
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  fmt::print(
      "fuzz {}: {} files, {} mutations from number {} of seed {}, {:.1f} % of them accepted, {:.0f} a "
      "second; "
      "the most memory was {} bytes, {:.0f} per byte of the input beyond {}\n",
      target.name, corpus.size(), done, options.first, options.seed,
      100.0 * static_cast<double>(accepted) / static_cast<double>(std::max<std::uint64_t>(done, 1)),
      static_cast<double>(done) / std::max(seconds, 1e-9), peak_bytes(), peak_bytes_per_byte(),
      target.memory_beside);
}

void write_corpus(const std::string& directory) {
  for (const Target* target : all_targets()) {
    std::filesystem::create_directories(directory + "/" + target->name);
    for (const Seed& seed : target->seeds()) {
      std::ofstream file(fmt::format("{}/{}/good-{}", directory, target->name, seed.name), std::ios::binary);
      file.write(reinterpret_cast<const char*>(seed.bytes.data()),
                 static_cast<std::streamsize>(seed.bytes.size()));
    }
  }
}

std::optional<Options> parse_options(std::span<char*> arguments) {
  Options options;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view argument = arguments[i];
    if (!argument.starts_with("--")) {
      (options.target.empty() ? options.target : options.files.emplace_back()) = argument;
      continue;
    }
    if (++i == arguments.size()) return std::nullopt;
    const std::string_view value = arguments[i];
    std::uint64_t* number = nullptr;
    if (argument == "--corpus") options.corpus = value;
    if (argument == "--runs") number = &options.runs;
    if (argument == "--seconds") number = &options.seconds;
    if (argument == "--seed") number = &options.seed;
    if (argument == "--first") number = &options.first;
    if (number == nullptr && argument != "--corpus") return std::nullopt;
    if (number != nullptr && std::from_chars(value.data(), value.data() + value.size(), *number).ptr !=
                                 value.data() + value.size())
      return std::nullopt;
  }
  return options;
}

int run(std::span<char*> arguments) {
  if (arguments.size() == 2 && std::string_view(arguments[0]) == "--write-corpus") {
    write_corpus(arguments[1]);
    return 0;
  }
  if (arguments.size() == 1 && std::string_view(arguments[0]) == "--list") {
    for (const Target* target : all_targets()) fmt::print("{}\n", target->name);
    return 0;
  }
  const std::optional<Options> options = parse_options(arguments);
  const Target* const target = options.has_value() ? find_target(options->target) : nullptr;
  if (target == nullptr) {
    fmt::print(stderr, "{}", usage);
    return 2;
  }
  under_way.file = fmt::format("finding-{}", target->name);
  watch_signals();
  for (const std::string& file : options->files) {
    const Bytes input = read_file(file);
    fmt::print("{}: {}\n", file, run_input(*target, input, file) ? "accepted" : "refused");
  }
  if (!options->corpus.empty()) run_mutations(*target, replay_corpus(*target, options->corpus), *options);
  return 0;
}

}  // namespace
}  // namespace holdfast::fuzz

int main(int count, char** arguments) {
  return holdfast::fuzz::run(std::span(arguments, static_cast<std::size_t>(count)).subspan(1));
}
