#include "lockstep/models/windows.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/types.h>

#include <stdexcept>

#include "lockstep/kernels/windows.h"
#include "lockstep/models/convolution.h"

// Windows as matrices against LibTorch's im2col and col2im, the twin always and
// the GPU's half where there is one; and the convolutions made of them.

namespace lockstep::models {
namespace {

constexpr auto kLast = at::MemoryFormat::ChannelsLast;

struct Where {
  const char* name;
  c10::Device device;
  at::ScalarType type;
  double band;  // of a difference, for values of about 1
};

std::vector<Where> places() {
  std::vector<Where> list = {
      {"cpu fp32", at::kCPU, at::kFloat, 1e-5},
      {"cpu bf16", at::kCPU, at::kBFloat16, 4e-2}};
  if (torch::cuda::is_available()) {
    list.push_back({"cuda bf16", at::kCUDA, at::kBFloat16, 4e-2});
  }
  return list;
}

at::Tensor precise(const at::Tensor& tensor) {
  return tensor.detach().to(at::kCPU, at::kDouble);
}

double apart(const at::Tensor& ours, const at::Tensor& reference) {
  return (precise(ours) - precise(reference)).abs().max().item<double>();
}

// [n, c, h, w] in double precision to our order of rows and columns.
at::Tensor reference_rows(const at::Tensor& map) {
  const auto columns = at::im2col(map, {4, 4}, {1, 1}, {1, 1}, {2, 2});
  return columns.view({map.size(0), map.size(1), 16, -1})
      .permute({0, 3, 2, 1})
      .reshape({-1, 16 * map.size(1)});
}

TEST(Windows, AreIm2colAndItsTranspose) {
  struct Case {
    int64_t n, channels, height, width;
  };
  for (const Where& where : places()) {
    for (const Case& c : std::vector<Case>{
             {2, 3, 8, 12}, {1, 1, 2, 2}, {3, 1, 6, 4}, {2, 3, 64, 64}}) {
      const auto name = fmt::format(
          "{} {} x {} x {}", where.name, c.channels, c.height, c.width);
      torch::manual_seed(5);
      const auto map = at::randn({c.n, c.channels, c.height, c.width})
                           .to(where.device, where.type)
                           .contiguous(kLast)
                           .requires_grad_();
      const auto truth = precise(map).contiguous().requires_grad_();
      const auto rows = unfold_windows(map);
      const auto wanted = reference_rows(truth);
      EXPECT_EQ(apart(rows, wanted), 0) << name;  // copies, bit for bit

      const auto slopes = at::randn(rows.sizes()).to(where.device, where.type);
      rows.backward(slopes);
      wanted.backward(precise(slopes));
      EXPECT_LE(apart(map.grad(), truth.grad()), where.band) << name;

      // Fold is the gradient of unfold, and its gradient is unfold.
      const auto leaf = slopes.detach().requires_grad_();
      const auto folded = fold_windows(leaf, c.n, c.height, c.width);
      EXPECT_EQ(apart(folded, map.grad()), 0) << name;
      folded.backward(map.detach());
      EXPECT_EQ(apart(leaf.grad(), rows), 0) << name;
    }
  }
}

TEST(Windows, OfShapesThatAGpuDoesNotTakeAreRefused) {
  kernels::Windows w;
  w.images = 1;
  w.height = 4;
  w.width = 4;
  w.channels = 2;
  EXPECT_THROW(kernels::cuda::unfold(w, nullptr), std::exception);
  EXPECT_THROW(kernels::cuda::fold(w, nullptr), std::exception);
}

// The output and both gradients, in the type of the module's weight.
template <class Module>
std::vector<at::Tensor> run(Module& module, const at::Tensor& input) {
  const auto weight = module.parameters()[0];
  const auto x =
      input.to(weight.device(), weight.scalar_type()).contiguous(kLast);
  const auto leaf = x.detach().requires_grad_();
  module.zero_grad();
  const auto y = module.forward(leaf);
  (y * y).sum().backward();
  return {y, leaf.grad(), module.parameters()[0].grad()};
}

// Images on a GPU go by windows, those on a CPU through LibTorch.
TEST(Windows, ConvolutionsOfImagesOnAGpuAreLibtorchs) {
  if (!torch::cuda::is_available()) {
    GTEST_SKIP() << "no GPU here";
  }
  for (const int64_t channels : {1, 3}) {
    torch::manual_seed(2);
    const auto check = [&](auto module, const at::Tensor& input) {
      module.to(at::kBFloat16);  // so that both sides have the same weights
      module.to(at::kFloat);
      const auto wanted = run(module, input);
      module.to(at::kCUDA, at::kBFloat16);
      const auto got = run(module, input);
      for (size_t i = 0; i < wanted.size(); ++i) {
        const auto off = at::norm(precise(got[i]) - precise(wanted[i]));
        EXPECT_LE(
            off.item().toDouble(),
            2e-2 * at::norm(precise(wanted[i])).item().toDouble())
            << channels << " channels, value " << i;
      }
    };
    const auto bits = at::kBFloat16;
    check(Halve(channels, 64), at::randn({3, channels, 16, 16}).to(bits));
    check(Double(64, channels), at::randn({3, 64, 8, 8}).to(bits));
  }
}

}  // namespace
}  // namespace lockstep::models
