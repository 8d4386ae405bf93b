#include "lockstep/train/allocator.h"

#include <malloc.h>

#include <climits>

namespace lockstep::train {

void keep_freed_memory() {
  // 32 MiB is the largest threshold glibc takes; larger blocks stay mapped.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
  mallopt(M_TOP_PAD, 64 << 20);
}

}  // namespace lockstep::train
