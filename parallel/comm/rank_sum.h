// sum_over_ranks(): adds a record of every rank, word by word, and gives all ranks the sum. A record says its
// words once; nobody counts positions:
//
//   struct Ballot {
//     std::int64_t stops = 0;
//     Digest data = {};
//     ExactSum loss = {};
//     static void visit_words(auto& self, auto&& visit) {
//       visit(self.stops);
//       visit(self.data);
//       visit(self.loss);
//     }
//   };
//   HF_TRY_VOID(sum_over_ranks(communicator, waiter, ballot));
//
// A field is a signed 64-bit integer, a Digest, an ExactSum, or a record of such fields. All are sums of
// integers, so the order of summation cannot matter. All ranks are of one version of the program.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "parallel/comm/collectives.h"
#include "runtime/core/digest.h"
#include "runtime/core/exact_sum.h"
#include "runtime/core/result.h"

namespace holdfast::parallel {

// Calls visit(word) for each 64-bit word of a field, in order.
template <typename T>
void visit_each_word(T& field, auto&& visit) {
  using Field = std::remove_const_t<T>;
  if constexpr (std::is_same_v<Field, std::int64_t>) {
    visit(field);
  } else if constexpr (std::is_same_v<Field, Digest>) {
    for (std::uint64_t* const half : {&field.high, &field.low}) {
      auto word = std::bit_cast<std::int64_t>(*half);
      visit(word);
      *half = std::bit_cast<std::uint64_t>(word);
    }
  } else if constexpr (std::is_same_v<Field, ExactSum>) {
    for (std::int64_t& word : field.words()) visit(word);
  } else {
    T::visit_words(field, [&](auto& inner) { visit_each_word(inner, visit); });
  }
}

template <typename T>
inline constexpr std::size_t summed_word_count = 0;
template <>
inline constexpr std::size_t summed_word_count<std::int64_t> = 1;
template <>
inline constexpr std::size_t summed_word_count<Digest> = 2;
template <>
inline constexpr std::size_t summed_word_count<ExactSum> = ExactSum::word_count;

// Returns the number of words of a record.
template <typename T>
requires requires(T& record) {
  T::visit_words(record, [](auto&) {});
}
consteval std::size_t count_words() {
  std::size_t words = 0;
  T record{};
  T::visit_words(record, [&words]<typename Field>(const Field&) {
    if constexpr (summed_word_count < Field >> 0) {
      words += summed_word_count<Field>;
    } else {
      words += count_words<Field>();
    }
  });
  return words;
}

// Replaces `record` by the sum over all ranks. All ranks call it together. ExactSums go normalised.
template <typename T>
Result<void> sum_over_ranks(Communicator& communicator, const Waiter& waiter, T& record) {
  std::array<std::int64_t, count_words<T>()> words{};
  std::size_t next = 0;
  visit_each_word(record, [&](std::int64_t& word) { words[next++] = word; });
  HF_TRY_VOID(all_reduce_sum(communicator, waiter, words));
  next = 0;
  visit_each_word(record, [&](std::int64_t& word) { word = words[next++]; });
  return {};
}

}  // namespace holdfast::parallel
