#include "lockstep/models/small_conv.h"

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <algorithm>
#include <vector>

#include "lockstep/models/sink.h"

namespace lockstep::models {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr auto kLast = at::MemoryFormat::ChannelsLast;
// Beyond these the weights are read too often, or the products are too narrow.
constexpr int64_t kMostPixels = 4;
constexpr int64_t kFewestChannels = 64;

int64_t out_side(int64_t side, int64_t kernel, int64_t stride) {
  return (side + 2 * (kernel / 2) - kernel) / stride + 1;
}

struct Geometry {
  Geometry(const at::Tensor& x, const at::Tensor& weight, int64_t step)
      : images(x.size(0)),
        in(x.size(1)),
        height(x.size(2)),
        width(x.size(3)),
        out(weight.size(0)),
        kernel(weight.size(2)),
        stride(step),
        padding(kernel / 2),
        out_height(out_side(height, kernel, stride)),
        out_width(out_side(width, kernel, stride)) {
    if (kernel == 1 && stride == 1) {  // every pixel is an image of its own
      images *= height * width;
      height = width = out_height = out_width = 1;
    }
  }

  int64_t images;
  int64_t in;
  int64_t height;
  int64_t width;
  int64_t out;
  int64_t kernel;
  int64_t stride;
  int64_t padding;
  int64_t out_height;
  int64_t out_width;
};

// One row of the kernel over one pixel of the output: what of the row lies
// within the image, and the pixels it meets there.
struct Meeting {
  int64_t to = 0;     // pixel of the output
  bool first = true;  // of this pixel's
  int64_t from = 0;   // first pixel of the input
  int64_t row = 0;    // of the kernel
  int64_t column = 0;
  int64_t count = 0;
};

std::vector<Meeting> meetings(const Geometry& g) {
  std::vector<Meeting> all;
  for (int64_t y = 0; y < g.out_height; ++y) {
    for (int64_t x = 0; x < g.out_width; ++x) {
      const int64_t top = y * g.stride - g.padding;
      const int64_t left = x * g.stride - g.padding;
      Meeting m;
      m.to = y * g.out_width + x;
      m.column = std::max<int64_t>(0, -left);
      m.count = std::min(g.kernel, g.width - left) - m.column;
      for (m.row = 0; m.row < g.kernel; ++m.row) {
        if (top + m.row >= 0 && top + m.row < g.height) {
          m.from = (top + m.row) * g.width + left + m.column;
          all.push_back(m);
          m.first = false;
        }
      }
    }
  }
  return all;
}

// A map in channels_last as [images, pixels x channels].
at::Tensor as_rows(const at::Tensor& map, const Geometry& g) {
  return map.permute({0, 2, 3, 1}).view({g.images, -1});
}

// The parts of the three matrices that a meeting is about: views.
struct Parts {
  Parts(
      const Geometry& g,
      const at::Tensor& input,
      const at::Tensor& weight,
      const at::Tensor& output)
      : g_(g),
        input_(as_rows(input, g)),
        weight_(weight.permute({0, 2, 3, 1})
                    .view({g.out, g.kernel, g.kernel * g.in})),
        output_(as_rows(output, g)) {}

  at::Tensor input(const Meeting& m) const {
    return input_.narrow(1, m.from * g_.in, m.count * g_.in);
  }
  at::Tensor weight(const Meeting& m) const {
    return weight_.select(1, m.row).narrow(
        1, m.column * g_.in, m.count * g_.in);
  }
  at::Tensor output(const Meeting& m) const {
    return output_.narrow(1, m.to * g_.out, g_.out);
  }

 private:
  Geometry g_;
  at::Tensor input_;
  at::Tensor weight_;
  at::Tensor output_;
};

class SmallConv : public torch::autograd::Function<SmallConv> {
 public:
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& x,
      const at::Tensor& weight,
      int64_t stride) {
    context->save_for_backward({x, weight});
    context->saved_data["stride"] = stride;
    const Geometry g(x, weight, stride);
    auto y = at::empty(
        {x.size(0),
         g.out,
         out_side(x.size(2), g.kernel, stride),
         out_side(x.size(3), g.kernel, stride)},
        x.options(),
        kLast);
    const Parts parts(g, x, weight, y);
    for (const auto& m : meetings(g)) {
      parts.output(m).addmm_(
          parts.input(m), parts.weight(m).t(), /*beta=*/m.first ? 0 : 1);
    }
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list given) {
    const auto saved = context->get_saved_variables();
    const auto& x = saved[0];
    const auto& weight = saved[1];
    const Geometry g(x, weight, context->saved_data["stride"].toInt());
    const auto dy = given[0].contiguous(kLast);
    const auto all = meetings(g);
    at::Tensor dx;
    if (context->needs_input_grad(0)) {
      // Pixels that no kernel meets keep their 0.
      dx = at::zeros_like(x);
      const Parts parts(g, dx, weight, dy);
      for (const auto& m : all) {
        parts.input(m).addmm_(parts.output(m), parts.weight(m));
      }
    }
    at::Tensor dweight;
    if (context->needs_input_grad(1)) {
      const Sink sink(weight, weight.scalar_type());
      const Parts parts(g, x, sink.sum(), dy);
      for (const auto& m : all) {
        parts.weight(m).addmm_(parts.output(m).t(), parts.input(m));
      }
      dweight = sink.result();
    }
    return {dx, dweight, {}};
  }
};

}  // namespace

bool takes_products(
    const at::Tensor& x,
    const at::Tensor& weight,
    int64_t stride) {
  const auto type = x.scalar_type();
  if (!x.is_cpu() || at::autocast::is_autocast_enabled(at::kCPU) ||
      (type != at::kFloat && type != at::kDouble) ||
      weight.scalar_type() != type || !x.is_contiguous(kLast) ||
      !weight.is_contiguous(kLast) || weight.size(2) != weight.size(3)) {
    return false;
  }
  const int64_t kernel = weight.size(2);
  return x.size(1) >= kFewestChannels &&
         out_side(x.size(2), kernel, stride) *
                 out_side(x.size(3), kernel, stride) <=
             kMostPixels;
}

at::Tensor
small_conv(const at::Tensor& x, const at::Tensor& weight, int64_t stride) {
  if (takes_products(x, weight, stride)) {
    return SmallConv::apply(x, weight, stride);
  }
  const int64_t padding = weight.size(2) / 2;
  return at::conv2d(x, weight, {}, {stride, stride}, {padding, padding});
}

}  // namespace lockstep::models
