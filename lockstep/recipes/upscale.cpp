#include "lockstep/recipes/upscale.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "lockstep/base/log.h"
#include "lockstep/data/byte_stream.h"
#include "lockstep/data/decode.h"
#include "lockstep/data/image_folder.h"
#include "lockstep/os/file.h"
#include "lockstep/recipes/normal_images.h"
#include "lockstep/recipes/setup.h"
#include "lockstep/record/png.h"
#include "lockstep/train/checkpoint_reader.h"
#include "lockstep/train/error.h"
#include "lockstep/train/group.h"
#include "lockstep/train/memory.h"
#include "lockstep/train/precision.h"
#include "lockstep/train/weights.h"

namespace lockstep::recipes {
namespace {

namespace fs = std::filesystem;

using models::kUpscale;
using train::kBadInput;
using train::TrainError;

constexpr std::string_view kResult = "-x4";  // ends the names of results

// One axis of the tiles: [begin, end) is a tile's own, [from, to) is computed.
struct Span {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t from = 0;
  int64_t to = 0;
  at::Tensor weights;  // of the outputs from 4 x from to 4 x to
};

// Even parts of at most `tile`. Neighbours' weights sum to 1: steps without
// `feather`, else ramps over 2 x feather pixels around their border.
std::vector<Span>
cut(int64_t length, int64_t tile, int64_t margin, int64_t feather) {
  const int64_t count = tile == 0 ? 1 : (length + tile - 1) / tile;
  // The ramps of a part's two borders do not meet.
  feather = std::min(feather, length / count / 2);
  std::vector<Span> spans;
  for (int64_t i = 0; i < count; ++i) {
    Span span;
    span.begin = length * i / count;
    span.end = length * (i + 1) / count;
    span.from = std::max<int64_t>(0, span.begin - margin);
    span.to = std::min(length, span.end + margin);
    const auto where =
        at::arange(kUpscale * span.from, kUpscale * span.to, at::kDouble) + .5;
    const auto ramp = [&](const at::Tensor& inside) {
      const double half = static_cast<double>(kUpscale * feather);
      return feather == 0 ? (inside > 0).to(at::kDouble)
                          : ((inside + half) / (2 * half)).clamp(0, 1);
    };
    span.weights = at::ones_like(where);
    if (i > 0) {
      span.weights *= ramp(where - static_cast<double>(kUpscale * span.begin));
    }
    if (i + 1 < count) {
      span.weights *= ramp(static_cast<double>(kUpscale * span.end) - where);
    }
    spans.push_back(std::move(span));
  }
  return spans;
}

struct Loaded {
  std::shared_ptr<models::EsrganGenerator> generator;
  int64_t channels = 3;
};

// The generator as large as the checkpoint says.
Loaded load_generator(const std::string& path, const train::Context& context) {
  if (path.empty()) {
    throw TrainError(
        kBadInput,
        "'upscale' needs checkpoint=FILE, e.g. "
        "checkpoint=runs/<id>/checkpoints/best.safetensors");
  }
  const train::CheckpointReader reader(path);
  std::string prefix = "generator.";
  const auto* first = reader.find(prefix + "conv1.weight");
  if (first == nullptr) {
    prefix.clear();
    first = reader.find("conv1.weight");
  }
  if (first == nullptr || first->shape.size() != 4) {
    throw TrainError(
        kBadInput,
        fmt::format(
            "{} is no checkpoint of recipe esrgan: it has neither "
            "generator.conv1.weight nor conv1.weight",
            path));
  }
  models::EsrganOptions options;
  options.filters = first->shape[0];
  options.channels = first->shape[1];
  if (options.filters < 1 || (options.channels != 1 && options.channels != 3)) {
    throw TrainError(
        kBadInput,
        fmt::format(
            "{}: {}conv1.weight makes {} filters of {} channels; accepted: "
            "images of 1 (grey) or 3",
            path,
            prefix,
            options.filters,
            options.channels));
  }
  options.residual_blocks = 0;
  while (reader.find(
             fmt::format(
                 "{}res_blocks.{}.dense_blocks.0.b1.0.weight",
                 prefix,
                 options.residual_blocks)) != nullptr) {
    ++options.residual_blocks;
  }
  Loaded loaded;
  loaded.channels = options.channels;
  loaded.generator = std::make_shared<models::EsrganGenerator>(options);
  const auto report =
      train::load_weights(path, train::named_state(*loaded.generator, prefix));
  if (!report.missing.empty()) {
    throw TrainError(
        kBadInput,
        fmt::format("{}: '{}' is missing", path, report.missing.front()));
  }
  loaded.generator->eval();
  place(*loaded.generator, context);
  return loaded;
}

data::RawImage decoded(const std::string& path) {
  data::RawImage image;
  data::decode_image(data::read_file(path), path, image);
  return image;
}

// Files by their names, with and without endings.
using Sources = std::multimap<std::string, std::string>;

bool is_enlarged(const std::string& small, const std::string& large) {
  try {
    const auto from = data::image_size(data::read_file(small), small);
    const auto to = data::image_size(data::read_file(large), large);
    return to.width == kUpscale * from.width &&
           to.height == kUpscale * from.height;
  } catch (const data::DataError&) {
    return false;  // told when its turn comes
  }
}

// What an earlier call made (tasks_of) of an image of a quarter of its size:
// "a-x4.png" beside an "a.png" or "a.jpg", "a.png-x4.png", "a.png-x4-x4.png".
bool is_result(const fs::path& path, const Sources& sources) {
  std::string name = path.stem().string();
  bool stem = true;  // only the whole name is lengthened more than once
  while (path.extension() == ".png" && name.ends_with(kResult)) {
    name.resize(name.size() - kResult.size());
    const auto [begin, end] = sources.equal_range(name);
    const auto is_source = [&](const auto& source) {
      return is_enlarged(source.second, path.string());
    };
    if ((stem || data::has_image_name(name)) &&
        std::any_of(begin, end, is_source)) {
      return true;
    }
    stem = false;
  }
  return false;
}

std::vector<std::string> images_of(const std::string& image) {
  if (image.empty()) {
    throw TrainError(
        kBadInput, "'upscale' needs image=FILE, or a folder of images");
  }
  std::error_code absent;
  if (!fs::is_directory(image, absent)) {
    return {image};
  }
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(image)) {
    const bool hidden = entry.path().filename().string().starts_with('.');
    if (!hidden && data::has_image_name(entry.path()) &&
        !entry.is_directory(absent)) {
      files.push_back(entry.path().string());
    }
  }
  Sources sources;
  for (const fs::path file : files) {
    sources.emplace(file.stem().string(), file.string());
    sources.emplace(file.filename().string(), file.string());
  }
  std::erase_if(
      files, [&](const fs::path& file) { return is_result(file, sources); });
  std::ranges::sort(files);
  if (files.empty()) {
    throw TrainError(
        kBadInput, fmt::format("no images (*.png, *.jpg) in {}", image));
  }
  return files;
}

// [1, channels, h, w], normalised.
at::Tensor read_image(const std::string& path, int64_t channels) {
  const data::RawImage image = decoded(path);
  auto pixels = at::from_blob(
                    const_cast<uint8_t*>(image.pixels.data()),
                    {1, image.height, image.width, image.channels},
                    at::kByte)
                    .permute({0, 3, 1, 2})
                    .to(at::kFloat) /
                255;
  if (channels == 1) {  // as grey is made everywhere (ITU-R 601)
    pixels = pixels.select(1, 0) * .299 + pixels.select(1, 1) * .587 +
             pixels.select(1, 2) * .114;
    pixels = pixels.unsqueeze(1);
  }
  return from_pixels(pixels);
}

// Rows [1, c, n, w], normalised, as bytes of the image from row `at` on. Few at
// a time: what is made on the way would take several times their memory.
void put_rows(const at::Tensor& rows, int64_t at, record::Image& image) {
  constexpr int64_t kRows = 64;
  auto* to = image.pixels.data() + at * image.width * image.channels;
  for (int64_t y = 0; y < rows.size(2); y += kRows) {
    const auto some = rows.slice(2, y, std::min(y + kRows, rows.size(2)));
    const auto bytes = (to_pixels(some)[0] * 255)
                           .round()
                           .to(at::kByte)
                           .permute({1, 2, 0})
                           .contiguous();
    to = std::copy_n(bytes.data_ptr<uint8_t>(), bytes.numel(), to);
  }
}

template <class T>
T written(Result<T> result) {
  if (!result) {
    throw TrainError(train::kFailed, result.error().to_string());
  }
  if constexpr (!std::is_void_v<T>) {
    return std::move(*result);
  }
}

struct Task {
  fs::path from;
  fs::path to;
};

// Each image has a file of its own, which is none of the images: where two
// differ by their endings only, or a name is that of an image, the whole file
// name is taken.
std::vector<Task> tasks_of(
    const std::vector<std::string>& files,
    const std::string& out) {
  std::set<fs::path> taken;
  for (const auto& file : files) {
    taken.insert(fs::weakly_canonical(file));
  }
  std::vector<Task> tasks;
  for (const fs::path from : files) {
    const fs::path folder = out.empty() ? from.parent_path() : fs::path(out);
    fs::path to = folder / (from.stem().string() + "-x4.png");
    auto name = from.filename().string();
    while (!taken.insert(fs::weakly_canonical(to)).second) {
      to = folder / (name + "-x4.png");
      name += "-x4";
    }
    tasks.push_back({from, to});
  }
  return tasks;
}

// Rank 0's for all: another rank may list the folder when results lie in it.
std::vector<Task> agree_on_tasks(
    const UpscaleJob& job,
    const train::Context& context) {
  std::string failure;
  std::string list;
  if (context.rank() == 0) {
    try {
      for (const auto& task : tasks_of(images_of(job.image), job.out)) {
        list += task.from.string() + '\0' + task.to.string() + '\0';
      }
    } catch (const TrainError& error) {
      failure = error.what();
    }
  }
  failure = train::broadcast_text(failure, *context.group);
  if (!failure.empty()) {
    throw TrainError(kBadInput, failure);
  }
  std::istringstream paths(train::broadcast_text(list, *context.group));
  std::vector<Task> tasks;
  for (std::string from, to;
       std::getline(paths, from, '\0') && std::getline(paths, to, '\0');) {
    tasks.push_back({from, to});
  }
  return tasks;
}

void write_image(const record::Image& made, const fs::path& to) {
  if (to.has_parent_path()) {
    written(os::real_files().make_directories(to.parent_path()));
  }
  written(os::real_files().write_atomic(to, written(record::encode_png(made))));
  std::printf("%s: %d x %d\n", to.c_str(), made.width, made.height);
}

}  // namespace

record::Image upscale(
    models::EsrganGenerator& generator,
    const at::Tensor& low,
    int64_t tile,
    const train::Context& context) {
  torch::NoGradGuard no_grad;
  const int64_t margin = std::min(kMostMargin, generator.reach());
  const int64_t feather = margin < generator.reach() ? margin / 2 : 0;
  const auto rows = cut(low.size(2), tile, margin, feather);
  const auto columns = cut(low.size(3), tile, margin, feather);
  record::Image image;
  image.height = static_cast<int>(kUpscale * low.size(2));
  image.width = static_cast<int>(kUpscale * low.size(3));
  image.channels = static_cast<int>(low.size(1));
  image.pixels.resize(static_cast<size_t>(low.numel() * kUpscale * kUpscale));
  at::Tensor band;  // what has been added to a row of tiles
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto& row = rows[i];
    const auto above = band;
    band = at::zeros(
        {1, low.size(1), kUpscale * (row.to - row.from), image.width},
        at::kFloat);
    if (i > 0) {  // the parts overlap
      const auto& before = rows[i - 1];
      band.slice(2, 0, kUpscale * (before.to - row.from))
          .copy_(above.slice(2, kUpscale * (row.from - before.from)));
    }
    for (const auto& column : columns) {
      const auto part = low.slice(2, row.from, row.to)
                            .slice(3, column.from, column.to)
                            .contiguous(at::MemoryFormat::ChannelsLast);
      at::Tensor made;
      {
        train::AutocastGuard autocast(
            context.device, context.trainer.precision);
        made = generator.forward(part.to(context.device));
      }
      const auto weights = at::outer(row.weights, column.weights);
      band.slice(3, kUpscale * column.from, kUpscale * column.to)
          .add_(made.to(at::kCPU, at::kFloat) * weights.to(at::kFloat));
    }
    // No later part adds to these.
    const int64_t until = i + 1 < rows.size() ? rows[i + 1].from : row.to;
    put_rows(
        band.slice(2, 0, kUpscale * (until - row.from)),
        kUpscale * row.from,
        image);
  }
  return image;
}

int upscale_images(const UpscaleJob& job, const train::Context& context) {
  const auto tasks = agree_on_tasks(job, context);
  const auto loaded = load_generator(job.checkpoint, context);
  const auto world = static_cast<size_t>(context.world());
  bool all_made = true;
  for (auto i = static_cast<size_t>(context.rank()); i < tasks.size();
       i += world) {
    at::Tensor low;
    try {
      low = read_image(tasks[i].from, loaded.channels);
    } catch (const data::DataError& failure) {
      if (tasks.size() == 1) {
        throw;
      }
      log_error(std::string("passed over: ") + failure.what());
      all_made = false;
      continue;
    }
    std::optional<record::Image> made;
    try {
      made = upscale(*loaded.generator, low, job.tile, context);
    } catch (const std::exception& failure) {
      if (!train::is_out_of_memory(failure)) {
        throw;
      }
    }
    if (!made) {
      log_error(
          fmt::format(
              "{}: {} x {} pixels do not fit into memory at once; {} works on "
              "parts",
              tasks[i].from.string(),
              low.size(3),
              low.size(2),
              job.tile == 0 ? "tile=256" : "a smaller tile"));
      all_made = false;
      continue;
    }
    write_image(*made, tasks[i].to);
  }
  return all_made ? 0 : train::kFailed;
}

}  // namespace lockstep::recipes
