#include "lockstep/forest/random.h"

#include <cmath>

namespace lockstep::forest {

Draws::Draws(uint64_t key, bool bootstrap, double share)
    : key_(mix(key ^ 0xa0761d6478bd642f)), bootstrap_(bootstrap) {
  double probability = std::exp(-share);
  double sum = 0;
  for (size_t i = 0; i < limits_.size(); ++i) {
    sum += probability;
    probability *= share / static_cast<double>(i + 1);
    const double scaled = std::ldexp(sum, 32);
    limits_[i] =
        scaled >= 4294967295. ? 0xffffffff : static_cast<uint32_t>(scaled);
  }
}

}  // namespace lockstep::forest
