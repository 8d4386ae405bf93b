#pragma once

// Images of a folder, decoded when read: root/<class>/**.png|jpg|jpeg, or the
// images right in the root, which then have no classes. Classes and files are
// sorted by name. root/test (or root/val) holds the test images, which are
// never shown for training. root/train holds the training images when there is
// one of those or nothing else; beside other classes it is a class.

#include <filesystem>
#include <memory>
#include <string>

#include "lockstep/data/dataset.h"

namespace lockstep::data {

std::unique_ptr<Dataset>
open_image_folder(const std::string& root, bool train, int64_t limit);

// The same without test images: all folders of the root are classes, also a
// `test` or `val` beside others. Where there is nothing but a split, train/.
std::unique_ptr<Dataset> open_class_folders(
    const std::string& root,
    int64_t limit);

// Ends in .png, .jpg or .jpeg, in any case.
bool has_image_name(const std::filesystem::path& path);

}  // namespace lockstep::data
