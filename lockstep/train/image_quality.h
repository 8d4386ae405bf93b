#pragma once

// How near images come to their originals: PSNR and SSIM (Wang et al. 2004: an
// 11 x 11 Gaussian window of 1.5 pixels, constants .01 and .03, windows inside
// the image only, mean over channels). Any device.

#include <ATen/core/Tensor.h>

namespace lockstep::train {

// [n, c, h, w] in [0, 1] each; one value an image, in fp64. Equal images have a
// PSNR of 100 dB here, so that means stay finite.
at::Tensor psnr(const at::Tensor& images, const at::Tensor& originals);

// Images below 11 pixels a side get a window of their size.
at::Tensor ssim(const at::Tensor& images, const at::Tensor& originals);

}  // namespace lockstep::train
