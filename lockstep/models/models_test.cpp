#include <gtest/gtest.h>
#include <torch/types.h>

#include "lockstep/models/dcgan.h"
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

TEST(Vit, RefusesWhatDoesNotDivideAndUnknownNames) {
  EXPECT_THROW(Vit({.image_size = 30, .patch = 4}), std::invalid_argument);
  EXPECT_THROW(
      Vit({.image_size = 32, .patch = 4, .dim = 100, .heads = 3}),
      std::invalid_argument);
  EXPECT_THROW(vit_options("vit_huge"), std::invalid_argument);
}

}  // namespace
}  // namespace lockstep::models
