#pragma once

// A function that is compiled for each width of vectors the processor may
// have, and chosen when the program starts. Not under sanitizers, nor by
// clang, which cannot.

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__) && !defined(__clang__)
#define LOCKSTEP_VECTORS \
  __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define LOCKSTEP_VECTORS
#endif
