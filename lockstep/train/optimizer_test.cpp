#include "lockstep/train/optimizer.h"

#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cmath>
#include <memory>

namespace lockstep::train {
namespace {

std::vector<at::Tensor> make_parameters() {
  return {
      at::linspace(-1, 1, 35).view({5, 7}).clone(),
      at::linspace(2, 3, 4).clone()};
}

at::Tensor gradient_of(const at::Tensor& parameter, int step) {
  return at::sin(parameter.detach() * (step + 1)) + .1;
}

// Our fused update against torch::optim's own, five steps.
void compare(
    const OptimConfig& config,
    const std::function<std::unique_ptr<torch::optim::Optimizer>(
        std::vector<at::Tensor>)>& make) {
  auto ours = make_parameters();
  auto theirs = make_parameters();
  for (auto& parameter : theirs) {
    parameter.requires_grad_(true);
  }
  Optimizer optimizer(config, {"a", "b"}, ours);
  auto reference = make(theirs);
  for (int step = 0; step < 5; ++step) {
    std::vector<at::Tensor> gradients;
    for (size_t i = 0; i < ours.size(); ++i) {
      gradients.push_back(gradient_of(ours[i], step));
      theirs[i].mutable_grad() = gradient_of(theirs[i], step);
    }
    optimizer.step(gradients, config.lr);
    reference->step();
  }
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_TRUE(at::allclose(ours[i], theirs[i], 1e-5, 1e-6));
  }
}

TEST(Optimizer, AdamEqualsTorch) {
  OptimConfig config;
  config.lr = 1e-2;
  config.beta1 = .5;
  compare(config, [](auto parameters) {
    return std::make_unique<torch::optim::Adam>(
        parameters, torch::optim::AdamOptions(1e-2).betas({.5, .999}));
  });
}

TEST(Optimizer, AdamWEqualsTorch) {
  OptimConfig config;
  config.name = "adamw";
  config.lr = 1e-2;
  config.weight_decay = .05;
  compare(config, [](auto parameters) {
    return std::make_unique<torch::optim::AdamW>(
        parameters, torch::optim::AdamWOptions(1e-2).weight_decay(.05));
  });
}

TEST(Optimizer, SgdWithMomentumEqualsTorch) {
  OptimConfig config;
  config.name = "sgd";
  config.lr = 1e-2;
  config.weight_decay = .01;
  compare(config, [](auto parameters) {
    return std::make_unique<torch::optim::SGD>(
        parameters,
        torch::optim::SGDOptions(1e-2).momentum(.9).weight_decay(.01));
  });
}

TEST(Optimizer, ClipsToTheGlobalNorm) {
  OptimConfig config;
  config.name = "sgd";
  config.momentum = 0;
  config.clip = 1;
  std::vector<at::Tensor> parameters = {at::zeros({2}), at::zeros({2})};
  Optimizer optimizer(config, {"a", "b"}, parameters);
  const double norm = optimizer.step({at::full({2}, 3.), at::full({2}, 4.)}, 1);
  EXPECT_NEAR(norm, std::sqrt(50), 1e-5);
  EXPECT_NEAR(parameters[0][0].item<float>(), -3 / std::sqrt(50), 1e-5);
}

TEST(Optimizer, DecaysOnlyWhatItShould) {
  OptimConfig config;
  config.name = "adamw";
  config.weight_decay = .5;
  std::vector<at::Tensor> parameters = {at::ones({2}), at::ones({2})};
  Optimizer optimizer(config, {"a", "b"}, parameters, {1, 0});
  optimizer.step({at::zeros({2}), at::zeros({2})}, .1);
  EXPECT_NEAR(parameters[0][0].item<float>(), .95, 1e-6);
  EXPECT_EQ(parameters[1][0].item<float>(), 1);
}

TEST(LearningRate, WarmsUpAndDecays) {
  OptimConfig config;
  config.lr = 1;
  config.warmup_steps = 10;
  config.schedule = "cosine";
  EXPECT_DOUBLE_EQ(learning_rate(config, 1, 110), .1);
  EXPECT_DOUBLE_EQ(learning_rate(config, 10, 110), 1);
  EXPECT_DOUBLE_EQ(learning_rate(config, 11, 110), 1);
  EXPECT_NEAR(learning_rate(config, 61, 110), .5, 1e-9);
  EXPECT_NEAR(learning_rate(config, 111, 110), 0, 1e-9);
  // The last step learns too.
  EXPECT_GT(learning_rate(config, 110, 110), 1e-4);
  config.schedule = "linear";
  EXPECT_NEAR(learning_rate(config, 86, 110), .25, 1e-9);
  EXPECT_NEAR(learning_rate(config, 110, 110), .01, 1e-9);
  config.schedule = "constant";
  EXPECT_DOUBLE_EQ(learning_rate(config, 85, 110), 1);
  config.warmup_steps = 0;
  for (const std::string schedule : {"cosine", "linear"}) {
    config.schedule = schedule;
    EXPECT_DOUBLE_EQ(learning_rate(config, 1, 1), 1) << schedule;
  }
}

// State made beside its parameters, and the same update, on a GPU.
TEST(Optimizer, OnAGpuEqualsTheCpu) {
  if (!torch::cuda::is_available()) {
    GTEST_SKIP() << "no GPU here";
  }
  for (const std::string name : {"adam", "adamw", "sgd"}) {
    OptimConfig config;
    config.name = name;
    config.weight_decay = .01;
    config.clip = 1;
    auto here = make_parameters();
    auto there = make_parameters();
    for (auto& parameter : there) {
      parameter = parameter.to(at::kCUDA);
    }
    Optimizer on_cpu(config, {"a", "b"}, here, {1, 0});
    Optimizer on_gpu(config, {"a", "b"}, there, {1, 0});
    for (int step = 0; step < 5; ++step) {
      std::vector<at::Tensor> gradients;
      std::vector<at::Tensor> gradients_there;
      for (const auto& parameter : here) {
        gradients.push_back(gradient_of(parameter, step));
        gradients_there.push_back(gradients.back().to(at::kCUDA));
      }
      on_cpu.step(gradients, 1e-2);
      on_gpu.step(gradients_there, 1e-2);
    }
    for (const auto& [key, tensor] : on_gpu.state()) {
      EXPECT_TRUE(tensor.is_cuda()) << name << " " << key;
    }
    for (size_t i = 0; i < here.size(); ++i) {
      EXPECT_TRUE(at::allclose(here[i], there[i].to(at::kCPU), 1e-5, 1e-6))
          << name << " " << i;
    }
  }
}

TEST(Optimizer, GroupsHaveTheirOwnRates) {
  OptimConfig config;
  config.name = "sgd";
  config.lr = .1;
  config.weight_decay = .01;
  auto ours = make_parameters();
  auto waiting = make_parameters();
  auto theirs = make_parameters();
  for (auto& parameter : theirs) {
    parameter.requires_grad_(true);
  }
  Optimizer optimizer(config, {"a", "b"}, ours, {1, 0}, {.1, 1});
  // The form that a CUDA graph holds.
  Optimizer async(config, {"a", "b"}, waiting, {1, 0}, {.1, 1});
  EXPECT_TRUE(async.runs_async());
  using torch::optim::OptimizerParamGroup;
  using torch::optim::SGDOptions;
  const auto group = [](const at::Tensor& parameter, SGDOptions options) {
    return OptimizerParamGroup(
        {parameter}, std::make_unique<SGDOptions>(options));
  };
  torch::optim::SGD reference(
      {group(theirs[0], SGDOptions(.01).momentum(.9).weight_decay(.01)),
       group(theirs[1], SGDOptions(.1).momentum(.9))},
      SGDOptions(.1));
  for (int step = 0; step < 5; ++step) {
    std::vector<at::Tensor> gradients;
    std::vector<at::Tensor> same;
    for (size_t i = 0; i < ours.size(); ++i) {
      gradients.push_back(gradient_of(ours[i], step));
      same.push_back(gradient_of(waiting[i], step));
      theirs[i].mutable_grad() = gradient_of(theirs[i], step);
    }
    optimizer.step(gradients, config.lr);
    async.step_async(same, at::full({1}, config.lr));
    reference.step();
  }
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_TRUE(at::allclose(ours[i], theirs[i], 1e-5, 1e-6));
    EXPECT_TRUE(at::allclose(waiting[i], theirs[i], 1e-5, 1e-6));
  }
}

TEST(LearningRate, FallsWithTheInverseOfTheStep) {
  OptimConfig config;
  config.lr = 2;
  config.schedule = "inverse";
  config.lr_gamma = .5;
  config.lr_decay = .75;
  EXPECT_DOUBLE_EQ(learning_rate(config, 1, 0), 2);
  EXPECT_DOUBLE_EQ(learning_rate(config, 3, 100), 2 * std::pow(2, -.75));
  config.warmup_steps = 2;
  EXPECT_DOUBLE_EQ(learning_rate(config, 1, 0), 1);
  EXPECT_DOUBLE_EQ(learning_rate(config, 3, 0), 2);
}

}  // namespace
}  // namespace lockstep::train
