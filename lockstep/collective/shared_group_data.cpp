// What an operation does to the data: how it is cut, copied in and out where it
// does not lie in shared memory, and one chunk of it.
#include "lockstep/collective/shared_group_layout.h"

#include <algorithm>
#include <cstring>

#include "lockstep/collective/kernels.h"

namespace lockstep::collective {
namespace {

constexpr size_t kChunkBytes = 256 << 10;
constexpr uint64_t kMaxChunks = 1 << 12;

}  // namespace

void SharedGroup::cut(Pending& p) {
  const Operation& o = p.operation;
  if (p.signature == last_cut_.signature && o.count == last_cut_.count) {
    p.slice = last_cut_.slice;
    p.chunk = last_cut_.chunk;
    p.num_chunks = last_cut_.num_chunks;
    return;
  }
  const size_t element = size_of(o.type);
  size_t slice = o.count;
  if (o.kind == Kind::kAllReduce || o.kind == Kind::kReduce ||
      o.kind == Kind::kBroadcast) {
    const size_t line = 64 / element;
    const auto parts = static_cast<size_t>(size_);
    slice = (o.count + parts - 1) / parts;
    slice = (slice + line - 1) / line * line;
  }
  size_t chunk = kChunkBytes / element;
  while ((slice + chunk - 1) / chunk > kMaxChunks) {
    chunk *= 2;
  }
  p.slice = slice;
  p.chunk = chunk;
  p.num_chunks = o.kind == Kind::kBarrier ? 0 : (slice + chunk - 1) / chunk;
  last_cut_ = {p.signature, o.count, slice, chunk, p.num_chunks};
}

void SharedGroup::stage_in(Pending& p, bool blocking) {
  const Operation& o = p.operation;
  const size_t bytes = o.bytes(size_);
  const size_t block = o.count * size_of(o.type);
  if (blocking) {
    if (staging_bytes_ < bytes) {
      if (staging_bytes_ > 0) {
        options_.memory->give(staging_);
        staging_bytes_ = 0;
      }
      staging_ = options_.memory->take(bytes);
      staging_bytes_ = bytes;
    }
    p.staging = staging_;
  } else {
    p.staging = options_.memory->take(bytes);
  }
  p.staged = true;
  std::byte* to = base(index_) + p.staging;
  if (o.kind == Kind::kAllGather) {
    const size_t at = block * static_cast<size_t>(index_);
    std::memcpy(to + at, static_cast<std::byte*>(o.data) + at, block);
  } else if (o.kind != Kind::kBroadcast || o.root == index_) {
    std::memcpy(to, o.data, bytes);
  }
}

void SharedGroup::stage_out(Pending& p) {
  const Operation& o = p.operation;
  const std::byte* from = base(index_) + p.staging;
  const size_t block = o.count * size_of(o.type);
  const bool rooted = o.kind == Kind::kReduce;
  if (o.kind == Kind::kReduceScatter) {
    const size_t at = block * static_cast<size_t>(index_);
    std::memcpy(static_cast<std::byte*>(o.data) + at, from + at, block);
  } else if (!rooted || o.root == index_) {
    std::memcpy(o.data, from, o.bytes(size_));
  }
  if (staging_bytes_ == 0 || p.staging != staging_) {
    options_.memory->give(p.staging);
  }
}

void SharedGroup::do_chunk(const Pending& p, int index, uint64_t chunk) const {
  const Operation& o = p.operation;
  const size_t element = size_of(o.type);
  const bool split = o.kind == Kind::kAllReduce || o.kind == Kind::kReduce ||
                     o.kind == Kind::kBroadcast;
  size_t begin = chunk * p.chunk;
  size_t end = std::min(begin + p.chunk, p.slice);
  const size_t shift = static_cast<size_t>(index) * p.slice;
  begin += shift;
  end += shift;
  if (split) {
    end = std::min(end, o.count);
  }
  if (begin >= end) {
    return;
  }
  if (o.pieces != nullptr) {
    do_pieces(p, index, begin - shift, end - shift);
    return;
  }
  const size_t count = end - begin;
  std::array<void*, kMaxRanks> at;
  for (int i = 0; i < size_; ++i) {
    at[static_cast<size_t>(i)] =
        base(i) + arrival(i, p.number).offset + begin * element;
  }
  const auto root = static_cast<size_t>(o.root);
  switch (o.kind) {
    case Kind::kAllReduce:
      reduce(at.data(), size_, at.data(), size_, count, o.type, o.op);
      break;
    case Kind::kReduce:
      reduce(at.data(), size_, &at[root], 1, count, o.type, o.op);
      break;
    case Kind::kReduceScatter:
      reduce(
          at.data(),
          size_,
          &at[static_cast<size_t>(index)],
          1,
          count,
          o.type,
          o.op);
      break;
    case Kind::kAllGather:
    case Kind::kBroadcast: {
      const int from = o.kind == Kind::kBroadcast ? o.root : index;
      for (int i = 0; i < size_; ++i) {
        if (i != from) {
          std::memcpy(
              at[static_cast<size_t>(i)],
              at[static_cast<size_t>(from)],
              count * element);
        }
      }
      break;
    }
    case Kind::kBarrier:
    case Kind::kGatherPieces:
    case Kind::kScatterPieces:
      break;
  }
}

// [begin, end) of the part of rank `index`.
void SharedGroup::do_pieces(
    const Pending& p,
    int index,
    size_t begin,
    size_t end) const {
  const Operation& o = p.operation;
  const size_t element = size_of(o.type);
  std::array<void*, kMaxRanks> at;
  for (const auto& piece : o.pieces->list) {
    const size_t from = std::max(begin, piece.part_at);
    const size_t to = std::min(end, piece.part_at + piece.count);
    if (from >= to) {
      continue;
    }
    const size_t in_whole = piece.at +
                            static_cast<size_t>(index) * piece.count + from -
                            piece.part_at;
    for (int i = 0; i < size_; ++i) {
      at[static_cast<size_t>(i)] =
          base(i) + arrival(i, p.number).offset + in_whole * element;
    }
    void* part = base(index) + arrival(index, p.number).part + from * element;
    if (o.kind == Kind::kScatterPieces) {
      reduce(at.data(), size_, &part, 1, to - from, o.type, o.op);
      continue;
    }
    for (int i = 0; i < size_; ++i) {
      std::memcpy(at[static_cast<size_t>(i)], part, (to - from) * element);
    }
  }
}

size_t SharedGroup::find_or_throw(const void* data, size_t count, DataType type)
    const {
  const auto found = options_.memory->find(data, count * size_of(type));
  if (!found || *found % size_of(type) != 0) {
    throw CollectiveError("pieces lie outside of the group's Buffers");
  }
  return *found;
}

}  // namespace lockstep::collective
