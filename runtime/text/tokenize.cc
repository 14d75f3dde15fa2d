#include "runtime/text/tokenize.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "runtime/core/digest.h"
#include "runtime/data/megatron.h"

namespace holdfast::text {
namespace {

// The documents of a batch as tokens, one after another.
struct EncodedBatch {
  struct Document {
    std::size_t tokens = 0, text_bytes = 0;
    bool held_out = false;
  };
  std::vector<TokenId> ids;
  std::vector<Document> documents;
  std::int64_t largest = -1;
};

bool is_held_out(std::string_view text, double share) {
  constexpr double two_to_64 = 18446744073709551616.0;
  return share > 0.0 && static_cast<double>(digest_of(text).high) < share * two_to_64;
}

Result<void> encode_batch(const CorpusReader& corpus, const TokenizeOptions& options, Encoder& encoder,
                          const DocumentBatch& batch, EncodedBatch& made) {
  made.ids.clear();
  made.documents.clear();
  std::string storage;
  for (const DocumentBatch::Document& document : batch.documents) {
    HF_TRY(const std::string_view text, corpus.text_of(batch, document, storage));
    const std::size_t before = made.ids.size();
    HF_TRY_VOID(encoder.encode(text, made.ids));
    const bool is_empty = made.ids.size() == before;
    if (options.append && !is_empty) made.ids.push_back(*options.append);
    made.documents.push_back({.tokens = made.ids.size() - before,
                              .text_bytes = text.size(),
                              .held_out = is_held_out(text, options.held_out)});
  }
  const auto largest = std::ranges::max_element(made.ids);
  made.largest = largest == made.ids.end() ? -1 : static_cast<std::int64_t>(*largest);
  return {};
}

// Writes encoded documents to the two datasets and counts them.
class DatasetWriter {
 public:
  static Result<DatasetWriter> create(Env& env, const Tokenizer& tokenizer, const TokenizeOptions& options) {
    DatasetWriter writer;
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
    totals_.largest_token = std::max(totals_.largest_token, batch.largest);
    return {};
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
    HF_TRY_VOID(kept_->finish());
    if (held_out_ != nullptr) HF_TRY_VOID(held_out_->finish());
    return totals_;
  }

 private:
  Result<void> add_document(const EncodedBatch::Document& document, std::span<const TokenId> ids) {
    if (ids.empty()) {
      ++totals_.empty_documents;
      return {};
    }
    ++totals_.documents;
    totals_.tokens += ids.size();
    totals_.text_bytes += document.text_bytes;
    totals_.held_out_documents += document.held_out ? 1 : 0;
    totals_.held_out_tokens += document.held_out ? ids.size() : 0;
    MegatronWriter& target = document.held_out ? *held_out_ : *kept_;
    HF_TRY_VOID(target.append(ids));
    return target.end_document();
  }

  std::unique_ptr<MegatronWriter> kept_, held_out_;
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
  OrderedWork<DocumentBatch, EncodedBatch> work;
  work.read = [&](DocumentBatch& batch) { return corpus.next(batch); };
  work.work = [&](int thread, DocumentBatch& batch, EncodedBatch& made) {
    return encode_batch(corpus, options, encoders[static_cast<std::size_t>(thread)], batch, made);
  };
  work.consume = [&](EncodedBatch& batch) {
    options.progress(corpus.bytes_read(), corpus.bytes());
    return writer.add(batch);
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
      HF_TRY_VOID(counters[static_cast<std::size_t>(thread)].add(text));
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
