// Tests that what a record says of its fields is enough to write it as text and to read it back.
#include "runtime/core/record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

namespace holdfast::test {
namespace {

enum class Colour : std::uint8_t { red, green };

struct Part {
  std::string name = "unnamed";
  std::optional<std::uint64_t> bytes = {};

  static void visit_fields(auto& self, auto&& visit) {
    visit("name", self.name);
    visit("bytes", self.bytes);
  }
  bool operator==(const Part&) const = default;
};

struct Sample {
  int rank = -1;
  std::uint64_t step = 5;
  std::uint8_t small = 0;
  double loss = 0.0;
  bool joined = false;
  Colour colour = Colour::red;
  std::string text = {};
  std::optional<bool> opened = {};
  std::vector<std::string> hosts = {};
  std::array<int, 2> pair = {};
  Part first = {};
  std::vector<Part> parts = {};

  static void visit_fields(auto& self, auto&& visit) {
    visit("rank", self.rank);
    visit("step", self.step);
    visit("small", self.small);
    visit("loss", self.loss);
    visit("joined", self.joined);
    visit("colour", self.colour);
    visit("text", self.text);
    visit("opened", self.opened);
    visit("hosts", self.hosts);
    visit("pair", self.pair);
    visit("first", self.first);
    visit("parts", self.parts);
  }
  bool operator==(const Sample&) const = default;
};

TEST(Record, ReadsWhatItHasWritten) {
  const Sample sample{.rank = -3,
                      .step = std::numeric_limits<std::uint64_t>::max(),
                      .small = 255,
                      .loss = 0.1,
                      .joined = true,
                      .colour = Colour::green,
                      .text = "two\nlines, \"quoted\", and blanks ",
                      .opened = false,
                      .hosts = {"a", ""},
                      .pair = {7, -8},
                      .first = {.name = "", .bytes = 9},
                      .parts = {{.name = "x"}, {.name = "y", .bytes = 0}}};
  for (const Sample& each : {sample, Sample{}}) {
    const Result<Sample> read = record_from_text<Sample>(record_to_text(each));
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(*read, each) << record_to_text(*read);
  }
  EXPECT_EQ(record_to_text(Part{.name = "p"}), R"({"name":"p","bytes":null})");
  EXPECT_EQ(record_from_text<std::vector<int>>("[3,1]").value(), (std::vector<int>{3, 1}));
}

// Ranks of another build may know fewer fields, or more.
TEST(Record, AbsentFieldsKeepTheirDefaultAndUnknownOnesAreIgnored) {
  const Result<Sample> read = record_from_text<Sample>(R"({"rank":4,"later":[1],"first":{"bytes":2}})");
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(*read, (Sample{.rank = 4, .first = {.bytes = 2}}));
}

TEST(Record, WhatCannotBeReadIsNamed) {
  for (const char* const text : {"", "{", "null", "[]", "3", "\xff"}) {
    const Result<Sample> read = record_from_text<Sample>(text);
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_EQ(read.error().code, ExitCode::communication);
    EXPECT_EQ(read.error().message, "it is not such a record");
  }
  struct Case {
    const char* text;
    const char* field;
  };
  for (const Case& each :
       {Case{R"({"rank":"4"})", "rank"}, Case{R"({"rank":3000000000})", "rank"},
        Case{R"({"step":-1})", "step"}, Case{R"({"step":1.5})", "step"}, Case{R"({"small":256})", "small"},
        Case{R"({"loss":null})", "loss"}, Case{R"({"joined":1})", "joined"},
        Case{R"({"colour":true})", "colour"}, Case{R"({"text":1})", "text"},
        Case{R"({"opened":0})", "opened"}, Case{R"({"hosts":["a",1]})", "hosts"},
        Case{R"({"pair":[1,2,3]})", "pair"}, Case{R"({"first":[]})", "first"},
        Case{R"({"parts":[{},{"bytes":-2}]})", "bytes"}}) {
    const Result<Sample> read = record_from_text<Sample>(each.text);
    ASSERT_FALSE(read.ok()) << each.text;
    EXPECT_EQ(read.error().message,
              fmt::format("its field {} has another type or is out of range", each.field));
  }
}

}  // namespace
}  // namespace holdfast::test
