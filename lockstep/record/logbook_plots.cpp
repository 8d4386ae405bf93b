#include "lockstep/record/logbook_plots.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

namespace lockstep::record {

namespace {

constexpr size_t kMostLines = 8;      // more ranks are drawn as a band
constexpr int kBuckets = 240;         // of steps or seconds in a plot
constexpr size_t kMostPictures = 12;  // of metrics

std::string lower(std::string text) {
  for (char& c : text) {
    c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return text;
}

bool has(const std::string& text, std::initializer_list<const char*> words) {
  return std::any_of(words.begin(), words.end(), [&](const char* word) {
    return text.find(word) != std::string::npos;
  });
}

std::string file_name(const std::string& name) {
  std::string file;
  for (const char c : lower(name)) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    if (plain) {
      file += c;
    } else if (!file.empty() && file.back() != '_') {
      file += '_';
    }
  }
  while (file.ends_with('_')) {
    file.pop_back();
  }
  return (file.empty() ? "metric" : file.substr(0, 60)) + ".svg";
}

struct Extent {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
};

Extent extent_of(const std::vector<Series>& all) {
  Extent extent;
  for (const Series& series : all) {
    for (const double value : series.y) {
      if (std::isfinite(value)) {
        extent.low = std::min(extent.low, value);
        extent.high = std::max(extent.high, value);
      }
    }
  }
  return extent;
}

Picture metric_picture(
    const std::string& title,
    const std::string& file,
    const std::vector<Series>& series,
    const std::string& y_label) {
  const Extent extent = extent_of(series);
  PlotOptions options;
  options.title = title;
  options.x_label = "step";
  options.y_label = y_label;
  options.smooth = true;
  // A course over orders of magnitude shows nothing on a plain axis.
  options.log_y = extent.low > 0 && extent.high / extent.low > 100;
  return {file, title, plot_svg(series, options)};
}

// Time since the start in the unit that suits the length.
struct TimeScale {
  double factor = 1;
  std::string label = "seconds since the start";
};

TimeScale time_scale(const RunSummary& summary) {
  const double length = summary.end - summary.start;
  if (length > 5 * 3600) {
    return {1.0 / 3600, "hours since the start"};
  }
  if (length > 600) {
    return {1.0 / 60, "minutes since the start"};
  }
  return {};
}

// One line a rank, or lowest, mean and highest of many ranks over time.
std::vector<Series> rank_lines(
    const RunStory& story,
    const TimeScale& scale,
    const std::function<double(const wire::Resource&)>& value) {
  std::vector<Series> lines;
  const RunSummary& summary = story.summary;
  if (story.ranks.size() <= kMostLines) {
    for (const auto& [rank, course] : story.ranks) {
      Series line{fmt::format("rank {}", rank), {}, {}};
      for (const auto& use : course.uses) {
        line.x.push_back((use.time - summary.start) * scale.factor);
        line.y.push_back(value(use.resource));
      }
      if (!line.x.empty()) {
        lines.push_back(std::move(line));
      }
    }
    return lines;
  }
  struct Band {
    double low = 0, high = 0, sum = 0, count = 0;
  };
  std::map<int, Band> bands;
  const double length = std::max(summary.end - summary.start, 1e-9);
  for (const auto& [rank, course] : story.ranks) {
    for (const auto& use : course.uses) {
      // A clock may run before or after the launcher's start and end.
      const double share =
          std::clamp((use.time - summary.start) / length, 0.0, 1.0);
      const auto bucket = static_cast<int>(share * (kBuckets / 2.0));
      Band& band = bands[bucket];
      const double seen = value(use.resource);
      band.low = band.count > 0 ? std::min(band.low, seen) : seen;
      band.high = band.count > 0 ? std::max(band.high, seen) : seen;
      band.sum += seen;
      ++band.count;
    }
  }
  lines = {
      {"lowest rank", {}, {}},
      {"mean of ranks", {}, {}},
      {"highest rank", {}, {}}};
  for (const auto& [bucket, band] : bands) {
    const double x = (bucket + 0.5) / (kBuckets / 2.0) * length * scale.factor;
    const double values[] = {band.low, band.sum / band.count, band.high};
    for (size_t i = 0; i < lines.size(); ++i) {
      lines[i].x.push_back(x);
      lines[i].y.push_back(values[i]);
    }
  }
  return lines;
}

// Bytes in the unit of their largest.
std::string scale_bytes(std::vector<Series>& lines) {
  const double most = extent_of(lines).high;
  const bool giga = most >= 4.0 * (1ULL << 30);
  const double unit = giga ? 1ULL << 30 : 1ULL << 20;
  for (Series& line : lines) {
    for (double& value : line.y) {
      value /= unit;
    }
  }
  return giga ? "GiB" : "MiB";
}

Picture rate_picture(const RunStory& story) {
  struct Bucket {
    double steps = 0, weight = 0;
    std::map<int, std::pair<double, double>> ranks;  // samples, seconds
  };
  std::map<int64_t, Bucket> buckets;
  const int64_t last = std::max<int64_t>(story.summary.steps, 1);
  const int64_t size = (last - 1) / kBuckets + 1;
  for (const auto& [rank, course] : story.ranks) {
    for (const auto& step : course.steps) {
      if (step.first || !(step.total > 0)) {
        continue;
      }
      Bucket& bucket = buckets[step.step / size];
      bucket.steps += static_cast<double>(step.step);
      ++bucket.weight;
      auto& sum = bucket.ranks[rank];
      sum.first += static_cast<double>(step.samples);
      sum.second += step.total;
    }
  }
  Series line{"all ranks", {}, {}};
  for (const auto& [index, bucket] : buckets) {
    double rate = 0;
    for (const auto& [rank, sum] : bucket.ranks) {
      rate += sum.first / sum.second;
    }
    line.x.push_back(bucket.steps / bucket.weight);
    line.y.push_back(rate);
  }
  PlotOptions options;
  options.title = "Throughput";
  options.x_label = "step";
  options.y_label = "samples per second, all ranks";
  options.smooth = true;
  options.from_zero = true;
  options.height = 300;
  return {"throughput.svg", options.title, plot_svg({line}, options)};
}

Picture split_picture(const RunSummary& summary) {
  Bars bars;
  bars.parts = {"data", "compute", "communication", "wait"};
  bars.title = "Where the time of an iteration goes";
  bars.x_label = "milliseconds, mean";
  for (const auto& row : summary.ranks) {
    if (row.iterations == 0) {
      continue;
    }
    const double scale = 1e3 / static_cast<double>(row.iterations);
    bars.rows.push_back(
        {fmt::format("rank {}", row.rank),
         {row.data * scale,
          row.compute * scale,
          row.communication * scale,
          row.wait * scale}});
  }
  return {"time_split.svg", bars.title, bars_svg(bars)};
}

}  // namespace

std::optional<bool> less_is_better(const std::string& metric) {
  const std::string name = lower(metric);
  if (has(name, {"loss", "error", "perplexity", "rmse", "mse", "mae", "fid"})) {
    return true;
  }
  if (has(name, {"acc", "psnr", "ssim", "f1", "auc", "precision", "recall"})) {
    return false;
  }
  return std::nullopt;
}

std::vector<Picture> metric_pictures(const RunStory& story) {
  std::vector<Series> losses;
  std::vector<Series> shares;
  std::vector<Series> others;
  for (const Series& series : story.metrics) {
    const std::string name = lower(series.name);
    const Extent extent = extent_of({series});
    if (extent.low > extent.high) {
      continue;  // not one finite value
    }
    const bool rate =
        name == "lr" || has(name, {"learning_rate", "lr/", "/lr"});
    if (has(name, {"loss"})) {
      losses.push_back(series);
    } else if (!rate && extent.low >= 0 && extent.high <= 1) {
      shares.push_back(series);
    } else {
      others.push_back(series);
    }
  }
  std::vector<Picture> pictures;
  if (!losses.empty()) {
    pictures.push_back(metric_picture(
        "Losses", "losses.svg", losses, "loss, mean over ranks"));
  }
  if (!shares.empty()) {
    pictures.push_back(metric_picture(
        shares.size() == 1 ? shares[0].name : "Metrics between 0 and 1",
        "shares.svg",
        shares,
        "mean over ranks"));
  }
  for (const Series& series : others) {
    if (pictures.size() < kMostPictures) {
      pictures.push_back(metric_picture(
          series.name, file_name(series.name), {series}, "mean over ranks"));
    }
  }
  return pictures;
}

std::vector<Picture> speed_pictures(const RunStory& story) {
  if (story.summary.iteration_seconds <= 0) {
    return {};
  }
  return {rate_picture(story), split_picture(story.summary)};
}

std::vector<Picture> resource_pictures(const RunStory& story) {
  const TimeScale scale = time_scale(story.summary);
  std::vector<Picture> pictures;
  const auto add =
      [&](const std::string& title,
          const std::string& file,
          const std::string& unit,
          const std::function<double(const wire::Resource&)>& get) {
        auto lines = rank_lines(story, scale, get);
        if (!(extent_of(lines).high > 0)) {
          return;  // not measured, or not there
        }
        PlotOptions options;
        options.title = title;
        options.x_label = scale.label;
        options.y_label = unit == "bytes" ? scale_bytes(lines) : unit;
        options.from_zero = true;
        options.height = 300;
        pictures.push_back({file, title, plot_svg(lines, options)});
      };
  add("Resident memory of each rank",
      "memory.svg",
      "bytes",
      [](const wire::Resource& use) { return use.resident_bytes; });
  add("Processor use of each rank",
      "cpu.svg",
      "cores in use",
      [](const wire::Resource& use) { return use.cpu; });
  add("GPU memory", "gpu_memory.svg", "bytes", [](const wire::Resource& use) {
    return use.gpu_memory_bytes;
  });
  add("GPU use", "gpu.svg", "percent", [](const wire::Resource& use) {
    return use.gpu_use * 100;
  });
  return pictures;
}

}  // namespace lockstep::record
