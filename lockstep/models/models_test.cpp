#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/types.h>

#include <array>

#include "lockstep/models/dcgan.h"
#include "lockstep/models/linear.h"
#include "lockstep/models/vit.h"

namespace lockstep::models {
namespace {

int64_t count(const torch::nn::Module& module) {
  int64_t total = 0;
  for (const auto& parameter : module.parameters()) {
    total += parameter.numel();
  }
  return total;
}

TEST(Dcgan, HasThePublishedParameterCounts) {
  EXPECT_EQ(count(DcganGenerator({})), 3576704);
  EXPECT_EQ(count(DcganDiscriminator({})), 2765568);
}

TEST(Dcgan, MapsNoiseToImagesToLogitsAtEverySize) {
  torch::NoGradGuard no_grad;
  for (int64_t size : {8, 16, 32, 64}) {
    DcganOptions options{
        .image_size = size, .channels = 1, .nz = 10, .ngf = 4, .ndf = 4};
    DcganGenerator generator(options);
    DcganDiscriminator discriminator(options);
    const auto images = generator.forward(at::randn({3, 10, 1, 1}));
    EXPECT_EQ(images.sizes(), at::IntArrayRef({3, 1, size, size}));
    EXPECT_LE(images.abs().max().item<float>(), 1);
    EXPECT_EQ(discriminator.forward(images).sizes(), at::IntArrayRef({3}));
  }
}

TEST(Dcgan, RefusesOddSizes) {
  EXPECT_THROW(DcganGenerator({.image_size = 48}), std::invalid_argument);
}

TEST(Vit, BaseHasThePublishedParameterCountAndNames) {
  Vit vit(vit_options("vit_base_patch32_224"));
  EXPECT_EQ(count(vit), 87462922);
  const auto parameters = vit.named_parameters();
  for (const char* name :
       {"cls_token",
        "pos_embed",
        "patch_embed.proj.weight",
        "blocks.0.norm1.weight",
        "blocks.11.attn.qkv.bias",
        "blocks.3.attn.proj.weight",
        "blocks.7.norm2.bias",
        "blocks.1.mlp.fc1.weight",
        "blocks.1.mlp.fc2.bias",
        "norm.weight",
        "head.bias"}) {
    EXPECT_TRUE(parameters.contains(name)) << name;
  }
}

// Forward and every gradient as at::linear's, which is the reference.
TEST(TokenLinear, EqualsLinear) {
  at::manual_seed(7);
  for (const auto& [batch, length, in, out] :
       {std::array<int64_t, 4>{3, 5, 7, 11},
        {1, 1, 1, 1},
        {2, 65, 32, 96},
        {1, 131, 8, 8},    // no 16 images in a prime number of rows
        {4, 65, 32, 96},   // convolutions, the weights' gradient a product
        {8, 65, 32, 96},   // all convolutions, its 520 rows as 20 images
        {8, 65, 96, 32},   // wide weights: a product
        {16, 50, 96, 32},  // until there are more rows
        {17, 31, 32, 96}}) {
    torch::nn::Linear layer(in, out);
    const auto x = at::randn({length, batch, in})
                       .transpose(0, 1)  // not contiguous
                       .requires_grad_();
    const auto seed = at::randn({batch, length, out});
    const auto run = [&](bool reference) {
      const auto y = reference ? at::linear(x, layer->weight, layer->bias)
                               : token_linear(layer, x);
      std::vector<at::Tensor> results =
          torch::autograd::grad({y}, {x, layer->weight, layer->bias}, {seed});
      results.push_back(y.detach());
      return results;
    };
    const auto ours = run(false);
    const auto expected = run(true);
    for (size_t i = 0; i < ours.size(); ++i) {
      // A weight's gradient sums up to 800 products of about 1: another order
      // of the sum, which each library has, is another 1e-5 beside a zero.
      EXPECT_TRUE(at::allclose(ours[i], expected[i], 1e-4, 1e-4))
          << "result " << i << " of length " << length;
    }
    EXPECT_TRUE(ours[0].sizes() == x.sizes());
  }
}

TEST(TokenLinear, FrozenWeightsGetNoGradientAndOtherTypesWork) {
  torch::nn::Linear layer(4, 3);
  layer->weight.requires_grad_(false);
  const auto x = at::randn({2, 5, 4}).requires_grad_();
  token_linear(layer, x).sum().backward();
  EXPECT_FALSE(layer->weight.grad().defined());
  EXPECT_TRUE(layer->bias.grad().defined());
  EXPECT_TRUE(x.grad().defined());
  layer->to(at::kDouble);
  EXPECT_EQ(
      token_linear(layer, at::randn({2, 5, 4}, at::kDouble)).scalar_type(),
      at::kDouble);
}

// The whole model on the kernels (here their twins in fp32) against its plain
// form: logits and every gradient, whatever is kept for the way back.
TEST(Vit, KernelsGiveThePlainModel) {
  at::manual_seed(5);
  const VitOptions options{
      .image_size = 12,
      .patch = 4,
      .channels = 3,
      .classes = 5,
      .dim = 24,
      .depth = 3,
      .heads = 3};
  Vit vit(options);
  for (auto& parameter : vit.parameters()) {
    torch::NoGradGuard no_grad;
    parameter.add_(at::randn_like(parameter) * .1);
    if (parameter.dim() == 4) {
      parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
    }
  }
  const auto images = at::randn({3, 3, 12, 12});
  const auto seed = at::randn({3, 5});
  const auto gradients = [&] {
    std::vector<at::Tensor> list;
    for (const auto& parameter : vit.parameters()) {
      list.push_back(parameter.grad().clone());
    }
    return list;
  };
  const auto plain = vit.forward(images);
  plain.backward(seed);
  const auto expected = gradients();
  const auto names = vit.named_parameters().keys();
  for (const Keep keep : {Keep::kAll, Keep::kCheap, Keep::kLeast}) {
    vit.use_kernels(keep);
    // Without a gradient autograd makes one, with one the kernels add to it.
    for (const bool there : {false, true}) {
      int hooked = 0;
      for (auto& parameter : vit.parameters()) {
        parameter.mutable_grad() =
            there ? at::zeros_like(parameter) : at::Tensor();
      }
      auto accumulator =
          torch::autograd::impl::grad_accumulator(vit.parameters()[0]);
      const auto hook = accumulator->add_post_hook(
          std::make_unique<torch::autograd::utils::LambdaPostHook>(
              [&hooked](
                  const torch::autograd::variable_list& outputs,
                  const torch::autograd::variable_list&) {
                ++hooked;
                return outputs;
              }));
      const auto logits = vit.forward(images);
      EXPECT_TRUE(at::allclose(logits, plain, 1e-4, 1e-5));
      logits.backward(seed);
      accumulator->del_post_hook(hook);
      EXPECT_EQ(hooked, 1) << "Ddp waits for each parameter's hook";
      const auto ours = gradients();
      for (size_t i = 0; i < ours.size(); ++i) {
        EXPECT_TRUE(at::allclose(ours[i], expected[i], 1e-3, 1e-5))
            << names[i] << " keep " << static_cast<int>(keep) << " "
            << (ours[i] - expected[i]).abs().max().item<float>();
      }
    }
  }
}

TEST(Vit, RefusesWhatDoesNotDivideAndUnknownNames) {
  EXPECT_THROW(Vit({.image_size = 30, .patch = 4}), std::invalid_argument);
  EXPECT_THROW(
      Vit({.image_size = 32, .patch = 4, .dim = 100, .heads = 3}),
      std::invalid_argument);
  EXPECT_THROW(vit_options("vit_huge"), std::invalid_argument);
}

}  // namespace
}  // namespace lockstep::models
