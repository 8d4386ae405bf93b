#include "lockstep/forest/granules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <optional>

#include "lockstep/base/log.h"
#include "lockstep/forest/collocation.h"
#include "lockstep/forest/hdf4_file.h"
#include "lockstep/forest/hdf5_file.h"

namespace lockstep::forest {
namespace {

constexpr int kBands = 16;
constexpr int kLastBandOfDay = 6;  // of those in a row; M09 and M11 are, too
// Counts from here on say why a pixel has no value (65533: saturated, ...).
constexpr double kFirstFlag = 65528;

Error bad(const std::string& message) {
  return Error(ErrorCode::kInvalidInput, message);
}

double unix_days(const std::chrono::year_month_day& date) {
  const std::chrono::sys_days days = date;
  return static_cast<double>(days.time_since_epoch().count());
}

// "A2014001.0012": year, day of the year, hour and minute.
std::optional<std::string> time_in(const std::string& name) {
  for (size_t at = 0; at + 13 <= name.size(); ++at) {
    const std::string part = name.substr(at, 13);
    bool fits = part[0] == 'A' && part[8] == '.';
    for (const size_t i : {1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12}) {
      fits = fits && part[i] >= '0' && part[i] <= '9';
    }
    if (fits) {
      return part;
    }
  }
  return std::nullopt;
}

double begin_of(const std::string& time) {
  const auto number = [&](size_t at, size_t count) {
    return std::stoi(time.substr(at, count));
  };
  const auto new_year = std::chrono::year(number(1, 4)) / 1 / 1;
  return (unix_days(new_year) + number(5, 3) - 1) * 86400. +
         number(9, 2) * 3600. + number(11, 2) * 60.;
}

// By the last part of a name, in whatever group.
std::optional<Hdf5Set> set_named(
    const Hdf5File& file,
    const std::string& name) {
  for (const auto& set : file.sets()) {
    if (set.name == name || set.name.ends_with("/" + name)) {
      return set;
    }
  }
  return std::nullopt;
}

std::string band_name(int band) {
  return fmt::format("M{:02}", band);
}

Result<std::vector<os::Path>> files_in(
    const os::Path& folder,
    const std::string& ending,
    const std::string& key) {
  LOCKSTEP_ASSIGN(const auto names, os::real_files().list(folder));
  std::vector<os::Path> paths;
  for (const auto& name : names) {
    if (name.ends_with(ending)) {
      paths.push_back(folder / name);
    }
  }
  if (paths.empty()) {
    return bad(
        fmt::format("{}={}: no {} file there", key, folder.string(), ending));
  }
  return paths;
}

// yymmdd and the share of the day, as CALIPSO writes it; none for what is no
// date, such as NaN.
std::optional<double> calipso_time(double value) {
  if (!(value >= 0 && value < 1e6)) {
    return std::nullopt;
  }
  const double whole = std::floor(value);
  const auto number = static_cast<int>(whole);
  const std::chrono::year_month_day date(
      std::chrono::year(2000 + number / 10000),
      std::chrono::month(static_cast<unsigned>(number / 100 % 100)),
      std::chrono::day(static_cast<unsigned>(number % 100)));
  if (!date.ok()) {
    return std::nullopt;
  }
  return (unix_days(date) + (value - whole)) * 86400;
}

// The column of a profile that stands for it: the middle of three places, the
// uppermost of many layers. NaN for fill.
double at(const Hdf4Set& set, size_t profile, bool middle) {
  const size_t columns =
      set.shape.size() > 1 ? static_cast<size_t>(set.shape[1]) : 1;
  const double value =
      set.values[profile * columns + (middle ? columns / 2 : 0)];
  return set.fill && value == *set.fill
             ? std::numeric_limits<double>::quiet_NaN()
             : value;
}

Result<void> add_track(const os::Path& path, Track& track) {
  LOCKSTEP_ASSIGN(const auto time, read_hdf4(path, "Profile_UTC_Time"));
  LOCKSTEP_ASSIGN(const auto latitude, read_hdf4(path, "Latitude"));
  LOCKSTEP_ASSIGN(const auto longitude, read_hdf4(path, "Longitude"));
  LOCKSTEP_ASSIGN(
      const auto flags, read_hdf4(path, "Feature_Classification_Flags"));
  const size_t profiles = time.shape.empty() ? 0 : time.shape[0];
  for (const auto* set : {&latitude, &longitude, &flags}) {
    if (set->shape.empty() || set->shape[0] != profiles) {
      return bad(
          fmt::format(
              "{}: its data sets differ in their number of profiles",
              path.string()));
    }
  }
  for (size_t i = 0; i < profiles; ++i) {
    const auto seconds = calipso_time(at(time, i, true));
    const double north = at(latitude, i, true);
    const double east = at(longitude, i, true);
    const double flag = at(flags, i, false);
    if (!seconds || !std::isfinite(north) || !std::isfinite(east) ||
        std::isnan(flag)) {
      continue;
    }
    track.time.push_back(*seconds);
    track.latitude.push_back(north);
    track.longitude.push_back(east);
    track.flags.push_back(static_cast<uint32_t>(flag));
  }
  return {};
}

struct Band {
  std::vector<double> counts;
  double fill = std::numeric_limits<double>::quiet_NaN();
  double highest = std::numeric_limits<double>::infinity();
  double scale = 1;
  double offset = 0;

  // NaN for fill.
  float value(size_t pixel) const {
    const double count = counts[pixel];
    if (!std::isfinite(count) || count == fill || count >= kFirstFlag ||
        count > highest) {
      return std::numeric_limits<float>::quiet_NaN();
    }
    return static_cast<float>(count * scale + offset);
  }
};

Result<Band> read_band(
    const Hdf5File& file,
    const os::Path& path,
    int band,
    const Swath& swath) {
  const auto set = set_named(file, band_name(band));
  if (!set || set->shape != std::vector<uint64_t>{swath.rows, swath.columns}) {
    return bad(
        fmt::format(
            "{}: no band {} of {} x {} pixels",
            path.string(),
            band_name(band),
            swath.rows,
            swath.columns));
  }
  Band result;
  LOCKSTEP_ASSIGN(result.counts, file.read_doubles(set->name, 0, swath.rows));
  const auto attribute = [&](const char* name, double otherwise) {
    return file.attribute(set->name, name).value_or(otherwise);
  };
  result.fill = attribute("_FillValue", result.fill);
  result.highest = attribute("valid_max", result.highest);
  result.scale = attribute("scale_factor", 1);
  result.offset = attribute("add_offset", 0);
  return result;
}

Result<Swath> read_swath(const os::Path& path) {
  LOCKSTEP_ASSIGN(const auto file, Hdf5File::open(path));
  const auto latitude = set_named(file, "latitude");
  const auto longitude = set_named(file, "longitude");
  if (!latitude || !longitude || latitude->shape.size() != 2 ||
      latitude->shape != longitude->shape) {
    return bad(path.string() + ": no latitude and longitude of pixels");
  }
  Swath swath;
  swath.rows = latitude->shape[0];
  swath.columns = latitude->shape[1];
  LOCKSTEP_ASSIGN(
      swath.latitude, file.read_floats(latitude->name, 0, swath.rows));
  LOCKSTEP_ASSIGN(
      swath.longitude, file.read_floats(longitude->name, 0, swath.rows));
  return swath;
}

bool has_band_of(const Hdf5File& file, int first, int last) {
  for (int band = first; band <= last; ++band) {
    if (set_named(file, band_name(band))) {
      return true;
    }
  }
  return false;
}

// What stands before the time in a name, without the two digits of the level:
// "VNPMOD." of VNP02MOD and of VNP03MOD, "VJ1MOD." of VJ102MOD and VJ103MOD.
std::string product_in(const std::string& name, const std::string& time) {
  constexpr auto kDigits = "0123456789";
  std::string product = name.substr(0, name.find(time));
  const size_t last = product.find_last_of(kDigits);
  if (last != std::string::npos && last > 0 &&
      product.find_last_of(kDigits, last - 1) == last - 1) {
    product.erase(last - 1, 2);
  }
  return product;
}

// A file of the imager, as far as its names tell.
struct SwathFile {
  os::Path path;
  std::string time;
  std::string product;
  bool has_day_bands = false;
  bool has_night_bands = false;
  bool has_places = false;

  bool has_bands() const { return has_day_bands || has_night_bands; }
  // The instrument records only what glows then.
  bool is_of_the_night() const { return !has_day_bands && has_night_bands; }
};

Result<SwathFile> look_at(const os::Path& path) {
  const auto name = path.filename().string();
  const auto time = time_in(name);
  if (!time) {
    return bad(
        fmt::format(
            "{}: no time like A2014001.0012 in its name", path.string()));
  }
  LOCKSTEP_ASSIGN(const auto file, Hdf5File::open(path));
  return SwathFile{
      path,
      *time,
      product_in(name, *time),
      has_band_of(file, 1, kLastBandOfDay),
      has_band_of(file, kLastBandOfDay + 1, kBands),
      set_named(file, "latitude") && set_named(file, "longitude")};
}

// Where a file's pixels lie: as it says itself, else another of its time and
// product, else one whose product has no bands there. Two satellites may share
// a folder, and nobody would notice the other's places.
Result<os::Path> places_of(
    const SwathFile& bands,
    const std::vector<SwathFile>& minute) {
  if (bands.has_places) {
    return bands.path;
  }
  std::vector<os::Path> own;
  std::vector<os::Path> unclaimed;
  for (const auto& file : minute) {
    const bool taken = std::ranges::any_of(minute, [&](const auto& other) {
      return other.has_bands() && other.product == file.product;
    });
    if (file.has_places && file.product == bands.product) {
      own.push_back(file.path);
    } else if (file.has_places && !taken) {
      unclaimed.push_back(file.path);
    }
  }
  const auto& candidates = own.empty() ? unclaimed : own;
  if (candidates.size() == 1) {
    return candidates.front();
  }
  if (candidates.empty()) {
    return bad(
        fmt::format(
            "{}: no file of {} has its latitude and longitude",
            bands.path.string(),
            bands.time));
  }
  std::vector<std::string> names;
  for (const auto& path : candidates) {
    names.push_back(path.filename().string());
  }
  return bad(
      fmt::format(
          "{}: several files of {} have a latitude and longitude: {}; "
          "accepted: one of its product, as VNP03MOD is of VNP02MOD",
          bands.path.string(),
          bands.time,
          fmt::join(names, ", ")));
}

// What rows are of: with other settings or places, or when more of the track
// has come, they are done again.
std::map<std::string, std::string> made_with(
    const Granule& granule,
    const CollocationOptions& options,
    uint64_t profiles) {
  return {
      {"kilometres", fmt::format("{}", options.kilometres)},
      {"window_seconds", fmt::format("{}", to_seconds(options.window))},
      {"places", granule.places.filename().string()},
      {"profiles", fmt::format("{}", profiles)}};
}

}  // namespace

Result<std::vector<Granule>> find_granules(const CollocationOptions& options) {
  LOCKSTEP_ASSIGN(
      const auto paths, files_in(options.viirs, ".nc", "collocate.viirs"));
  std::vector<SwathFile> files;
  std::map<std::string, std::vector<SwathFile>> minutes;
  for (const auto& path : paths) {
    LOCKSTEP_ASSIGN(const auto file, look_at(path));
    minutes[file.time].push_back(file);
    files.push_back(file);
  }
  std::vector<Granule> granules;
  std::vector<os::Path> night;
  for (const auto& file : files) {
    // Whatever else lacks a band is told when it is read.
    if (file.has_places && !file.has_bands()) {
      continue;
    }
    if (file.is_of_the_night()) {
      night.push_back(file.path);
      continue;
    }
    LOCKSTEP_ASSIGN(const auto places, places_of(file, minutes[file.time]));
    Granule granule{file.path, places, file.time, begin_of(file.time)};
    granule.rows = options.rows / (file.path.stem().string() + ".h5");
    granules.push_back(std::move(granule));
  }
  if (!night.empty()) {
    log_warning(
        fmt::format(
            "{}: passed over {} granules of the night, which have no bands M01 "
            "to M06, the first being {}",
            options.viirs.string(),
            night.size(),
            night.front().filename().string()));
  }
  return granules;
}

bool is_done(
    const Granule& granule,
    const Track& track,
    const CollocationOptions& options) {
  if (!os::real_files().exists(granule.rows)) {
    return false;
  }
  const auto before = [&](double time) {
    return std::lower_bound(
        track.ascending.begin(), track.ascending.end(), time);
  };
  const double end = granule.begin + to_seconds(options.window);
  const auto profiles = before(end) - before(granule.begin);
  if (profiles == 0) {
    return true;  // of a track that is here no longer
  }
  const auto file = Hdf5File::open(granule.rows);
  const auto made =
      made_with(granule, options, static_cast<uint64_t>(profiles));
  return file && std::ranges::all_of(made, [&](const auto& one) {
           return file->text(one.first) == one.second;
         });
}

Result<Track> read_tracks(const CollocationOptions& options) {
  LOCKSTEP_ASSIGN(
      const auto paths, files_in(options.calipso, ".hdf", "collocate.calipso"));
  Track track;
  for (const auto& path : paths) {
    LOCKSTEP_TRY(add_track(path, track));
  }
  track.ascending = track.time;
  std::ranges::sort(track.ascending);
  return track;
}

Result<CollocationCount> collocate_granule(
    const Granule& granule,
    const Track& track,
    const CollocationOptions& options) {
  LOCKSTEP_ASSIGN(const auto swath, read_swath(granule.places));
  LOCKSTEP_ASSIGN(const auto file, Hdf5File::open(granule.bands));
  const SwathSearch search(swath);
  CollocationCount count;
  std::vector<size_t> pixels;
  std::vector<int> phases;
  const double end = granule.begin + to_seconds(options.window);
  for (size_t i = 0; i < track.time.size(); ++i) {
    if (track.time[i] < granule.begin || track.time[i] >= end) {
      continue;
    }
    ++count.profiles;
    if (const auto found = search.nearest(
            track.latitude[i], track.longitude[i], options.kilometres)) {
      pixels.push_back(found->pixel);
      phases.push_back(cloud_phase(track.flags[i]));
    }
  }
  count.near = pixels.size();
  if (count.profiles == 0) {
    return count;  // its track may come later: a file would say that it is done
  }
  std::vector<Hdf5Column> columns;
  std::vector<char> whole(pixels.size(), 1);
  for (int band = 1; band <= kBands; ++band) {
    LOCKSTEP_ASSIGN(
        const auto values, read_band(file, granule.bands, band, swath));
    auto& column = columns.emplace_back(Hdf5Column{band_name(band), {}});
    for (size_t i = 0; i < pixels.size(); ++i) {
      column.values.push_back(values.value(pixels[i]));
      whole[i] = whole[i] && !std::isnan(column.values.back());
    }
  }
  columns.push_back({"label", {phases.begin(), phases.end()}});
  for (auto& column : columns) {
    std::vector<float> kept;
    for (size_t i = 0; i < whole.size(); ++i) {
      if (whole[i]) {
        kept.push_back(column.values[i]);
      }
    }
    column.values = std::move(kept);
  }
  count.rows = columns.back().values.size();
  auto attributes = made_with(granule, options, count.profiles);
  attributes["granule"] = granule.time;
  attributes["bands"] = granule.bands.filename().string();
  LOCKSTEP_TRY(write_hdf5(granule.rows, columns, attributes));
  return count;
}

}  // namespace lockstep::forest
