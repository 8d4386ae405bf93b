#include "lockstep/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace lockstep::internal {

void check_failed(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, what.c_str());
  std::abort();
}

}  // namespace lockstep::internal
