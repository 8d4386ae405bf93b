#include "lockstep/train/recompute.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "lockstep/train/precision.h"

namespace lockstep::train {
namespace {

struct Net {
  torch::nn::Linear first{8, 32};
  torch::nn::Linear second{32, 8};
  int runs = 0;
  at::Tensor part(const at::Tensor& x, bool noisy) {
    ++runs;
    const auto hidden = at::gelu(first(x));
    return second(noisy ? at::dropout(hidden, .5, true) : hidden) + x;
  }
  std::vector<at::Tensor> gradients() {
    std::vector<at::Tensor> all;
    for (auto& layer : {first, second}) {
      for (auto& parameter : layer->parameters()) {
        all.push_back(parameter.grad().clone());
        parameter.mutable_grad() = at::Tensor();
      }
    }
    return all;
  }
};

struct Outcome {
  at::Tensor loss;
  at::Tensor input;
  std::vector<at::Tensor> gradients;
  at::Tensor after;  // the next random numbers
};

Outcome run(Net& net, const at::Tensor& data, bool again, bool noisy) {
  at::manual_seed(5);
  auto x = data.clone().requires_grad_(true);
  const Part part = [&net, noisy](const at::Tensor& t) {
    return net.part(t, noisy);
  };
  // Two in a row: the second's random numbers must not be the first's.
  const auto middle = again ? recomputed(part, x, noisy) : part(x);
  const auto out = again ? recomputed(part, middle, noisy) : part(middle);
  const auto loss = widened(out).square().sum();
  loss.backward();
  return {loss.detach(), x.grad(), net.gradients(), at::rand({4})};
}

void expect_same(const Outcome& a, const Outcome& b) {
  EXPECT_TRUE(at::equal(a.loss, b.loss));
  EXPECT_TRUE(at::equal(a.input, b.input));
  EXPECT_TRUE(at::equal(a.after, b.after));
  ASSERT_EQ(a.gradients.size(), b.gradients.size());
  for (size_t i = 0; i < a.gradients.size(); ++i) {
    EXPECT_TRUE(at::equal(a.gradients[i], b.gradients[i])) << i;
  }
}

TEST(Recompute, GradientsAreTheSameBits) {
  Net net;
  const auto data = at::randn({16, 8});
  const auto plain = run(net, data, false, false);
  EXPECT_EQ(net.runs, 2);
  const auto again = run(net, data, true, false);
  EXPECT_EQ(net.runs, 6) << "each part ran twice";
  expect_same(plain, again);
}

TEST(Recompute, DrawsTheSameRandomNumbers) {
  Net net;
  const auto data = at::randn({16, 8});
  expect_same(run(net, data, false, true), run(net, data, true, true));
}

TEST(Recompute, KeepsThePrecisionOfTheForward) {
  Net net;
  const auto data = at::randn({16, 8});
  const auto in_bf16 = [&](bool again) {
    auto x = data.clone().requires_grad_(true);
    at::Tensor out;
    {
      AutocastGuard autocast(at::kCPU, "bf16");
      const Part part = [&net](const at::Tensor& t) {
        return net.part(t, false);
      };
      out = again ? recomputed(part, x) : part(x);
    }
    const auto loss = out.to(at::kFloat).square().sum();
    loss.backward();  // outside of autocast, as in a step
    return Outcome{loss.detach(), x.grad(), net.gradients(), at::zeros({1})};
  };
  const auto plain = in_bf16(false);
  expect_same(plain, in_bf16(true));
  EXPECT_FALSE(at::equal(plain.input, run(net, data, false, false).input));
}

TEST(Recompute, WithoutGradientsItIsThePart) {
  Net net;
  at::NoGradGuard no_grad;
  const auto data = at::randn({2, 8});
  const auto out = recomputed(
      [&net](const at::Tensor& t) { return net.part(t, false); }, data);
  EXPECT_EQ(net.runs, 1);
  EXPECT_FALSE(out.requires_grad());
}

TEST(Recompute, NamesThere) {
  for (const auto mode : recompute_modes()) {
    EXPECT_EQ(recompute_from(std::string(to_string(mode))), mode);
  }
  EXPECT_EQ(recompute_from("auto"), Recompute::kNone);
}

}  // namespace
}  // namespace lockstep::train
