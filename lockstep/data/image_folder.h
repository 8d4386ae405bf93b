#pragma once

// Images of a folder, decoded when read: root/<class>/**.png|jpg|jpeg, or the
// images right in the root, which then have no classes. Classes and files are
// sorted by name. Where root/train is a folder, it holds the training images
// and root/test (or root/val) the others.

#include <memory>
#include <string>

#include "lockstep/data/dataset.h"

namespace lockstep::data {

std::unique_ptr<Dataset>
open_image_folder(const std::string& root, bool train, int64_t limit);

}  // namespace lockstep::data
