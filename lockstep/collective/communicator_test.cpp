#include "lockstep/collective/communicator.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "lockstep/collective/group_fixture.h"
#include "lockstep/collective/kernels.h"
#include "lockstep/collective/operation.h"

namespace lockstep::collective {
namespace {

// Small whole numbers: every type and every order of summation is exact.
std::vector<std::byte>
make_values(DataType type, size_t count, int rank, unsigned seed) {
  const uint64_t start = (seed * 131 + static_cast<unsigned>(rank)) * 977;
  std::vector<std::byte> bytes(count * size_of(type));
  for (size_t i = 0; i < count; ++i) {
    const auto value = static_cast<int>((start + i) * 0x9e3779b97f4a7c15 >> 60);
    std::byte* at = bytes.data() + i * size_of(type);
    const auto put = [&](auto typed) { std::memcpy(at, &typed, sizeof typed); };
    switch (type) {
      case DataType::kFloat32:
        put(static_cast<float>(value));
        break;
      case DataType::kBFloat16: {
        const auto wide = static_cast<float>(value);
        uint32_t bits;
        std::memcpy(&bits, &wide, sizeof bits);
        put(static_cast<uint16_t>(bits >> 16));
        break;
      }
      case DataType::kFloat64:
        put(static_cast<double>(value));
        break;
      case DataType::kInt32:
        put(static_cast<int32_t>(value));
        break;
      case DataType::kInt64:
        put(static_cast<int64_t>(value));
        break;
      case DataType::kUint8:
        put(static_cast<uint8_t>(value));
        break;
    }
  }
  return bytes;
}

std::vector<std::byte>
reduced(DataType type, size_t count, ReduceOp op, int size, unsigned seed) {
  std::vector<std::vector<std::byte>> all;
  std::vector<void*> inputs;
  for (int rank = 0; rank < size; ++rank) {
    all.push_back(make_values(type, count, rank, seed));
    inputs.push_back(all.back().data());
  }
  std::vector<std::byte> out(count * size_of(type));
  void* output = out.data();
  reduce(inputs.data(), size, &output, 1, count, type, op);
  return out;
}

// Where a rank keeps its data: in a Buffer at some offset, or elsewhere.
struct Place {
  Buffer buffer;
  std::vector<std::byte> own;
  std::byte* data = nullptr;
};

Place make_place(Communicator& c, size_t bytes, bool inside, size_t shift) {
  Place place;
  if (inside) {
    place.buffer = c.allocate(bytes + shift);
    place.data = static_cast<std::byte*>(place.buffer.data()) + shift;
  } else {
    place.own.resize(bytes + shift + 1);
    place.data = place.own.data() + shift;
  }
  return place;
}

// Does one operation on values made from `seed` and checks all of its result.
void check_operation(
    Communicator& c,
    Kind kind,
    DataType type,
    ReduceOp op,
    size_t count,
    int root,
    unsigned seed,
    bool inside,
    size_t shift) {
  const int size = c.size();
  const bool blocks = kind == Kind::kReduceScatter || kind == Kind::kAllGather;
  const size_t total = blocks ? count * static_cast<size_t>(size) : count;
  const size_t block = count * size_of(type);
  const size_t own = block * static_cast<size_t>(c.rank());
  Place place =
      make_place(c, total * size_of(type), inside, shift * size_of(type));
  const std::vector<std::byte> mine = make_values(type, total, c.rank(), seed);
  std::copy(mine.begin(), mine.end(), place.data);
  std::vector<std::byte> got;
  std::vector<std::byte> expected;
  switch (kind) {
    case Kind::kAllReduce:
      c.all_reduce(place.data, count, type, op);
      got.assign(place.data, place.data + mine.size());
      expected = reduced(type, total, op, size, seed);
      break;
    case Kind::kReduceScatter: {
      c.reduce_scatter(place.data, count, type, op);
      got.assign(place.data + own, place.data + own + block);
      const auto all = reduced(type, total, op, size, seed);
      expected.assign(
          all.begin() + static_cast<ptrdiff_t>(own),
          all.begin() + static_cast<ptrdiff_t>(own + block));
      break;
    }
    case Kind::kAllGather:
      c.all_gather(place.data, count, type);
      got.assign(place.data, place.data + mine.size());
      for (int rank = 0; rank < size; ++rank) {
        const auto all = make_values(type, total, rank, seed);
        const auto from = all.begin() + static_cast<ptrdiff_t>(block) * rank;
        expected.insert(
            expected.end(), from, from + static_cast<ptrdiff_t>(block));
      }
      break;
    case Kind::kBroadcast:
      c.broadcast(place.data, count, type, root);
      got.assign(place.data, place.data + mine.size());
      expected = make_values(type, total, root, seed);
      break;
    default:
      c.barrier();
      break;
  }
  ASSERT_TRUE(got == expected)
      << describe({kind, type, op, root, count, nullptr}) << " on rank "
      << c.rank() << (inside ? " inside" : " outside");
}

class Group : public testing::TestWithParam<std::tuple<Mode, int>> {
 protected:
  GroupCase group() const {
    return {.mode = std::get<0>(GetParam()), .size = std::get<1>(GetParam())};
  }
};

TEST_P(Group, EveryOperationTypeAndOp) {
  run_group(group(), [](Communicator& c) {
    unsigned seed = 0;
    for (const DataType type : kAllTypes) {
      for (const ReduceOp op : kAllOps) {
        for (const size_t count : {0, 1, 3, 7, 1023}) {
          for (const Kind kind :
               {Kind::kAllReduce,
                Kind::kReduceScatter,
                Kind::kAllGather,
                Kind::kBroadcast,
                Kind::kBarrier}) {
            ++seed;
            check_operation(
                c,
                kind,
                type,
                op,
                count,
                static_cast<int>(seed) % c.size(),
                seed,
                seed % 3 != 0,
                0);
          }
        }
      }
    }
  });
}

TEST_P(Group, LargeSizesAtUnequalPlaces) {
  run_group(group(), [](Communicator& c) {
    unsigned seed = 100;
    for (const size_t count : {65537, (1 << 20) + 1}) {
      for (const Kind kind : {Kind::kAllReduce, Kind::kBroadcast}) {
        ++seed;
        // Ranks differ in where their data lies and whether it is shared.
        const bool inside = (static_cast<unsigned>(c.rank()) + seed) % 3 != 0;
        const auto shift = static_cast<size_t>(c.rank() * 5);
        check_operation(
            c,
            kind,
            DataType::kFloat32,
            ReduceOp::kSum,
            count,
            c.size() - 1,
            seed,
            inside,
            shift);
      }
    }
    for (const Kind kind : {Kind::kReduceScatter, Kind::kAllGather}) {
      ++seed;
      check_operation(
          c,
          kind,
          DataType::kFloat64,
          ReduceOp::kMax,
          65537,
          0,
          seed,
          c.rank() != 1,
          static_cast<size_t>(c.rank()));
    }
  });
}

TEST_P(Group, ResultsAreEqualBitForBit) {
  run_group(group(), [](Communicator& c) {
    std::mt19937 random(static_cast<unsigned>(c.rank()) + 1);
    std::normal_distribution<float> normal;
    constexpr size_t kCount = 40001;
    Buffer buffer = c.allocate(kCount * sizeof(float));
    auto* data = static_cast<float*>(buffer.data());
    for (size_t i = 0; i < kCount; ++i) {
      data[i] = normal(random);
    }
    c.all_reduce(data, kCount, DataType::kFloat32, ReduceOp::kSum);
    // The smallest and the largest of the bits must be the same.
    std::vector<int32_t> low(kCount);
    std::memcpy(low.data(), data, kCount * sizeof(float));
    std::vector<int32_t> high = low;
    c.all_reduce(low.data(), kCount, DataType::kInt32, ReduceOp::kMin);
    c.all_reduce(high.data(), kCount, DataType::kInt32, ReduceOp::kMax);
    EXPECT_EQ(low, high);
  });
}

TEST_P(Group, AsynchronousOutOfOrder) {
  run_group(group(), [](Communicator& c) {
    constexpr int kWorks = 50;  // more than fit under way at once
    std::vector<Place> places;
    std::vector<Work> works;
    for (int i = 0; i < kWorks; ++i) {
      const size_t count = 100 + static_cast<size_t>(i) * 700;
      places.push_back(
          make_place(c, count * sizeof(float), (i + c.rank()) % 4 != 0, 0));
      const auto values = make_values(
          DataType::kFloat32, count, c.rank(), static_cast<unsigned>(i));
      std::memcpy(places.back().data, values.data(), values.size());
      works.push_back(c.all_reduce_async(
          places.back().data, count, DataType::kFloat32, ReduceOp::kSum));
      c.progress();
    }
    std::vector<int> order(kWorks);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(
        order.begin(),
        order.end(),
        std::mt19937(static_cast<unsigned>(c.rank())));
    for (const int i : order) {
      Work& work = works[static_cast<size_t>(i)];
      const Timing timing = work.wait();
      EXPECT_GE(timing.wait, 0);
      EXPECT_GE(timing.busy, 0);
      EXPECT_TRUE(work.done());
      const size_t count = 100 + static_cast<size_t>(i) * 700;
      const auto expected = reduced(
          DataType::kFloat32,
          count,
          ReduceOp::kSum,
          c.size(),
          static_cast<unsigned>(i));
      EXPECT_EQ(
          std::memcmp(
              places[static_cast<size_t>(i)].data,
              expected.data(),
              expected.size()),
          0)
          << "operation " << i;
    }
  });
}

TEST_P(Group, RandomSequences) {
  run_group(group(), [](Communicator& c) {
    std::mt19937 shared(42);  // the same choices on all ranks
    std::mt19937 own(static_cast<unsigned>(c.rank()));
    std::vector<Work> works;
    std::vector<std::vector<std::byte>> kept;
    for (unsigned i = 0; i < 120; ++i) {
      const auto kind = static_cast<Kind>(shared() % 5);
      const DataType type = kAllTypes[shared() % 6];
      const ReduceOp op = kAllOps[shared() % 3];
      const size_t count = shared() % (i % 10 == 0 ? 100000 : 500);
      const int root = static_cast<int>(shared()) & 0xff % c.size();
      if (shared() % 4 == 0) {
        kept.push_back(make_values(type, count, c.rank(), i));
        works.push_back(
            c.all_reduce_async(kept.back().data(), count, type, op));
        if (own() % 2 == 0) {
          works.back().wait();
        }
      }
      check_operation(
          c,
          kind,
          type,
          op,
          count,
          root % c.size(),
          i,
          own() % 2 == 0,
          own() % 9);
    }
  });
}

TEST_P(Group, WorkIsWaitedForByItsDestructor) {
  run_group(group(), [](Communicator& c) {
    Buffer buffer = c.allocate(4000);
    auto* data = static_cast<int32_t*>(buffer.data());
    std::fill_n(data, 1000, 1);
    {
      Work work =
          c.all_reduce_async(data, 1000, DataType::kInt32, ReduceOp::kSum);
    }
    EXPECT_EQ(data[999], c.size());
  });
}

// Three pieces with gaps between them, cut at odd places; several under way.
TEST_P(Group, PiecesLandWhereTheyAreUsed) {
  run_group(group(), [](Communicator& c) {
    if (!c.takes_pieces()) {
      const float one = 1;
      EXPECT_THROW(
          c.gather_pieces_async(&one, nullptr, {}, DataType::kFloat32),
          CollectiveError);
      return;
    }
    const auto size = static_cast<size_t>(c.size());
    Pieces pieces;
    for (const size_t count : {size_t{7}, size_t{1}, size_t{140'000}}) {
      pieces.list.push_back({pieces.whole + 3, count, pieces.part + 1});
      pieces.whole += count * size + 5;
      pieces.part += count + 2;
    }
    const auto rank = static_cast<float>(c.rank());
    const Buffer whole_memory = c.allocate(pieces.whole * 4);
    const Buffer part_memory = c.allocate(pieces.part * 4);
    auto* whole = static_cast<float*>(whole_memory.data());
    auto* part = static_cast<float*>(part_memory.data());
    for (size_t i = 0; i < pieces.part; ++i) {
      part[i] = static_cast<float>(i % 1000) + 1000 * rank;
    }
    std::fill_n(whole, pieces.whole, -1.F);
    Work gathered =
        c.gather_pieces_async(part, whole, pieces, DataType::kFloat32);
    gathered.wait();
    std::vector<float> expected(pieces.whole, -1.F);
    for (const auto& piece : pieces.list) {
      for (size_t r = 0; r < size; ++r) {
        for (size_t i = 0; i < piece.count; ++i) {
          expected[piece.at + r * piece.count + i] =
              static_cast<float>((piece.part_at + i) % 1000 + 1000 * r);
        }
      }
    }
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), whole));
    c.barrier();  // nobody reads our part any more
    std::fill_n(part, pieces.part, -1.F);
    Work scattered = c.scatter_pieces_async(
        whole, part, pieces, DataType::kFloat32, ReduceOp::kSum);
    c.progress();
    scattered.wait();
    std::vector<float> summed(pieces.part, -1.F);
    for (const auto& piece : pieces.list) {
      for (size_t i = 0; i < piece.count; ++i) {
        summed[piece.part_at + i] =
            static_cast<float>(size) *
            (static_cast<float>((piece.part_at + i) % 1000) + 1000 * rank);
      }
    }
    EXPECT_TRUE(std::equal(summed.begin(), summed.end(), part));
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), whole));
    if (size > 1) {
      std::vector<float> outside(pieces.whole);
      EXPECT_THROW(
          c.gather_pieces_async(
              part, outside.data(), pieces, DataType::kFloat32),
          CollectiveError);
    }
  });
}

std::string case_name(
    const testing::TestParamInfo<std::tuple<Mode, int>>& info) {
  return fmt::format(
      "{}_{}", to_string(std::get<0>(info.param)), std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(
    Threads,
    Group,
    testing::Combine(
        testing::Values(Mode::kThreads),
        testing::Values(1, 2, 3, 4, 5, 8)),
    case_name);
INSTANTIATE_TEST_SUITE_P(
    Processes,
    Group,
    testing::Combine(
        testing::Values(Mode::kProcesses),
        testing::Values(2, 3, 4, 6, 7, 8)),
    case_name);

INSTANTIATE_TEST_SUITE_P(
    Ring,
    Group,
    testing::Combine(testing::Values(Mode::kRing), testing::Values(2, 3, 4, 8)),
    case_name);
INSTANTIATE_TEST_SUITE_P(
    Hosts,
    Group,
    testing::Combine(
        testing::Values(Mode::kHosts, Mode::kBlocks),
        testing::Values(3, 4, 7)),
    case_name);

}  // namespace
}  // namespace lockstep::collective
