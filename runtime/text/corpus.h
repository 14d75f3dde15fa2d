// A Corpus is the documents of text files: a text file is one document, and so is each line of a JSONL file. It is read in
// batches, in order, worked on by several threads, and what they make is taken in order again.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/os/thread.h"

namespace holdfast::text {

struct CorpusInput {
  std::vector<std::string> paths = {};
  bool is_jsonl = false;
  std::string field = "text";            // of a line of JSONL
  std::string field_option = "--field";  // how people name it
};

// Some documents as they are in their files.
struct DocumentBatch {
  struct Document {
    std::size_t begin = 0, bytes = 0;
    std::size_t path = 0;    // number of the file
    std::uint64_t line = 0;  // from 1; 0: a whole file
  };
  std::string bytes;
  std::vector<Document> documents;

  std::string_view raw(const Document& document) const {
    return std::string_view(bytes).substr(document.begin, document.bytes);
  }
};

// Threads: one calls next(); text_of() may be called from any.
class CorpusReader {
 public:
  // Checks that all files are there. ExitCode::data, and the file.
  static Result<CorpusReader> open(Env& env, CorpusInput input);
  // Replaces the batch by the next documents. Returns false when there are no more.
  Result<bool> next(DocumentBatch& batch);
  // Returns the text of a document, which is in the batch or in `storage`. ExitCode::data, with file and line, where a line is
  // not an object of JSON, or the field is missing or no text.
  Result<std::string_view> text_of(const DocumentBatch& batch, const DocumentBatch::Document& document,
                                   std::string& storage) const;
  // Returns the outcome of work on a document, with its file and line in front of an error.
  Result<void> placed(const DocumentBatch::Document& document, const Result<void>& outcome) const;
  std::uint64_t bytes() const { return bytes_; }  // of all files
  std::uint64_t bytes_read() const { return bytes_read_; }

 private:
  CorpusReader(Env& env, CorpusInput input) : env_(&env), input_(std::move(input)) {}
  std::string place_of(const DocumentBatch::Document& document) const;
  Result<void> next_files(DocumentBatch& batch);
  Result<void> next_lines(DocumentBatch& batch);
  Result<void> read_more(std::string& target, std::uint64_t most);

  Env* env_;
  CorpusInput input_;
  std::vector<std::uint64_t> sizes_;  // of the files
  std::uint64_t bytes_ = 0, bytes_read_ = 0;
  std::size_t path_ = 0;        // the file that comes next, or is being read
  std::unique_ptr<File> file_;  // the one that is being read
  std::uint64_t offset_ = 0, line_ = 0;
  std::string rest_;  // of JSONL, the beginning of a line
};

// Works on what read() gives, on `threads` threads, and gives consume() what work() has made, in the order of reading. read() and
// consume() run on the calling thread. An error of one of the three ends it all, and is returned.
template <typename Input, typename Output>
class OrderedWork {
 public:
  std::function<Result<bool>(Input&)> read;
  std::function<Result<void>(int thread, Input&, Output&)> work;
  std::function<Result<void>(Output&)> consume;

  Result<void> run(Env& env, int threads) {
    slots_ = std::vector<Slot>(static_cast<std::size_t>(threads) * 2 + 1);
    changed_ = env.make_condition();
    std::vector<std::unique_ptr<Thread>> started;
    Result<void> outcome;
    for (int i = 0; i < threads && outcome.ok(); ++i) {
      Result<std::unique_ptr<Thread>> thread = env.start_thread("tokenize", [this, i] { work_on_slots(i); });
      if (thread.ok()) started.push_back(std::move(thread).value());
      if (!thread.ok() && started.empty()) outcome = thread.error();
    }
    if (outcome.ok()) outcome = move_slots();
    {
      const std::lock_guard guard(mutex_);
      stops_ = true;
    }
    changed_->notify();
    started.clear();  // waits for them
    return outcome;
  }

 private:
  struct Slot {
    Input input;
    Output output;
    Result<void> outcome;
    bool done = false;
  };
  Slot& slot(std::uint64_t number) { return slots_[number % slots_.size()]; }

  void work_on_slots(int thread) {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_->wait(lock, [this] { return stops_ || taken_ < filled_; });
      if (stops_) return;
      Slot& own = slot(taken_++);
      lock.unlock();
      own.outcome = work(thread, own.input, own.output);
      lock.lock();
      own.done = true;
      changed_->notify();
    }
  }

  Result<void> move_slots() {
    std::uint64_t consumed = 0, filled = 0;
    bool ended = false;
    while (true) {
      if (!ended && filled - consumed < slots_.size()) {
        HF_TRY(const bool is_there, read(slot(filled).input));
        ended = !is_there;
        if (ended) continue;
        const std::lock_guard guard(mutex_);
        slot(filled).done = false;
        filled_ = ++filled;
        changed_->notify();
        continue;
      }
      if (consumed == filled) return {};
      Slot& first = slot(consumed);
      {
        std::unique_lock lock(mutex_);
        changed_->wait(lock, [&] { return first.done; });
      }
      HF_TRY_VOID(first.outcome);
      HF_TRY_VOID(consume(first.output));
      ++consumed;
    }
  }

  std::vector<Slot> slots_;
  std::mutex mutex_;  // guards the next three, and `done` of the slots
  std::uint64_t filled_ = 0, taken_ = 0;
  bool stops_ = false;
  std::unique_ptr<Condition> changed_;
};

}  // namespace holdfast::text
