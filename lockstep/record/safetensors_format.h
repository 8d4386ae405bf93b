#pragma once

// What the reader and the writer of safetensors files agree on. Private to
// record/.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::record {

static_assert(
    std::endian::native == std::endian::little,
    "safetensors data is little-endian and is not converted");

inline constexpr std::string_view kMetadataName = "__metadata__";
// The reference implementation's limit; a longer one is an attack or garbage.
inline constexpr uint64_t kMaxHeader = 100'000'000;
inline constexpr size_t kLengthBytes = 8;
inline constexpr size_t kHeaderAlignment = 8;

// The metadata that tells damage: CRC-32C of the data and of the header, eight
// hex digits each, the second one taken with zeros in place of both. It is the
// last of the metadata, and these are the last of the header: where they are
// not, another program wrote the header anew and took the metadata along, and
// what it wrote is not held to the sums.
inline constexpr std::string_view kSumName = "lockstep.crc32c";
inline constexpr std::string_view kNoSum = "00000000 00000000";

// Of a header that has kSumName: its text before and after the sums.
struct AroundSum {
  std::string_view before;
  std::string_view sum;
  std::string_view after;
};
std::optional<AroundSum> around_sum(std::string_view header);
std::string make_sum(uint32_t data, const AroundSum& header);

// Elements times element size; none when it does not fit 64 bits.
std::optional<uint64_t> byte_count(
    const std::vector<int64_t>& shape,
    size_t element);

// A name for a message: it may come from garbage, so it is kept short.
std::string shown(const std::string& name);

}  // namespace lockstep::record
