#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/kernels/gemm.h"

namespace lockstep::kernels {
namespace {

constexpr size_t kWorkspace = size_t{64} << 20;
constexpr int kCandidates = 10;
constexpr int kTimedRuns = 3;
// One that is so much slower than the best is not timed again.
constexpr float kHopeless = 1.25F;

bool timing_wanted = true;

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw std::runtime_error(
        std::string("cublasLt: ") + what + ": " +
        cublasLtGetStatusString(status));
  }
}

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) {
    throw std::runtime_error(
        std::string(what) + ": " + cudaGetErrorString(status));
  }
}

cudaDataType_t data_type(Type type) {
  return type == Type::kFloat32 ? CUDA_R_32F : CUDA_R_16BF;
}

// What a plan depends on: shape, order, types, epilogue, alignment, device.
using Key = std::array<int64_t, 11>;

int alignment(const void* pointer) {
  const auto bits = reinterpret_cast<uintptr_t>(pointer);
  return bits % 16 == 0 ? 16 : bits % 8 == 0 ? 8 : bits % 4 == 0 ? 4 : 2;
}

struct Plan {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t left = nullptr;
  cublasLtMatrixLayout_t right = nullptr;
  cublasLtMatrixLayout_t out = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
  bool timed = false;
};

struct Device {
  cublasLtHandle_t handle = nullptr;
  void* workspace = nullptr;
  std::map<Key, Plan> plans;
};

// Never freed: the driver may be gone when statics are destroyed.
Device& device() {
  static auto* devices = new std::map<int, Device>();
  int current = 0;
  check(cudaGetDevice(&current), "cudaGetDevice");
  Device& found = (*devices)[current];
  if (found.handle == nullptr) {
    check(cublasLtCreate(&found.handle), "create");
    check(cudaMalloc(&found.workspace, kWorkspace), "cudaMalloc");
  }
  return found;
}

template <class T>
void set(
    cublasLtMatmulDesc_t operation,
    cublasLtMatmulDescAttributes_t attribute,
    const T& value) {
  check(
      cublasLtMatmulDescSetAttribute(
          operation, attribute, &value, sizeof(value)),
      "attribute");
}

cublasStatus_t run(
    Device& on,
    const Plan& plan,
    const cublasLtMatmulAlgo_t& algorithm,
    const Gemm& g,
    void* d,
    cudaStream_t stream) {
  const float alpha = 1;
  if (g.bias != nullptr) {
    set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, g.bias);
  }
  // The library is column-major: d^T = op(b)^T op(a)^T.
  return cublasLtMatmul(
      on.handle,
      plan.operation,
      &alpha,
      g.b,
      plan.left,
      g.a,
      plan.right,
      &g.beta,
      d,
      plan.out,
      d,
      plan.out,
      &algorithm,
      on.workspace,
      kWorkspace,
      stream);
}

cublasLtMatrixLayout_t layout(Type type, int64_t rows, int64_t columns) {
  cublasLtMatrixLayout_t made = nullptr;
  check(
      cublasLtMatrixLayoutCreate(
          &made,
          data_type(type),
          static_cast<uint64_t>(rows),
          static_cast<uint64_t>(columns),
          rows),
      "layout");
  return made;
}

std::vector<cublasLtMatmulHeuristicResult_t>
candidates(Device& on, const Plan& plan, const Gemm& g) {
  cublasLtMatmulPreference_t preference = nullptr;
  check(cublasLtMatmulPreferenceCreate(&preference), "preference");
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute,
                          auto value) {
    check(
        cublasLtMatmulPreferenceSetAttribute(
            preference, attribute, &value, sizeof(value)),
        "preference");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspace);
  prefer(
      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
      static_cast<uint32_t>(alignment(g.b)));
  prefer(
      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
      static_cast<uint32_t>(alignment(g.a)));
  prefer(
      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
      static_cast<uint32_t>(alignment(g.d)));
  prefer(
      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
      static_cast<uint32_t>(alignment(g.d)));
  std::vector<cublasLtMatmulHeuristicResult_t> found(kCandidates);
  int count = 0;
  const auto status = cublasLtMatmulAlgoGetHeuristic(
      on.handle,
      plan.operation,
      plan.left,
      plan.right,
      plan.out,
      plan.out,
      preference,
      kCandidates,
      found.data(),
      &count);
  cublasLtMatmulPreferenceDestroy(preference);
  check(status, "heuristic");
  found.resize(static_cast<size_t>(count));
  if (found.empty()) {
    throw std::runtime_error("cublasLt: no algorithm for this product");
  }
  return found;
}

bool may_time(cudaStream_t stream) {
  const char* wish = std::getenv("LOCKSTEP_GEMM_TUNE");
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing");
  return timing_wanted && status == cudaStreamCaptureStatusNone &&
         (wish == nullptr || std::strcmp(wish, "0") != 0);
}

// Milliseconds of one run, the least of a few; negative when it cannot run.
float time_of(
    Device& on,
    const Plan& plan,
    const cublasLtMatmulAlgo_t& algorithm,
    const Gemm& g,
    void* d,
    cudaStream_t stream,
    cudaEvent_t (&marks)[2],
    float best) {
  float least = -1;
  for (int i = 0; i <= kTimedRuns; ++i) {
    check(cudaEventRecord(marks[0], stream), "cudaEventRecord");
    if (run(on, plan, algorithm, g, d, stream) != CUBLAS_STATUS_SUCCESS) {
      return -1;
    }
    check(cudaEventRecord(marks[1], stream), "cudaEventRecord");
    check(cudaEventSynchronize(marks[1]), "cudaEventSynchronize");
    float took = 0;
    check(
        cudaEventElapsedTime(&took, marks[0], marks[1]),
        "cudaEventElapsedTime");
    if (i > 0 && (least < 0 || took < least)) {
      least = took;
    }
    if (i > 0 && best > 0 && took > kHopeless * best) {
      break;
    }
  }
  return least;
}

cublasLtMatmulAlgo_t
choose(Device& on, const Plan& plan, const Gemm& g, cudaStream_t stream) {
  const auto found = candidates(on, plan, g);
  if (found.size() == 1 || !may_time(stream)) {
    return found.front().algo;
  }
  void* d = g.d;
  if (g.beta != 0) {
    // What is added to must not be added to twice.
    const size_t bytes = static_cast<size_t>(g.m * g.n) * size_of(g.out_type);
    if (cudaMalloc(&d, bytes) != cudaSuccess) {
      cudaGetLastError();
      return found.front().algo;
    }
    check(cudaMemsetAsync(d, 0, bytes, stream), "cudaMemsetAsync");
  }
  cudaEvent_t marks[2];
  for (cudaEvent_t& mark : marks) {
    check(cudaEventCreate(&mark), "cudaEventCreate");
  }
  size_t best = 0;
  float least = -1;
  for (size_t i = 0; i < found.size(); ++i) {
    const float took =
        time_of(on, plan, found[i].algo, g, d, stream, marks, least);
    if (took >= 0 && (least < 0 || took < least)) {
      least = took;
      best = i;
    }
  }
  for (cudaEvent_t mark : marks) {
    cudaEventDestroy(mark);
  }
  if (d != g.d) {
    cudaFree(d);
  }
  return found[best].algo;
}

Plan make_plan(Device& on, const Gemm& g, cudaStream_t stream) {
  Plan plan;
  check(
      cublasLtMatmulDescCreate(&plan.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F),
      "operation");
  set(plan.operation,
      CUBLASLT_MATMUL_DESC_TRANSA,
      g.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(plan.operation,
      CUBLASLT_MATMUL_DESC_TRANSB,
      g.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (g.bias != nullptr) {
    set(plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, data_type(g.type));
  }
  plan.left =
      g.transpose_b ? layout(g.type, g.k, g.n) : layout(g.type, g.n, g.k);
  plan.right =
      g.transpose_a ? layout(g.type, g.m, g.k) : layout(g.type, g.k, g.m);
  plan.out = layout(g.out_type, g.n, g.m);
  plan.timed = may_time(stream);
  plan.algorithm = choose(on, plan, g, stream);
  return plan;
}

}  // namespace

namespace cuda {

void gemm(const Gemm& g, Stream stream) {
  if (g.m == 0 || g.n == 0) {
    return;
  }
  const auto native = static_cast<cudaStream_t>(stream);
  // Autograd's thread and the main one never run at once, but take turns.
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  Device& on = device();
  const Key key = {
      g.m,
      g.n,
      g.k,
      g.transpose_a,
      g.transpose_b,
      static_cast<int64_t>(g.type),
      static_cast<int64_t>(g.out_type),
      g.bias != nullptr,
      g.beta != 0,
      std::min(alignment(g.a), alignment(g.b)),
      alignment(g.d)};
  auto found = on.plans.find(key);
  if (found == on.plans.end()) {
    found = on.plans.emplace(key, make_plan(on, g, native)).first;
  } else if (!found->second.timed && may_time(native)) {
    found->second.timed = true;
    found->second.algorithm = choose(on, found->second, g, native);
  }
  check(
      run(on, found->second, found->second.algorithm, g, g.d, native),
      "matmul");
}

void time_candidates(bool wanted) {
  timing_wanted = wanted;
}

}  // namespace cuda
}  // namespace lockstep::kernels
