// Target of what comes on the connection of a shard's copy, to the rank that keeps it and to the one that
// sends it; as it is, and with numbers and checksums that fit.
#include "checkpoint/transfer.h"

#include "checkpoint/names.h"
#include "runtime/core/crc32c.h"
#include "tests/fuzz/fuzz_env.h"
#include "tests/fuzz/scripted_connection.h"

namespace holdfast::fuzz {
namespace {

// These are the places of the numbers of the hello (checkpoint/transfer.cc).
constexpr std::size_t copy_hello_bytes = 160, copy_generation_byte = 48, copy_step_byte = 56,
                      copy_bytes_byte = 80, copy_crc_byte = 152;
constexpr std::size_t copy_checksum_bytes = 4;
constexpr std::uint64_t max_copied_bytes = std::uint64_t{1} << 20;
constexpr std::uint32_t copy_go_on = 1, copy_kept = 5;
constexpr std::string_view copied_content = "the content of a shard";

TransferSource copied_start() {
  return {.run = digest_of(std::string_view("run")), .writer = 3};
}

// Returns the answers of a keeper that takes it.
std::vector<std::byte> copy_answers() {
  return answer_frames({copy_go_on, copy_kept});
}

Result<void> send_copy(ScriptedConnection& connection) {
  FuzzEnv env;
  FaultPoints faults;
  env.put("/from/shard-00001.hfs", std::as_bytes(std::span(copied_content)));
  return send_shard_copy(connection, env, copied_start(), 9, "/from",
                         {.name = "shard-00001.hfs", .bytes = copied_content.size()}, faults);
}

std::vector<std::byte> sent_copy() {
  const std::vector<std::byte> keeper = copy_answers();
  ScriptedConnection connection(keeper);
  require(send_copy(connection).ok(), "a keeper that takes it is not believed");
  return connection.heard();
}

// A copy that is longer than its disk has room is refused by the disk, which is in memory here.
bool keep_copy(Input input) {
  if (input.size() >= copy_hello_bytes && load<std::uint64_t>(input, copy_bytes_byte) > max_copied_bytes)
    return false;
  MemoryEnv disk;
  FaultPoints faults;
  ScriptedConnection connection(input);
  const auto directory_of = [](std::uint64_t step) { return fmt::format("/kept/{}", step); };
  const Result<void> kept = receive_shard_copy(connection, disk, copied_start(), directory_of, faults);
  std::vector<std::string> files;
  for (const auto& [path, node] : disk.nodes()) {
    if (node != nullptr) files.push_back(path);
  }
  require(files.size() <= 1, "more than one file is made");
  const std::string directory =
      input.size() < copy_hello_bytes ? "" : directory_of(load<std::uint64_t>(input, copy_step_byte)) + "/";
  for (const std::string& file : files) {
    require(!directory.empty() && file.starts_with(directory) &&
                checkpoint_names::is_file_name(file.substr(directory.size())),
            "a file is made somewhere else");
  }
  if (!kept.ok()) {
    require_sentence(kept.error(), {ExitCode::communication, ExitCode::checkpoint});
    return false;
  }
  require(files.size() == 1, "a copy is told to be there, and is not");
  const std::vector<std::byte>& stored = *disk.nodes().at(files[0]);
  require(stored.size() == load<std::uint64_t>(input, copy_bytes_byte) &&
              std::ranges::equal(stored, input.subspan(copy_hello_bytes, stored.size())),
          "a copy has other bytes than came");
  return true;
}

bool send_copy_to(Input input) {
  ScriptedConnection connection(input);
  const Result<void> sent = send_copy(connection);
  if (!sent.ok()) require_sentence(sent.error(), {ExitCode::communication});
  return sent.ok() && connection.said_all();
}

// Returns the input with a hello of this run and start, whose length and checksums fit.
std::vector<std::byte> fitting_copy(Input input) {
  static const std::vector<std::byte> model = sent_copy();
  std::vector<std::byte> said(input.begin(), input.end());
  if (said.size() < copy_hello_bytes + copy_checksum_bytes) return said;
  std::ranges::copy(std::span(model).first(copy_generation_byte), said.begin());
  const std::uint64_t bytes = said.size() - copy_hello_bytes - copy_checksum_bytes;
  store(said, copy_bytes_byte, bytes);
  store(said, copy_crc_byte, crc32c(std::span<const std::byte>(said).first(copy_crc_byte)));
  store(said, copy_hello_bytes + bytes,
        crc32c(std::span<const std::byte>(said).subspan(copy_hello_bytes, bytes)));
  return said;
}

bool run_shard_copy(Input input) {
  const bool is_copy = keep_copy(input), is_answer = send_copy_to(input);
  static_cast<void>(keep_copy(fitting_copy(input)));
  return is_copy || is_answer;
}

std::vector<Seed> shard_copy_seeds() {
  return {{"copy", sent_copy()}, {"answers", copy_answers()}};
}

}  // namespace

extern const Target shard_copy_target;
const Target shard_copy_target{.name = "shard_copy",
                               .run = run_shard_copy,
                               .seeds = shard_copy_seeds,
                               .memory_per_byte = 64,
                               // A MiB of the content at a time, and the file in memory.
                               .memory_beside = 4 << 20};

}  // namespace holdfast::fuzz
