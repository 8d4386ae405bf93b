#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <map>

#include "lockstep/base/log.h"
#include "lockstep/train/step_graph.h"

namespace lockstep::train {
namespace {

// Buckets are rebuilt after the first step, products are timed in it.
constexpr int kPlainRuns = 3;
// A graph holds its memory for itself, and what runs beside it (a short batch,
// validation) needs as much again.
constexpr double kLargestShare = .35;

}  // namespace

struct StepGraph::Impl {
  c10::Device device = at::kCUDA;
  bool wanted = false;
  std::map<std::vector<int64_t>, int> runs;
  std::vector<int64_t> sizes;  // of the graph
  std::unique_ptr<at::cuda::CUDAGraph> graph;

  bool fits() const {
    size_t free_bytes = 0;
    size_t all_bytes = 0;
    if (cudaMemGetInfo(&free_bytes, &all_bytes) != cudaSuccess) {
      return false;
    }
    const auto stats =
        c10::cuda::CUDACachingAllocator::getDeviceStats(device.index());
    const auto peak = static_cast<double>(stats.allocated_bytes[0].peak);
    return peak < kLargestShare * static_cast<double>(all_bytes);
  }

  // False when it could not be captured; then nothing has run.
  bool capture(const std::function<void()>& body) {
    auto made = std::make_unique<at::cuda::CUDAGraph>();
    c10::cuda::CUDACachingAllocator::emptyCache();
    made->capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    try {
      body();
      made->capture_end();
    } catch (const std::exception& failure) {
      log_warning(
          fmt::format(
              "the step runs without a CUDA graph: {}", failure.what()));
      try {
        made->capture_end();
      } catch (const std::exception&) {
        cudaGetLastError();
      }
      return false;
    }
    graph = std::move(made);
    return true;
  }
};

StepGraph::StepGraph(c10::Device device, bool wanted)
    : impl_(std::make_unique<Impl>()) {
  impl_->device = device;
  impl_->wanted = wanted && device.is_cuda();
}

StepGraph::~StepGraph() = default;

void StepGraph::run(
    const std::vector<int64_t>& sizes,
    const std::function<void()>& body) {
  Impl& impl = *impl_;
  if (impl.graph && impl.sizes == sizes) {
    impl.graph->replay();
    return;
  }
  if (!impl.wanted || impl.graph || impl.runs[sizes]++ < kPlainRuns) {
    body();
    return;
  }
  impl.sizes = sizes;
  if (impl.fits() && impl.capture(body)) {
    impl.graph->replay();
    return;
  }
  impl.wanted = false;
  body();
}

bool StepGraph::captured() const {
  return impl_->graph != nullptr;
}

void use_own_stream(c10::Device device) {
  if (device.is_cuda()) {
    c10::cuda::setCurrentCUDAStream(
        c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index()));
  }
}

void* stream_of(c10::Device device) {
  return device.is_cuda()
             ? c10::cuda::getCurrentCUDAStream(device.index()).stream()
             : nullptr;
}

}  // namespace lockstep::train
