#include "lockstep/models/dense_block.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <algorithm>

#include "lockstep/kernels/bias_act.h"
#include "lockstep/models/bias_gradients.h"
#include "lockstep/models/launch.h"
#include "lockstep/models/sink.h"

namespace lockstep::models {
namespace {

namespace k = kernels;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

static_assert(kDenseConvs == k::kMostMaps);
constexpr auto kLast = at::MemoryFormat::ChannelsLast;
constexpr int64_t kConvs = kDenseConvs;

// `map` is read by the convolutions from its own number on; what belongs to
// convolution `conv` among the channels it makes.
k::MapPart part(const at::Tensor& map, int64_t number, int64_t conv) {
  const int64_t stride = map.size(1);
  const int64_t width = stride / (kConvs - number);
  const auto* data = static_cast<const char*>(map.const_data_ptr());
  return {data + (conv - number) * width * map.element_size(), stride};
}

// The weights by map, all in one piece of memory.
std::vector<at::Tensor> packed_weights(
    const at::Tensor& x,
    at::ArrayRef<at::Tensor> weights) {
  const int64_t width = x.size(1);
  std::vector<at::Tensor> packed;
  k::DensePack d;
  d.width = width;
  d.type = kernel_type(x);
  for (int64_t j = 0; j < kConvs; ++j) {
    const auto at = static_cast<size_t>(j);
    packed.push_back(
        at::empty({(kConvs - j) * width, width, 3, 3}, x.options(), kLast));
    d.plain[at] = weights[at].const_data_ptr<float>();
    d.packed[at] = packed.back().data_ptr();
  }
  launch(x, k::cpu::dense_pack, k::cuda::dense_pack, d);
  return packed;
}

class FusedDense : public torch::autograd::Function<FusedDense> {
 public:
  // `parameters`: five weights, then five biases.
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& input,
      at::TensorList parameters) {
    const auto x = input.contiguous(kLast);
    const auto weights = packed_weights(x, parameters.slice(0, kDenseConvs));
    variable_list maps = {x};
    variable_list sums;  // of map j for the convolutions from j on
    for (int64_t i = 0; i < kConvs; ++i) {
      const auto at = static_cast<size_t>(i);
      const bool last = i + 1 == kConvs;
      sums.push_back(
          at::conv2d(maps[at], weights[at], {}, {1, 1}, {1, 1})
              .contiguous(kLast));
      maps.push_back(at::empty_like(x, x.options(), kLast));
      k::BiasActForward b;
      b.rows = x.numel() / x.size(1);
      b.channels = x.size(1);
      b.type = kernel_type(x);
      b.num_sources = static_cast<int>(i) + 1;
      for (int64_t j = 0; j <= i; ++j) {
        b.sources[j] = part(sums[static_cast<size_t>(j)], j, i);
      }
      b.bias = parameters[kDenseConvs + at].data_ptr<float>();
      b.slope = static_cast<float>(last ? kNoActivation : kGeneratorSlope);
      b.scale = static_cast<float>(last ? kResidualScale : 1);
      b.residual = last ? x.data_ptr() : nullptr;
      b.out = maps.back().data_ptr();
      launch(x, k::cpu::bias_act_forward, k::cuda::bias_act_forward, b);
    }
    const auto result = maps.back();
    maps.pop_back();
    maps.insert(maps.end(), weights.begin(), weights.end());
    maps.insert(maps.end(), parameters.begin(), parameters.end());
    context->save_for_backward(maps);
    return result;
  }

  static variable_list backward(AutogradContext* context, variable_list given) {
    const auto saved = context->get_saved_variables();
    const at::ArrayRef<at::Tensor> all(saved);
    const auto maps = all.slice(0, kDenseConvs);
    const auto weights = all.slice(kDenseConvs, kDenseConvs);
    const auto parameters = all.slice(2 * kDenseConvs, 2 * kDenseConvs);
    const auto gradient = given[0].contiguous(kLast);
    std::vector<Sink> sinks(parameters.begin(), parameters.end());

    variable_list sums;  // the gradients of the forward's
    for (const auto& weight : weights) {
      auto sizes = maps[0].sizes().vec();
      sizes[1] = weight.size(0);
      sums.push_back(at::empty(sizes, maps[0].options(), kLast));
    }
    const BiasGradients of_biases(maps[0], kDenseConvs);
    at::Tensor of_map = gradient;
    for (int64_t i = kConvs - 1; i >= 0; --i) {
      const auto at = static_cast<size_t>(i);
      spread(of_map, maps, sums, i, of_biases);
      of_map = std::get<0>(
          differentiate(sums[at], maps[at], weights[at], {true, false, false}));
      of_map = of_map.contiguous(kLast);
    }
    // Every convolution reads the first map, so its sums hold the gradients of
    // all outputs side by side: one product over all maps gives all weights'.
    // It computes 25 parts of which 15 are wanted, in less than half the time
    // of a product a map: those are too narrow for a GPU's tensor cores.
    const auto whole = std::get<1>(differentiate(
        sums[0],
        side_by_side(maps),
        at::empty(
            {sums[0].size(1), sums[0].size(1), 3, 3}, maps[0].options(), kLast),
        {false, true, false}));
    unpack(whole.contiguous(kLast), maps[0].size(1), sinks);
    std::vector<const Sink*> biases;
    for (size_t i = kDenseConvs; i < sinks.size(); ++i) {
      biases.push_back(&sinks[i]);
    }
    of_biases.add_to(biases);
    variable_list results = {of_map + gradient};
    for (const auto& sink : sinks) {
      results.push_back(sink.result());
    }
    return results;
  }

 private:
  static std::tuple<at::Tensor, at::Tensor, at::Tensor> differentiate(
      const at::Tensor& gradient,
      const at::Tensor& map,
      const at::Tensor& weight,
      std::array<bool, 3> wanted) {
    return at::convolution_backward(
        gradient,
        map,
        weight,
        c10::nullopt,
        {1, 1},
        {1, 1},
        {1, 1},
        /*transposed=*/false,
        {0, 0},
        1,
        wanted);
  }

  // All maps in one, by rows of pixels: matrices join faster than maps.
  static at::Tensor side_by_side(at::ArrayRef<at::Tensor> maps) {
    const auto sizes = maps[0].sizes();
    variable_list rows;
    for (const auto& map : maps) {
      rows.push_back(map.permute({0, 2, 3, 1}).view({-1, sizes[1]}));
    }
    return at::cat(rows, 1)
        .view({sizes[0], sizes[2], sizes[3], -1})
        .permute({0, 3, 1, 2});
  }

  // The gradient of convolution `conv`'s output, to all that it summed.
  static void spread(
      const at::Tensor& gradient,
      at::ArrayRef<at::Tensor> maps,
      const variable_list& sums,
      int64_t conv,
      const BiasGradients& of_biases) {
    const bool last = conv + 1 == kConvs;
    k::BiasActBackward b;
    b.rows = gradient.numel() / gradient.size(1);
    b.channels = gradient.size(1);
    b.type = kernel_type(gradient);
    b.gradient = gradient.data_ptr();
    if (!last) {
      b.output = maps[static_cast<size_t>(conv + 1)].data_ptr();
      b.slope = static_cast<float>(kGeneratorSlope);
    }
    b.scale = static_cast<float>(last ? kResidualScale : 1);
    b.num_targets = static_cast<int>(conv) + 1;
    for (int64_t j = 0; j <= conv; ++j) {
      b.targets[j] = part(sums[static_cast<size_t>(j)], j, conv);
    }
    of_biases.receive(b, static_cast<int>(conv));
    launch(gradient, k::cpu::bias_act_backward, k::cuda::bias_act_backward, b);
  }

  static void unpack(
      const at::Tensor& whole,
      int64_t width,
      const std::vector<Sink>& sinks) {
    k::DenseUnpack d;
    d.width = width;
    d.type = kernel_type(whole);
    d.whole = whole.const_data_ptr();
    for (size_t i = 0; i < kDenseConvs; ++i) {
      d.plain[i] = sinks[i].data();
    }
    launch(whole, k::cpu::dense_unpack, k::cuda::dense_unpack, d);
  }
};

}  // namespace

at::Tensor fused_dense_block(
    const at::Tensor& x,
    const DenseParameters& weights,
    const DenseParameters& biases) {
  std::vector<at::Tensor> parameters(weights.begin(), weights.end());
  parameters.insert(parameters.end(), biases.begin(), biases.end());
  return FusedDense::apply(x, at::TensorList(parameters));
}

DenseBlock::DenseBlock(int64_t filters) {
  for (size_t i = 0; i < kDenseConvs; ++i) {
    const bool last = i + 1 == kDenseConvs;
    auto holder = std::make_shared<torch::nn::Module>();
    convs_[i] = holder->register_module(
        "0",
        std::make_shared<Conv3>(
            filters * static_cast<int64_t>(i + 1),
            filters,
            last ? kNoActivation : kGeneratorSlope));
    register_module(fmt::format("b{}", i + 1), holder);
  }
}

bool DenseBlock::takes_kernels(const at::Tensor& x) const {
  return kernels_fit(x, convs_[0]->weight.size(0)) &&
         std::ranges::all_of(convs_, [](const auto& conv) {
           return conv->weight.scalar_type() == at::kFloat &&
                  conv->weight.is_contiguous(kLast);
         });
}

at::Tensor DenseBlock::forward(const at::Tensor& x) {
  if (takes_kernels(x)) {
    DenseParameters weights;
    DenseParameters biases;
    for (size_t i = 0; i < kDenseConvs; ++i) {
      weights[i] = convs_[i]->weight;
      biases[i] = convs_[i]->bias;
    }
    return fused_dense_block(as_autocast(x), weights, biases);
  }
  std::vector<at::Tensor> maps = {x};
  for (const auto& conv : convs_) {
    maps.push_back(conv->forward(maps.size() == 1 ? x : at::cat(maps, 1)));
  }
  return at::add(x, maps.back(), kResidualScale);
}

}  // namespace lockstep::models
