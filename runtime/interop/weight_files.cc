#include "runtime/interop/weight_files.h"

#include <algorithm>
#include <bit>

#include "runtime/core/tensor.h"

namespace holdfast::interop {

float float_of_half(std::uint16_t bits) {
  constexpr std::uint32_t mantissa_bits = 10, exponent_of_infinity = 31, bias_difference = 127 - 15;
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  std::uint32_t exponent = (bits >> mantissa_bits) & 31u, mantissa = bits & 0x3ffu;
  if (exponent == exponent_of_infinity) {
    exponent = 255;
  } else if (exponent > 0) {
    exponent += bias_difference;
  } else if (mantissa != 0) {  // subnormal in fp16, normal in fp32
    const int shift = std::countl_zero(mantissa) - (31 - static_cast<int>(mantissa_bits));
    mantissa = (mantissa << shift) & 0x3ffu;
    exponent = bias_difference + 1 - static_cast<std::uint32_t>(shift);
  }
  return std::bit_cast<float>(sign | (exponent << 23) | (mantissa << (23 - mantissa_bits)));
}

std::size_t WeightFiles::add_file(std::unique_ptr<File> file) {
  files_.push_back(std::move(file));
  return files_.size() - 1;
}

bool WeightFiles::add(const std::string& name, StoredWeight weight) {
  return tensors_.emplace(name, std::move(weight)).second;
}

const StoredWeight* WeightFiles::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

Result<void> WeightFiles::read(const StoredWeight& weight, std::uint64_t first, std::span<float> target) {
  File& file = *files_[weight.file];
  const std::uint64_t offset = weight.offset_bytes + first * bytes_of(weight.type);
  if (weight.type == WeightType::fp32) return file.read_at(offset, std::as_writable_bytes(target));
  halves_.resize(target.size());
  HF_TRY_VOID(file.read_at(offset, std::as_writable_bytes(std::span(halves_))));
  if (weight.type == WeightType::bf16) {
    std::ranges::transform(halves_, target.begin(),
                           [](std::uint16_t bits) { return to_float(BFloat16{bits}); });
  } else {
    std::ranges::transform(halves_, target.begin(), float_of_half);
  }
  return {};
}

Result<WeightFileWriter> WeightFileWriter::create(Env& env, const std::string& path,
                                                  std::string_view prologue, std::uint64_t bytes) {
  WeightFileWriter writer;
  HF_TRY(writer.file_, env.open(path, OpenMode::create));
  HF_TRY_VOID(writer.file_->allocate(bytes));
  HF_TRY_VOID(writer.file_->write_at(0, std::as_bytes(std::span(prologue.data(), prologue.size()))));
  writer.next_ = prologue.size();
  writer.bytes_ = bytes;
  return writer;
}

Result<void> WeightFileWriter::append(std::span<const float> values, WeightType type) {
  HF_CHECK(type != WeightType::fp16, "fp16 is read, not written");
  std::span<const std::byte> bytes = std::as_bytes(values);
  if (type == WeightType::bf16) {
    halves_.resize(values.size());
    std::ranges::transform(values, halves_.begin(), [](float value) { return to_bfloat16(value).bits; });
    bytes = std::as_bytes(std::span<const std::uint16_t>(halves_));
  }
  HF_TRY_VOID(file_->write_at(next_, bytes));
  next_ += bytes.size();
  return {};
}

Result<void> WeightFileWriter::finish() {
  HF_CHECK(next_ == bytes_, "{} has {} of {} bytes", file_->path(), next_, bytes_);
  return file_->sync();
}

}  // namespace holdfast::interop
