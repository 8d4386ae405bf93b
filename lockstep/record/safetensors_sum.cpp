#include <fmt/format.h>

#include <cstring>

#include "lockstep/base/crc32c.h"
#include "lockstep/record/safetensors.h"
#include "lockstep/record/safetensors_format.h"

namespace lockstep::record {

namespace {

// Our writer puts the sums at the end of the metadata and the metadata at the
// end of the header; others put the metadata before the tensors, or a space
// after a colon, where around_sum() finds nothing. So a header that ends this
// way is held to both sums. A flipped bit does not change how it ends: without
// the quote or one of the brackets it is not JSON. What follows is not looked
// at, since only spaces may, and the parser takes a zero byte for its end.
bool is_ours(const AroundSum& header) {
  return header.after.starts_with("\"}}");
}

Error damaged(
    std::string_view what,
    std::string_view found,
    std::string_view told) {
  return Error(
      ErrorCode::kCorrupt,
      fmt::format(
          "the {} was damaged after it was written: its CRC-32C is {}, the "
          "header says {}",
          what,
          found,
          told));
}

}  // namespace

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

// A bit that flips in the name of the sums makes a file without them, as other
// programs write it. Nothing else of it is changed then, so it is as good as
// whole. Every other single bit is found, here or by the parser.
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
  if (around->sum == expected) {
    return {};
  }
  const std::string_view computed = expected;
  const size_t half = kNoSum.find(' ');
  if (around->sum.substr(half) == computed.substr(half)) {
    return damaged(
        "data", computed.substr(0, half), around->sum.substr(0, half));
  }
  if (is_ours(*around)) {
    return damaged(
        "header", computed.substr(half + 1), around->sum.substr(half + 1));
  }
  return {};  // written anew by another program, which took the sums along
}

}  // namespace lockstep::record
