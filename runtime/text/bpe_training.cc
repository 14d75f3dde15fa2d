#include "runtime/text/bpe_training.h"

#include <algorithm>
#include <queue>

#include "runtime/text/tokenizer_file.h"

namespace holdfast::text {
namespace {

using Pair = std::uint64_t;  // the left token above the right one

Pair pair_of(TokenId left, TokenId right) {
  return std::uint64_t{left} << 32 | std::uint64_t{right};
}

struct PairHash {
  std::size_t operator()(Pair pair) const {
    const std::uint64_t mixed = pair * 0x9E3779B97F4A7C15u;
    return static_cast<std::size_t>(mixed ^ mixed >> 32);
  }
};

// The words in which a pair may occur, in ascending order; one that has lost it does no harm.
struct Places {
  std::vector<std::uint32_t> words;
  void add(std::uint32_t word) {
    if (words.empty() || words.back() != word) words.push_back(word);
  }
};

// A pair and how often it occurred when this was queued. A pair that becomes more frequent is queued again, for the new places
// alone.
struct Queued {
  Pair pair = 0;
  std::int64_t count = 0;
  std::vector<std::uint32_t> words;
};

// Puts the most frequent pair first, and of equal ones that of the smaller tokens.
struct ComesLater {
  bool operator()(const Queued& a, const Queued& b) const {
    return a.count != b.count ? a.count < b.count : a.pair > b.pair;
  }
};

class BpeTrainer {
 public:
  BpeTrainer(const std::vector<std::pair<std::string, std::uint64_t>>& pieces, const BpeTraining& training)
      : training_(training) {
    for (const std::string& special : training.special) {
      const TokenId id = add_token(special);
      parts_.added.push_back({.content = special, .id = id});
      if (parts_.tokens[id].empty()) parts_.others.emplace_back(id, special);
    }
    std::array<TokenId, 256> byte_tokens = {};
    for (const std::uint8_t byte : bytes_by_character())
      byte_tokens[byte] = add_token(byte_level(std::string(1, static_cast<char>(byte))));
    for (const auto& [piece, count] : pieces) {
      std::vector<TokenId>& word = words_.emplace_back();
      for (const char byte : piece) word.push_back(byte_tokens[static_cast<std::uint8_t>(byte)]);
      word_counts_.push_back(static_cast<std::int64_t>(count));
    }
    parts_.pattern = training.pattern;
  }

  TokenizerParts run() {
    count_pairs();
    const auto wanted = static_cast<std::size_t>(training_.vocabulary);
    while (parts_.tokens.size() < wanted && !queue_.empty()) {
      Queued best = queue_.top();
      queue_.pop();
      const std::int64_t now = pair_counts_[best.pair];
      if (best.count != now) {
        best.count = now;
        if (now > 0) queue_.push(std::move(best));
        continue;
      }
      make_merge(best);
      if (parts_.tokens.size() % 1024 == 0) training_.progress(parts_.tokens.size());
    }
    keep_last_merges();
    return std::move(parts_);
  }

 private:
  // Returns the token that the file writes as `name`. A special token that is written as bytes are is theirs, too.
  TokenId add_token(const std::string& name) {
    const auto id = static_cast<TokenId>(parts_.tokens.size());
    const auto [found, is_new] = ids_.emplace(name, id);
    if (is_new) parts_.tokens.push_back(from_byte_level(name).value_or(""));
    return found->second;
  }

  void count_pairs() {
    for (std::uint32_t i = 0; i < words_.size(); ++i) {
      const std::vector<TokenId>& word = words_[i];
      for (std::size_t at = 0; at + 1 < word.size(); ++at) change(pair_of(word[at], word[at + 1]), i, 1);
    }
    queue_new_pairs();
  }

  void change(Pair pair, std::uint32_t word, int by) {
    pair_counts_[pair] += by * word_counts_[word];
    if (by > 0) new_places_[pair].add(word);
  }

  void queue_new_pairs() {
    for (auto& [pair, places] : new_places_) {
      const std::int64_t count = pair_counts_[pair];
      if (count > 0) queue_.push({.pair = pair, .count = count, .words = std::move(places.words)});
    }
    new_places_.clear();
  }

  void make_merge(const Queued& best) {
    const auto left = static_cast<TokenId>(best.pair >> 32), right = static_cast<TokenId>(best.pair);
    const TokenId result = add_token(byte_level(parts_.tokens[left] + parts_.tokens[right]));
    parts_.merges.push_back({left, right, 0, result});
    for (const std::uint32_t word : best.words) merge_in(word, left, right, result);
    queue_new_pairs();
  }

  void merge_in(std::uint32_t number, TokenId left, TokenId right, TokenId result) {
    std::vector<TokenId>& word = words_[number];
    std::size_t kept = 0;
    for (std::size_t at = 0; at < word.size(); ++at) {
      const bool is_pair = at + 1 < word.size() && word[at] == left && word[at + 1] == right;
      if (!is_pair) {
        word[kept++] = word[at];
        continue;
      }
      if (kept > 0) {
        change(pair_of(word[kept - 1], left), number, -1);
        change(pair_of(word[kept - 1], result), number, 1);
      }
      ++at;
      word[kept++] = result;
      if (at + 1 < word.size()) {
        change(pair_of(right, word[at + 1]), number, -1);
        change(pair_of(result, word[at + 1]), number, 1);
      }
    }
    word.resize(kept);
  }

  // A pair may have been merged twice, as its second part in time; then the later rank counts.
  void keep_last_merges() {
    std::unordered_map<Pair, std::size_t, PairHash> last;
    for (std::size_t i = 0; i < parts_.merges.size(); ++i)
      last[pair_of(parts_.merges[i].left, parts_.merges[i].right)] = i;
    std::vector<Merge> kept;
    for (std::size_t i = 0; i < parts_.merges.size(); ++i) {
      Merge merge = parts_.merges[i];
      if (last[pair_of(merge.left, merge.right)] != i) continue;
      merge.rank = static_cast<std::uint32_t>(kept.size());
      kept.push_back(merge);
    }
    parts_.merges = std::move(kept);
  }

  const BpeTraining& training_;
  TokenizerParts parts_;
  std::unordered_map<std::string, TokenId> ids_;  // by the name in the file
  std::vector<std::vector<TokenId>> words_;
  std::vector<std::int64_t> word_counts_;
  std::unordered_map<Pair, std::int64_t, PairHash> pair_counts_;
  std::unordered_map<Pair, Places, PairHash> new_places_;
  std::priority_queue<Queued, std::vector<Queued>, ComesLater> queue_;
};

}  // namespace

Result<void> PieceCounter::add(std::string_view text) {
  text = repaired_utf8(text, repaired_);
  std::size_t done = 0;
  while (done < text.size()) {
    HF_TRY(const PieceFinder::Match match, finder_.next(text, done));
    const std::size_t begin = match.begin == match.end ? text.size() : match.begin;
    if (begin > done) count(text.substr(done, begin - done), 1);
    if (match.end > begin) count(text.substr(begin, match.end - begin), 1);
    done = std::max(begin, match.end);
  }
  return {};
}

void PieceCounter::count(std::string_view piece, std::uint64_t times) {
  if (const auto found = counts_.find(piece); found != counts_.end()) {
    found->second += times;
  } else {
    counts_.emplace(piece, times);
  }
}

void PieceCounter::merge(const PieceCounter& other) {
  for (const auto& [piece, times] : other.counts_) count(piece, times);
}

std::vector<std::pair<std::string, std::uint64_t>> PieceCounter::sorted() const {
  std::vector<std::pair<std::string, std::uint64_t>> pieces(counts_.begin(), counts_.end());
  std::ranges::sort(pieces);
  return pieces;
}

TokenizerParts train_bpe(const std::vector<std::pair<std::string, std::uint64_t>>& pieces,
                         const BpeTraining& training) {
  return BpeTrainer(pieces, training).run();
}

}  // namespace holdfast::text
