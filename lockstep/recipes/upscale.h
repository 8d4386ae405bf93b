#pragma once

// Images made four times larger by a trained generator: whole, or in tiles
// where memory is short. A tile is computed with a margin on each side that is
// thrown away. Up to kMostMargin pixels the margin is all that an output pixel
// sees (EsrganGenerator::reach()), and tiles give what the whole image gives;
// beyond, what lies farther off is left out (its share is some thousandths of a
// pixel value, docs/recipes.md) and neighbours are blended over half a margin,
// so that no edge shows.

#include <ATen/core/Tensor.h>

#include <string>

#include "lockstep/models/esrgan.h"
#include "lockstep/record/png.h"
#include "lockstep/train/recipe.h"

namespace lockstep::recipes {

constexpr int64_t kMostMargin = 32;
constexpr int64_t kLeastTile = 32;

// [1, c, h, w], normalised -> 4h x 4w; tiles of `tile` pixels of the input a
// side, 0: whole. As floats there is one row of tiles at a time.
record::Image upscale(
    models::EsrganGenerator& generator,
    const at::Tensor& low,
    int64_t tile,
    const train::Context& context);

struct UpscaleJob {
  std::string image;       // a file, or a folder whose images are all taken
  std::string checkpoint;  // of recipe esrgan, or a generator's alone
  std::string out;         // folder; empty: beside the images
  int64_t tile = 0;
};
// Writes NAME-x4.png for each and prints its path; an exit code. Of two images
// that differ by their endings only, the second is NAME.png-x4.png. In a folder
// an image that cannot be read is told, the others are made, and the code is 1.
// Images are shared between ranks. Throws TrainError for what is not there.
int upscale_images(const UpscaleJob& job, const train::Context& context);

}  // namespace lockstep::recipes
