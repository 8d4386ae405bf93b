#include "lockstep/kernels/attention.h"

#include <algorithm>

#include "lockstep/kernels/device.cuh"

// A block of four warps works on one head of one sample at a time: 64 rows,
// those past the length being zeros. Products are 16x8x16 on the tensor cores;
// the scores of a warp's 16 queries never leave its registers on the way
// forward, and pass through shared memory once, to be transposed, on the way
// back.

namespace lockstep::kernels {
namespace {

using cuda::bf16;

constexpr int kRows = 64;
constexpr int kWidth = 64;
constexpr int kTiles = kWidth / 8;   // of 8 columns
constexpr int kSteps = kWidth / 16;  // of 16 along a sum
constexpr int kThreads = 128;
// 9 x 16 bytes: neighbouring rows start in other banks.
constexpr int kStride = kWidth + 8;
constexpr int kTile = kRows * kStride;
// Blocks a head on the way back; each leaves a row of partial sums.
constexpr int kGroups = 44;

__device__ unsigned address(const bf16* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

__device__ void copy_async(bf16* to, const bf16* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address(to)),
               "l"(from));
}

__device__ void wait_for_copies() {
  asm volatile("cp.async.commit_group;");
  asm volatile("cp.async.wait_group 0;");
}

__device__ void
load_matrices(unsigned (&r)[4], const bf16* pointer) {
  asm volatile(
      "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
      : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
      : "r"(address(pointer)));
}

__device__ void
load_transposed(unsigned (&r)[4], const bf16* pointer) {
  asm volatile(
      "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
      : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
      : "r"(address(pointer)));
}

__device__ void multiply(
    float (&c)[4],
    const unsigned (&a)[4],
    unsigned b0,
    unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

using Tile = float[kTiles][4];       // 16 x 64, as accumulated
using Operand = unsigned[kSteps][4];  // 16 x 64, as a left operand

// Rows [first, first + 16) as a left operand.
__device__ void load_left(Operand& a, const bf16* tile, int first, int lane) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    load_matrices(
        a[step],
        tile + (first + lane % 16) * kStride + step * 16 + (lane / 16) * 8);
  }
}

// The same of the transposed tile: its columns [first, first + 16).
__device__ void
load_left_transposed(Operand& a, const bf16* tile, int first, int lane) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    load_transposed(
        a[step],
        tile + (step * 16 + lane % 8 + (lane / 16) * 8) * kStride + first +
            ((lane / 8) % 2) * 8);
  }
}

__device__ void as_left(Operand& a, const Tile& c) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    a[step][0] = cuda::pack_pair(c[2 * step][0], c[2 * step][1]);
    a[step][1] = cuda::pack_pair(c[2 * step][2], c[2 * step][3]);
    a[step][2] = cuda::pack_pair(c[2 * step + 1][0], c[2 * step + 1][1]);
    a[step][3] = cuda::pack_pair(c[2 * step + 1][2], c[2 * step + 1][3]);
  }
}

// c = a b^T, b's rows in shared memory being the columns of the product.
__device__ void
times_rows(Tile& c, const Operand& a, const bf16* b, int lane) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    c[t][0] = c[t][1] = c[t][2] = c[t][3] = 0;
  }
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int t = 0; t < kTiles; t += 2) {
      unsigned r[4];
      load_matrices(
          r,
          b + (t * 8 + lane % 8 + (lane / 16) * 8) * kStride + step * 16 +
              ((lane / 8) % 2) * 8);
      multiply(c[t], a[step], r[0], r[1]);
      multiply(c[t + 1], a[step], r[2], r[3]);
    }
  }
}

// c = a b.
__device__ void
times_columns(Tile& c, const Operand& a, const bf16* b, int lane) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    c[t][0] = c[t][1] = c[t][2] = c[t][3] = 0;
  }
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int t = 0; t < kTiles; t += 2) {
      unsigned r[4];
      load_transposed(
          r,
          b + (step * 16 + lane % 8 + ((lane / 8) % 2) * 8) * kStride + t * 8 +
              (lane / 16) * 8);
      multiply(c[t], a[step], r[0], r[1]);
      multiply(c[t + 1], a[step], r[2], r[3]);
    }
  }
}

// The maximum or sum of the four lanes that hold a row.
__device__ float quad_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xffffffffU, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffffU, value, 2));
}
__device__ float quad_sum(float value) {
  value += __shfl_xor_sync(0xffffffffU, value, 1);
  return value + __shfl_xor_sync(0xffffffffU, value, 2);
}

// Scores to exp(score - largest of the row); the sums of the two rows of this
// lane. Keys past the length get 0.
__device__ void
exponentials(Tile& s, int length, int lane, float& sum0, float& sum1) {
  constexpr float kScale = .125F * 1.44269504088896341F;  // 1/sqrt(64) log2(e)
  float most0 = -INFINITY;
  float most1 = -INFINITY;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if (t * 8 + (lane % 4) * 2 + j >= length) {
        s[t][j] = s[t][2 + j] = -INFINITY;
      }
      most0 = fmaxf(most0, s[t][j]);
      most1 = fmaxf(most1, s[t][2 + j]);
    }
  }
  most0 = quad_max(most0) * kScale;
  most1 = quad_max(most1) * kScale;
  sum0 = sum1 = 0;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      s[t][j] = exp2f(s[t][j] * kScale - most0);
      s[t][2 + j] = exp2f(s[t][2 + j] * kScale - most1);
      sum0 += s[t][j];
      sum1 += s[t][2 + j];
    }
  }
  sum0 = quad_sum(sum0);
  sum1 = quad_sum(sum1);
}

// An accumulated 16 x 64 into rows [first, first + 16) of a tile.
__device__ void store_tile(bf16* tile, const Tile& c, int first, int lane) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    bf16* at = tile + (first + lane / 4) * kStride + t * 8 + (lane % 4) * 2;
    *reinterpret_cast<unsigned*>(at) = cuda::pack_pair(c[t][0], c[t][1]);
    *reinterpret_cast<unsigned*>(at + 8 * kStride) =
        cuda::pack_pair(c[t][2], c[t][3]);
  }
}

// 64 rows from memory, zeros past the length.
__device__ void
load_tile(bf16* tile, const bf16* from, int64_t stride, int length) {
#pragma unroll
  for (int i = 0; i < kRows * (kWidth / 8) / kThreads; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * kThreads;
    const int row = at / (kWidth / 8);
    const int column = at % (kWidth / 8) * 8;
    bf16* to = tile + row * kStride + column;
    if (row < length) {
      copy_async(to, from + row * stride + column);
    } else {
      *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
    }
  }
}

// A warp's 16 rows of a tile to memory, 16 bytes a lane. Adds what is stored
// to `sums`, which hold 8 columns of this lane.
template <bool kSum>
__device__ void write_rows(
    bf16* to,
    int64_t stride,
    const bf16* tile,
    int first,
    int length,
    int lane,
    float* sums) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = first + i * 4 + lane / 8;
    const int column = lane % 8 * 8;
    if (row < length) {
      const uint4 raw =
          *reinterpret_cast<const uint4*>(tile + row * kStride + column);
      *reinterpret_cast<uint4*>(to + row * stride + column) = raw;
      if constexpr (kSum) {
        float values[8];
        cuda::unpack<8>(raw, values);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          sums[j] += values[j];
        }
      }
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    forward(const bf16* qkv, bf16* out, int length, int heads) {
  __shared__ alignas(16) bf16 q[kTile];
  __shared__ alignas(16) bf16 k[kTile];
  __shared__ alignas(16) bf16 v[kTile];
  const int lane = threadIdx.x % 32;
  const int first = static_cast<int>(threadIdx.x) / 32 * 16;
  const int64_t sample = blockIdx.x / heads;
  const int head = static_cast<int>(blockIdx.x % heads);
  const int64_t dim = static_cast<int64_t>(heads) * kWidth;
  const bf16* from = qkv + sample * length * 3 * dim + head * kWidth;
  load_tile(q, from, 3 * dim, length);
  load_tile(k, from + dim, 3 * dim, length);
  load_tile(v, from + 2 * dim, 3 * dim, length);
  wait_for_copies();
  __syncthreads();
  if (first >= length) {
    return;
  }
  Operand left;
  Tile scores;
  load_left(left, q, first, lane);
  times_rows(scores, left, k, lane);
  float sum0;
  float sum1;
  exponentials(scores, length, lane, sum0, sum1);
  as_left(left, scores);
  times_columns(scores, left, v, lane);
  const float over0 = 1 / sum0;
  const float over1 = 1 / sum1;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    scores[t][0] *= over0;
    scores[t][1] *= over0;
    scores[t][2] *= over1;
    scores[t][3] *= over1;
  }
  // The warp's own rows of q are free now: nobody else reads them.
  store_tile(q, scores, first, lane);
  __syncwarp();
  write_rows<false>(
      out + sample * length * dim + head * kWidth,
      dim,
      q,
      first,
      length,
      lane,
      nullptr);
}

__global__ void __launch_bounds__(kThreads, 4) backward(
    const bf16* qkv,
    const bf16* dout,
    bf16* dqkv,
    int64_t batch,
    int length,
    int heads,
    float* partial) {
  extern __shared__ uint4 shared[];
  auto* const q = reinterpret_cast<bf16*>(shared);
  bf16* const k = q + kTile;
  bf16* const v = k + kTile;   // later the probabilities
  bf16* const o = v + kTile;   // gradient of the output
  bf16* const ds = o + kTile;  // gradient of the scores
  const int lane = threadIdx.x % 32;
  const int first = static_cast<int>(threadIdx.x) / 32 * 16;
  const int head = blockIdx.x;
  const int64_t dim = static_cast<int64_t>(heads) * kWidth;
  float sums[3][8] = {};
  for (int64_t sample = blockIdx.y; sample < batch; sample += gridDim.y) {
    const int64_t at = sample * length * 3 * dim + head * kWidth;
    __syncthreads();  // the last sample's rows have been written
    load_tile(q, qkv + at, 3 * dim, length);
    load_tile(k, qkv + at + dim, 3 * dim, length);
    load_tile(v, qkv + at + 2 * dim, 3 * dim, length);
    load_tile(
        o, dout + sample * length * dim + head * kWidth, dim, length);
    wait_for_copies();
    __syncthreads();
    Operand left;
    Tile p;
    Tile slope;
    load_left(left, q, first, lane);
    times_rows(p, left, k, lane);
    float sum0;
    float sum1;
    exponentials(p, length, lane, sum0, sum1);
    load_left(left, o, first, lane);
    times_rows(slope, left, v, lane);
    const float over0 = 1 / sum0;
    const float over1 = 1 / sum1;
    float dot0 = 0;
    float dot1 = 0;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      p[t][0] *= over0;
      p[t][1] *= over0;
      p[t][2] *= over1;
      p[t][3] *= over1;
      dot0 += p[t][0] * slope[t][0] + p[t][1] * slope[t][1];
      dot1 += p[t][2] * slope[t][2] + p[t][3] * slope[t][3];
    }
    dot0 = quad_sum(dot0);
    dot1 = quad_sum(dot1);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      slope[t][0] = p[t][0] * (slope[t][0] - dot0) * .125F;
      slope[t][1] = p[t][1] * (slope[t][1] - dot0) * .125F;
      slope[t][2] = p[t][2] * (slope[t][2] - dot1) * .125F;
      slope[t][3] = p[t][3] * (slope[t][3] - dot1) * .125F;
    }
    __syncthreads();  // everybody has read v
    store_tile(v, p, first, lane);
    store_tile(ds, slope, first, lane);
    as_left(left, slope);
    times_columns(slope, left, k, lane);
    __syncthreads();  // p and ds are whole, k has been read
    bf16* to = dqkv + at;
    store_tile(k, slope, first, lane);
    __syncwarp();
    write_rows<true>(to, 3 * dim, k, first, length, lane, sums[0]);
    load_left_transposed(left, ds, first, lane);
    times_columns(slope, left, q, lane);
    __syncwarp();
    store_tile(k, slope, first, lane);
    __syncwarp();
    write_rows<true>(to + dim, 3 * dim, k, first, length, lane, sums[1]);
    load_left_transposed(left, v, first, lane);
    times_columns(slope, left, o, lane);
    __syncwarp();
    store_tile(k, slope, first, lane);
    __syncwarp();
    write_rows<true>(to + 2 * dim, 3 * dim, k, first, length, lane, sums[2]);
  }
  if (partial == nullptr) {
    return;
  }
  __syncthreads();
  auto* gathered = reinterpret_cast<float*>(shared);  // [4 warps, 3, 64]
#pragma unroll
  for (int part = 0; part < 3; ++part) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      float sum = sums[part][j];
      sum += __shfl_xor_sync(0xffffffffU, sum, 8);
      sum += __shfl_xor_sync(0xffffffffU, sum, 16);
      if (lane < 8) {
        gathered[(first / 16 * 3 + part) * kWidth + lane * 8 + j] = sum;
      }
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 3 * kWidth; i += kThreads) {
    const int part = i / kWidth;
    const int column = i % kWidth;
    float sum = 0;
    for (int warp = 0; warp < 4; ++warp) {
      sum += gathered[(warp * 3 + part) * kWidth + column];
    }
    partial[blockIdx.y * 3 * dim + part * dim + head * kWidth + column] = sum;
  }
}

}  // namespace

bool attention_fits(int64_t length, int64_t width) {
  return length >= 1 && length <= kRows && width == kWidth;
}

size_t attention_scratch(int64_t heads) {
  return static_cast<size_t>(kGroups) * 3 * static_cast<size_t>(heads) * kWidth;
}

namespace cuda {

void attention_forward(const AttentionForward& a, Stream stream) {
  expect(
      a.type == Type::kBFloat16 && attention_fits(a.length, a.width),
      "attention_forward: bf16, at most 64 tokens and a width of 64 only");
  if (a.batch == 0) {
    return;
  }
  forward<<<
      static_cast<unsigned>(a.batch * a.heads),
      kThreads,
      0,
      native(stream)>>>(
      static_cast<const bf16*>(a.qkv),
      static_cast<bf16*>(a.out),
      static_cast<int>(a.length),
      static_cast<int>(a.heads));
  check_launch("attention_forward");
}

void attention_backward(const AttentionBackward& a, Stream stream) {
  expect(
      a.type == Type::kBFloat16 && attention_fits(a.length, a.width),
      "attention_backward: bf16, at most 64 tokens and a width of 64 only");
  if (a.batch == 0) {
    return;
  }
  constexpr size_t kShared = 5 * kTile * sizeof(bf16);
  static_assert(kShared <= 48 * 1024);
  const int groups =
      static_cast<int>(std::min<int64_t>(a.batch, kGroups));
  backward<<<
      dim3(static_cast<unsigned>(a.heads), groups),
      kThreads,
      kShared,
      native(stream)>>>(
      static_cast<const bf16*>(a.qkv),
      static_cast<const bf16*>(a.dout),
      static_cast<bf16*>(a.dqkv),
      a.batch,
      static_cast<int>(a.length),
      static_cast<int>(a.heads),
      a.dbias != nullptr ? a.scratch : nullptr);
  check_launch("attention_backward");
  if (a.dbias != nullptr) {
    const int64_t columns = 3 * a.heads * a.width;
    launch_reduce(
        a.scratch, groups, columns, columns, a.dbias, native(stream));
  }
}

}  // namespace cuda
}  // namespace lockstep::kernels
