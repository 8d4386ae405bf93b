#include <fmt/format.h>

#include <cstring>

#include "lockstep/base/crc32c.h"
#include "lockstep/record/safetensors.h"
#include "lockstep/record/safetensors_format.h"

namespace lockstep::record {

std::optional<AroundSum> around_sum(std::string_view header) {
  const std::string key = fmt::format("\"{}\":\"", kSumName);
  const size_t at = header.rfind(key);
  if (at == std::string_view::npos ||
      header.size() - at < key.size() + kNoSum.size()) {
    return std::nullopt;
  }
  const size_t begin = at + key.size();
  return AroundSum{
      header.substr(0, begin),
      header.substr(begin, kNoSum.size()),
      header.substr(begin + kNoSum.size())};
}

std::string make_sum(uint32_t data, const AroundSum& header) {
  const uint32_t of_header =
      crc32c(header.after, crc32c(kNoSum, crc32c(header.before)));
  return fmt::format("{:08x} {:08x}", data, of_header);
}

Result<void> SafetensorsFile::check_sum() {
  if (metadata_.erase(std::string(kSumName)) == 0) {
    return {};
  }
  const auto bytes = file_.bytes();
  const std::string_view text(
      reinterpret_cast<const char*>(bytes.data()), bytes.size());
  uint64_t length = 0;
  std::memcpy(&length, text.data(), kLengthBytes);
  const auto around = around_sum(text.substr(kLengthBytes, length));
  if (!around) {
    return {};
  }
  const uint32_t data = crc32c(text.substr(kLengthBytes + length));
  const std::string expected = make_sum(data, *around);
  const size_t half = kNoSum.find(' ');
  if (around->sum.substr(half) == expected.substr(half) &&
      around->sum != expected) {
    return Error(
        ErrorCode::kCorrupt,
        fmt::format(
            "the data was damaged after it was written: its CRC-32C is {}, the "
            "header says {}",
            expected.substr(0, half),
            around->sum.substr(0, half)));
  }
  return {};
}

}  // namespace lockstep::record
