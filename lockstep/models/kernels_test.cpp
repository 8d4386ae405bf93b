#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/types.h>

#include <cstring>
#include <tuple>

#include "lockstep/kernels/adamw.h"
#include "lockstep/kernels/attention.h"
#include "lockstep/kernels/cast.h"
#include "lockstep/kernels/cross_entropy.h"
#include "lockstep/kernels/gelu.h"
#include "lockstep/kernels/gemm.h"
#include "lockstep/kernels/images.h"
#include "lockstep/kernels/layer_norm.h"
#include "lockstep/kernels/max_pool.h"
#include "lockstep/models/launch.h"

// Each kernel against LibTorch's operations in double precision: the twin
// always, in fp32 and bf16; the GPU's half, in bf16, where there is a GPU.

namespace lockstep::kernels {
namespace {

using models::kernel_type;
using models::launch;

struct Where {
  const char* name;
  c10::Device device;
  at::ScalarType type;
  double band;  // ||ours - reference|| / ||reference||
};

std::vector<Where> places() {
  std::vector<Where> list = {
      {"cpu fp32", at::kCPU, at::kFloat, 2e-6},
      {"cpu bf16", at::kCPU, at::kBFloat16, 1e-2}};
  if (torch::cuda::is_available()) {
    list.push_back({"cuda bf16", at::kCUDA, at::kBFloat16, 1e-2});
  }
  return list;
}

at::Tensor made(const Where& where, at::IntArrayRef sizes, double scale = 1) {
  return (at::randn(sizes) * scale).to(where.device, where.type);
}

at::Tensor made_float(const Where& where, at::IntArrayRef sizes) {
  return at::randn(sizes).to(where.device);
}

// Filled with what no kernel would write.
at::Tensor poisoned(const Where& where, at::IntArrayRef sizes) {
  return at::full(
      sizes, 1e9, at::TensorOptions().device(where.device).dtype(where.type));
}

at::Tensor zeros(const Where& where, at::IntArrayRef sizes) {
  return at::zeros(sizes, at::TensorOptions().device(where.device));
}

at::Tensor scratch(const Where& where, size_t count) {
  return at::empty(
      {static_cast<int64_t>(count) + 1},
      at::TensorOptions().device(where.device).dtype(at::kFloat));
}

at::Tensor precise(const at::Tensor& tensor) {
  return tensor.detach().to(at::kCPU, at::kDouble);
}

void expect_near(
    const at::Tensor& ours,
    const at::Tensor& reference,
    double band,
    const std::string& what) {
  const double size = std::max(precise(reference).norm().item<double>(), 1e-6);
  const double apart =
      (precise(ours) - precise(reference)).norm().item<double>();
  EXPECT_TRUE(apart <= band * size) << what << ": " << apart / size;
}

std::string label(const Where& where, const std::string& what) {
  return std::string(where.name) + " " + what;
}

TEST(Norm, ForwardAndBackwardAreLayerNormOfASum) {
  const std::vector<std::array<int64_t, 2>> shapes = {
      {2, 3},
      {3, 7},
      {5, 8},
      {9, 64},
      {7, 192},
      {50, 768},
      {13, 1000},
      {4, 1030},
      {2500, 768}};
  for (const Where& where : places()) {
    for (const auto& [rows, dim] : shapes) {
      for (const bool with_delta : {false, true}) {
        torch::manual_seed(static_cast<uint64_t>(rows * dim));
        const auto name = label(where, fmt::format("{}x{}", rows, dim));
        const int64_t period = with_delta && rows % 2 == 0 ? rows / 2 : 0;
        const auto x = made(where, {rows, dim});
        const auto delta =
            made(where, {period > 0 ? period : rows, dim}, with_delta ? 1 : 0);
        const auto weight = made_float(where, {dim});
        const auto bias = made_float(where, {dim});
        auto sum = poisoned(where, {rows, dim});
        auto y = poisoned(where, {rows, dim});
        auto mean = zeros(where, {rows});
        auto rstd = zeros(where, {rows});
        NormForward n;
        n.rows = rows;
        n.dim = dim;
        n.type = kernel_type(x);
        n.x = x.data_ptr();
        n.delta = with_delta ? delta.data_ptr() : nullptr;
        n.delta_rows = period;
        n.weight = weight.data_ptr<float>();
        n.bias = bias.data_ptr<float>();
        n.sum = sum.data_ptr();
        n.y = y.data_ptr();
        n.mean = mean.data_ptr<float>();
        n.rstd = rstd.data_ptr<float>();
        launch(x, cpu::norm_forward, cuda::norm_forward, n);

        const auto repeated = period > 0 ? delta.repeat({2, 1}) : delta;
        const auto exact_sum = precise((x + repeated)).requires_grad_(true);
        const auto exact_weight = precise(weight).requires_grad_(true);
        const auto exact_bias = precise(bias).requires_grad_(true);
        const auto exact =
            at::layer_norm(exact_sum, {dim}, exact_weight, exact_bias, 1e-6);
        expect_near(sum, exact_sum, 1e-12, name + " sum");
        expect_near(y, exact, where.band, name + " y");

        const auto dy = made(where, {rows, dim});
        const auto residual = made(where, {rows, dim});
        auto dx = poisoned(where, {rows, dim});
        auto dweight = zeros(where, {dim}) + 1;
        auto dbias = zeros(where, {dim}) + 2;
        auto dcolumns = zeros(where, {dim}) + 3;
        const auto room = scratch(where, norm_scratch(dim));
        NormBackward b;
        b.rows = rows;
        b.dim = dim;
        b.type = n.type;
        b.dy = dy.data_ptr();
        b.sum = sum.data_ptr();
        b.residual = with_delta ? residual.data_ptr() : nullptr;
        b.weight = n.weight;
        b.mean = n.mean;
        b.rstd = n.rstd;
        b.dx = dx.data_ptr();
        b.dweight = dweight.data_ptr<float>();
        b.dbias = dbias.data_ptr<float>();
        b.dcolumns = dcolumns.data_ptr<float>();
        b.scratch = room.data_ptr<float>();
        launch(x, cpu::norm_backward, cuda::norm_backward, b);
        exact.backward(precise(dy));
        auto exact_dx = exact_sum.grad();
        if (with_delta) {
          exact_dx = exact_dx + precise(residual);
        }
        const double loose = where.band * 3;
        expect_near(dx, exact_dx, loose, name + " dx");
        expect_near(dbias - 2, exact_bias.grad(), 1e-5, name + " dbias");
        expect_near(dweight - 1, exact_weight.grad(), 1e-4, name + " dweight");
        expect_near(dcolumns - 3, precise(dx).sum(0), 1e-4, name + " dcolumns");

        // In place, as a model calls it.
        auto again = dy.clone();
        b.dy = again.data_ptr();
        b.dx = again.data_ptr();
        launch(x, cpu::norm_backward, cuda::norm_backward, b);
        EXPECT_TRUE(at::equal(again, dx)) << name << " in place";
      }
    }
  }
}

TEST(Gelu, ForwardAndBackwardAreExactGelu) {
  const std::vector<std::array<int64_t, 2>> shapes = {
      {1, 1}, {3, 5}, {17, 24}, {1000, 72}, {700, 3072}};
  for (const Where& where : places()) {
    for (const auto& [rows, dim] : shapes) {
      const auto name = label(where, fmt::format("{}x{}", rows, dim));
      const auto x = made(where, {rows, dim}, 3);
      auto y = poisoned(where, {rows, dim});
      GeluForward g;
      g.count = x.numel();
      g.type = kernel_type(x);
      g.x = x.data_ptr();
      g.y = y.data_ptr();
      launch(x, cpu::gelu_forward, cuda::gelu_forward, g);
      const auto exact_x = precise(x).requires_grad_(true);
      const auto exact = at::gelu(exact_x);
      expect_near(y, exact, where.band, name + " y");
      EXPECT_LE(
          ((precise(y) - exact).abs() - exact.abs() * .004)
              .max()
              .item<double>(),
          1e-5)
          << name;

      const auto dy = made(where, {rows, dim});
      auto dx = poisoned(where, {rows, dim});
      auto dbias = zeros(where, {dim}) + 1;
      const auto room = scratch(where, column_scratch(dim));
      GeluBackward b;
      b.rows = rows;
      b.dim = dim;
      b.type = g.type;
      b.x = x.data_ptr();
      b.dy = dy.data_ptr();
      b.dx = dx.data_ptr();
      b.dbias = dbias.data_ptr<float>();
      b.scratch = room.data_ptr<float>();
      launch(x, cpu::gelu_backward, cuda::gelu_backward, b);
      exact.backward(precise(dy));
      expect_near(dx, exact_x.grad(), where.band, name + " dx");
      expect_near(dbias, precise(dx).sum(0) + 1, 1e-4, name + " dbias");

      auto columns = zeros(where, {dim}) + 2;
      ColumnSum c;
      c.rows = rows;
      c.dim = dim;
      c.type = g.type;
      c.x = x.data_ptr();
      c.out = columns.data_ptr<float>();
      c.scratch = room.data_ptr<float>();
      launch(x, cpu::column_sum, cuda::column_sum, c);
      expect_near(columns, precise(x).sum(0) + 2, 1e-4, name + " columns");
    }
  }
}

TEST(Attention, ForwardAndBackwardAreScaledDotProducts) {
  struct Shape {
    int64_t batch;
    int64_t length;
    int64_t heads;
    int64_t width;
  };
  for (const Where& where : places()) {
    for (const Shape& shape :
         {Shape{1, 1, 1, 64},
          Shape{2, 16, 2, 64},
          Shape{3, 50, 3, 64},
          Shape{2, 64, 1, 64},
          Shape{5, 33, 2, 64},
          Shape{100, 50, 12, 64},
          Shape{2, 70, 2, 16}}) {
      const auto [batch, length, heads, width] = shape;
      const bool large = batch * heads > 100;
      if (where.device.is_cuda() ? !attention_fits(length, width) : large) {
        continue;
      }
      const auto name = label(where, fmt::format("{}x{}", batch, length));
      const auto qkv = made(where, {batch, length, 3, heads, width});
      auto out = poisoned(where, {batch, length, heads, width});
      AttentionForward a;
      a.batch = batch;
      a.length = length;
      a.heads = heads;
      a.width = width;
      a.type = kernel_type(qkv);
      a.qkv = qkv.data_ptr();
      a.out = out.data_ptr();
      launch(qkv, cpu::attention_forward, cuda::attention_forward, a);
      const auto exact_qkv = precise(qkv).requires_grad_(true);
      const auto parts = exact_qkv.permute({2, 0, 3, 1, 4}).unbind(0);
      const auto exact =
          at::scaled_dot_product_attention(parts[0], parts[1], parts[2])
              .transpose(1, 2);
      expect_near(out, exact, where.band, name + " out");

      const auto dout = made(where, {batch, length, heads, width});
      auto dqkv = poisoned(where, qkv.sizes());
      auto dbias = zeros(where, {3, heads, width}) + 1;
      const auto room = scratch(where, attention_scratch(heads));
      AttentionBackward b;
      b.batch = batch;
      b.length = length;
      b.heads = heads;
      b.width = width;
      b.type = a.type;
      b.qkv = qkv.data_ptr();
      b.dout = dout.data_ptr();
      b.dqkv = dqkv.data_ptr();
      b.dbias = dbias.data_ptr<float>();
      b.scratch = room.data_ptr<float>();
      launch(qkv, cpu::attention_backward, cuda::attention_backward, b);
      exact.backward(precise(dout));
      expect_near(dqkv, exact_qkv.grad(), where.band, name + " dqkv");
      // Each part alone: a large one would hide an error in a small one.
      for (int64_t part = 0; length > 1 && part < 3; ++part) {
        expect_near(
            dqkv.select(2, part),
            exact_qkv.grad().select(2, part),
            where.band,
            fmt::format("{} part {}", name, part));
      }
      expect_near(
          dbias - 1,
          precise(dqkv).sum(at::IntArrayRef({0, 1})),
          1e-4,
          name + " dbias");
    }
  }
}

TEST(Gemm, EveryOrderBiasAndSum) {
  const std::vector<std::array<int64_t, 3>> shapes = {
      {1, 8, 8}, {5, 16, 24}, {50, 40, 72}, {129, 264, 88}};
  for (const Where& where : places()) {
    for (const auto& [m, n, k] : shapes) {
      for (const int order : {0, 1, 2, 3}) {
        const bool ta = (order & 1) != 0;
        const bool tb = (order & 2) != 0;
        const auto name =
            label(where, fmt::format("{}x{}x{} order {}", m, n, k, order));
        // The library wants rows of 16 bytes of what it reads.
        const int64_t rows = ta ? (m + 7) / 8 * 8 : m;
        const auto a = made(
            where,
            ta ? at::IntArrayRef({k, rows}) : at::IntArrayRef({rows, k}));
        const auto b =
            made(where, tb ? at::IntArrayRef({n, k}) : at::IntArrayRef({k, n}));
        const auto bias = made(where, {n});
        const auto exact = at::mm(
            ta ? precise(a).t() : precise(a), tb ? precise(b).t() : precise(b));
        Gemm g;
        g.m = rows;
        g.n = n;
        g.k = k;
        g.transpose_a = ta;
        g.transpose_b = tb;
        g.type = g.out_type = kernel_type(a);
        g.a = a.data_ptr();
        g.b = b.data_ptr();
        auto d = poisoned(where, {rows, n});
        g.d = d.data_ptr();
        launch(a, cpu::gemm, cuda::gemm, g);
        expect_near(d, exact, where.band, name);

        g.bias = bias.data_ptr();
        launch(a, cpu::gemm, cuda::gemm, g);
        expect_near(d, exact + precise(bias), where.band, name + " bias");

        g.bias = nullptr;
        auto sum = zeros(where, {rows, n}) + 1;
        g.d = sum.data_ptr();
        g.out_type = Type::kFloat32;
        g.beta = 1;
        launch(a, cpu::gemm, cuda::gemm, g);
        launch(a, cpu::gemm, cuda::gemm, g);
        expect_near(sum - 1, 2 * exact, 1e-5, name + " sum");
      }
    }
  }
}

TEST(Images, CropMirrorResizeNormaliseAndCut) {
  struct Shape {
    int64_t height;
    int64_t width;
    int64_t channels;
    int64_t size;
    int64_t patch;
    int64_t lead;
    int64_t padding;
  };
  for (const Where& where : places()) {
    for (const Shape& s :
         {Shape{32, 32, 3, 224, 32, 1, 4},
          Shape{32, 32, 3, 32, 4, 1, 0},
          Shape{28, 28, 1, 64, 64, 0, 0},
          Shape{7, 9, 3, 15, 5, 2, 2}}) {
      const auto name = label(where, fmt::format("{}->{}", s.height, s.size));
      torch::manual_seed(static_cast<uint64_t>(s.size));
      const int64_t stored = 5;
      const int64_t count = 4;
      const auto pixels =
          at::randint(256, {stored, s.height, s.width, s.channels}, at::kByte);
      const auto indices = at::tensor({3, 0, 4, 3}, at::kLong);
      auto moves = at::randint(
          2 * s.padding + 1, {count, 3}, at::TensorOptions(at::kInt));
      moves.select(1, 0).copy_(at::tensor({1, 0, 1, 0}, at::kInt));

      // The resize as a matrix, applied to the unit vectors.
      const auto axis = [&](int64_t input) {
        return at::_upsample_bilinear2d_aa(
                   at::eye(input).view({1, 1, input, input}),
                   {s.size, input},
                   false)
            .view({s.size, input});
      };
      const auto dense_rows = axis(s.height).to(where.device);
      const auto dense_columns = axis(s.width).to(where.device);
      const auto first = at::zeros(
          {s.size}, at::TensorOptions().dtype(at::kInt).device(where.device));
      const auto on = [&](const at::Tensor& t) { return t.to(where.device); };
      const auto there = on(pixels);
      const auto which = on(indices);
      const auto moved = on(moves);
      const int64_t side = s.size / s.patch;
      auto out = poisoned(
          where, {count, s.lead + side * side, s.patch * s.patch * s.channels});
      ImageBatch b;
      b.pixels = there.data_ptr<uint8_t>();
      b.indices = which.data_ptr<int64_t>();
      b.count = count;
      b.height = static_cast<int>(s.height);
      b.width = static_cast<int>(s.width);
      b.channels = static_cast<int>(s.channels);
      b.size = static_cast<int>(s.size);
      b.patch = static_cast<int>(s.patch);
      b.lead = static_cast<int>(s.lead);
      b.rows = {b.height, first.data_ptr<int>(), dense_rows.data_ptr<float>()};
      b.columns = {
          b.width, first.data_ptr<int>(), dense_columns.data_ptr<float>()};
      b.moves = moved.data_ptr<int32_t>();
      b.padding = static_cast<int>(s.padding);
      for (int c = 0; c < 3; ++c) {
        b.scale[c] = .01F * static_cast<float>(c + 1);
        b.shift[c] = -.5F * static_cast<float>(c + 1);
      }
      b.type = kernel_type(out);
      b.out = out.data_ptr();
      launch(out, cpu::prepare_images, cuda::prepare_images, b);

      auto reference = at::zeros(out.sizes(), at::kDouble);
      for (int64_t i = 0; i < count; ++i) {
        const auto* m = moves.data_ptr<int32_t>() + 3 * i;
        auto image = pixels[indices[i].item<int64_t>()].permute({2, 0, 1}).to(
            at::kDouble);
        image = at::constant_pad_nd(
                    image, {s.padding, s.padding, s.padding, s.padding})
                    .slice(1, m[1], m[1] + s.height)
                    .slice(2, m[2], m[2] + s.width);
        if (m[0] != 0) {
          image = image.flip(2);
        }
        image = at::_upsample_bilinear2d_aa(
            image.unsqueeze(0), {s.size, s.size}, false)[0];
        const auto numbers =
            at::arange(1, s.channels + 1, at::kDouble).view({-1, 1, 1});
        image = image * numbers * .01 - numbers * .5;
        reference[i].slice(0, s.lead).copy_(
            image.view({s.channels, side, s.patch, side, s.patch})
                .permute({1, 3, 2, 4, 0})
                .reshape({side * side, -1}));
      }
      expect_near(out, reference, where.band, name);
    }
  }
}

TEST(Cast, ManyTensorsAreRoundedToNearest) {
  for (const Where& where : places()) {
    std::vector<at::Tensor> from;
    std::vector<at::Tensor> to;
    std::vector<CastItem> items;
    for (const int64_t count : {1, 3, 8, 1000, 100003}) {
      from.push_back(made_float(where, {count}) * 1e3);
      to.push_back(
          at::zeros(
              {count},
              at::TensorOptions().device(where.device).dtype(at::kBFloat16)));
      items.push_back(
          {from.back().data_ptr<float>(),
           static_cast<uint16_t*>(to.back().data_ptr()),
           count});
    }
    auto table = at::empty(
        {static_cast<int64_t>(items.size() * sizeof(CastItem))}, at::kByte);
    std::memcpy(
        table.data_ptr(), items.data(), items.size() * sizeof(CastItem));
    table = table.to(where.device);
    CastMany c;
    c.items = static_cast<const CastItem*>(table.data_ptr());
    c.num_items = static_cast<int64_t>(items.size());
    c.largest = 100003;
    launch(from[0], cpu::cast_many, cuda::cast_many, c);
    for (size_t i = 0; i < from.size(); ++i) {
      EXPECT_TRUE(at::equal(to[i], from[i].to(at::kBFloat16))) << where.name;
    }
  }
}

TEST(Adam, IsLibTorchsFusedAdamAndAdamW) {
  for (const Where& where : places()) {
    if (where.type == at::kBFloat16 && where.device.is_cpu()) {
      continue;  // parameters are fp32 in any case
    }
    for (const bool coupled : {false, true}) {
      std::vector<at::Tensor> ours[4];
      std::vector<at::Tensor> theirs[4];
      std::vector<at::Tensor> copies;
      for (const int64_t count : {5, 4096, 70001}) {
        for (int i = 0; i < 4; ++i) {
          auto value = made_float(where, {count});
          value = i == 3 ? value.abs() : value;
          ours[i].push_back(value);
          theirs[i].push_back(precise(value).to(at::kFloat));
        }
        copies.push_back(made_float(where, {count}).to(at::kBFloat16));
      }
      std::vector<AdamItem> items;
      for (size_t t = 0; t < 3; ++t) {
        items.push_back(
            {ours[0][t].data_ptr<float>(),
             ours[1][t].data_ptr<float>(),
             ours[2][t].data_ptr<float>(),
             ours[3][t].data_ptr<float>(),
             static_cast<uint16_t*>(copies[t].data_ptr()),
             ours[0][t].numel(),
             .05F});
      }
      auto table = at::empty(
          {static_cast<int64_t>(items.size() * sizeof(AdamItem))}, at::kByte);
      std::memcpy(
          table.data_ptr(), items.data(), items.size() * sizeof(AdamItem));
      table = table.to(where.device);
      const auto scalar = [&](double value) {
        return at::full({1}, value, at::TensorOptions().device(where.device));
      };
      const auto lr = scalar(.01);
      const auto step = scalar(3);
      const auto factor = scalar(.5);
      Adam a;
      a.items = static_cast<const AdamItem*>(table.data_ptr());
      a.num_items = 3;
      a.largest = 70001;
      a.coupled = coupled;
      a.lr = lr.data_ptr<float>();
      a.step = step.data_ptr<float>();
      a.gradient_scale = factor.data_ptr<float>();
      launch(lr, cpu::adam, cuda::adam, a);

      for (auto& gradient : theirs[1]) {
        gradient.mul_(.5);
      }
      const std::vector<at::Tensor> steps(3, at::full({}, 3.F));
      const auto fused = [&](auto function) {
        function(
            theirs[0],
            theirs[1],
            theirs[2],
            theirs[3],
            at::TensorList(),
            steps,
            .01,
            .9,
            .999,
            .05,
            1e-8,
            false,
            false);
      };
      if (coupled) {
        fused([](auto&&... words) { at::_fused_adam_(words...); });
      } else {
        fused([](auto&&... words) { at::_fused_adamw_(words...); });
      }
      for (size_t t = 0; t < 3; ++t) {
        for (const int i : {0, 2, 3}) {
          expect_near(
              ours[i][t],
              theirs[i][t],
              2e-6,
              label(where, fmt::format("tensor {} of {}", t, i)));
        }
        EXPECT_TRUE(at::equal(copies[t], ours[0][t].to(at::kBFloat16)));
      }
    }
  }
}

TEST(CrossEntropyKernel, LossGradientAndHits) {
  for (const Where& where : places()) {
    for (const auto& [rows, classes] : std::vector<std::array<int64_t, 2>>{
             {1, 2}, {5, 10}, {300, 10}, {17, 1000}}) {
      for (const double smoothing : {0., .1}) {
        const auto name = label(where, fmt::format("{}x{}", rows, classes));
        const auto logits = made(where, {rows, classes}, 3);
        const auto labels = at::randint(classes, {rows}, at::kLong);
        const auto there = labels.to(where.device);
        auto gradient = poisoned(where, {rows, classes});
        auto loss = zeros(where, {rows});
        auto hit = zeros(where, {rows}) + 7;
        CrossEntropy c;
        c.rows = rows;
        c.classes = classes;
        c.type = kernel_type(logits);
        c.logits = logits.data_ptr();
        c.labels = there.data_ptr<int64_t>();
        c.smoothing = static_cast<float>(smoothing);
        c.weight = 2;
        c.gradient = gradient.data_ptr();
        c.loss = loss.data_ptr<float>();
        c.hit = hit.data_ptr<float>();
        launch(logits, cpu::cross_entropy, cuda::cross_entropy, c);
        const auto exact_logits = precise(logits).requires_grad_(true);
        const auto exact = at::cross_entropy_loss(
            exact_logits, labels, {}, at::Reduction::Mean, -100, smoothing);
        // A difference of numbers as large as the logits: so is its rounding.
        EXPECT_NEAR(
            loss.mean().item<double>(),
            exact.item<double>(),
            5e-6 * precise(logits).abs().max().item<double>())
            << name;
        (exact * 2).backward();
        expect_near(
            gradient, exact_logits.grad(), where.band, name + " gradient");
        EXPECT_EQ(
            hit.sum().item<float>(),
            (precise(logits).argmax(1) == labels).sum().item<float>())
            << name;
      }
    }
  }
}

TEST(Shapes, ThatAKernelDoesNotTakeAreRefused) {
  ImageBatch b;
  b.size = 10;
  b.patch = 3;
  EXPECT_THROW(cpu::prepare_images(b), std::invalid_argument);
  EXPECT_THROW(cuda::prepare_images(b, nullptr), std::exception);
  AttentionForward a;
  a.length = 65;
  a.batch = 1;
  EXPECT_THROW(cuda::attention_forward(a, nullptr), std::exception);
  NormForward n;
  n.type = Type::kFloat32;
  n.rows = 1;
  EXPECT_THROW(cuda::norm_forward(n, nullptr), std::exception);
}

// Values of few kinds, so that windows hold the largest more than once.
TEST(MaxPool, ForwardAndBackwardAreMaxPool2d) {
  struct Case {
    int64_t images, channels, height, width, window, stride, padding;
  };
  const std::vector<Case> cases = {
      {2, 64, 9, 12, 3, 2, 1},
      {1, 8, 7, 7, 3, 2, 0},
      {3, 16, 8, 6, 2, 2, 0},
      {2, 8, 5, 5, 3, 1, 1},
      {1, 24, 1, 3, 3, 2, 1},
      {1, 8, 16, 16, 5, 3, 2}};
  for (const Where& where : places()) {
    for (const auto& c : cases) {
      const auto name = label(where, fmt::format("window {}", c.window));
      torch::manual_seed(static_cast<uint64_t>(c.channels + c.height));
      const auto x =
          at::randint(-3, 4, {c.images, c.height, c.width, c.channels})
              .to(where.device, where.type);
      MaxPoolForward m;
      static_cast<MaxPoolShape&>(m) = {
          c.images,
          c.channels,
          c.height,
          c.width,
          c.window,
          c.stride,
          c.padding,
          kernel_type(x)};
      const int64_t height = m.pooled(c.height);
      const int64_t width = m.pooled(c.width);
      auto y = poisoned(where, {c.images, height, width, c.channels});
      const auto winners = at::empty_like(y, y.options().dtype(at::kByte));
      m.x = x.data_ptr();
      m.y = y.data_ptr();
      m.winners = winners.data_ptr<uint8_t>();
      launch(x, cpu::max_pool_forward, cuda::max_pool_forward, m);

      const auto exact_x =
          precise(x).permute({0, 3, 1, 2}).contiguous().requires_grad_(true);
      const auto exact = at::max_pool2d(
          exact_x,
          {c.window, c.window},
          {c.stride, c.stride},
          {c.padding, c.padding});
      EXPECT_TRUE(at::equal(precise(y).permute({0, 3, 1, 2}), exact)) << name;

      const auto dy = made(where, y.sizes());
      auto dx = poisoned(where, x.sizes());
      MaxPoolBackward b;
      static_cast<MaxPoolShape&>(b) = m;
      b.dy = dy.data_ptr();
      b.winners = m.winners;
      b.dx = dx.data_ptr();
      launch(x, cpu::max_pool_backward, cuda::max_pool_backward, b);
      exact.backward(precise(dy).permute({0, 3, 1, 2}));
      expect_near(
          precise(dx).permute({0, 3, 1, 2}),
          exact_x.grad(),
          where.band,
          name + " dx");
    }
  }
}

}  // namespace
}  // namespace lockstep::kernels
