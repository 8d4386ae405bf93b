#include "lockstep/forest/packed_histogram.h"

namespace lockstep::forest {
namespace {

using Set = uint64_t __attribute__((vector_size(32)));
constexpr size_t kDense = 2048;  // rows that touch most bins

template <size_t kWords>
uint64_t occupied(
    const std::array<uint64_t, kMaxBins * kWords>& cells,
    size_t word) {
  uint64_t set = 0;
  for (size_t bit = 0; bit < 64; ++bit) {
    uint64_t any = 0;
    for (size_t w = 0; w < kWords; ++w) {
      any |= cells[(word * 64 + bit) * kWords + w];
    }
    set |= uint64_t{any != 0} << bit;
  }
  return set;
}
// The set of one bin, from a table: an or of registers for every row.
const Set& single(size_t bin) {
  static const auto table = [] {
    std::array<Set, kMaxBins> sets{};
    for (size_t b = 0; b < kMaxBins; ++b) {
      sets[b][b / 64] = uint64_t{1} << (b % 64);
    }
    return sets;
  }();
  return table[bin];
}

}  // namespace

template <size_t kWords>
template <size_t kCount, bool kAll>
void PackedHistograms<kWords>::fill_some(
    const Block& block,
    std::span<const uint32_t> rows,
    size_t stride,
    std::span<const int> features,
    size_t at) {
  const uint8_t* columns[kCount];
  Set sets[kCount] = {};
  for (size_t i = 0; i < kCount; ++i) {
    columns[i] = block.bins + features[i];
  }
  for (const uint32_t row : rows) {
    const size_t place = size_t{row} * stride;
    const auto target = static_cast<uint32_t>(block.targets[row]);
    const uint64_t one = uint64_t{block.counts[row]} << (target % 4 * 16);
    const size_t word = kWords == 1 ? 0 : target / 4;
    for (size_t i = 0; i < kCount; ++i) {
      const size_t bin = columns[i][place];
      cells_[at + i][bin * kWords + word] += one;
      if constexpr (!kAll) {
        sets[i] |= single(bin);
      }
    }
  }
  for (size_t i = 0; i < kCount; ++i) {
    for (size_t word = 0; word < kMaxBins / 64; ++word) {
      touched_[at + i][word] =
          kAll ? occupied<kWords>(cells_[at + i], word) : sets[i][word];
    }
  }
}

template <size_t kWords>
void PackedHistograms<kWords>::fill(
    const Block& block,
    std::span<const uint32_t> rows,
    size_t stride,
    std::span<const int> features) {
  dense_ = rows.size() >= kDense;
  if (features.size() == kTogether) {
    dense_ ? fill_some<kTogether, true>(block, rows, stride, features, 0)
           : fill_some<kTogether, false>(block, rows, stride, features, 0);
    return;
  }
  for (size_t i = 0; i < features.size(); ++i) {
    const auto one = features.subspan(i, 1);
    dense_ ? fill_some<1, true>(block, rows, stride, one, i)
           : fill_some<1, false>(block, rows, stride, one, i);
  }
}

template class PackedHistograms<1>;
template class PackedHistograms<2>;

}  // namespace lockstep::forest
