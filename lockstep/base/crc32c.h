#pragma once

// CRC-32C (Castagnoli), as TensorBoard's files and our objects in S3 carry it.
// By the processor's own instruction where it has one (about 20 GB/s), by
// tables elsewhere (2 GB/s). Pure.

#include <cstdint>
#include <string_view>

namespace lockstep {

// Of `before` and `bytes` one after the other: crc32c(b, crc32c(a)).
uint32_t crc32c(std::string_view bytes, uint32_t before = 0);

// Of two pieces one after the other, from the CRC of each: pieces that were
// read side by side need not be read again.
uint32_t crc32c_join(uint32_t first, uint32_t second, uint64_t second_size);

}  // namespace lockstep
