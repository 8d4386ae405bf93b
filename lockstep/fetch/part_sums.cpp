#include "lockstep/fetch/part_sums.h"

#include <array>
#include <memory>

#include "lockstep/base/crc32c.h"
#include "lockstep/fetch/checksum.h"
#include "lockstep/fetch/file_bytes.h"
#include "lockstep/fetch/s3_state.h"
#include "lockstep/fetch/sha256_pair.h"
#include "lockstep/fetch/workers.h"

namespace lockstep::fetch {
namespace {

constexpr uint64_t kPiece = uint64_t{128} << 10;  // stays in the cache
static_assert(kPiece % Sha256Pair::kBlock == 0);

// Of two parts at once, since two SHA-256 cost little more than one.
Result<void> read_pair(
    int file,
    const os::Path& path,
    const PartPlan& plan,
    bool hash,
    size_t first,
    PartSums& sums) {
  const auto buffer = std::make_unique_for_overwrite<char[]>(2 * kPiece);
  Sha256Pair pair;
  std::array<uint64_t, 2> sizes{};
  for (size_t n = 0; n < 2 && first + n < plan.count(); ++n) {
    sizes[n] = plan.size_of(first + n);
  }
  for (uint64_t done = 0; done < sizes[0]; done += kPiece) {
    std::array<std::string_view, 2> pieces;
    for (size_t n = 0; n < 2 && done < sizes[n]; ++n) {
      const uint64_t count = std::min(kPiece, sizes[n] - done);
      char* into = buffer.get() + n * kPiece;
      LOCKSTEP_TRY(
          read_at(file, path, plan.offset_of(first + n) + done, {into, count}));
      pieces[n] = {into, count};
      sums.crcs[first + n] = crc32c(pieces[n], sums.crcs[first + n]);
    }
    if (hash) {
      pair.update(pieces[0], pieces[1]);
    }
  }
  if (hash) {
    const auto found = pair.finish();
    for (size_t n = 0; n < 2 && first + n < plan.count(); ++n) {
      sums.hashes[first + n] = found[n];
    }
  }
  return {};
}

}  // namespace

Result<PartSums> read_part_sums(
    int file,
    const os::Path& path,
    const PartPlan& plan,
    const PartSumsOptions& options) {
  PartSums sums;
  sums.crcs.assign(plan.count(), 0);
  sums.hashes.assign(plan.count(), "");
  LOCKSTEP_TRY(
      run_workers((plan.count() + 1) / 2, options.workers, [&](size_t pair) {
        return read_pair(file, path, plan, options.hash, 2 * pair, sums);
      }));
  uint32_t whole = 0;
  for (size_t i = 0; i < plan.count(); ++i) {
    whole = crc32c_join(whole, sums.crcs[i], plan.size_of(i));
  }
  sums.whole = crc_text(whole);
  return sums;
}

Result<std::string> read_part_md5(
    int file,
    const os::Path& path,
    const PartPlan& plan,
    size_t index) {
  const auto buffer = std::make_unique_for_overwrite<char[]>(kPiece);
  Digest digest(ChecksumKind::kMd5);
  for (uint64_t done = 0; done < plan.size_of(index); done += kPiece) {
    const uint64_t count = std::min(kPiece, plan.size_of(index) - done);
    LOCKSTEP_TRY(read_at(
        file, path, plan.offset_of(index) + done, {buffer.get(), count}));
    digest.update({buffer.get(), count});
  }
  return digest.finish();
}

}  // namespace lockstep::fetch
