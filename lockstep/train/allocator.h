#pragma once

// An allocator for CPU tensors that keeps what training frees: large blocks
// come on huge pages, are cached by size and given back only when memory runs
// out or on request, so the kernel does not zero fresh pages in every step (10%
// of DCGAN's time otherwise). Small blocks go to the C library. Thread-safe.

#include <c10/core/Device.h>

#include <cstddef>

namespace lockstep::train {

// Gives the cached blocks back to the kernel: before and after memory is
// measured, or when training asks for another size of batch.
void release_cached_memory();

// Makes it LibTorch's CPU allocator. Once, before the first tensor.
void install_caching_allocator();

// On a GPU: pieces that training freed join again in LibTorch's allocator, so
// that a batch that fits once fits in every step. PYTORCH_ALLOC_CONF (or
// PYTORCH_CUDA_ALLOC_CONF), where set, is left as it is. Before the device's
// first tensor.
void join_freed_memory(c10::Device device);

// The size a request of `bytes` is rounded up to (for its tests).
size_t block_size(size_t bytes);

}  // namespace lockstep::train
