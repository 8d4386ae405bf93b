#include <stdexcept>

#include "lockstep/kernels/adamw.h"
#include "lockstep/kernels/attention.h"
#include "lockstep/kernels/batch_norm.h"
#include "lockstep/kernels/bias_act.h"
#include "lockstep/kernels/cast.h"
#include "lockstep/kernels/cross_entropy.h"
#include "lockstep/kernels/gelu.h"
#include "lockstep/kernels/gemm.h"
#include "lockstep/kernels/images.h"
#include "lockstep/kernels/layer_norm.h"
#include "lockstep/kernels/max_pool.h"
#include "lockstep/kernels/relativistic.h"
#include "lockstep/kernels/windows.h"

// The GPU's half where there is none.

namespace lockstep::kernels {
namespace {

[[noreturn]] void absent() {
  throw std::runtime_error(
      "this build of lockstep has no CUDA kernels; build with "
      "cmake --preset cuda");
}

}  // namespace

// The twins need no scratch memory.
size_t norm_scratch(int64_t /*dim*/) {
  return 0;
}
size_t batch_norm_scratch(const BatchNormShape& /*shape*/) {
  return 0;
}
size_t column_scratch(int64_t /*dim*/) {
  return 0;
}
size_t attention_scratch(int64_t /*heads*/) {
  return 0;
}
bool attention_fits(int64_t /*length*/, int64_t /*width*/) {
  return true;
}

namespace cuda {

void batch_norm_forward(const BatchNormForward& /*n*/, Stream /*stream*/) {
  absent();
}
void batch_norm_backward(const BatchNormBackward& /*n*/, Stream /*stream*/) {
  absent();
}
void max_pool_forward(const MaxPoolForward& /*m*/, Stream /*stream*/) {
  absent();
}
void max_pool_backward(const MaxPoolBackward& /*m*/, Stream /*stream*/) {
  absent();
}
void norm_forward(const NormForward& /*n*/, Stream /*stream*/) {
  absent();
}
void norm_backward(const NormBackward& /*n*/, Stream /*stream*/) {
  absent();
}
void gelu_forward(const GeluForward& /*g*/, Stream /*stream*/) {
  absent();
}
void gelu_backward(const GeluBackward& /*g*/, Stream /*stream*/) {
  absent();
}
void column_sum(const ColumnSum& /*c*/, Stream /*stream*/) {
  absent();
}
void attention_forward(const AttentionForward& /*a*/, Stream /*stream*/) {
  absent();
}
void attention_backward(const AttentionBackward& /*a*/, Stream /*stream*/) {
  absent();
}
void gemm(const Gemm& /*g*/, Stream /*stream*/) {
  absent();
}
void time_candidates(bool /*wanted*/) {}
void prepare_images(const ImageBatch& /*b*/, Stream /*stream*/) {
  absent();
}
void cast_many(const CastMany& /*c*/, Stream /*stream*/) {
  absent();
}
void adam(const Adam& /*a*/, Stream /*stream*/) {
  absent();
}
void cross_entropy(const CrossEntropy& /*c*/, Stream /*stream*/) {
  absent();
}
int bias_act_groups(int64_t /*rows*/, int64_t /*channels*/) {
  absent();
}
void bias_act_forward(const BiasActForward& /*b*/, Stream /*stream*/) {
  absent();
}
void bias_act_backward(const BiasActBackward& /*b*/, Stream /*stream*/) {
  absent();
}
void bias_sums(const BiasSums& /*b*/, Stream /*stream*/) {
  absent();
}
void dense_pack(const DensePack& /*d*/, Stream /*stream*/) {
  absent();
}
void dense_unpack(const DenseUnpack& /*d*/, Stream /*stream*/) {
  absent();
}
void unfold(const Windows& /*w*/, Stream /*stream*/) {
  absent();
}
void fold(const Windows& /*w*/, Stream /*stream*/) {
  absent();
}
void relativistic(const Relativistic& /*r*/, Stream /*stream*/) {
  absent();
}

}  // namespace cuda
}  // namespace lockstep::kernels
