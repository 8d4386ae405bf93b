#include "lockstep/fetch/sha256_pair.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#include "lockstep/base/check.h"
#include "lockstep/fetch/checksum.h"

namespace lockstep::fetch {
namespace {

constexpr size_t kBlock = Sha256Pair::kBlock;

struct Lane {
  std::array<uint32_t, 8> hash = {
      0x6a09e667,
      0xbb67ae85,
      0x3c6ef372,
      0xa54ff53a,
      0x510e527f,
      0x9b05688c,
      0x1f83d9ab,
      0x5be0cd19};
  uint64_t size = 0;  // of whole blocks so far
  std::string rest;   // the last piece's end, less than a block
};

#if defined(__x86_64__)

alignas(16) constexpr std::array<uint32_t, 64> kRounds = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1,
    0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3,
    0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786,
    0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13,
    0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
    0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a,
    0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

// The instructions take the eight words as (f e b a) and (h g d c).
#define LOCKSTEP_SHA __attribute__((target("sha,sse4.1,ssse3"), always_inline))
struct Words {
  __m128i abef;
  __m128i cdgh;
};

LOCKSTEP_SHA inline Words load(const std::array<uint32_t, 8>& hash) {
  const auto* at = reinterpret_cast<const __m128i*>(hash.data());
  const __m128i cdab = _mm_shuffle_epi32(_mm_loadu_si128(at), 0xb1);
  const __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128(at + 1), 0x1b);
  return {_mm_alignr_epi8(cdab, efgh, 8), _mm_blend_epi16(efgh, cdab, 0xf0)};
}

LOCKSTEP_SHA inline void store(
    const Words& words,
    std::array<uint32_t, 8>& hash) {
  auto* at = reinterpret_cast<__m128i*>(hash.data());
  const __m128i feba = _mm_shuffle_epi32(words.abef, 0x1b);
  const __m128i dchg = _mm_shuffle_epi32(words.cdgh, 0xb1);
  _mm_storeu_si128(at, _mm_blend_epi16(feba, dchg, 0xf0));
  _mm_storeu_si128(at + 1, _mm_alignr_epi8(dchg, feba, 8));
}

// `blocks` of each of N messages.
template <size_t N>
__attribute__((target("sha,sse4.1,ssse3"))) void compress(
    std::array<Lane*, N> lanes,
    std::array<const char*, N> at,
    size_t blocks) {
  const __m128i swap =
      _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
  Words now[N];
  for (size_t n = 0; n < N; ++n) {
    now[n] = load(lanes[n]->hash);
  }
  for (; blocks > 0; --blocks) {
    Words before[N];
    __m128i w[N][4];
    for (size_t n = 0; n < N; ++n) {
      before[n] = now[n];
    }
#pragma GCC unroll 16
    for (size_t i = 0; i < 16; ++i) {  // four rounds each
      const __m128i k =
          _mm_load_si128(reinterpret_cast<const __m128i*>(&kRounds[4 * i]));
#pragma GCC unroll 2
      for (size_t n = 0; n < N; ++n) {
        __m128i& word = w[n][i % 4];
        if (i < 4) {
          word = _mm_shuffle_epi8(
              _mm_loadu_si128(reinterpret_cast<const __m128i*>(at[n]) + i),
              swap);
        } else {
          const __m128i last = w[n][(i + 3) % 4];
          const __m128i middle = _mm_alignr_epi8(last, w[n][(i + 2) % 4], 4);
          word = _mm_sha256msg2_epu32(
              _mm_add_epi32(
                  _mm_sha256msg1_epu32(word, w[n][(i + 1) % 4]), middle),
              last);
        }
        const __m128i sum = _mm_add_epi32(word, k);
        now[n].cdgh = _mm_sha256rnds2_epu32(now[n].cdgh, now[n].abef, sum);
        now[n].abef = _mm_sha256rnds2_epu32(
            now[n].abef, now[n].cdgh, _mm_shuffle_epi32(sum, 0x0e));
      }
    }
    for (size_t n = 0; n < N; ++n) {
      now[n].abef = _mm_add_epi32(now[n].abef, before[n].abef);
      now[n].cdgh = _mm_add_epi32(now[n].cdgh, before[n].cdgh);
      at[n] += kBlock;
    }
  }
  for (size_t n = 0; n < N; ++n) {
    store(now[n], lanes[n]->hash);
  }
}

bool has_instructions() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 &&
         (b & (1U << 29)) != 0 && __builtin_cpu_supports("sse4.1") != 0;
}

#else

template <size_t N>
void compress(std::array<Lane*, N>, std::array<const char*, N>, size_t) {
  LOCKSTEP_CHECK(false);  // never called: is_fast() is false here
}

bool has_instructions() {
  return false;
}

#endif

std::string finish_lane(Lane& lane) {
  const uint64_t bits = 8 * (lane.size + lane.rest.size());
  std::string end = lane.rest;
  end += '\x80';
  end.append((2 * kBlock - 8 - end.size() % kBlock) % kBlock, '\0');
  for (int shift = 56; shift >= 0; shift -= 8) {
    end += static_cast<char>(bits >> shift);
  }
  compress<1>({&lane}, {end.data()}, end.size() / kBlock);
  std::string hex;
  for (const uint32_t word : lane.hash) {
    hex += fmt::format("{:08x}", word);
  }
  return hex;
}

}  // namespace

struct Sha256Pair::State {
  std::array<Lane, 2> lanes;
  std::optional<std::array<Digest, 2>> slow;
};

Sha256Pair::Sha256Pair() : state_(std::make_unique<State>()) {
  if (!is_fast()) {
    state_->slow.emplace(
        std::array<Digest, 2>{
            Digest(ChecksumKind::kSha256), Digest(ChecksumKind::kSha256)});
  }
}
Sha256Pair::~Sha256Pair() = default;
Sha256Pair::Sha256Pair(Sha256Pair&&) noexcept = default;

bool Sha256Pair::is_fast() {
  static const bool found = has_instructions();
  return found;
}

void Sha256Pair::update(std::string_view first, std::string_view second) {
  if (state_->slow) {
    (*state_->slow)[0].update(first);
    (*state_->slow)[1].update(second);
    return;
  }
  std::array<std::string_view, 2> pieces = {first, second};
  const auto take = [&](size_t n, size_t blocks) {
    state_->lanes[n].size += blocks * kBlock;
    pieces[n].remove_prefix(blocks * kBlock);
  };
  for (size_t n = 0; n < 2; ++n) {
    LOCKSTEP_CHECK(pieces[n].empty() || state_->lanes[n].rest.empty());
  }
  const size_t both = std::min(first.size(), second.size()) / kBlock;
  compress<2>(
      {&state_->lanes[0], &state_->lanes[1]},
      {first.data(), second.data()},
      both);
  take(0, both);
  take(1, both);
  for (size_t n = 0; n < 2; ++n) {
    const size_t alone = pieces[n].size() / kBlock;
    compress<1>({&state_->lanes[n]}, {pieces[n].data()}, alone);
    take(n, alone);
    state_->lanes[n].rest += pieces[n];
  }
}

std::array<std::string, 2> Sha256Pair::finish() {
  if (state_->slow) {
    return {(*state_->slow)[0].finish(), (*state_->slow)[1].finish()};
  }
  return {finish_lane(state_->lanes[0]), finish_lane(state_->lanes[1])};
}

}  // namespace lockstep::fetch
