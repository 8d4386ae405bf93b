#include "lockstep/models/fused.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <cstring>
#include <stdexcept>

#include "lockstep/kernels/attention.h"
#include "lockstep/kernels/cast.h"
#include "lockstep/kernels/cross_entropy.h"
#include "lockstep/kernels/gelu.h"
#include "lockstep/kernels/gemm.h"
#include "lockstep/kernels/layer_norm.h"
#include "lockstep/models/launch.h"
#include "lockstep/models/sink.h"

namespace lockstep::models {
namespace {

namespace k = kernels;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

enum Parameter : size_t {
  kNorm1Weight,
  kNorm1Bias,
  kQkvWeight,
  kQkvBias,
  kProjWeight,
  kProjBias,
  kNorm2Weight,
  kNorm2Bias,
  kFc1Weight,
  kFc1Bias,
  kFc2Weight,
  kFc2Bias
};

at::Tensor floats(const at::Tensor& like, int64_t count) {
  return at::empty({count}, like.options().dtype(at::kFloat));
}

float* data_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.numel() > 0 ? tensor.data_ptr<float>()
                                                : nullptr;
}

// Of a norm's parameter: kernels take fp32; sharded ones are bf16.
at::Tensor as_floats(const at::Tensor& parameter) {
  return parameter.detach().to(at::kFloat);
}

// [m, k] x [n, k]^T + bias.
at::Tensor
product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const int64_t out = weight.size(0);
  auto y = at::empty({x.size(0), out}, x.options());
  k::Gemm g;
  g.m = x.size(0);
  g.n = out;
  g.k = x.size(1);
  g.transpose_b = true;
  g.type = g.out_type = kernel_type(x);
  g.a = x.data_ptr();
  g.b = weight.data_ptr();
  g.bias = bias.defined() ? bias.data_ptr() : nullptr;
  g.d = y.data_ptr();
  launch(x, k::cpu::gemm, k::cuda::gemm, g);
  return y;
}

// The gradient of a linear layer's input: [m, n] x [n, k].
at::Tensor product_backward(const at::Tensor& dy, const at::Tensor& weight) {
  const int64_t in = weight.numel() / weight.size(0);
  auto dx = at::empty({dy.size(0), in}, dy.options());
  k::Gemm g;
  g.m = dy.size(0);
  g.n = in;
  g.k = dy.size(1);
  g.type = g.out_type = kernel_type(dy);
  g.a = dy.data_ptr();
  g.b = weight.data_ptr();
  g.d = dx.data_ptr();
  launch(dy, k::cpu::gemm, k::cuda::gemm, g);
  return dx;
}

// Adds the gradient of the weight, dy^T x.
void add_weight_gradient(
    const Sink& sink,
    const at::Tensor& dy,
    const at::Tensor& x) {
  k::Gemm g;
  g.m = dy.size(1);
  g.n = x.size(1);
  g.k = dy.size(0);
  g.transpose_a = true;
  g.type = kernel_type(dy);
  g.out_type = k::Type::kFloat32;
  g.a = dy.data_ptr();
  g.b = x.data_ptr();
  g.d = sink.data();
  g.beta = 1;
  launch(dy, k::cpu::gemm, k::cuda::gemm, g);
}

void add_columns(const Sink& sink, const at::Tensor& x) {
  const auto scratch =
      floats(x, static_cast<int64_t>(k::column_scratch(x.size(1))));
  k::ColumnSum c;
  c.rows = x.size(0);
  c.dim = x.size(1);
  c.type = kernel_type(x);
  c.x = x.data_ptr();
  c.out = sink.data();
  c.scratch = data_of(scratch);
  launch(x, k::cpu::column_sum, k::cuda::column_sum, c);
}

struct Normed {
  at::Tensor sum;
  at::Tensor y;
  at::Tensor mean;
  at::Tensor rstd;
};

Normed norm(
    const at::Tensor& x,
    const at::Tensor& delta,
    const at::Tensor& weight,
    const at::Tensor& bias,
    double eps) {
  Normed result;
  result.sum = delta.defined() ? at::empty_like(x) : x;
  result.y = at::empty_like(x);
  result.mean = floats(x, x.size(0));
  result.rstd = floats(x, x.size(0));
  const auto scale = as_floats(weight);
  const auto shift = as_floats(bias);
  k::NormForward n;
  n.rows = x.size(0);
  n.dim = x.size(1);
  n.eps = static_cast<float>(eps);
  n.type = kernel_type(x);
  n.x = x.data_ptr();
  n.delta = delta.defined() ? delta.data_ptr() : nullptr;
  n.weight = scale.data_ptr<float>();
  n.bias = shift.data_ptr<float>();
  n.sum = delta.defined() ? result.sum.data_ptr() : nullptr;
  n.y = result.y.data_ptr();
  n.mean = data_of(result.mean);
  n.rstd = data_of(result.rstd);
  launch(x, k::cpu::norm_forward, k::cuda::norm_forward, n);
  return result;
}

// dy is overwritten by what is returned.
at::Tensor norm_backward(
    const at::Tensor& dy,
    const Normed& normed,
    const at::Tensor& weight,
    const at::Tensor& residual,
    const Sink& dweight,
    const Sink& dbias,
    const Sink* dcolumns) {
  const auto scratch =
      floats(dy, static_cast<int64_t>(k::norm_scratch(dy.size(1))));
  const auto scale = as_floats(weight);
  k::NormBackward n;
  n.rows = dy.size(0);
  n.dim = dy.size(1);
  n.type = kernel_type(dy);
  n.dy = dy.data_ptr();
  n.sum = normed.sum.data_ptr();
  n.residual = residual.defined() ? residual.data_ptr() : nullptr;
  n.weight = scale.data_ptr<float>();
  n.mean = data_of(normed.mean);
  n.rstd = data_of(normed.rstd);
  n.dx = dy.data_ptr();
  n.dweight = dweight.data();
  n.dbias = dbias.data();
  n.dcolumns = dcolumns != nullptr ? dcolumns->data() : nullptr;
  n.scratch = data_of(scratch);
  launch(dy, k::cpu::norm_backward, k::cuda::norm_backward, n);
  return dy;
}

at::Tensor activated(const at::Tensor& x) {
  auto y = at::empty_like(x);
  k::GeluForward g;
  g.count = x.numel();
  g.type = kernel_type(x);
  g.x = x.data_ptr();
  g.y = y.data_ptr();
  launch(x, k::cpu::gelu_forward, k::cuda::gelu_forward, g);
  return y;
}

// dy is overwritten.
void gelu_backward(
    const at::Tensor& x,
    const at::Tensor& dy,
    const Sink& dbias) {
  const auto scratch =
      floats(x, static_cast<int64_t>(k::column_scratch(x.size(1))));
  k::GeluBackward g;
  g.rows = x.size(0);
  g.dim = x.size(1);
  g.type = kernel_type(x);
  g.x = x.data_ptr();
  g.dy = dy.data_ptr();
  g.dx = dy.data_ptr();
  g.dbias = dbias.data();
  g.scratch = data_of(scratch);
  launch(x, k::cpu::gelu_backward, k::cuda::gelu_backward, g);
}

at::Tensor attention(const at::Tensor& qkv, const BlockShape& shape) {
  const int64_t dim = qkv.size(1) / 3;
  auto out = at::empty({qkv.size(0), dim}, qkv.options());
  k::AttentionForward a;
  a.batch = shape.batch;
  a.length = shape.length;
  a.heads = shape.heads;
  a.width = dim / shape.heads;
  a.type = kernel_type(qkv);
  a.qkv = qkv.data_ptr();
  a.out = out.data_ptr();
  launch(qkv, k::cpu::attention_forward, k::cuda::attention_forward, a);
  return out;
}

at::Tensor attention_backward(
    const at::Tensor& qkv,
    const at::Tensor& dout,
    const BlockShape& shape,
    const Sink& dbias) {
  auto dqkv = at::empty_like(qkv);
  const auto scratch =
      floats(qkv, static_cast<int64_t>(k::attention_scratch(shape.heads)));
  k::AttentionBackward a;
  a.batch = shape.batch;
  a.length = shape.length;
  a.heads = shape.heads;
  a.width = qkv.size(1) / 3 / shape.heads;
  a.type = kernel_type(qkv);
  a.qkv = qkv.data_ptr();
  a.dout = dout.data_ptr();
  a.dqkv = dqkv.data_ptr();
  a.dbias = dbias.data();
  a.scratch = data_of(scratch);
  launch(qkv, k::cpu::attention_backward, k::cuda::attention_backward, a);
  return dqkv;
}

// The first of each sample's rows.
at::Tensor first_rows(const at::Tensor& rows, const BlockShape& shape) {
  return rows.view({shape.batch, shape.length, -1}).select(1, 0).contiguous();
}

// And back: zeros elsewhere.
at::Tensor as_first_rows(const at::Tensor& rows, const BlockShape& shape) {
  auto all =
      at::zeros({shape.batch, shape.length, rows.size(1)}, rows.options());
  all.select(1, 0).copy_(rows);
  return all.view({shape.batch * shape.length, rows.size(1)});
}

// A block between its ways: what Keep leaves undefined is made again.
struct Kept : torch::CustomClassHolder {
  BlockShape shape;
  bool has_delta = false;
  BlockParameters parameters;
  BlockParameters copies;
  Normed first;
  at::Tensor qkv;
  at::Tensor attended;
  at::Tensor projected_from;  // attended, or its first rows
  Normed second;
  at::Tensor hidden;
  at::Tensor active;

  void release() {
    first = second = Normed();
    qkv = attended = projected_from = hidden = active = at::Tensor();
    parameters = copies = BlockParameters();
  }
};

void do_qkv(Kept& kept) {
  kept.qkv =
      product(kept.first.y, kept.copies[kQkvWeight], kept.copies[kQkvBias]);
}

// The first norm's result again, from the sum that it kept.
void do_first_again(Kept& kept) {
  kept.first.y = norm(
                     kept.first.sum,
                     at::Tensor(),
                     kept.parameters[kNorm1Weight],
                     kept.parameters[kNorm1Bias],
                     kept.shape.eps)
                     .y;
}

void do_attention(Kept& kept) {
  kept.attended = attention(kept.qkv, kept.shape);
  kept.projected_from = kept.shape.first_only
                            ? first_rows(kept.attended, kept.shape)
                            : kept.attended;
}

void do_second_norm(Kept& kept) {
  const auto& copies = kept.copies;
  const auto delta =
      product(kept.projected_from, copies[kProjWeight], copies[kProjBias]);
  const auto x = kept.shape.first_only ? first_rows(kept.first.sum, kept.shape)
                                       : kept.first.sum;
  kept.second = norm(
      x,
      delta,
      kept.parameters[kNorm2Weight],
      kept.parameters[kNorm2Bias],
      kept.shape.eps);
}

void do_hidden(Kept& kept) {
  kept.hidden =
      product(kept.second.y, kept.copies[kFc1Weight], kept.copies[kFc1Bias]);
}

class Block : public torch::autograd::Function<Block> {
 public:
  static variable_list forward(
      AutogradContext* context,
      const at::Tensor& x,
      const std::optional<at::Tensor>& delta,
      const at::Tensor& norm1_weight,
      const at::Tensor& norm1_bias,
      const at::Tensor& qkv_weight,
      const at::Tensor& qkv_bias,
      const at::Tensor& proj_weight,
      const at::Tensor& proj_bias,
      const at::Tensor& norm2_weight,
      const at::Tensor& norm2_bias,
      const at::Tensor& fc1_weight,
      const at::Tensor& fc1_bias,
      const at::Tensor& fc2_weight,
      const at::Tensor& fc2_bias,
      const BlockParameters* copies,
      const BlockShape* shape) {
    auto kept = c10::make_intrusive<Kept>();
    kept->shape = *shape;
    kept->has_delta = delta.has_value() && delta->defined();
    kept->parameters = {
        norm1_weight,
        norm1_bias,
        qkv_weight,
        qkv_bias,
        proj_weight,
        proj_bias,
        norm2_weight,
        norm2_bias,
        fc1_weight,
        fc1_bias,
        fc2_weight,
        fc2_bias};
    kept->copies = *copies;
    kept->first = norm(
        x, delta.value_or(at::Tensor()), norm1_weight, norm1_bias, shape->eps);
    if (!kept->has_delta) {
      kept->first.sum = x.detach();
    }
    do_qkv(*kept);
    do_attention(*kept);
    do_second_norm(*kept);
    do_hidden(*kept);
    kept->active = activated(kept->hidden);
    const auto out =
        product(kept->active, (*copies)[kFc2Weight], (*copies)[kFc2Bias]);
    const auto sum = kept->second.sum;
    // The output must not be held by its own node.
    kept->second.sum = sum.detach();
    if (shape->keep != Keep::kAll) {
      kept->first.y.reset();
      kept->second = Normed();
      kept->attended.reset();
      kept->projected_from.reset();
      kept->active.reset();
    }
    if (shape->keep == Keep::kLeast) {
      kept->qkv.reset();
      kept->hidden.reset();
    }
    context->saved_data["kept"] = c10::IValue::make_capsule(kept);
    return {sum, out};
  }

  static variable_list backward(
      AutogradContext* context,
      variable_list gradients) {
    const auto capsule = context->saved_data["kept"].toCapsule();
    Kept& kept = static_cast<Kept&>(*capsule);
    if (!kept.first.sum.defined()) {
      throw std::runtime_error("a fused block goes back once");
    }
    const auto& parameters = kept.parameters;
    const auto& copies = kept.copies;
    const BlockShape& shape = kept.shape;
    std::vector<Sink> sinks;
    for (const auto& parameter : parameters) {
      sinks.emplace_back(parameter);
    }
    if (!kept.qkv.defined()) {
      do_first_again(kept);
      do_qkv(kept);
    }
    if (!kept.projected_from.defined()) {
      do_attention(kept);
      do_second_norm(kept);
    }
    if (!kept.hidden.defined()) {
      do_hidden(kept);
    }
    if (!kept.active.defined()) {
      kept.active = activated(kept.hidden);
    }
    const auto past = gradients[0].contiguous();
    auto slope = gradients[1].contiguous();
    add_weight_gradient(sinks[kFc2Weight], slope, kept.active);
    add_columns(sinks[kFc2Bias], slope);
    kept.active.reset();
    slope = product_backward(slope, copies[kFc2Weight]);
    gelu_backward(kept.hidden, slope, sinks[kFc1Bias]);
    kept.hidden.reset();
    add_weight_gradient(sinks[kFc1Weight], slope, kept.second.y);
    slope = product_backward(slope, copies[kFc1Weight]);
    kept.second.y.reset();
    auto middle = norm_backward(
        slope,
        kept.second,
        parameters[kNorm2Weight],
        past,
        sinks[kNorm2Weight],
        sinks[kNorm2Bias],
        &sinks[kProjBias]);
    kept.second = Normed();
    add_weight_gradient(sinks[kProjWeight], middle, kept.projected_from);
    kept.attended = kept.projected_from = at::Tensor();
    slope = product_backward(middle, copies[kProjWeight]);
    if (shape.first_only) {
      slope = as_first_rows(slope, shape);
      middle = as_first_rows(middle, shape);
    }
    slope = attention_backward(kept.qkv, slope, shape, sinks[kQkvBias]);
    kept.qkv.reset();
    if (!kept.first.y.defined()) {
      do_first_again(kept);
    }
    add_weight_gradient(sinks[kQkvWeight], slope, kept.first.y);
    kept.first.y.reset();
    slope = product_backward(slope, copies[kQkvWeight]);
    slope = norm_backward(
        slope,
        kept.first,
        parameters[kNorm1Weight],
        middle,
        sinks[kNorm1Weight],
        sinks[kNorm1Bias],
        nullptr);
    variable_list results = {slope, kept.has_delta ? slope : at::Tensor()};
    for (const auto& sink : sinks) {
      results.push_back(sink.result());
    }
    results.emplace_back();
    results.emplace_back();
    kept.release();
    return results;
  }
};

// A weight's memory as [out, rest].
at::Tensor as_matrix(const at::Tensor& weight) {
  return weight.dim() == 4
             ? weight.permute({0, 2, 3, 1}).reshape({weight.size(0), -1})
             : weight;
}

class Projection : public torch::autograd::Function<Projection> {
 public:
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& x,
      const at::Tensor& weight,
      const at::Tensor* copy) {
    context->save_for_backward({x});
    context->saved_data["weight"] = weight;
    return product(x, as_matrix(*copy), at::Tensor());
  }

  static variable_list backward(
      AutogradContext* context,
      variable_list gradients) {
    const auto x = context->get_saved_variables()[0];
    const Sink sink(context->saved_data["weight"].toTensor());
    add_weight_gradient(sink, gradients[0].contiguous(), x);
    return {at::Tensor(), sink.result(), at::Tensor()};
  }
};

class CrossEntropy : public torch::autograd::Function<CrossEntropy> {
 public:
  static variable_list forward(
      AutogradContext* context,
      const at::Tensor& logits,
      const at::Tensor& labels,
      double smoothing) {
    const auto rows = logits.contiguous();
    auto gradient = at::empty_like(rows);
    const auto losses = floats(rows, rows.size(0));
    auto hits = floats(rows, rows.size(0));
    k::CrossEntropy c;
    c.rows = rows.size(0);
    c.classes = rows.size(1);
    c.type = kernel_type(rows);
    c.logits = rows.data_ptr();
    c.labels = labels.data_ptr<int64_t>();
    c.smoothing = static_cast<float>(smoothing);
    c.gradient = gradient.data_ptr();
    c.loss = data_of(losses);
    c.hit = data_of(hits);
    launch(rows, k::cpu::cross_entropy, k::cuda::cross_entropy, c);
    context->save_for_backward({gradient});
    context->mark_non_differentiable({hits});
    return {losses.mean(), hits};
  }

  static variable_list backward(
      AutogradContext* context,
      variable_list gradients) {
    const auto gradient = context->get_saved_variables()[0];
    return {
        gradient * gradients[0].to(gradient.scalar_type()),
        at::Tensor(),
        at::Tensor()};
  }
};

}  // namespace

kernels::Type kernel_type(const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kBFloat16) {
    return k::Type::kBFloat16;
  }
  if (tensor.scalar_type() != at::kFloat) {
    throw std::invalid_argument(
        std::string("kernels take fp32 and bf16, not ") +
        c10::toString(tensor.scalar_type()));
  }
  return k::Type::kFloat32;
}

const std::vector<at::Tensor>& Copies::refresh(
    const std::vector<at::Tensor>& parameters,
    at::ScalarType type) {
  torch::NoGradGuard no_grad;
  std::vector<const void*> sources;
  for (const auto& parameter : parameters) {
    sources.push_back(parameter.data_ptr());
  }
  if (sources != sources_ || copies_.empty() ||
      copies_.front().scalar_type() != type) {
    sources_ = sources;
    copies_.clear();
    std::vector<k::CastItem> items;
    largest_ = 0;
    for (const auto& parameter : parameters) {
      if (parameter.scalar_type() == type) {
        copies_.push_back(parameter.detach());
        continue;
      }
      copies_.push_back(
          at::empty_like(parameter.detach(), parameter.options().dtype(type)));
      items.push_back(
          {parameter.data_ptr<float>(),
           reinterpret_cast<uint16_t*>(copies_.back().data_ptr()),
           parameter.numel()});
      largest_ = std::max(largest_, parameter.numel());
    }
    num_cast_ = static_cast<int64_t>(items.size());
    if (num_cast_ > 0) {
      const size_t bytes = items.size() * sizeof(k::CastItem);
      auto table = at::empty({static_cast<int64_t>(bytes)}, at::kByte);
      std::memcpy(table.data_ptr(), items.data(), bytes);
      table_ = table.to(parameters.front().device());
    }
  }
  if (num_cast_ == 0) {
    return copies_;  // in fp32 all are what they are
  }
  k::CastMany c;
  c.items = static_cast<const k::CastItem*>(table_.data_ptr());
  c.num_items = num_cast_;
  c.largest = largest_;
  launch(parameters.front(), k::cpu::cast_many, k::cuda::cast_many, c);
  return copies_;
}

Residual fused_block(
    const Residual& tokens,
    const BlockParameters& p,
    const BlockParameters& copies,
    const BlockShape& shape) {
  const auto delta = tokens.delta.defined()
                         ? std::optional<at::Tensor>(tokens.delta)
                         : std::nullopt;
  const auto results = Block::apply(
      tokens.x,
      delta,
      p[0],
      p[1],
      p[2],
      p[3],
      p[4],
      p[5],
      p[6],
      p[7],
      p[8],
      p[9],
      p[10],
      p[11],
      &copies,
      &shape);
  return {results[0], results[1]};
}

at::Tensor fused_projection(
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& copy) {
  return Projection::apply(x, weight, &copy);
}

Loss fused_cross_entropy(
    const at::Tensor& logits,
    const at::Tensor& labels,
    double smoothing) {
  const auto results = CrossEntropy::apply(logits, labels, smoothing);
  return {results[0], results[1]};
}

}  // namespace lockstep::models
