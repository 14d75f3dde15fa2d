#include "runtime/interop/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;

// As a file: the length of the header, the header, the tensors.
std::string file_of(const std::string& header, std::size_t tensor_bytes) {
  const std::uint64_t length = header.size();
  std::string text(sizeof(length), '\0');
  std::memcpy(text.data(), &length, sizeof(length));
  return text + header + std::string(tensor_bytes, '\x01');
}

class SafetensorsTest : public testing::Test {
 protected:
  Result<std::vector<SafetensorsTensor>> read(const std::string& content) {
    const std::string path = directory_ / std::to_string(next_++);
    const Result<std::unique_ptr<File>> file = posix_env().open(path, OpenMode::create);
    EXPECT_TRUE(file.ok());
    EXPECT_TRUE((*file)->write_at(0, std::as_bytes(std::span(content.data(), content.size()))).ok());
    return read_safetensors_header(**file);
  }
  void expect_refused(const std::string& content, const std::string& reason) {
    const auto tensors = read(content);
    ASSERT_FALSE(tensors.ok()) << reason;
    EXPECT_EQ(tensors.error().code, ExitCode::data);
    EXPECT_THAT(tensors.error().message, HasSubstr(reason));
    EXPECT_THAT(tensors.error().message, HasSubstr("is no usable safetensors file"));
  }
  TemporaryDirectory directory_;
  int next_ = 0;
};

TEST_F(SafetensorsTest, WhatIsWrittenIsRead) {
  const std::vector<SafetensorsTensor> written = {{.name = "b", .type = "F32", .shape = {2, 3}},
                                                  {.name = "a \"quoted\"", .type = "BF16", .shape = {5}},
                                                  {.name = "scalar", .type = "F32", .shape = {}},
                                                  {.name = "empty", .type = "F32", .shape = {0, 7}}};
  const std::string prologue = safetensors_header(written, {{"format", "pt"}});
  EXPECT_EQ(prologue.size() % 8, 0U);
  const auto tensors = read(prologue + std::string(24 + 10 + 4, '\0'));
  ASSERT_TRUE(tensors.ok()) << tensors.error().message;
  ASSERT_EQ(tensors->size(), 4U);
  for (const SafetensorsTensor& tensor : *tensors) {
    if (tensor.name == "a \"quoted\"") {
      EXPECT_EQ(tensor.offset_bytes, prologue.size() + 24);
      EXPECT_EQ(tensor.bytes, 10U);
      EXPECT_EQ(tensor.shape, std::vector<std::uint64_t>{5});
    }
  }
}

TEST_F(SafetensorsTest, RefusesWhatIsNotTheFormat) {
  const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  ASSERT_TRUE(read(file_of(good, 8)).ok());
  ASSERT_TRUE(read(file_of(good + "   ", 8)).ok()) << "padding";
  ASSERT_TRUE(read(file_of(R"({"__metadata__":{"x":"y"},)" + good.substr(1), 8)).ok());
  expect_refused("", "its 0 bytes are too few");
  expect_refused(std::string(8, '\xff') + good, "it says that its header has 18446744073709551615 bytes");
  expect_refused(file_of("", 0), "does not start with {");
  expect_refused(file_of(" " + good, 8), "does not start with {");
  expect_refused(file_of(good, 7), "needs 8 bytes, but has bytes 0 to 8 of the 7 after the header");
  expect_refused(file_of(good, 9), "its tensors end at byte 8, but the file has 9 bytes");
  const auto entry = [](const std::string& text) { return file_of(R"({"a":)" + text + "}", 8); };
  expect_refused(entry(R"({"dtype":"F33","shape":[2],"data_offsets":[0,8]})"),
                 "an unknown type or too large");
  expect_refused(entry(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"), "needs 12 bytes");
  expect_refused(entry(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"), "bytes 8 to 0");
  expect_refused(entry(R"({"dtype":"F32","shape":[2],"data_offsets":[0]})"), "has not all of");
  expect_refused(entry(R"({"dtype":"F32","data_offsets":[0,8]})"), "has not all of");
  expect_refused(entry(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"), "a negative number");
  expect_refused(entry(R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})"), "a fraction");
  expect_refused(entry(R"({"dtype":"F32","shape":[[2]],"data_offsets":[0,8]})"), "a list where none belongs");
  expect_refused(entry(R"({"dtype":"F32","shape":2,"data_offsets":[0,8]})"), "a number where none belongs");
  expect_refused(entry(R"({"dtype":2,"shape":[2],"data_offsets":[0,8]})"), "a number where none belongs");
  expect_refused(entry(R"({"dtype":"F32","shape":{"x":1},"data_offsets":[0,8]})"),
                 "an object where none belongs");
  expect_refused(entry(R"({"dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8]})"),
                 "stands there twice");
  expect_refused(entry(R"({"dtype":"F32","shape":[2],"strides":[1],"data_offsets":[0,8]})"), "is unknown");
  expect_refused(entry(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]})"),
                 "too large");
  expect_refused(entry(R"({"dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,8]})"),
                 "too large a number");
  expect_refused(entry("null"), "a null where none belongs");
  expect_refused(entry("[1]"), "a list where none belongs");
  expect_refused(entry("\"text\""), "a text where none belongs");
  expect_refused(file_of("{\"a\"", 8), "it is not valid JSON");
  expect_refused(file_of(good + "x", 8), "it is not valid JSON");
  expect_refused(file_of("{\"\xff\":{}}", 0), "it is not valid JSON");
  expect_refused(file_of(R"({"__metadata__":{"x":{}}})", 0), "an object where none belongs");
  const std::string second = R"(,"b":{"dtype":"U8","shape":[4],"data_offsets":)";
  const std::string opened = good.substr(0, good.size() - 1);
  expect_refused(file_of(opened + second + "[4,8]}}", 8), "begins at byte 4");  // overlap
  expect_refused(file_of(opened + second + "[9,13]}}", 13), "the one before ends at 8");
  expect_refused(file_of(opened + "," + good.substr(1), 8), "\"a\" stands there twice");
  expect_refused(file_of("{\"a\":" + std::string(100000, '['), 0), "a list where none belongs");
}

// Whatever a byte of the header becomes, and wherever the file ends: tensors inside the file, or a sentence.
TEST_F(SafetensorsTest, AnyDamageIsASentence) {
  const std::string good = safetensors_header({{.name = "first", .type = "F32", .shape = {2, 2}},
                                               {.name = "second", .type = "BF16", .shape = {3}}},
                                              {{"format", "pt"}}) +
                           std::string(16 + 6, '\x02');
  const auto check = [&](const std::string& content) {
    const auto tensors = read(content);
    if (!tensors.ok()) {
      EXPECT_EQ(tensors.error().code, ExitCode::data);
      return;
    }
    for (const SafetensorsTensor& tensor : *tensors) {
      EXPECT_LE(tensor.offset_bytes, content.size());
      EXPECT_LE(tensor.bytes, content.size() - tensor.offset_bytes);
    }
  };
  for (std::size_t length = 0; length < good.size(); ++length) {
    EXPECT_FALSE(read(good.substr(0, length)).ok()) << length;
  }
  for (std::size_t i = 0; i + 22 < good.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = good;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      check(damaged);
    }
    for (const char c : std::string("\"{}[],:0-e\0", 11)) {
      std::string damaged = good;
      damaged[i] = c;
      check(damaged);
    }
  }
}

}  // namespace
}  // namespace holdfast::test
