// The body of the kernels, compiled once for each vector unit by the files
// kernels_*.cpp, which define LOCKSTEP_KERNELS as the table's name. It includes
// nothing of the standard library: an inline function compiled for AVX-512
// could otherwise be linked into code that runs everywhere.

#include "lockstep/collective/kernels.h"
#include "lockstep/collective/kernels_values.h"

namespace lockstep::collective::internal {
namespace {

// N inputs at once; outputs are the inputs themselves or one place.
template <class T, class Format, class Op, int N>
void reduce_in_place(T* const* data, size_t count) {
  T* p[N];
  for (int i = 0; i < N; ++i) {
    p[i] = data[i];
  }
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) {
    auto value = Format::load(p[0][i]);
    for (int k = 1; k < N; ++k) {
      value = Op::apply(value, Format::load(p[k][i]));
    }
    const T out = Format::store(value);
    for (int k = 0; k < N; ++k) {
      p[k][i] = out;
    }
  }
}

template <class T, class Format, class Op>
void reduce_two(const T* a, const T* b, T* out, size_t count) {
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) {
    out[i] = Format::store(Op::apply(Format::load(a[i]), Format::load(b[i])));
  }
}

// Any number: through a block that stays in the first-level cache.
template <class T, class Format, class Op>
void reduce_blocks(const ReduceCall& call) {
  using Wide = decltype(Format::load(T{}));
  constexpr size_t kBlock = 4096 / sizeof(Wide);
  alignas(64) Wide block[kBlock];
  for (size_t begin = 0; begin < call.count; begin += kBlock) {
    const size_t left = call.count - begin;
    const size_t count = left < kBlock ? left : kBlock;
    const T* first = static_cast<const T*>(call.inputs[0]) + begin;
    for (size_t i = 0; i < count; ++i) {
      block[i] = Format::load(first[i]);
    }
    for (int k = 1; k < call.num_inputs; ++k) {
      const T* next = static_cast<const T*>(call.inputs[k]) + begin;
#pragma GCC ivdep
      for (size_t i = 0; i < count; ++i) {
        block[i] = Op::apply(block[i], Format::load(next[i]));
      }
    }
    for (int k = 0; k < call.num_outputs; ++k) {
      T* out = static_cast<T*>(call.outputs[k]) + begin;
#pragma GCC ivdep
      for (size_t i = 0; i < count; ++i) {
        out[i] = Format::store(block[i]);
      }
    }
  }
}

template <class T, class Format, class Op>
void reduce_any(const ReduceCall& call) {
  bool in_place = call.num_inputs == call.num_outputs;
  for (int k = 0; in_place && k < call.num_inputs; ++k) {
    in_place = call.inputs[k] == call.outputs[k];
  }
  T* data[4];
  if (in_place && call.num_inputs >= 2 && call.num_inputs <= 4) {
    for (int k = 0; k < call.num_inputs; ++k) {
      data[k] = static_cast<T*>(call.outputs[k]);
    }
  }
  if (in_place && call.num_inputs == 2) {
    reduce_in_place<T, Format, Op, 2>(data, call.count);
  } else if (in_place && call.num_inputs == 3) {
    reduce_in_place<T, Format, Op, 3>(data, call.count);
  } else if (in_place && call.num_inputs == 4) {
    reduce_in_place<T, Format, Op, 4>(data, call.count);
  } else if (call.num_inputs == 2 && call.num_outputs == 1) {
    reduce_two<T, Format, Op>(
        static_cast<const T*>(call.inputs[0]),
        static_cast<const T*>(call.inputs[1]),
        static_cast<T*>(call.outputs[0]),
        call.count);
  } else {
    reduce_blocks<T, Format, Op>(call);
  }
}

}  // namespace

#define LOCKSTEP_ROW(T, Format) \
  {reduce_any<T, Format, Sum>,  \
   reduce_any<T, Format, Min>,  \
   reduce_any<T, Format, Max>}

extern const KernelTable LOCKSTEP_KERNELS = {
    LOCKSTEP_ROW(float, Plain),
    LOCKSTEP_ROW(Half, BrainFloat),
    LOCKSTEP_ROW(double, Plain),
    LOCKSTEP_ROW(int, Plain),
    LOCKSTEP_ROW(long, Plain),
    LOCKSTEP_ROW(unsigned char, Plain),
};

#undef LOCKSTEP_ROW

}  // namespace lockstep::collective::internal
