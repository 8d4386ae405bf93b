#pragma once

// Vision transformer (Dosovitskiy et al., arXiv 2010.11929) with timm's layout
// and names: cls_token, pos_embed, patch_embed.proj, blocks.N.{norm1,
// attn.qkv, attn.proj, norm2, mlp.fc1, mlp.fc2}, norm, head. Pre-norm blocks,
// exact GELU, class token to the head. Truncated normal .02. Plain modules.

#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/models/fused.h"

namespace lockstep::models {

struct VitOptions {
  int64_t image_size = 224;
  int64_t patch = 32;
  int64_t channels = 3;
  int64_t classes = 10;
  int64_t dim = 768;
  int64_t depth = 12;
  int64_t heads = 12;
  double mlp_ratio = 4;
  double norm_eps = 1e-6;
};

// timm's names: vit_{tiny,small,base}_patch{16,32}_224. Throws
// std::invalid_argument with the accepted ones.
VitOptions vit_options(const std::string& name);
std::vector<std::string> vit_names();

// Throws std::invalid_argument: size not a multiple of the patch, dim not of
// the heads.
void check_options(const VitOptions& options);

class VitBlock : public torch::nn::Module {
 public:
  // `last`: gives the class token alone, [batch, 1, dim], for nobody reads the
  // other tokens of a model's last block. They are keys and values there.
  VitBlock(const VitOptions& options, bool last);
  at::Tensor forward(const at::Tensor& tokens) {
    return expand(attend(tokens));
  }
  // Its two halves, each with its residual.
  at::Tensor attend(const at::Tensor& tokens);
  at::Tensor expand(const at::Tensor& tokens);
  // As fused_block takes them.
  BlockParameters ordered() const;

 private:
  int64_t heads_;
  bool last_;
  torch::nn::LayerNorm norm1_{nullptr};
  torch::nn::Linear qkv_{nullptr};
  torch::nn::Linear proj_{nullptr};
  torch::nn::LayerNorm norm2_{nullptr};
  torch::nn::Linear fc1_{nullptr};
  torch::nn::Linear fc2_{nullptr};
};

class Vit : public torch::nn::Module {
 public:
  // Runs a block on its tokens: by `run`, which is how the model would, or in
  // some other way.
  using RunBlock = std::function<at::Tensor(const at::Tensor& tokens)>;
  using BlockRunner = std::function<at::Tensor(
      VitBlock& block,
      const at::Tensor& tokens,
      const RunBlock& run)>;
  explicit Vit(const VitOptions& options);
  // From outside: recompute, sharding. Null: plainly.
  void run_blocks_by(BlockRunner runner) { runner_ = std::move(runner); }
  // In the order of forward.
  const std::vector<std::shared_ptr<VitBlock>>& blocks() const {
    return blocks_;
  }
  // [n, channels, size, size] -> [n, classes] logits.
  at::Tensor forward(const at::Tensor& images);
  const VitOptions& options() const { return options_; }

  // Computes with lockstep/kernels from now on, in the type of the patches.
  // Needs kernels_fit() and the patch weights in channels_last. `sharded`: the
  // weights have that type, and a block's are there while the runner runs it.
  void use_kernels(Keep keep, bool sharded = false) {
    keep_ = keep;
    sharded_ = sharded;
  }
  bool uses_kernels() const { return keep_.has_value(); }
  static bool kernels_fit(const VitOptions& options);
  int64_t length() const { return pos_embed_.size(1); }  // tokens a sample
  // The same from the patches that kernels::prepare_images makes with a lead
  // of 1: [n x length(), patch x patch x channels].
  at::Tensor forward_patches(const at::Tensor& patches);

 private:
  at::Tensor as_patches(const at::Tensor& images) const;
  Residual
  run_sharded(VitBlock& block, const Residual& tokens, const BlockShape& shape);

  VitOptions options_;
  std::optional<Keep> keep_;
  bool sharded_ = false;
  Copies copies_;
  at::Tensor cls_token_;
  at::Tensor pos_embed_;
  torch::nn::Conv2d patches_{nullptr};
  std::vector<std::shared_ptr<VitBlock>> blocks_;
  BlockRunner runner_;
  torch::nn::LayerNorm norm_{nullptr};
  torch::nn::Linear head_{nullptr};
};

}  // namespace lockstep::models
