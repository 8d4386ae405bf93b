#include "lockstep/models/vit.h"

#include <fmt/format.h>
#include <torch/nn/functional/normalization.h>
#include <torch/nn/init.h>
#include <torch/types.h>

#include <map>
#include <stdexcept>

#include "lockstep/base/nearest.h"
#include "lockstep/kernels/attention.h"
#include "lockstep/models/linear.h"
#include "lockstep/models/packed_attention.h"

namespace lockstep::models {
namespace {

namespace nn = torch::nn;

constexpr double kInitStddev = .02;

const std::map<std::string, VitOptions>& named_options() {
  static const auto table = [] {
    struct Width {
      const char* name;
      int64_t dim;
      int64_t heads;
    };
    std::map<std::string, VitOptions> made;
    for (const Width& width :
         {Width{"tiny", 192, 3},
          Width{"small", 384, 6},
          Width{"base", 768, 12}}) {
      for (int64_t patch : {16, 32}) {
        VitOptions options;
        options.patch = patch;
        options.dim = width.dim;
        options.heads = width.heads;
        made[fmt::format("vit_{}_patch{}_224", width.name, patch)] = options;
      }
    }
    return made;
  }();
  return table;
}

// timm truncates at +-2 (absolute), which for .02 is no truncation that a
// float notices: 100 standard deviations.
void init_linear(nn::Linear& linear) {
  nn::init::normal_(linear->weight, 0, kInitStddev);
  nn::init::zeros_(linear->bias);
}

// A module that only holds children, so that names nest as timm's do.
std::shared_ptr<nn::Module> make_folder() {
  return std::make_shared<nn::Module>();
}

nn::LayerNorm make_norm(const VitOptions& options) {
  return nn::LayerNorm(
      nn::LayerNormOptions({options.dim}).eps(options.norm_eps));
}

}  // namespace

VitOptions vit_options(const std::string& name) {
  const auto found = named_options().find(name);
  if (found == named_options().end()) {
    throw std::invalid_argument(
        fmt::format(
            "unknown model '{}'; {}", name, suggest(name, vit_names())));
  }
  return found->second;
}

std::vector<std::string> vit_names() {
  std::vector<std::string> names;
  for (const auto& [name, options] : named_options()) {
    names.push_back(name);
  }
  return names;
}

void check_options(const VitOptions& options) {
  if (options.image_size < options.patch ||
      options.image_size % options.patch != 0) {
    throw std::invalid_argument(
        fmt::format(
            "vit: image size {} is not a multiple of the patch {}",
            options.image_size,
            options.patch));
  }
  if (options.dim % options.heads != 0) {
    throw std::invalid_argument(
        fmt::format(
            "vit: dim {} is not a multiple of heads {}",
            options.dim,
            options.heads));
  }
}

VitBlock::VitBlock(const VitOptions& options, bool last)
    : heads_(options.heads), last_(last) {
  const auto hidden = static_cast<int64_t>(
      static_cast<double>(options.dim) * options.mlp_ratio);
  norm1_ = register_module("norm1", make_norm(options));
  auto attention = register_module("attn", make_folder());
  qkv_ = attention->register_module(
      "qkv", nn::Linear(options.dim, 3 * options.dim));
  proj_ =
      attention->register_module("proj", nn::Linear(options.dim, options.dim));
  norm2_ = register_module("norm2", make_norm(options));
  auto mlp = register_module("mlp", make_folder());
  fc1_ = mlp->register_module("fc1", nn::Linear(options.dim, hidden));
  fc2_ = mlp->register_module("fc2", nn::Linear(hidden, options.dim));
  for (nn::Linear* linear : {&qkv_, &proj_, &fc1_, &fc2_}) {
    init_linear(*linear);
  }
}

at::Tensor VitBlock::attend(const at::Tensor& tokens) {
  const int64_t batch = tokens.size(0);
  const int64_t length = tokens.size(1);
  const int64_t dim = tokens.size(2);
  const auto packed = token_linear(qkv_, norm1_(tokens));
  if (!last_ && packed_attention_fits(packed)) {
    return tokens + token_linear(proj_, packed_attention(packed, heads_));
  }
  const auto qkv = packed.view({batch, length, 3, heads_, dim / heads_})
                       .permute({2, 0, 3, 1, 4})
                       .unbind(0);
  const auto queries = last_ ? qkv[0].narrow(2, 0, 1) : qkv[0];
  const auto attended =
      at::scaled_dot_product_attention(queries, qkv[1], qkv[2])
          .transpose(1, 2)
          .reshape({batch, queries.size(2), dim});
  return (last_ ? tokens.narrow(1, 0, 1) : tokens) +
         token_linear(proj_, attended);
}

at::Tensor VitBlock::expand(const at::Tensor& tokens) {
  return tokens +
         token_linear(fc2_, at::gelu(token_linear(fc1_, norm2_(tokens))));
}

BlockParameters VitBlock::ordered() const {
  return {
      norm1_->weight,
      norm1_->bias,
      qkv_->weight,
      qkv_->bias,
      proj_->weight,
      proj_->bias,
      norm2_->weight,
      norm2_->bias,
      fc1_->weight,
      fc1_->bias,
      fc2_->weight,
      fc2_->bias};
}

Vit::Vit(const VitOptions& options) : options_(options) {
  check_options(options);
  const int64_t side = options.image_size / options.patch;
  cls_token_ = register_parameter("cls_token", at::zeros({1, 1, options.dim}));
  pos_embed_ = register_parameter(
      "pos_embed", at::randn({1, side * side + 1, options.dim}) * kInitStddev);
  nn::init::normal_(cls_token_, 0, 1e-6);
  auto embed = register_module("patch_embed", make_folder());
  patches_ = embed->register_module(
      "proj",
      nn::Conv2d(
          nn::Conv2dOptions(options.channels, options.dim, options.patch)
              .stride(options.patch)));
  auto folder = register_module("blocks", make_folder());
  for (int64_t i = 0; i < options.depth; ++i) {
    blocks_.push_back(folder->register_module(
        std::to_string(i),
        std::make_shared<VitBlock>(options, i + 1 == options.depth)));
  }
  norm_ = register_module("norm", make_norm(options));
  head_ = register_module("head", nn::Linear(options.dim, options.classes));
  init_linear(head_);
}

bool Vit::kernels_fit(const VitOptions& options) {
  const int64_t side = options.image_size / options.patch;
  return kernels::attention_fits(side * side + 1, options.dim / options.heads);
}

at::Tensor Vit::as_patches(const at::Tensor& images) const {
  const int64_t patch = options_.patch;
  const int64_t side = options_.image_size / patch;
  const int64_t batch = images.size(0);
  const auto patches =
      images.view({batch, options_.channels, side, patch, side, patch})
          .permute({0, 2, 4, 3, 5, 1})
          .reshape({batch, side * side, -1});
  return at::constant_pad_nd(patches, {0, 0, 1, 0}).view({-1, patches.size(2)});
}

at::Tensor Vit::forward_patches(const at::Tensor& patches) {
  std::vector<at::Tensor> parameters = {patches_->weight};
  for (size_t i = 0; i < blocks_.size() && !sharded_; ++i) {
    for (const auto& parameter : blocks_[i]->ordered()) {
      parameters.push_back(parameter);
    }
  }
  const auto& copies = copies_.refresh(parameters, patches.scalar_type());
  BlockShape shape;
  shape.length = length();
  shape.batch = patches.size(0) / shape.length;
  shape.heads = options_.heads;
  shape.eps = options_.norm_eps;
  shape.keep = keep_.value_or(Keep::kAll);
  const auto places = at::cat(
      {pos_embed_.slice(1, 0, 1) + cls_token_,
       pos_embed_.slice(1, 1) + patches_->bias},
      1);
  const auto embedded =
      fused_projection(patches, patches_->weight, copies.front())
          .view({shape.batch, shape.length, options_.dim});
  Residual tokens;
  tokens.x =
      (embedded + places.to(embedded.scalar_type())).view({-1, options_.dim});
  for (size_t i = 0; i < blocks_.size(); ++i) {
    shape.first_only = i + 1 == blocks_.size();
    if (sharded_) {
      tokens = run_sharded(*blocks_[i], tokens, shape);
      continue;
    }
    BlockParameters of_block;
    std::copy_n(
        copies.begin() + 1 + static_cast<int64_t>(i * kBlockParameters),
        kBlockParameters,
        of_block.begin());
    tokens = fused_block(tokens, blocks_[i]->ordered(), of_block, shape);
  }
  // Small from here on, and in fp32.
  const auto wide = [](const at::Tensor& tensor) {
    return tensor.to(at::kFloat);
  };
  const auto last = at::layer_norm(
      wide(tokens.delta.defined() ? tokens.x + tokens.delta : tokens.x),
      {options_.dim},
      wide(norm_->weight),
      wide(norm_->bias),
      options_.norm_eps);
  return at::linear(last, wide(head_->weight), wide(head_->bias));
}

// The sum is made between blocks: a runner passes one tensor on.
Residual Vit::run_sharded(
    VitBlock& block,
    const Residual& tokens,
    const BlockShape& shape) {
  const RunBlock run = [&](const at::Tensor& x) {
    BlockParameters gathered = block.ordered();
    for (auto& parameter : gathered) {
      parameter = parameter.detach();
    }
    const auto next = fused_block({x, {}}, block.ordered(), gathered, shape);
    return next.x + next.delta;
  };
  return {runner_ ? runner_(block, tokens.x, run) : run(tokens.x), {}};
}

at::Tensor Vit::forward(const at::Tensor& images) {
  if (keep_) {
    const auto type = images.is_cuda() ? at::kBFloat16 : images.scalar_type();
    return forward_patches(as_patches(images.to(type)));
  }
  const int64_t batch = images.size(0);
  auto patches = patches_(images).flatten(2).transpose(1, 2);
  auto tokens =
      at::cat({cls_token_.expand({batch, -1, -1}), patches}, 1) + pos_embed_;
  for (const auto& block : blocks_) {
    const RunBlock run = [&block](const at::Tensor& x) {
      return block->forward(x);
    };
    tokens = runner_ ? runner_(*block, tokens, run) : run(tokens);
  }
  return head_(norm_(tokens.select(1, 0)));
}

}  // namespace lockstep::models
