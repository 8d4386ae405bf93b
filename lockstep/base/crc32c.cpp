#include "lockstep/base/crc32c.h"

#include <array>
#include <bit>
#include <cstring>
#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace lockstep {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected
// Below, joining the thirds costs more than it saves.
constexpr size_t kWorthThree = 64 << 10;

using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables make_tables() {
  Tables tables{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) {
      value = (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
    }
    tables[0][i] = value;
  }
  for (uint32_t i = 0; i < 256; ++i) {
    for (size_t k = 1; k < tables.size(); ++k) {
      const uint32_t before = tables[k - 1][i];
      tables[k][i] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

static_assert(std::endian::native == std::endian::little);

uint32_t by_tables(const char* at, size_t left, uint32_t crc) {
  while (left >= 8) {
    uint64_t word = 0;
    std::memcpy(&word, at, 8);
    word ^= crc;
    crc = 0;
    for (size_t k = 0; k < 8; ++k) {
      crc ^= kTables[7 - k][(word >> (8 * k)) & 0xff];
    }
    at += 8;
    left -= 8;
  }
  for (; left > 0; --left, ++at) {
    crc = (crc >> 8) ^ kTables[0][(crc ^ static_cast<uint8_t>(*at)) & 0xff];
  }
  return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t
by_instruction(const char* at, size_t left, uint32_t start) {
  uint64_t crc = start;
  for (; left >= 8; left -= 8, at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, at, 8);
    crc = _mm_crc32_u64(crc, word);
  }
  auto rest = static_cast<uint32_t>(crc);
  for (; left > 0; --left, ++at) {
    rest = _mm_crc32_u8(rest, static_cast<uint8_t>(*at));
  }
  return rest;
}

// Three thirds at once: the instruction takes three cycles, and a new one may
// begin in each.
__attribute__((target("sse4.2"))) uint32_t
by_three(const char* at, size_t third, uint32_t start) {
  uint64_t a = start;
  uint64_t b = ~0U;
  uint64_t c = ~0U;
  for (size_t i = 0; i < third; i += 8) {
    uint64_t words[3] = {};
    std::memcpy(&words[0], at + i, 8);
    std::memcpy(&words[1], at + third + i, 8);
    std::memcpy(&words[2], at + 2 * third + i, 8);
    a = _mm_crc32_u64(a, words[0]);
    b = _mm_crc32_u64(b, words[1]);
    c = _mm_crc32_u64(c, words[2]);
  }
  const uint32_t front =
      crc32c_join(~static_cast<uint32_t>(a), ~static_cast<uint32_t>(b), third);
  return ~crc32c_join(front, ~static_cast<uint32_t>(c), third);
}

bool has_instruction() {
  static const bool found = __builtin_cpu_supports("sse4.2") != 0;
  return found;
}
#endif

// The product of two polynomials modulo ours, bits reflected: 1 is the top bit.
uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = 1U << 31; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) {
      product ^= b;
    }
    b = (b >> 1) ^ ((b & 1) != 0 ? kPolynomial : 0);
  }
  return product;
}

}  // namespace

uint32_t crc32c(std::string_view bytes, uint32_t before) {
#if defined(__x86_64__)
  if (has_instruction()) {
    uint32_t crc = ~before;
    if (bytes.size() >= kWorthThree) {
      const size_t third = bytes.size() / 24 * 8;
      crc = by_three(bytes.data(), third, crc);
      bytes.remove_prefix(3 * third);
    }
    return ~by_instruction(bytes.data(), bytes.size(), crc);
  }
#endif
  return ~by_tables(bytes.data(), bytes.size(), ~before);
}

uint32_t crc32c_join(uint32_t first, uint32_t second, uint64_t second_size) {
  // The first is shifted by the bits of the second: times x^(8 n), by
  // squaring x^8 along the bits of n.
  uint32_t power = 1U << 23;  // x^8
  for (; second_size != 0; second_size >>= 1) {
    if ((second_size & 1) != 0) {
      first = multiply(power, first);
    }
    power = multiply(power, power);
  }
  return first ^ second;
}

}  // namespace lockstep
