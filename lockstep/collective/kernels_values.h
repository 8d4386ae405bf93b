// How kernels read, write and combine values; a part of kernels_body.h, with
// its rule: nothing of the standard library is included.

namespace lockstep::collective::internal {
namespace {

using Half = unsigned short;

struct Plain {
  template <class T>
  static T load(T value) {
    return value;
  }
  template <class T>
  static T store(T value) {
    return value;
  }
};

struct BrainFloat {
  static float load(Half value) {
    const unsigned bits = static_cast<unsigned>(value) << 16;
    float out;
    __builtin_memcpy(&out, &bits, sizeof out);
    return out;
  }
  static Half store(float value) {
    unsigned bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    const unsigned rounded = bits + 0x7fff + ((bits >> 16) & 1);
    const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
    return static_cast<Half>((is_nan ? bits | 0x400000 : rounded) >> 16);
  }
};

struct Sum {
  template <class T>
  static T apply(T a, T b) {
    return a + b;
  }
  // Signed overflow wraps.
  static int apply(int a, int b) {
    return static_cast<int>(
        static_cast<unsigned>(a) + static_cast<unsigned>(b));
  }
  static long apply(long a, long b) {
    return static_cast<long>(
        static_cast<unsigned long>(a) + static_cast<unsigned long>(b));
  }
};
struct Min {
  template <class T>
  static T apply(T a, T b) {
    return (b < a) | (b != b) ? b : a;
  }
};
struct Max {
  template <class T>
  static T apply(T a, T b) {
    return (a < b) | (b != b) ? b : a;
  }
};

}  // namespace
}  // namespace lockstep::collective::internal
