// Writes a Megatron-LM dataset, as open_megatron() reads it (runtime/data/token_file.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/data/token_file.h"
#include "runtime/os/env.h"

namespace holdfast::data {

// Writes NAME.bin and NAME.idx, under other names until finish(), so that no reader ever sees a part. Meanwhile it holds a lock on
// NAME.partial. The destructor removes what is not finished. Errors: data.
class MegatronWriter {
 public:
  // Fails with ExitCode::config where one of the two files exists, or another writer is at work on them.
  static Result<std::unique_ptr<MegatronWriter>> create(Env& env, const std::string& name,
                                                        std::int64_t vocabulary);
  MegatronWriter(const MegatronWriter&) = delete;
  MegatronWriter& operator=(const MegatronWriter&) = delete;
  ~MegatronWriter();

  // Appends tokens to the document, which end_document() ends. All are below the vocabulary.
  Result<void> append(std::span<const std::uint32_t> tokens);
  Result<void> end_document();
  // Makes datasets durable, and gives their files the names: all data first, then the indices, without which nobody takes the
  // data. Replaces no file. After an error, no file has a name that it got here.
  static Result<void> finish(std::span<MegatronWriter* const> writers);

  std::uint64_t token_count() const { return token_count_; }
  TokenType type() const { return type_; }

 private:
  MegatronWriter(Env& env, const std::string& name, std::int64_t vocabulary);
  Result<void> flush();
  Result<void> write_index();
  std::string partial(const std::string& path) const { return path + ".partial"; }
  Result<void> take_lock();
  Result<void> store();
  Result<void> give_name(const std::string& path);

  Env& env_;
  MegatronPaths paths_;
  TokenType type_;
  std::unique_ptr<FileLock> lock_;
  std::unique_ptr<File> data_, index_;
  std::vector<std::byte> buffer_;
  std::uint64_t written_ = 0, token_count_ = 0, document_tokens_ = 0;
  std::vector<std::int32_t> lengths_;    // of the sequences
  std::vector<std::int64_t> documents_;  // the first sequence of each, and their number
  std::vector<std::string> named_;       // the files that have got their names
  std::string lock_path_;
};

}  // namespace holdfast::data
