#include "lockstep/train/recorder.h"

#include <fmt/format.h>

#include <cstdio>

#include "lockstep/os/clock.h"
#include "lockstep/os/file.h"
#include "lockstep/record/csv.h"
#include "lockstep/record/tensorboard.h"
#include "lockstep/train/error.h"

namespace lockstep::train {
namespace {

constexpr auto kLineInterval = std::chrono::seconds(2);
// After a kill no more than this is missing in TensorBoard's file.
constexpr auto kFlushInterval = std::chrono::seconds(2);

template <class T>
T take(Result<T> result) {
  if (!result) {
    throw TrainError(kFailed, result.error().to_string());
  }
  if constexpr (!std::is_void_v<T>) {
    return std::move(*result);
  }
}

}  // namespace

struct Recorder::Impl {
  const record::RunDirectory* run;
  record::MetricsTable table;
  std::unique_ptr<record::TensorBoardWriter> board;
  os::Instant last_line{};
  os::Instant last_flush{};
};

Recorder::Recorder(
    const record::RunDirectory* run,
    bool active,
    int64_t last_step) {
  if (!active) {
    return;
  }
  auto& files = os::real_files();
  impl_ = std::make_unique<Impl>(Impl{
      run,
      take(record::MetricsTable::open(files, run->metrics(), last_step)),
      take(record::TensorBoardWriter::open(files, run->tensorboard()))});
}

Recorder::~Recorder() = default;

void Recorder::metrics(
    int64_t step,
    int64_t epoch,
    const std::map<std::string, double>& values) {
  if (!impl_) {
    return;
  }
  take(impl_->table.add(step, epoch, values));
  const double now = os::real_clock().unix_seconds();
  for (const auto& [name, value] : values) {
    take(impl_->board->scalar(name, value, step, now));
  }
  if (os::real_clock().now() - impl_->last_flush >= kFlushInterval) {
    flush();
  }
}

void Recorder::picture(const Picture& picture, int64_t step) {
  if (!impl_) {
    return;
  }
  const auto path =
      impl_->run->samples() / fmt::format("{}-{:06}.png", picture.name, step);
  const std::string png = take(record::encode_png(picture.image));
  take(os::real_files().write_atomic(path, png));
  take(impl_->board->image(
      picture.name, picture.image, step, os::real_clock().unix_seconds()));
}

void Recorder::line(const std::string& text, bool important) {
  if (!impl_) {
    return;
  }
  const auto now = os::real_clock().now();
  if (important || now - impl_->last_line >= kLineInterval) {
    impl_->last_line = now;
    std::printf("%s\n", text.c_str());
    std::fflush(stdout);
  }
}

void Recorder::flush() {
  if (impl_) {
    impl_->last_flush = os::real_clock().now();
    take(impl_->board->flush());
  }
}

}  // namespace lockstep::train
