#include "runtime/text/tokenize.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "runtime/core/digest.h"
#include "runtime/data/megatron.h"
#include "runtime/text/large_text.h"

namespace holdfast::text {
namespace {

// EncodedBatch is the documents of a batch as tokens, one after another.
struct EncodedBatch {
  struct Document {
    std::size_t tokens = 0, text_bytes = 0, broken_bytes = 0;
    Digest digest = {};  // of the text
    bool held_out = false;
  };
  std::vector<TokenId> ids;
  std::vector<Document> documents;
};

bool is_held_out(const Digest& text, double share) {
  constexpr double two_to_64 = 18446744073709551616.0;
  return share > 0.0 && static_cast<double>(text.high) < share * two_to_64;
}

Result<void> encode_batch(const CorpusReader& corpus, const TokenizeOptions& options, Encoder& encoder,
                          const DocumentBatch& batch, EncodedBatch& made) {
  made.ids.clear();
  made.documents.clear();
  std::string storage;
  for (const DocumentBatch::Document& document : batch.documents) {
    HF_TRY(const std::string_view text, corpus.text_of(batch, document, storage));
    const std::size_t before = made.ids.size();
    HF_TRY_VOID(corpus.placed(document, encoder.encode(text, made.ids)));
    const bool is_empty = made.ids.size() == before;
    if (options.append && !is_empty) made.ids.push_back(*options.append);
    const Digest digest = digest_of(text);
    made.documents.push_back({.tokens = made.ids.size() - before,
                              .text_bytes = text.size(),
                              .broken_bytes = broken_utf8_bytes(batch.raw(document)),
                              .digest = digest,
                              .held_out = is_held_out(digest, options.held_out)});
  }
  return {};
}

// EncodeInput is what a thread gets: documents, or a part of a large one.
struct EncodeInput {
  DocumentBatch batch;
  std::shared_ptr<const LargeText> large;
  DocumentBatch::Document document;  // the large one
  std::size_t part = 0, text_bytes = 0, broken_bytes = 0;
  std::uint64_t read_bytes = 0;  // of the corpus, to the end of this
  Digest digest = {};
  bool held_out = false;
};

struct EncodeOutput {
  EncodedBatch batch;
  EncodedPart part;
  EncodeInput* input = nullptr;
};

// Reads documents of a corpus, and large ones in parts.
class EncodeReader {
 public:
  EncodeReader(CorpusReader& corpus, const Tokenizer& tokenizer, const TokenizeOptions& options)
      : corpus_(corpus), tokenizer_(tokenizer), options_(options) {}

  Result<bool> next(EncodeInput& input) {
    if (current_.large == nullptr) {
      HF_TRY(const bool is_there, corpus_.next(input.batch));
      if (!is_there) return false;
      input.large.reset();
      input.read_bytes = corpus_.bytes_read();
      if (!is_large(input.batch)) return true;
      current_.document = input.batch.documents.front();
      begin_large(input.batch.bytes);
      input.batch = {};
    }
    input.large = current_.large;
    input.document = current_.document;
    input.text_bytes = current_.text_bytes;
    input.broken_bytes = current_.broken_bytes;
    input.digest = current_.digest;
    input.held_out = current_.held_out;
    input.part = current_.part++;
    input.read_bytes = corpus_.bytes_read() - current_.text_bytes +
                       current_.text_bytes * current_.part / current_.large->part_count();
    if (current_.part == current_.large->part_count()) current_.large.reset();
    return true;
  }

 private:
  bool is_large(const DocumentBatch& batch) const {
    constexpr std::size_t parts_least = 4;
    return !options_.input.is_jsonl && batch.documents.size() == 1 &&
           batch.bytes.size() >= parts_least * options_.part_bytes;
  }
  void begin_large(std::string& text) {
    current_.text_bytes = text.size();
    current_.broken_bytes = broken_utf8_bytes(text);
    current_.digest = digest_of(text);
    current_.held_out = is_held_out(current_.digest, options_.held_out);
    current_.large = std::make_shared<LargeText>(tokenizer_, std::move(text), options_.part_bytes);
    current_.part = 0;
  }

  CorpusReader& corpus_;
  const Tokenizer& tokenizer_;
  const TokenizeOptions& options_;
  EncodeInput current_;  // the large document that is being read, and its next part
};

// Writes encoded documents to the two datasets and counts them.
class DatasetWriter {
 public:
  static Result<DatasetWriter> create(Env& env, const Tokenizer& tokenizer, const TokenizeOptions& options) {
    DatasetWriter writer;
    writer.dedupes_ = options.dedupe;
    HF_TRY(writer.kept_, MegatronWriter::create(env, options.prefix, tokenizer.vocabulary()));
    if (options.held_out > 0.0) {
      HF_TRY(writer.held_out_,
             MegatronWriter::create(env, held_out_name(options.prefix), tokenizer.vocabulary()));
    }
    return writer;
  }

  Result<void> add(const EncodedBatch& batch) {
    std::span<const TokenId> ids = batch.ids;
    for (const EncodedBatch::Document& document : batch.documents) {
      HF_TRY_VOID(add_document(document, ids.first(document.tokens)));
      ids = ids.subspan(document.tokens);
    }
    return {};
  }

  // Returns whether a document is to be left out because its text was there before; counts it then. Asked once for each.
  bool is_duplicate(const Digest& text, std::size_t text_bytes) {
    if (!dedupes_ || seen_.emplace(text.high, text.low).second) return false;
    ++totals_.duplicate_documents;
    totals_.duplicate_bytes += text_bytes;
    return true;
  }

  // Adds a document of which parts come one after another.
  Result<void> add_part(std::span<const TokenId> ids, bool held_out) {
    const auto largest = std::ranges::max_element(ids);
    if (largest != ids.end())
      totals_.largest_token = std::max(totals_.largest_token, static_cast<std::int64_t>(*largest));
    totals_.tokens += ids.size();
    totals_.held_out_tokens += held_out ? ids.size() : 0;
    return (held_out ? *held_out_ : *kept_).append(ids);
  }
  Result<void> end_parts(std::size_t text_bytes, std::size_t broken_bytes, bool held_out) {
    ++totals_.documents;
    totals_.text_bytes += text_bytes;
    totals_.broken_bytes += broken_bytes;
    totals_.held_out_documents += held_out ? 1 : 0;
    return (held_out ? *held_out_ : *kept_).end_document();
  }

  Result<TokenizeTotals> finish(double share) {
    if (totals_.tokens == 0) return fail(ExitCode::data, "there is no text: every document is empty");
    const std::uint64_t kept = totals_.documents - totals_.held_out_documents;
    if (held_out_ != nullptr && (kept == 0 || totals_.held_out_documents == 0)) {
      return fail(
          ExitCode::config,
          "--held-out {} leaves {} of {} documents for training: give another share, or hold out samples by "
          "data.validation_fraction",
          share, kept, totals_.documents);
    }
    std::vector<MegatronWriter*> writers = {kept_.get()};
    if (held_out_ != nullptr) writers.push_back(held_out_.get());
    HF_TRY_VOID(MegatronWriter::finish(writers));
    return totals_;
  }

 private:
  Result<void> add_document(const EncodedBatch::Document& document, std::span<const TokenId> ids) {
    if (ids.empty()) {
      ++totals_.empty_documents;
      return {};
    }
    if (is_duplicate(document.digest, document.text_bytes)) return {};
    HF_TRY_VOID(add_part(ids, document.held_out));
    return end_parts(document.text_bytes, document.broken_bytes, document.held_out);
  }

  std::unique_ptr<MegatronWriter> kept_, held_out_;
  bool dedupes_ = false;
  std::set<std::pair<std::uint64_t, std::uint64_t>> seen_;  // digests of texts
  TokenizeTotals totals_;
};

}  // namespace

std::string held_out_name(const std::string& prefix) {
  return prefix + "-held-out";
}

Result<TokenizeTotals> tokenize_files(Env& env, const Tokenizer& tokenizer, const TokenizeOptions& options) {
  HF_TRY(CorpusReader corpus, CorpusReader::open(env, options.input));
  HF_TRY(DatasetWriter writer, DatasetWriter::create(env, tokenizer, options));
  std::vector<Encoder> encoders;
  for (int i = 0; i < options.threads; ++i) encoders.emplace_back(tokenizer);
  EncodeReader reader(corpus, tokenizer, options);
  PartJoiner joiner(tokenizer);
  bool leaves_out = false;  // the large document that comes in parts
  OrderedWork<EncodeInput, EncodeOutput> work;
  work.read = [&](EncodeInput& input) { return reader.next(input); };
  work.work = [&](int thread, EncodeInput& input, EncodeOutput& made) {
    Encoder& encoder = encoders[static_cast<std::size_t>(thread)];
    made.input = &input;
    if (input.large != nullptr)
      return corpus.placed(input.document, input.large->encode(encoder, input.part, made.part));
    return encode_batch(corpus, options, encoder, input.batch, made.batch);
  };
  work.consume = [&](EncodeOutput& made) -> Result<void> {
    const EncodeInput& input = *made.input;
    options.progress(input.read_bytes, corpus.bytes());
    if (options.stops()) return fail(ExitCode::communication, "it was stopped");
    if (input.large == nullptr) return writer.add(made.batch);
    const Result<std::span<const TokenId>> ids = joiner.take(*input.large, input.part, made.part);
    HF_TRY_VOID(corpus.placed(input.document, outcome_of(ids)));
    if (input.part == 0) leaves_out = writer.is_duplicate(input.digest, input.text_bytes);
    if (leaves_out) return {};
    HF_TRY_VOID(writer.add_part(*ids, input.held_out));
    if (input.part + 1 < input.large->part_count()) return {};
    if (options.append) HF_TRY_VOID(writer.add_part(std::span(&*options.append, 1), input.held_out));
    return writer.end_parts(input.text_bytes, input.broken_bytes, input.held_out);
  };
  HF_TRY_VOID(work.run(env, options.threads));
  return writer.finish(options.held_out);
}

Result<std::vector<std::pair<std::string, std::uint64_t>>> count_pieces(Env& env, const CorpusInput& input,
                                                                        const SplitPattern& pattern,
                                                                        int threads,
                                                                        const CorpusProgress& progress) {
  HF_TRY(CorpusReader corpus, CorpusReader::open(env, input));
  std::vector<PieceCounter> counters;
  for (int i = 0; i < threads; ++i) counters.emplace_back(pattern);
  struct Nothing {};
  OrderedWork<DocumentBatch, Nothing> work;
  work.read = [&](DocumentBatch& batch) { return corpus.next(batch); };
  work.work = [&](int thread, DocumentBatch& batch, Nothing&) -> Result<void> {
    std::string storage;
    for (const DocumentBatch::Document& document : batch.documents) {
      HF_TRY(const std::string_view text, corpus.text_of(batch, document, storage));
      HF_TRY_VOID(corpus.placed(document, counters[static_cast<std::size_t>(thread)].add(text)));
    }
    return {};
  };
  work.consume = [&](Nothing&) {
    progress(corpus.bytes_read(), corpus.bytes());
    return Result<void>();
  };
  HF_TRY_VOID(work.run(env, threads));
  for (std::size_t i = 1; i < counters.size(); ++i) counters[0].merge(counters[i]);
  return counters[0].sorted();
}

}  // namespace holdfast::text
