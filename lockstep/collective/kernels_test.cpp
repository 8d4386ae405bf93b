#include "lockstep/collective/kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace lockstep::collective {
namespace {

using internal::KernelTable;

std::vector<std::pair<const char*, const KernelTable*>> tables() {
  std::vector<std::pair<const char*, const KernelTable*>> all = {
      {"baseline", &internal::kBaselineKernels}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) {
    all.emplace_back("avx2", &internal::kAvx2Kernels);
  }
  if (__builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq")) {
    all.emplace_back("avx512", &internal::kAvx512Kernels);
  }
#endif
  return all;
}

float from_half(uint16_t half) {
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

uint16_t to_half(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

template <class T>
T combine(T a, T b, ReduceOp op) {
  return op == ReduceOp::kSum   ? static_cast<T>(a + b)
         : op == ReduceOp::kMin ? std::min(a, b)
                                : std::max(a, b);
}

// Every variant against a plain loop, in place and to one output.
template <class T>
void compare(DataType type, bool in_place) {
  std::mt19937 random(5);
  for (const auto& [name, table] : tables()) {
    for (int num = 1; num <= 9; ++num) {
      for (const size_t count : {0, 1, 3, 7, 64, 1023, 5000}) {
        for (const ReduceOp op :
             {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax}) {
          std::vector<std::vector<T>> data(static_cast<size_t>(num));
          for (auto& one : data) {
            for (size_t i = 0; i < count; ++i) {
              one.push_back(static_cast<T>(random() % 1000) / T{7});
            }
          }
          std::vector<T> expected(count);
          for (size_t i = 0; i < count; ++i) {
            T value = data[0][i];
            for (int k = 1; k < num; ++k) {
              value = combine(value, data[static_cast<size_t>(k)][i], op);
            }
            expected[i] = value;
          }
          std::vector<T> single(count);
          std::vector<void*> pointers;
          for (auto& one : data) {
            pointers.push_back(one.data());
          }
          void* out = single.data();
          (*table)[static_cast<int>(type)][static_cast<int>(op)](
              {pointers.data(),
               num,
               in_place ? pointers.data() : &out,
               in_place ? num : 1,
               count});
          for (int k = 0; k < (in_place ? num : 1); ++k) {
            EXPECT_EQ(
                in_place ? data[static_cast<size_t>(k)] : single, expected)
                << name << " inputs " << num << " count " << count;
          }
        }
      }
    }
  }
}

TEST(Kernels, EqualAPlainLoopForEveryTypeAndVectorUnit) {
  for (const bool in_place : {true, false}) {
    compare<float>(DataType::kFloat32, in_place);
    compare<double>(DataType::kFloat64, in_place);
    compare<int32_t>(DataType::kInt32, in_place);
    compare<int64_t>(DataType::kInt64, in_place);
    compare<uint8_t>(DataType::kUint8, in_place);
  }
}

TEST(Kernels, BrainFloatSumsWideAndRoundsOnce) {
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  for (const auto& [name, table] : tables()) {
    for (const int num : {2, 3, 4, 7}) {
      std::vector<std::vector<uint16_t>> data(static_cast<size_t>(num));
      std::vector<void*> pointers;
      for (auto& one : data) {
        for (int i = 0; i < 1001; ++i) {
          one.push_back(to_half(normal(random) * 100));
        }
        pointers.push_back(one.data());
      }
      std::vector<uint16_t> expected;
      for (size_t i = 0; i < 1001; ++i) {
        float sum = from_half(data[0][i]);
        for (size_t k = 1; k < data.size(); ++k) {
          sum += from_half(data[k][i]);
        }
        expected.push_back(to_half(sum));
      }
      (*table)[1][0]({pointers.data(), num, pointers.data(), num, 1001});
      for (const auto& one : data) {
        EXPECT_EQ(one, expected) << name << " inputs " << num;
      }
    }
  }
}

TEST(Kernels, BrainFloatRoundsToNearestEvenAndKeepsNaN) {
  for (const auto& [name, table] : tables()) {
    // 1 + 2^-8 lies between two values: to the even one, down; 1 + 3 * 2^-8
    // up. 0x3f80 is 1, 0x3b80 is 2^-8.
    std::vector<uint16_t> a = {0x3f80, 0x3f81, 0x7fc1, 0x7f80, 0x0001};
    std::vector<uint16_t> b = {0x3b80, 0x3b80, 0x3f80, 0xff80, 0x0001};
    void* pointers[] = {a.data(), b.data()};
    (*table)[1][0]({pointers, 2, pointers, 2, a.size()});
    EXPECT_EQ(a[0], 0x3f80) << name;
    EXPECT_EQ(a[1], 0x3f82) << name;
    EXPECT_TRUE(std::isnan(from_half(a[2]))) << name;
    EXPECT_TRUE(std::isnan(from_half(a[3]))) << name;
    EXPECT_EQ(a[4], 0x0002) << name << ": denormals are kept";
    EXPECT_EQ(a, b);
  }
}

TEST(Kernels, NaNWinsAndIntegersWrap) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto& [name, table] : tables()) {
    for (const int op : {1, 2}) {
      std::vector<float> a = {1, nan, 3};
      std::vector<float> b = {nan, 2, 4};
      void* pointers[] = {a.data(), b.data()};
      (*table)[0][op]({pointers, 2, pointers, 2, 3});
      EXPECT_TRUE(std::isnan(a[0]) && std::isnan(a[1])) << name;
      EXPECT_EQ(a[2], op == 1 ? 3 : 4) << name;
    }
    std::vector<int32_t> a = {std::numeric_limits<int32_t>::max()};
    std::vector<int32_t> b = {1};
    void* pointers[] = {a.data(), b.data()};
    (*table)[3][0]({pointers, 2, pointers, 2, 1});
    EXPECT_EQ(a[0], std::numeric_limits<int32_t>::min()) << name;
  }
}

}  // namespace
}  // namespace lockstep::collective
