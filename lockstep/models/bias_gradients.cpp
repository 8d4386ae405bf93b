#include "lockstep/models/bias_gradients.h"

#include <torch/types.h>

#include "lockstep/models/launch.h"

namespace lockstep::models {
namespace {

namespace k = kernels;

int groups_for(const at::Tensor& map) {
  const int64_t channels = map.size(1);
  const int64_t rows = map.numel() / channels;
  return map.is_cuda() ? k::cuda::bias_act_groups(rows, channels)
                       : k::cpu::bias_act_groups(rows, channels);
}

}  // namespace

BiasGradients::BiasGradients(const at::Tensor& map, int count)
    : map_(map),
      count_(count),
      groups_(groups_for(map)),
      sums_(
          at::empty(
              {groups_, count * map.size(1)},
              map.options().dtype(at::kFloat))) {}

void BiasGradients::receive(k::BiasActBackward& call, int index) const {
  call.sums = sums_.data_ptr<float>() + index * map_.size(1);
  call.sums_stride = sums_.size(1);
}

void BiasGradients::add_to(const std::vector<const Sink*>& biases) const {
  k::BiasSums b;
  b.groups = groups_;
  b.maps = count_;
  b.channels = map_.size(1);
  b.sums = sums_.data_ptr<float>();
  for (size_t i = 0; i < biases.size(); ++i) {
    b.out[i] = biases[i]->data();
  }
  launch(map_, k::cpu::bias_sums, k::cuda::bias_sums, b);
}

}  // namespace lockstep::models
